"""User-defined functions of the rows of a window."""
