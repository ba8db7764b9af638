"""``attnbench report``: one self-contained page of recorded runs and the outcomes of checks."""
