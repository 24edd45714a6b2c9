"""Aggregates of groups: the available calls, their state, and the operators that emit nothing else."""
