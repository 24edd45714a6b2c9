"""What every benchmark is made of: cases, sides that take turns, processes, a table, JSON, pictures.

Owns: ``measure`` (what is run, and how often), ``report`` (rows, their table, JSON and picture, exit codes, options
of the command line). Must not import asyncstate beyond its errors, Spark or a benchmark.
"""

# Names side by side, which would have a line each otherwise.
# isort: off
from bench.frame.measure import LAST_WORDS, ROOT, CaseError, Ratio, Side, WrongResult, in_turns, isolated
from bench.frame.measure import medians, output_of, ratio, reason, serving, stamp, turns
from bench.frame.report import LOG, Column, Cores, Figure, Report, Rounds, Row, Seed, benchmark
from bench.frame.report import chosen, columns, costs, figure, numbers, sides, times

__all__ = ["LAST_WORDS", "LOG", "ROOT", "CaseError", "Column", "Cores", "Figure", "Ratio"]
__all__ += ["Report", "Rounds", "Row", "Seed", "Side", "WrongResult", "benchmark", "chosen", "columns"]
__all__ += ["costs", "figure", "in_turns", "isolated", "medians", "numbers", "output_of", "ratio", "reason"]
__all__ += ["serving", "sides", "stamp", "times", "turns"]
