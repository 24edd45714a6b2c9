"""User-defined functions of rows, one row at a time."""
