"""The join of rows whose times are within an interval of each other."""
