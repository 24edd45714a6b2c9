"""Ranking: the first rows of each key in an order, with their numbers."""
