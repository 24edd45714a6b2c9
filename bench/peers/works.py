"""The work that all peers do: its rows, what must come out of it, and who does it.

Invariant: rows are a function of work, scale, seed and micro-batch alone, and every result has one answer: rows of one
key in one micro-batch never differ in a way that shows. Must not import Spark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.nexmark.oracle import read_queries

Tables = dict[str, pa.Table]

SPAN_US = 20_000_000  # event time of a micro-batch; those of two never overlap, so that no row is late
DELAY = "1 second"
BOUND = "10 seconds"
FLOOR_SHARE = 100  # the floor emits one row of this many, to have a result that can be compared
TUMBLE, HOP = ("10 seconds",), ("10 seconds", "2 seconds")
_DELAY_US = 1_000_000
_BASE_US = 1_600_000_000_000_000
_FILL_ROWS_MAX = 2_500_000


@dataclass(frozen=True)
class Scale:
    """How much. ``rows`` a counted micro-batch; ``keys`` that its rows are drawn from. Micro-batches: those that fill
    the state with a row a key, ``warm_up``, ``counted``, and one whose rows are checked."""

    rows: int
    keys: int
    warm_up: int
    counted: int
    seed: int = 1

    def fill(self, work: Work) -> int:
        return -(-self.keys // _FILL_ROWS_MAX) if work.fills else 0

    def first_counted(self, work: Work) -> int:
        return self.fill(work) + self.warm_up

    def micro_batches(self, work: Work) -> int:
        return self.first_counted(work) + self.counted + 1


class Result(NamedTuple):
    """The expected result: ``sql`` is the answer in DuckDB, the rows that the micro-batches from ``{first}`` to
    ``{last}`` emit, over the tables with a column ``batch``. With ``upsert`` (key columns) a peer may emit any number
    of rows per key, of which the last counts."""

    sql: str
    upsert: tuple[str, ...] = ()


class Work(NamedTuple):
    name: str
    title: str
    make: Callable[[Scale, int, np.random.Generator], Tables]
    results: Mapping[str, Result]
    peers: tuple[str, ...]
    fills: bool = True

    def tables(self, scale: Scale, batch: int) -> Tables:
        random = np.random.default_rng((scale.seed, scale.rows, scale.keys, batch))
        fill = scale.fill(self)
        if batch >= fill:
            return self.make(scale, batch, random)
        start, end = scale.keys * batch // fill, scale.keys * (batch + 1) // fill
        return {"rows": _table(random.permutation(np.arange(start, end, dtype=np.int64)), batch)}


def _table(keys: npt.NDArray[np.int64], batch: int, times: npt.NDArray[np.int64] | None = None) -> pa.Table:
    """``value`` follows from key and micro-batch, so that equal keys of a micro-batch have equal rows."""
    columns = {"key": pa.array(keys), "value": pa.array((keys * 31 + batch * 7) % 1_000_003)}
    if times is not None:
        columns["time"] = pa.array(times).cast(pa.timestamp("us", "UTC"))
    return pa.table(columns)


def _uniform(scale: Scale, batch: int, random: np.random.Generator) -> Tables:
    return {"rows": _table(random.integers(0, scale.keys, scale.rows), batch)}


def _half_new(scale: Scale, batch: int, random: np.random.Generator) -> Tables:
    """Half of the rows have keys of the fill, half keys that only this micro-batch has."""
    new = scale.rows // 2
    first, old = scale.keys + batch * new, random.integers(0, scale.keys, scale.rows - new)
    keys = np.concatenate([old, random.integers(first, first + new, new)])
    return {"rows": _table(random.permutation(keys), batch)}


def _times(batch: int, rows: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Ascending, inside the micro-batch's span; the last one pinned, so that the watermark falls into a window."""
    times = np.sort(random.integers(0, SPAN_US - 2_000, rows)) + _BASE_US + batch * SPAN_US
    times[-1] = _BASE_US + (batch + 1) * SPAN_US - 1_000
    return times


def _timed(scale: Scale, batch: int, random: np.random.Generator) -> Tables:
    keys = random.integers(0, scale.keys, scale.rows)
    return {"rows": _table(keys, batch, _times(batch, scale.rows, random))}


def _two_sides(scale: Scale, batch: int, random: np.random.Generator) -> Tables:
    """Two inputs of half the rows each, with ids; a row has about one partner within the bound."""
    tables = {}
    rows = scale.rows // 2
    for number, side in enumerate(("left", "right")):
        keys = random.integers(0, max(scale.rows // 4, 1), rows)
        ids = (np.arange(rows, dtype=np.int64) + batch * rows) * 2 + number
        times = pa.array(_times(batch, rows, random)).cast(pa.timestamp("us", "UTC"))
        names = [f"{side}_{column}" for column in ("key", "id", "time")]
        tables[side] = pa.table([pa.array(keys), pa.array(ids), times], names=names)
    return tables


_AGGREGATES = "count(*) AS n, CAST(sum(value) AS BIGINT) AS total, max(value) AS highest"
_MEAN = "CAST(sum(value * (value % 7 + 1)) AS DOUBLE) / sum(value % 7 + 1) AS mean"
_SHARED = {"here": "batch BETWEEN {first} AND {last}", "floor": str(FLOOR_SHARE), "delay": str(_DELAY_US)}
_SQL = {name: sql for (name,), sql in read_queries(Path(__file__).with_suffix(".sql"), **_SHARED)}
_FIRST, _FLOOR, _COUNTED, _JOINED = (Result(_SQL[name]) for name in ("first", "floor", "counted", "joined"))


def _latest(columns: str) -> Result:
    return Result(_SQL["latest"].replace("{columns}", columns), upsert=("key",))


def _windows(size_us: int, slide_us: int) -> Result:
    return Result(_SQL["windows"].replace("{size}", str(size_us)).replace("{slide}", str(slide_us)))


_NATIVE = ("ours-sync", "ours-async", "spark-heap", "spark-changelog", "spark-snapshot")
_PYTHON = ("tws-row", "tws-pandas", "apply-pandas")
_WITH_FLOOR = (*_NATIVE[:2], "floor", *_NATIVE[2:])
_BUNDLED = ("ours-sync", "ours-async", "bundle-sync", "bundle-async", "floor", *_PYTHON)
_COUNTS = {"": _COUNTED, "bundle": _latest("count(*) AS n"), "floor": _FLOOR}
_TUMBLED, _HOPPED = _windows(10_000_000, 10_000_000), _windows(10_000_000, 2_000_000)
_SUMMED = {"": _latest(_AGGREGATES), "floor": _FLOOR}
_MEANS = {"": _latest(_MEAN), "bundle": _latest(_MEAN), "floor": _FLOOR}

WORKS: Mapping[str, Work] = {
    work.name: work
    for work in (
        Work("a", "count, sum, max a key", _uniform, _SUMMED, _WITH_FLOOR),
        Work("b", "first row a key", _half_new, {"": _FIRST, "floor": _FLOOR}, _WITH_FLOOR),
        Work("c", "join within 10 s", _two_sides, {"": _JOINED}, _NATIVE, fills=False),
        Work("d", "counter a key", _uniform, _COUNTS, _BUNDLED),
        Work("g", "weighted mean a key, by a function in Python", _uniform, _MEANS, _BUNDLED),
        Work("e-tumble", "tumbling windows", _timed, {"": _TUMBLED}, _NATIVE, fills=False),
        Work("e-hop", "hopping windows", _timed, {"": _HOPPED}, _NATIVE, fills=False),
    )
}


class Peer(NamedTuple):
    """One engine in one setting. ``ours``: asyncstate; ``async_enabled`` is its switch, ``result`` names which of a
    work's results it makes. *floor* only brings the rows to Python: no stateful operator there can be quicker.
    ``slow``: Python code runs for each record or key, in the peer's own way: it gets fewer rows. ``store``: where Spark
    keeps state, a name of ``spark_plans.STORES``. ``needs``: a module without which the peer cannot run."""

    name: str
    title: str
    ours: bool = False
    async_enabled: bool = False
    result: str = ""
    slow: bool = False
    store: str = "changelog"
    needs: str = ""

    @property
    def missing(self) -> str:
        """Why the peer cannot run here; empty if it can."""
        try:
            found = not self.needs or importlib.util.find_spec(self.needs) is not None
        except ModuleNotFoundError:  # the package around it is missing, too
            found = False
        return "" if found else f"it needs the module {self.needs}, which is not installed"


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("ours-sync", "asyncstate, sync", ours=True),
        Peer("ours-async", "asyncstate, async", ours=True, async_enabled=True),
        Peer("bundle-sync", "asyncstate, built in, sync", ours=True, result="bundle"),
        Peer("bundle-async", "asyncstate, built in, async", ours=True, async_enabled=True, result="bundle"),
        Peer("floor", "asyncstate, without state", ours=True, result="floor"),
        Peer("spark-heap", "Spark, heap", store="heap"),
        Peer("spark-changelog", "Spark, RocksDB, changelog"),
        Peer("spark-snapshot", "Spark, RocksDB, snapshots", store="snapshots"),
        Peer("tws-row", "transformWithState", slow=True, needs="google.protobuf"),
        Peer("tws-pandas", "transformWithStateInPandas", slow=True, needs="google.protobuf"),
        Peer("apply-pandas", "applyInPandasWithState", slow=True),
    )
}
