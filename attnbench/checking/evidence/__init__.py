"""Evidence: the script that shows a failure again, and the known bugs that fail like it."""
