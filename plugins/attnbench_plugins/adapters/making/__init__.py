"""How somebody's class or function is imported and made, and what is said where it cannot be."""
