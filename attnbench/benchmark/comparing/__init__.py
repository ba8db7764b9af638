"""Comparing records: noise, verdicts, and which rows two sides share."""
