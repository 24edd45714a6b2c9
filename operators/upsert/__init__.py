"""One row a key, kept up to date."""
