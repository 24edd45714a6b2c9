"""Apache Flink as a peer: SQL for Nexmark, and a keyed ValueState in PyFlink for the counter.

Owns: finding a Python with ``apache-flink``, what runs in it, its input, its results. Flink runs in a process of
another Python, since its packages pin others than Spark's do. Its rows a second are those of a long input less a short
one, both on a JVM that has run the job before (``docs/performance.md``).
"""
