"""Rows in order: as time passes, or at the end of the input."""
