"""Every built-in operator on state in memory: what async mode costs or gains where nothing waits: ``python -m bench
modes``.

Owns: ``CASES``, and the measurement: throughput of async by that of sync on the same micro-batches by turns, in
processor time: nothing waits here, and what other processes take away would be larger than what is looked for.
Invariant: a case's micro-batches are a function of their number; both modes get the same ones. Must not import Spark
before it measures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

import operators as ops
from asyncstate import KeyedCoProcessFunction, KeyedProcessFunction
from asyncstate.config import resolve
from asyncstate.functions import MapFunction, ProcessWindowFunction
from asyncstate.operator import InputSpec, Operator, OperatorContext
from asyncstate.runtime import InputBatch
from asyncstate.state import ValueStateDescriptor
from bench.frame import Figure, Report, Rounds, Row, Seed, benchmark, columns, medians, turns
from bench.job import MODES, Job, sliced
from bench.processor_time import Spent

_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
_OUT = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_LOW = pc.field("value") < 700_000
_LOW_HIGH, _LOWS = {"LOW": _LOW, "HIGH": ~_LOW}, ops.count().where("LOW")
_COUNT, _SUM = ops.count().alias("n"), ops.sum_("value").alias("total")
_TUMBLE, _HOP = ops.tumble("10 seconds"), ops.hop("10 seconds", "2 seconds")
_RANGE = ops.range_("10 seconds")
_BOUNDS: dict[str, Any] = {"lower": "0 seconds", "upper": "5 seconds"}
_RIGHT: dict[str, Any] = {"suffixes": ("", "_right")}
_SPAN_US = 20_000_000
_BASE_US = 1_600_000_000_000_000


class Case(NamedTuple):
    """One operator. ``inputs`` get the same rows each; ``share`` of them, for those that are dear. The state has as
    small a share of its keys, unless ``keys_share`` says otherwise."""

    make: Callable[[], Operator]
    inputs: int = 1
    event_time: bool = False
    share: float = 1.0
    keys_share: float | None = None


def rows(keys: np.ndarray, number: int) -> pa.RecordBatch:
    """Micro-batch ``number``: a row a key, values of its own, times in its span."""
    random = np.random.default_rng(number)
    times = np.sort(random.integers(0, _SPAN_US, len(keys))) + _BASE_US + number * _SPAN_US
    return sliced(_SCHEMA, keys, random.integers(0, 1_000_000, len(keys)), times, rows=len(keys))[0]


class _Summing:
    def open(self, context: OperatorContext) -> None:
        self._total: Any = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))


class _Total(_Summing, MapFunction):
    def map(self, row: Any) -> Any:
        total = self._total

        def add(before: int) -> Any:
            return total.async_update(before + row[1]).then_apply(lambda _: (row[0], before + row[1]))

        return total.async_value().then_compose(add)


class _Process(_Summing, KeyedProcessFunction):
    async def process(self, row: Any, ctx: Any) -> None:
        total = await self._total.async_value() + row[1]
        await self._total.async_update(total)
        ctx.emit(row[0], total)


class _BothSides(_Summing, KeyedCoProcessFunction):
    async def process1(self, row: Any, ctx: Any) -> None:
        await self._total.async_update(row[1])

    async def process2(self, row: Any, ctx: Any) -> None:
        ctx.emit(row[0], await self._total.async_value())


class _Rows(ProcessWindowFunction):
    def process(self, key: Any, ctx: Any, rows: Any) -> Any:
        return [(key[0], len(rows))]


def _window(window: Any) -> Case:
    return Case(lambda: ops.WindowAggregate(window, [_COUNT, _SUM]), event_time=True)


CASES: Mapping[str, Case] = {
    "GroupAggregate": Case(lambda: ops.GroupAggregate([_COUNT, _SUM, ops.max_("value").alias("top")])),
    "GroupAggregate, DISTINCT": Case(ops.GroupAggregate),
    "Deduplicate, first": Case(lambda: ops.Deduplicate(keep="first", time="processing")),
    "Deduplicate, last": Case(lambda: ops.Deduplicate(keep="last", time="event"), event_time=True),
    "WindowAggregate, tumble": _window(_TUMBLE),
    "WindowAggregate, hop": _window(_HOP),
    "WindowAggregate, cumulate": _window(ops.cumulate("10 seconds", "2 seconds")),
    "WindowAggregate, session": _window(ops.session("5 seconds")),
    "GroupWindowAggregate": Case(lambda: ops.GroupWindowAggregate(_TUMBLE, [_COUNT]), event_time=True),
    "WindowTableFunction, hop": Case(lambda: ops.WindowTableFunction(_HOP), event_time=True),
    "WindowRank": Case(lambda: ops.WindowRank("value", 3, window=_TUMBLE), event_time=True),
    "WindowJoin": Case(lambda: ops.WindowJoin(window=_TUMBLE), inputs=2, event_time=True, share=0.5),
    "Join": Case(lambda: ops.Join("inner", **_RIGHT), inputs=2, share=0.2),
    "IntervalJoin": Case(lambda: ops.IntervalJoin(**_BOUNDS, **_RIGHT), inputs=2, event_time=True, share=0.5),
    "OverAggregate": Case(lambda: ops.OverAggregate([_SUM], _RANGE), event_time=True, share=0.5),
    "ChangelogNormalize": Case(ops.ChangelogNormalize),
    "TemporalJoin": Case(lambda: ops.TemporalJoin("inner", **_RIGHT), inputs=2, event_time=True, share=0.5),
    "UpsertMaterialize": Case(ops.UpsertMaterialize),
    "Match": Case(lambda: ops.Match("LOW+ HIGH", _LOW_HIGH, {"lows": _LOWS}), event_time=True, share=0.1),
    "TemporalSort": Case(ops.TemporalSort, event_time=True),
    "Rank": Case(lambda: ops.Rank("value", 3, rank_column="place"), share=0.5),
    "KeyedMap": Case(lambda: ops.KeyedMap(_Total(), _OUT), share=0.2),
    "KeyedMap, beyond the read cache": Case(lambda: ops.KeyedMap(_Total(), _OUT), share=0.2, keys_share=1.0),
    "KeyedReduce": Case(lambda: ops.KeyedReduce(lambda a, b: (a[0], a[1] + b[1], b[2])), share=0.2),
    "KeyedProcess": Case(lambda: ops.KeyedProcess(_Process(), _OUT), share=0.2),
    "CoProcess": Case(lambda: ops.CoProcess(_BothSides(), _OUT), inputs=2, share=0.1),
    "WindowProcess": Case(lambda: ops.WindowProcess(_Rows(), _TUMBLE, _OUT), event_time=True, share=0.1),
}
"""By name. Operators whose work is all user code (flat map, filter, connected map, broadcast, apply) are left out: they
run on the same engine as the functions shown."""

AIM, CONFIDENCE = 1.0, 0.95
_PIECES = 4
"""For each round so many smaller micro-batches, in pairs of their own: the machine's speed changes within seconds."""
_COLUMNS = columns("""
    sync CPU us: sync; async CPU us: async; sync /async: ratio as times drawn low high
    95% interval: low high; aim: aim as times; met: met; bytes /key: bytes
""")


def measure(name: str, folder: str, size: tuple[int, int], pairs: int, seed: int) -> list[Row]:
    """The row of a case; ``size``: rows of each of so many pairs of micro-batches, and keys in the state."""
    case = CASES[name]
    number_of_rows = max(10, int(size[0] * case.share))
    keys = max(10, int(size[1] * (case.share if case.keys_share is None else case.keys_share)))
    specs = [InputSpec(_SCHEMA, ("key",), "time" if case.event_time else None)] * case.inputs

    stored: list[float] = []  # bytes a key, with a row of each

    def side(mode: str) -> Callable[[tuple[int, pa.RecordBatch]], Spent]:
        config = resolve({"async-state.enabled": mode == "async"}, {})
        job = Job(Path(folder) / mode, case.make(), config, specs)

        def run(given: tuple[int, pa.RecordBatch]) -> Spent:
            job.watermark = _BASE_US + given[0] * _SPAN_US - 1  # the end of the micro-batch before
            spent = job.timed(InputBatch(given[1], None, index) for index in range(case.inputs))
            if given[0] == 0:
                stored.append(job.statistics["state_bytes"] / keys)
            return spent

        return run

    random = np.random.default_rng(seed)
    later = ((number, rows(random.integers(0, keys, number_of_rows), number)) for number in count(1))
    drawn = chain([(0, rows(np.arange(keys), 0))], later)  # the first fills the state, the second warms up
    spent = turns({mode: side(mode) for mode in MODES}, pairs, drawn, warm_up=2)
    both = zip(spent["sync"], spent["async"], strict=True)
    ratios = [(sync.cpu_seconds or 0.0) / (mine.cpu_seconds or 1.0) for sync, mine in both]
    found, (low, high) = statistics.median(ratios), interval_of_median(ratios)
    met = "yes" if round(found, 2) >= AIM else "even" if low <= AIM <= high else "no"
    facts: dict[str, Any] = {"ratio": found, "low": low, "high": high, "aim": AIM, "met": met}
    facts["bytes"] = stored[0]
    facts |= {mode: medians(each, case.inputs * number_of_rows)[1] for mode, each in spent.items()}
    return [Row(name=name, facts=facts, figures={name: Figure(found, low, high, rate=True)})]


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Confidence interval (at least 95%) of the median of the distribution of ``values``. By ranks, so for any
    distribution: the number of values below the median is binomial. Fewer than six values are not enough for it; they
    give their extremes."""
    ordered, count = sorted(values), len(values)
    tails = accumulate(math.comb(count, number) / 2**count for number in range(count))
    below = max(0, sum(tail <= (1 - CONFIDENCE) / 2 for tail in tails) - 1)
    return ordered[below], ordered[-1 - below]


@benchmark(rows=200, keys=100, rounds=1)
def modes(
    report: Report,
    rows: Annotated[int, typer.Option(min=10, help="Rows a micro-batch.")] = 200_000,
    keys: Annotated[int, typer.Option(min=10, help="Keys in the state.")] = 1_000_000,
    rounds: Rounds = 10,
    seed: Seed = 1,
) -> None:
    """Compare async with sync for every built-in operator, on state in memory, in processor time."""
    pairs = 1 if report.tiny else rounds * _PIECES
    report.section(f"Async by sync, {rows:,} rows, {keys:,} keys, one core, without Spark", _COLUMNS)
    for number, name in enumerate(CASES):
        folder = str(report.folder / str(number))
        report.case(name, measure, name, folder, (rows // _PIECES, keys), pairs, seed, alone=True)
