"""Styles of call: what makes a spec of a function, a module or a class that is not one."""
