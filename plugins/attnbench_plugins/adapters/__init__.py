"""How the code that people have is made and called, by its names and by small calls."""
