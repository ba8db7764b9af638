"""Output of commands: tables, outcomes, the first screen of a run, and files."""
