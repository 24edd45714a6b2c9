"""Rows of a key in an order: the first ones, with their numbers."""
