"""How a history reaches an operator: cut into micro-batches, shuffled, in bundles of some size, on some partitions.

Owns: ``Schedule`` and its generator, and ``MicroBatch``.
Invariant: the micro-batches have the records of the history, each once. The halves of an update stay in one
micro-batch, unless all records come in their true order. No event time comes behind the watermark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from asyncstate.testing import Tuning
from tests.properties.histories import Change, History, Record

Shuffle = Literal["any", "within keys", "none"]
"""``any``: every order of a micro-batch's records. ``within keys``: records with one ``order_key`` keep theirs."""

MEMORY: tuple[tuple[Tuning, dict[str, str]], ...] = (
    (Tuning(), {}),
    (Tuning(batch_hot_reads=True), {}),
    (Tuning(gathered_bytes=1 << 10), {"async-state.write-cache-size": "1kb"}),
)
"""Everything in memory; reads that all wait for the store; rows and writes that go to files."""
LARGE = 1_000
"""A bundle of so many rows has all rows of a micro-batch."""


@dataclass(frozen=True)
class MicroBatch:
    """Records in order of arrival, how far the history has come with them, and the watermark (None: as it was).

    ``stale`` counts those among them that have come in a micro-batch before.
    """

    records: tuple[Record, ...]
    seen: int
    watermark: int | None = None
    stale: int = 0


@dataclass(frozen=True)
class Schedule:
    """Micro-batches and the settings they are run with; ``last_watermark`` is that of an empty one behind them."""

    batches: tuple[MicroBatch, ...]
    bundle_size: int = 500_000
    parallelism: int = 1
    memory: int = 0
    last_watermark: int | None = None

    @property
    def options(self) -> dict[str, str]:
        """Options of the harness."""
        return {"async-state.bundle-size": str(self.bundle_size), **MEMORY[self.memory][1]}

    @property
    def tuning(self) -> Tuning:
        """What else the harness is given."""
        return MEMORY[self.memory][0]

    @property
    def whole_keys(self) -> bool:
        """Whether all rows that a key has in a micro-batch are in one bundle.

        Beyond the bundle, and on disk, the rows of one key may be taken apart.
        """
        return self.bundle_size > LARGE and self.tuning.gathered_bytes is None


@st.composite
def schedules(
    draw: st.DrawFn,
    history: History,
    shuffle: Shuffle = "any",
    times: Sequence[int] | None = None,
    come_again: bool = False,
    whole_updates: bool = False,
    batches_max: int = 4,
) -> tuple[Schedule, Schedule]:
    """One micro-batch in true order, and any cut and order of the same; ``times``: the event time column of each
    input, int microseconds. ``come_again``: with some records a second time, in a later micro-batch.
    ``whole_updates``: no cut comes between the halves of an update."""
    everything = history.records
    last = None
    if times is not None:  # not below that of the last micro-batch, whatever the cut
        newest = max((_time(record, times) for record in everything), default=0)
        last = newest + draw(st.sampled_from([-1, 0, 1_000_000, 4_000_000]))
    plain = Schedule(
        (MicroBatch(tuple(everything), len(everything), _below(everything, times)),), last_watermark=last
    )
    return plain, Schedule(
        tuple(draw(_batches(history, shuffle, times, come_again, whole_updates, batches_max))),
        draw(st.sampled_from([500_000, 1, 2, 3, 5])),
        draw(st.sampled_from([1, 2, 3])),
        draw(st.integers(0, len(MEMORY) - 1)),
        last,
    )


@st.composite
def _batches(
    draw: st.DrawFn,
    history: History,
    shuffle: Shuffle,
    times: Sequence[int] | None,
    come_again: bool,
    whole_updates: bool,
    batches_max: int,
) -> list[MicroBatch]:
    changes = history.changes
    in_order = not come_again and draw(st.integers(0, 3)) == 3
    if in_order and not whole_updates:  # then a cut may also part the halves of an update
        changes = [Change((record,), change.order_key) for change in changes for record in change.records]
    cuts = sorted(draw(st.lists(st.integers(0, len(changes)), max_size=batches_max - 1)))
    batches, seen, everything = [], 0, history.records
    for start, end in zip([0, *cuts], [*cuts, len(changes)], strict=True):
        watermark = _below(everything[seen:], times)
        new = sum(len(change.records) for change in changes[start:end])
        again = draw(_some(everything[:seen])) if come_again else []
        chosen = [*changes[start:end], *(Change((record,)) for record in again)]
        records = draw(shuffled(chosen, "none" if in_order else shuffle))
        seen += new
        batches.append(MicroBatch(tuple(records), seen, watermark, len(again)))
    return batches


def _some(records: Sequence[Record]) -> st.SearchStrategy[list[Record]]:
    return st.lists(st.sampled_from(records), max_size=3) if records else st.just([])


@st.composite
def shuffled(draw: st.DrawFn, changes: Sequence[Change], shuffle: Shuffle = "any") -> list[Record]:
    """The records of ``changes`` in any order, or one that keeps that of each ``order_key``."""
    given = [(change.order_key, record) for change in changes for record in change.records]
    if shuffle == "none":
        return [record for _, record in given]
    places = draw(st.permutations(range(len(given))))
    if shuffle == "any":
        return [given[place][1] for place in places]
    waiting: dict[Any, list[Record]] = defaultdict(list)
    for place, (key, record) in enumerate(given):
        waiting[place if key is None else key].insert(0, record)
    turns = [place if given[place][0] is None else given[place][0] for place in places]
    return [waiting[turn].pop() for turn in turns]


def _below(records: Sequence[Record], times: Sequence[int] | None) -> int | None:
    """The highest watermark that none of these rows is behind."""
    if times is None or not records:
        return None
    return min(_time(record, times) for record in records) - 1


def _time(record: Record, times: Sequence[int]) -> int:
    time: int = record.row[times[record.input]]
    return time
