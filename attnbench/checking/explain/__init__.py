"""What explains the failures of a subject."""
