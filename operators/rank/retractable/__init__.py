"""Rankings whose rows may be taken back: all rows are kept, the best ones apart."""
