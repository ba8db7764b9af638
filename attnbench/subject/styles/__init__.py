"""Styles of call: adapters that make specs of functions, modules and classes."""
