"""Attentions with one known mistake each, and right ones, to measure what finds bugs."""
