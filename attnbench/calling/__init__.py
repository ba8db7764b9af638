"""How the code that people have is imported, made and called."""
