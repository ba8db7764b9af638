"""The invariants on derivatives: gradients, and gradients of gradients."""
