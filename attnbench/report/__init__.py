"""Reports: records as tables, what a format of a check is given, and how all is printed."""
