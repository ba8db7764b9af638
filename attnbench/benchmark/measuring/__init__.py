"""Measuring one subject at one case, and sessions of many."""
