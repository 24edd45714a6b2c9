"""Rankings whose rows may be retracted: all rows are stored, the best ones separately."""
