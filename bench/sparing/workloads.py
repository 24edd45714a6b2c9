"""The work that is done in two ways: as every operator is run, and sparing what it does not need.

Owns: ``Case`` and ``CASES``.
Invariant: both ways of a case read the same rows and give the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstate.spark import StreamingJob, apply_batch
from operators import GroupAggregate, WindowAggregate, WindowTableFunction, count, hop, sum_

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Read = Callable[["DataFrame"], int]
Way = Callable[["DataFrame", Path, int, Read], int]
"""Does the work on the rows, in a folder of its own and so many partitions, and reads what comes: a digest of it."""

_WINDOW = hop("20 seconds", "10 seconds")


class ExchangedWindows(WindowTableFunction):
    """As operators with state are run: through the exchange, a store and a commit record."""

    stateless = False


def _in_a_job(
    df: DataFrame, folder: Path, cores: int, work: Callable[[DataFrame, Any], int], finish: bool = False
) -> int:
    """Run ``work`` in one micro-batch of a new job, and in the end of the input if that is asked for."""
    options = {"async-state.local-dir": str(folder / "local"), "async-state.parallelism": cores}
    job = StreamingJob(df.sparkSession, str(folder / "checkpoint"), options)
    digests: list[int] = []
    job.micro_batch(lambda rows, batch: digests.append(work(rows, batch)))(df, 0)
    if finish:
        job.finish()
    return sum(digests)


def _windows(stateless: bool, grouped: bool) -> Way:
    operator, key = (WindowTableFunction, None) if stateless else (ExchangedWindows, "k")

    def way(df: DataFrame, folder: Path, cores: int, read: Read) -> int:
        def work(rows: DataFrame, batch: Any) -> int:
            windows = batch.apply(operator(_WINDOW), rows, uid="windows", key=key, event_time="time")
            if not grouped:
                return read(windows)
            totals = GroupAggregate([count(), sum_("price")])
            return read(batch.apply(totals, windows, uid="totals", key=["k", "window_end"]))

        return _in_a_job(df, folder, cores, work)

    return way


def _aggregate_in_a_job(df: DataFrame, folder: Path, cores: int, read: Read) -> int:
    def work(rows: DataFrame, batch: Any) -> int:
        times = {"event_time": "time", "watermark_delay": 0}
        return read(batch.apply(_aggregate(), rows, uid="totals", key="k", **times))

    return _in_a_job(df, folder, cores, work, finish=True)


def _aggregate_in_a_batch(df: DataFrame, folder: Path, cores: int, read: Read) -> int:
    options = {"async-state.local-dir": str(folder / "local"), "async-state.parallelism": cores}
    totals = apply_batch(_aggregate(), df, key="k", event_time="time", options=options)
    digest = read(totals)
    totals.unpersist()
    return digest


def _aggregate() -> WindowAggregate:
    return WindowAggregate(_WINDOW, [count(), sum_("price")])


@dataclass(frozen=True)
class Case:
    """``usual`` and ``sparing`` are the two ways."""

    title: str
    usual: Way
    sparing: Way


CASES: dict[str, Case] = {
    "windows": Case("table function, alone", _windows(False, False), _windows(True, False)),
    "chain": Case("table function, aggregate", _windows(False, True), _windows(True, True)),
    "batch": Case("aggregate: job or apply_batch", _aggregate_in_a_job, _aggregate_in_a_batch),
}
