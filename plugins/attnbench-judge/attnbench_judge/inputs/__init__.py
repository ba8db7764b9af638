"""What the judge calls a candidate with, drawn so that nobody can know it."""
