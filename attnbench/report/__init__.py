"""Reports: what a format of a check's report is given, and records as tables."""
