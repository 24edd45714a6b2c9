"""Rows that the reader of a source drops: counted once per micro-batch, with an example.

Owns: ``counted_where`` and ``dropped_metric``.
Invariant: the count for a source in a micro-batch is that of all of its rows, however many actions read them.
Must not import storage or Spark.

The reader keeps such rows, marked, until the graph has counted them. A stage that reads all rows of the source anyway
observes them; only if no stage does, the source is read once more, as for event times.
"""

from __future__ import annotations

from typing import Final

from asyncstate.dataflow import Apply, Dataflow, Source
from asyncstate.driver.source_times import reads_all

_METRIC: Final = "asyncstate:dropped"


def counted_where(flow: Dataflow, source: Source) -> bool:
    """Whether some stage reads all rows of ``source``, so that the executor counts them there."""
    stages = [node for node in flow.nodes if isinstance(node, Apply) and not node.operator.stateless]
    return any(reads_all(node, source) for node in stages)


def dropped_metric(source: Source) -> str:
    """The name under which the dropped rows of a source are observed."""
    return f"{_METRIC}:{source.name}"
