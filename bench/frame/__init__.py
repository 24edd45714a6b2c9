"""What every benchmark is made of: cases, sides that take turns, processes, a table, JSON, pictures.

Owns: ``measure`` (what is run, and how often), ``report`` (rows, their table, JSON and picture, exit codes, options
of the command line). Must not import asyncstate beyond its errors, Spark or a benchmark.
"""

from bench.frame.measure import CaseError, Ratio, WrongResult, isolated, medians, ratio, turns
from bench.frame.report import Column, Figure, Report, Row

__all__ = ["CaseError", "Column", "Figure", "Ratio", "Report", "Row", "WrongResult"]
__all__ += ["isolated", "medians", "ratio", "turns"]
