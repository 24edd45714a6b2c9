"""One-phase against two-phase aggregation on Spark: what the local phase saves, and what it costs where keys are many.

Must not import the other benchmarks.
"""
