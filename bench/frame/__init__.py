"""What every benchmark is made of: cases, sides that take turns, processes, a table, JSON, pictures.

Owns: ``measure`` (what is run, and how often), ``report`` (rows, their table, JSON and picture, exit codes, options
of the command line). Must not import asyncstate beyond its errors, Spark or a benchmark.
"""

from bench.frame.measure import *  # noqa: F403 - the names that benchmarks use
from bench.frame.report import *  # noqa: F403 - as above
