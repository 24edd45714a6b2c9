"""Aggregate functions of the user's own, as aggregators among the built-in ones."""
