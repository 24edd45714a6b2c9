"""One row per key, kept up to date."""
