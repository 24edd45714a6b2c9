"""Runs an operator in both modes and compares them; what the tests of the functions share.

Owns: ``Step``, ``run_both``, ``run`` and the read pacer that makes every read of async mode wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from asyncstate.operator import Operator
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.testing import OperatorHarness
from tests.pacers import AlwaysSlow

OutputRow = tuple[Any, ...]


@dataclass
class Step:
    """A micro-batch: rows a input, their kinds, and where the clocks stand (microseconds; None: as before)."""

    rows: Sequence[Sequence[Any]] = ()
    others: Sequence[Sequence[Any]] = ()
    watermark: int | None = None
    elapsed: int = 0
    kinds: Sequence[str] | None = None


@dataclass
class Run:
    """What came out, a list a micro-batch; what was stored after each of them; counters a micro-batch."""

    outputs: list[list[OutputRow]] = field(default_factory=list)
    stored: list[dict[bytes, bytes]] = field(default_factory=list)
    statistics: list[dict[str, float]] = field(default_factory=list)

    @property
    def rows(self) -> list[OutputRow]:
        """All output rows."""
        return [row for rows in self.outputs for row in rows]

    def counted(self, name: str) -> int:
        """A counter's sum."""
        return int(sum(figures.get(f"counter.{name}", 0) for figures in self.statistics))


@contextmanager
def slow_reads() -> Iterator[None]:
    """Within, reads of async mode that are not in memory never answer at once."""
    before = worker_memory().pacer
    worker_memory().pacer = AlwaysSlow()
    try:
        yield
    finally:
        worker_memory().pacer = before


def run_step(harness: OperatorHarness, step: Step) -> list[OutputRow]:
    """One micro-batch."""
    if step.elapsed:
        harness.advance_processing_time(step.elapsed)
    if step.others:
        harness.push(step.others, input=1)
    if step.rows:
        harness.push(step.rows, kinds=step.kinds)
    if step.watermark is not None:
        harness.advance_watermark(step.watermark)
    return harness.end_batch()


def run(harness: OperatorHarness, steps: Sequence[Step], finish: bool = True) -> Run:
    """All micro-batches, and the last one with the final watermark."""
    result = Run()
    for step in steps:
        result.outputs.append(run_step(harness, step))
        result.stored.append(harness.state_entries())
        result.statistics.append(harness.statistics())
    if finish:
        result.outputs.append(harness.finish())
        result.stored.append(harness.state_entries())
        result.statistics.append(harness.statistics())
    return result


def run_both(
    make: Callable[[], Operator],
    inputs: Any,
    key: Sequence[Any],
    steps: Sequence[Step],
    finish: bool = True,
    **settings: Any,
) -> Run:
    """The run, which is the same in both modes: rows in order, stored bytes after every micro-batch, counters."""
    with OperatorHarness(make(), inputs, key, async_enabled=False, **settings) as harness:
        plain = run(harness, steps, finish)
    with slow_reads(), OperatorHarness(make(), inputs, key, async_enabled=True, **settings) as harness:
        waiting = run(harness, steps, finish)
    assert waiting.outputs == plain.outputs
    assert waiting.stored == plain.stored
    assert list(map(_counters, waiting.statistics)) == list(map(_counters, plain.statistics))
    return plain


def _counters(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name.startswith("counter.")}


def inserts(rows: Sequence[OutputRow]) -> list[OutputRow]:
    """The rows without their kinds, which must all be ``+I``."""
    assert {row[0] for row in rows} <= {"+I"}
    return [tuple(row[1:]) for row in rows]
