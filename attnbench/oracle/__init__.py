"""What the output should be, by two references, and how far off it may be."""
