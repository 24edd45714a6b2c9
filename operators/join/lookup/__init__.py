"""The lookup join: rows of a stream with what a place outside knows of their keys."""
