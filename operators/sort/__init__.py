"""Rows in order: as time passes, and at the end of the input."""
