"""Runs an operator over a schedule in the harness: its output, netted, and its state as readers see it.

Owns: ``Run``, ``run`` and ``read_states``.
Invariant: nothing that an operator emits is sorted or dropped here; states are decoded by what reads checkpoints.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from asyncstate.offline import StateDecoder
from asyncstate.offline.inspection import Inspection, key_schemas, states_of
from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness, net
from tests.properties.histories import Record, Table
from tests.properties.schedules import Schedule

OutputRow = tuple[Any, ...]
StateRow = dict[str, Any]
States = dict[str, list[StateRow]]

KEY_GROUPS = 6


@dataclass
class Run:
    """What came of a schedule: rows a micro-batch in their order, counters, stored bytes and states.

    ``states`` are those before the end of the input, which ``outputs`` has too where there are event times.
    """

    outputs: list[list[OutputRow]] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    stored: dict[bytes, bytes] = field(default_factory=dict)
    states: States = field(default_factory=dict)

    def netted(self, batches: int | None = None) -> Table:
        """The netted rows of the first micro-batches, by default of all."""
        return net(row for rows in self.outputs[:batches] for row in rows)


def one_nan(row: Iterable[Any]) -> OutputRow:
    """The row with the NaN that all share: Python takes nothing for equal to a NaN but itself."""
    return tuple(math.nan if value != value else value for value in row)


def run(
    make: Callable[[], Operator],
    inputs: Sequence[pa.Schema],
    key: Sequence[Sequence[str] | None],
    schedule: Schedule,
    async_enabled: bool = False,
    **settings: Any,
) -> Run:
    """Run the schedule; with event times then an empty micro-batch at ``last_watermark``, and the end."""
    folder = tempfile.mkdtemp(prefix="any-cut-")
    options = {**schedule.options, **settings.pop("options", {})}
    try:
        harness = OperatorHarness(
            make(),
            list(inputs),
            list(key),
            async_enabled=async_enabled,
            parallelism=schedule.parallelism,
            max_parallelism=KEY_GROUPS,
            options=options,
            tuning=schedule.tuning,
            folder=folder,
            **settings,
        )
        return _driven(harness, schedule, folder)
    finally:
        shutil.rmtree(folder)


def _driven(harness: OperatorHarness, schedule: Schedule, folder: str) -> Run:
    result = Run()
    for batch in schedule.batches:
        push(harness, batch.records)
        _end(harness, batch.watermark, result)
    if schedule.last_watermark is not None:
        _end(harness, schedule.last_watermark, result)
    result.stored = harness.state_entries()
    result.states = read_states(folder, result.stored)
    if schedule.last_watermark is not None:
        result.outputs.append([one_nan(row) for row in harness.finish()])
        _count(harness, result)
    return result


def _end(harness: OperatorHarness, watermark: int | None, result: Run) -> None:
    if watermark is not None:
        harness.advance_watermark(watermark)
    result.outputs.append([one_nan(row) for row in harness.end_batch()])
    _count(harness, result)


def _count(harness: OperatorHarness, result: Run) -> None:
    figures = harness.statistics().items()
    result.counters.update({name: int(value) for name, value in figures if name.startswith("counter.")})


def push(harness: OperatorHarness, records: Iterable[Record]) -> None:
    """Push the records in their order."""
    for input, chosen in groupby(records, lambda record: record.input):
        rows = list(chosen)
        harness.push([record.row for record in rows], input, kinds=[record.kind for record in rows])


class _Entries:
    """Stored entries as the decoders want them."""

    def __init__(self, stored: dict[bytes, bytes]) -> None:
        self._sorted = sorted(stored.items())
        self._stored = stored

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self._stored.get(key) for key in keys]

    def iterate(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in self._sorted if start <= key and (end is None or key < end))


def read_states(folder: str, stored: dict[bytes, bytes]) -> States:
    """The rows of each state and of the timers, decoded as for whoever reads the checkpoint in ``folder``."""
    (operator,) = Inspection(f"{folder}/checkpoint").manifest().operators.values()
    keys, entries = key_schemas(operator), _Entries(stored)
    found: States = {}
    for state in states_of(operator):
        decoder = StateDecoder(operator.uid, state, keys)
        batches = decoder.read(entries, range(KEY_GROUPS))
        found[state.name] = [row for batch in batches for row in batch.to_pylist()]
    return found
