"""A callee with the interface of a mechanism, a scoring function or a layer."""
