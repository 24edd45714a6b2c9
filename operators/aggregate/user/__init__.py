"""User-defined aggregate functions, as aggregators like the built-in ones."""
