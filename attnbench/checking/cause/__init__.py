"""The likely cause of a subject's failures."""
