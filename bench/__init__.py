"""Benchmarks of asyncstate: Nexmark on Spark, reports, command line (``python -m bench``).

Stands on ``asyncstate`` and ``operators``; nothing there may import it.
"""
