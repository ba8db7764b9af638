"""Evidence: a script that reproduces a failure, and known bugs with similar failures."""
