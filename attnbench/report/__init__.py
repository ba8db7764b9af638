"""Reports of recorded runs: one self-contained page, from records and outcomes."""
