"""The invariants on masks: what is hidden, in which form, and what may stand there."""
