"""The machine that measures: its memory, ceilings and load, and its description in records."""
