"""The right twins: plain torch, in stages, so that a mistake is one overridden stage."""
