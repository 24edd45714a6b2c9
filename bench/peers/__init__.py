"""asyncstate compared with other engines: the same work on the same rows, on one machine, in one run.

Owns: ``python -m bench peers``: the work, the peers, the turns they take, the aims, table, JSON and pictures. How it is
kept fair: ``docs/performance.md`` (comparison with other engines), and ``fairness`` in the JSON. A peer waits inside
``foreachBatch`` until it is its turn. The run on the small input warms the JVM and the Python workers, too. Flink is
not a dependency: it runs in an environment of its own (``--flink-python``), and is left out without one.
"""
