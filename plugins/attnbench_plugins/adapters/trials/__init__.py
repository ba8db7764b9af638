"""What small calls of a callee show: its layout, its masks, its conventions and its formula."""
