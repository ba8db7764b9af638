"""Measurements of one subject at one case, and sessions of many."""
