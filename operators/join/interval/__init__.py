"""The join of rows whose times lie within a distance of each other."""
