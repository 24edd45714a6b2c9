"""Aggregates of groups: what can be asked for, how it is kept, and the operators that put out nothing else."""
