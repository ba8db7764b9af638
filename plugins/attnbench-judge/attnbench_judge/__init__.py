"""The judge's side and the candidate's side, which share nothing but bytes."""
