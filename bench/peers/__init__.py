"""asyncstate compared with other engines: the same work on the same rows, on one machine, in one run.

Owns: ``python -m bench peers``: the work, the peers, the turns they take, the aims, table, JSON and pictures.

How it is kept fair:

* Every peer of a piece of work runs in a process (and JVM) of its own, so that none is warmed by another or shares a
  heap, block cache or Python worker with it.
* The processes take turns a micro-batch at a time, A B C A B C: a peer waits inside ``foreachBatch`` until it is its
  turn, and the wait is subtracted. So other load on the machine affects all alike, and each ratio compares neighbours.
* All read the same Parquet files, written once, with the same partitions, cores, trigger (``availableNow``, one
  micro-batch of files a trigger) and sink (``noop``, which takes every row), and keep their state in RocksDB.
* First a small input: each result is compared with DuckDB's, and a wrong peer is not measured. That run warms the JVM
  and the Python workers, too. Then the measured one: it fills the state, drops the warm-up, and the rows of one more,
  untimed micro-batch at its end are compared again, which shows that the state of the whole run is right.
* Peers that run Python code for each record get fewer rows a micro-batch, and as many fewer keys, so that a micro-batch
  ends: the state is smaller (which is to their advantage), the rows a key are as many.
* Spark's settings are the best known for it: ``fairness`` in the JSON names them.

Flink is not a dependency: it runs in an environment of its own (``--flink-python``), and is left out without one.
"""
