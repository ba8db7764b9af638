"""The built-in invariants, by topic; each module is a plugin with an entry point of its own."""
