"""Small changes of a subject's source with which every property holds."""
