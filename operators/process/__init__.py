"""The user's own functions of rows, one row at a time."""
