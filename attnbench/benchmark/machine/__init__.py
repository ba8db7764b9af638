"""The machine that measures: memory, ceilings, load, and what a record says of it."""
