"""Agreement of what is timed with the references: outputs, gradients, and timed calls."""
