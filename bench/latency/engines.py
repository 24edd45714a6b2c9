"""Who does the work here: asyncstate and Spark's stateful operators, as queries on one session.

Owns: ``Engine``, ``ENGINES``, ``Keyed``, ``KEYED``, ``Sink``, ``Running`` and ``start``.
Invariant: the plans are those of ``bench.peers``, whose results are compared with DuckDB's there; what differs between
the engines of a work is who runs it, never the rows or the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.peers.ours import graph
from bench.peers.ours import micro_batches as ours
from bench.peers.spark_plans import NATIVE, PYTHON, spark_conf
from bench.peers.works import PEERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from asyncstate.spark import StreamingJob

Numbers = npt.NDArray[np.int64]
Number = Callable[[Any], Any]
"""The number of each row, of the columns of a DataFrame or of arrays, by name."""


class Sink:
    """Receives the output: as a DataFrame from a function of micro-batches, as Arrow from a graph. It drops the rows,
    or gives ``seen`` the ``number`` of each as soon as it has them."""

    def __init__(self, number: Number | None = None, seen: Callable[[Numbers], None] | None = None) -> None:
        self._number, self._seen = number, seen

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        if self._number is None or self._seen is None:
            rows.write.format("noop").mode("overwrite").save()
        else:
            found = rows.select(self._number(rows).alias("number")).toArrow().column(0)
            self._seen(found.to_numpy().astype(np.int64))

    def write_arrow_micro_batch(self, rows: pa.Table, *_: Any) -> None:
        if self._number is not None and self._seen is not None:
            columns = {name: rows.column(name).to_numpy() for name in rows.column_names}
            self._seen(self._number(columns).astype(np.int64))


@dataclass(frozen=True)
class Engine:
    """One who does the work. ``peer`` is its name in ``bench.peers``; ``direct`` writes to Spark's sink ``noop`` itself
    instead of through ``foreachBatch``. ``graph``: a job of asyncstate's that is a graph; the sink gets Arrow.
    ``work``: the work of ``bench.peers.ours``, if it is another.
    """

    name: str
    title: str
    peer: str
    direct: bool = False
    graph: bool = False
    work: str = ""

    @property
    def missing(self) -> str | None:
        """Why it cannot run here; None if it can."""
        return PEERS[self.peer].missing


def _python(peer: str) -> Engine:
    return Engine(peer, PEERS[peer].title, peer, direct=True)


_OURS = (
    *(Engine(name, PEERS[name].title, name, graph=True) for name in ("ours-sync", "ours-async")),
    Engine("ours-function", "asyncstate, sync, a function", "ours-sync"),
)
_THREE = Engine("ours-three", "asyncstate, sync, three operators", "ours-sync", graph=True, work="a-three")
_SPARK = (
    Engine("spark-heap", "Spark, heap", "spark-heap", direct=True),
    Engine("spark", "Spark, RocksDB", "spark-changelog", direct=True),
    Engine("spark-foreach", "the same, foreachBatch", "spark-changelog"),
)
ENGINES: Mapping[str, tuple[Engine, ...]] = {
    "a": (*_OURS, _THREE, *_SPARK),
    "b": (*_OURS, *_SPARK),
    "d": (*_OURS, *map(_python, ("tws-row", "tws-pandas", "apply-pandas"))),
}
"""By work, asyncstate first."""


@dataclass(frozen=True)
class Keyed:
    """How the numbers that a source counts up become the rows of a work, and come out again.

    ``fixed`` is the key of number ``value`` where the state has ``{keys}`` keys; ``steady`` the key where each number
    has to be known by what comes out for it, and ``number``, for so many keys, that number by the columns that come
    out. ``each``: a row comes out for each number; otherwise one for the last of a key in a micro-batch.
    """

    fixed: str
    steady: str
    number: Callable[[int], Number]
    each: bool


_STRIDE = 7_919  # prime: neighbouring numbers are not neighbouring keys


def _counted(keys: int) -> Number:
    return lambda rows: (rows["n"] - 1) * keys + rows["key"]


def _key(_: int) -> Number:
    return lambda rows: rows["key"]


KEYED: Mapping[str, Keyed] = {
    "a": Keyed(f"pmod(value * {_STRIDE}, {{keys}})", "pmod(value, {keys})", _counted, each=False),
    # Half of the numbers have keys that were there, half new ones.
    "b": Keyed(
        f"IF(value % 2 = 0, pmod(value * {_STRIDE}, {{keys}}), {{keys}} + value)", "value", _key, each=True
    ),
    "d": Keyed(f"pmod(value * {_STRIDE}, {{keys}})", "pmod(value, {keys})", _counted, each=True),
}
"""By work."""


@dataclass
class Running:
    """A query that has been started, and the job it runs, if it is asyncstate's."""

    query: StreamingQuery
    job: StreamingJob | None

    def stop(self) -> None:
        if self.job is not None:
            self.job.stop(self.query)
            return
        self.query.stop()
        with suppress(Exception):  # Python workers that were at work say so
            self.query.awaitTermination(10)


def able(work: str, names: Sequence[str]) -> list[Engine]:
    """The engines of a work that are among ``names`` and can run here."""
    return [engine for engine in ENGINES[work] if engine.name in names and not engine.missing]


def start(
    spark: SparkSession, engine: Engine, work: str, rows: DataFrame, folder: Path, sink: Sink
) -> Running:
    """Start the work over ``rows``, a stream of key and value, with the default trigger; go on where it was in
    ``folder``. ``sink`` receives the output, except that of a direct engine."""
    peer, place = PEERS[engine.peer], str(folder / "query")
    if engine.graph:
        job = graph(spark, peer, engine.work or work, folder, rows, sink)
        return Running(job.start(query_checkpoint=place), job)
    if peer.ours:
        job, on_batch = ours(spark, peer, work, folder, sink)
        stream = rows.writeStream.foreachBatch(on_batch).option("checkpointLocation", place)
        return Running(stream.start(), job)
    for key, value in spark_conf(peer.store).items():
        if key != "spark.driver.memory":  # of the session; there is little state here
            spark.conf.set(key, value)
    plan, mode = PYTHON.get((work, engine.peer)) or NATIVE[work]
    stream = plan({"rows": rows}).writeStream.outputMode(mode)
    stream = stream.format("noop") if engine.direct else stream.foreachBatch(sink)
    return Running(stream.option("checkpointLocation", place).start(), None)
