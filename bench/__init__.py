"""Benchmarks of asyncstate: Nexmark on Spark, reports, command line (``python -m bench``).

Uses ``asyncstate`` and ``operators``, which must not import it.
"""
