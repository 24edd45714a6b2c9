"""Row pattern recognition."""
