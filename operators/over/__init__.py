"""Aggregates over the rows around each row: SQL's OVER."""
