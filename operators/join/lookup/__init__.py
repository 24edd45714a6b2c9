"""The lookup join: rows of a stream with what an external system returns for their keys."""
