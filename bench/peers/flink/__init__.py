"""Apache Flink as a peer: SQL for Nexmark, and a keyed ValueState in PyFlink for the counter.

Owns: finding a Python with ``apache-flink``, what runs in it, its input, its results.

Flink runs in a process of another Python, since its packages pin others than Spark's do. It has no micro-batches: its
rows a second are those of a long input less a short one, by the difference of their times, both on a JVM that has run
the job before. So starting a cluster, planning and ending cost it nothing. Its Parquet reader is not part of the
``apache-flink`` package, so it reads CSV files that hold the query's own columns and nothing else. Checkpoints are
taken every 2 seconds, as asyncstate commits every micro-batch, incrementally, to the local disk.
"""
