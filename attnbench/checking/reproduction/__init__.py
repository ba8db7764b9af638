"""A script in plain torch that reproduces a failure."""
