"""What commands print and write: tables, outcomes, the first screen of a run, and files."""
