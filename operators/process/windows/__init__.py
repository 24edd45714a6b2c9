"""The user's own functions of the rows of a window."""
