"""Reports of recorded runs: one self-contained page made of records and outcomes."""
