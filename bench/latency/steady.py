"""How long an event takes to its output while events come at a steady rate.

Owns: ``SteadyPlan``, ``latencies`` and ``problems_of``.
Invariant: the time of an event begins when it is handed to the source's socket and ends when the sink has the rows of
its micro-batch; what came out is checked to be right, for every event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bench.frame import Report, Row
from bench.latency.engines import KEYED, Engine, Running, chosen, start
from bench.latency.events import Events
from bench.peers.peers import PEERS
from bench.peers.works import WORKS
from bench.processor_time import TreeClocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS = 0.1
_BEHIND_SECONDS_MAX = 120.0
_KNOWN_SECONDS_MIN = 1.0


@dataclass(frozen=True)
class SteadyPlan:
    """How much: ``rate`` events a second for ``warm_up`` seconds that do not count and ``seconds`` that do."""

    folder: Path
    rate: int
    seconds: float
    warm_up: float
    keys: int
    engines: Sequence[str]

    @property
    def first(self) -> int:
        """The first event that counts."""
        return int(self.rate * self.warm_up)

    @property
    def count(self) -> int:
        """All events."""
        return self.first + int(self.rate * self.seconds)


@dataclass
class _Seen:
    """What came to the sink: numbers of events, a micro-batch each, and when it had them."""

    number: str
    numbers: list[npt.NDArray[np.int64]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)

    def take(self, rows: DataFrame, _batch_id: int) -> None:
        """The sink."""
        column = rows.selectExpr(f"{self.number} AS number").toArrow().column(0)
        moment = time.time()
        if len(column):
            self.moments.append(moment)
            self.numbers.append(column.to_numpy().astype(np.int64))

    def wait(self, until: Callable[[], bool], running: Running) -> None:
        """Wait for what is to come out; raises what the query fails with."""
        end = time.perf_counter() + _BEHIND_SECONDS_MAX
        while not until():
            if (failure := running.query.exception()) is not None:
                raise failure
            if time.perf_counter() > end:
                raise TimeoutError(
                    f"no further output within {_BEHIND_SECONDS_MAX:.0f} s; give a lower --rate"
                )
            time.sleep(_POLL_SECONDS)

    def has(self, number: int) -> bool:
        """Whether the event has come out."""
        return any((numbers == number).any() for numbers in self.numbers[-2:])


def latencies(spark: SparkSession, work: str, plan: SteadyPlan, report: Report) -> None:
    """One row per engine of a work, one after the other. All use the sink that records the output."""
    for peer in dict.fromkeys(engine.peer for engine in chosen(work, plan.engines)):
        engine = Engine(peer, PEERS[peer].title, peer)
        group = f"{work}: {WORKS[work].title}"
        report.case(engine.title, lambda: [_latency(spark, work, engine, plan, group)], group)  # noqa: B023


def _latency(spark: SparkSession, work: str, engine: Engine, plan: SteadyPlan, group: str) -> Row:
    seen = _Seen(KEYED[work].number.format(keys=plan.keys))
    folder = plan.folder / "steady" / work / engine.name
    with Events(plan.rate, plan.count, folder) as events:
        source = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", events.port)
        numbers = source.load().selectExpr("CAST(value AS BIGINT) AS value")
        rows = numbers.selectExpr(f"{KEYED[work].steady.format(keys=plan.keys)} AS key", "value")
        running = start(spark, engine, work, rows, folder, seen.take)
        try:
            seen.wait(lambda: bool(seen.numbers), running)
            clocks = TreeClocks()
            times = events.times()
            spent = clocks.spent()
            seen.wait(lambda: seen.has(plan.count - 1), running)
        finally:
            running.stop()
    facts = _facts(plan, seen, times) | {"engine": engine.name, "rate": plan.rate}
    if spent.cpu_seconds and spent.seconds > _KNOWN_SECONDS_MIN:
        facts["cpu_share"] = spent.cpu_seconds / spent.seconds
    wrong = problems_of(seen.numbers, plan, KEYED[work].each)
    return Row(name=engine.title, group=group, facts=facts, wrong=list(wrong))


def _facts(plan: SteadyPlan, seen: _Seen, times: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Milliseconds from event to output, over all counted events; events of a counted micro-batch on the mean."""
    counted = [
        moment - times[numbers[numbers >= plan.first]]
        for moment, numbers in zip(seen.moments, seen.numbers, strict=True)
    ]
    late = np.concatenate(counted) * 1e3
    p50, p95, longest = (float(np.percentile(late, share)) for share in (50, 95, 100))
    batches = sum(bool(len(each)) for each in counted)
    return {
        "events": len(late),
        "p50_ms": p50,
        "p95_ms": p95,
        "max_ms": longest,
        "batch_events": len(late) / batches,
    }


def problems_of(numbers: Sequence[npt.NDArray[np.int64]], plan: SteadyPlan, each: bool) -> tuple[str, ...]:
    """What is wrong with the numbers that came out, a micro-batch each.

    All are to come out once; unless ``each``, the last of every key, and the others at most once.
    """
    found, times = np.unique(np.concatenate(numbers), return_counts=True)
    wanted = np.arange(0 if each else max(0, plan.count - plan.keys), plan.count)
    problems = []
    if missing := len(np.setdiff1d(wanted, found)):
        problems.append(f"{missing:,} events are missing in the output")
    if twice := int((times > 1).sum()):
        problems.append(f"{twice:,} events are in the output more than once")
    if strange := len(np.setdiff1d(found, np.arange(plan.count))):
        problems.append(f"{strange:,} rows belong to no event")
    return tuple(problems)
