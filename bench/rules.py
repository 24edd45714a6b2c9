"""What each feedback rule of the engine brings: the same micro-batches with the rule and without it.

Owns: ``Rule``, ``RULES``, ``Work``, ``WORKS`` and ``measure``.
Invariant: both sides of a pair run the same keys in the same process over stores, caches and paces of their own, in
turn, the order turned round each time; a rule is off only while its side runs.

``python -m bench.rules [RULE ...]``. Processor time, but seconds of the clock on the slow device, where nearly all
of it is waiting. A ratio above 1 is what is lost without the rule.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from asyncstate.execution import AdaptiveReads
from asyncstate.execution.prefetch import ReadAhead
from asyncstate.operator import Operator
from asyncstate.runtime import WorkerMemory
from asyncstate.state.keyed.admission import AdmissionPolicy
from asyncstate.storage import ValueCache
from asyncstate.storage.memtable import MemTable
from asyncstate.storage.write_buffer import WriteBuffer
from bench.frame import Column, Ratio, Report, Row, ratio, turns
from bench.frame.measure import Side
from bench.frame.report import figure, times
from bench.micro.operators import CountPerKey, CountPerPair
from bench.micro.sides import Place
from bench.micro.state_path import RecordingStore
from bench.processor_time import Clocks, Spent
from bench.rows import batches
from operators import Deduplicate, GroupAggregate, count, sum_

_READ_SECONDS = 0.001

Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class Rule:
    """``off`` takes the place of what decides; the rule should matter in ``works``, in ``modes``."""

    name: str
    off: Sequence[Patch]
    works: Sequence[str]
    modes: Sequence[str] = ("sync", "async")


@dataclass(frozen=True)
class Work:
    """Micro-batches of ``rows`` rows of ``state_keys`` keys, as drawn; ``slow``: a store that waits 1 ms a read."""

    operator: Callable[[], Operator]
    state_keys: int
    rows: int
    draw: Callable[[np.random.Generator, int, int], np.ndarray]
    slow: bool = False


class SlowStore(RecordingStore):
    """Waits for each key that is read, as for a device that answers one read at a time of each thread."""

    def get(self, key: bytes) -> bytes | None:
        time.sleep(_READ_SECONDS)
        return super().get(key)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        time.sleep(_READ_SECONDS * len(keys))
        return super().get_many(keys, piece_keys)


def _uniform(random: np.random.Generator, keys: int, rows: int) -> np.ndarray:
    return random.integers(0, keys, rows)


def _zipf(random: np.random.Generator, keys: int, rows: int) -> np.ndarray:
    return random.zipf(1.2, rows).astype(np.int64) % keys


def _aggregate() -> Operator:
    return GroupAggregate([count().alias("n"), sum_("value").alias("total")])


WORKS = {
    "record, 20 keys": Work(CountPerKey, 20, 30_000, _uniform),
    "record, Zipf": Work(CountPerKey, 100_000, 30_000, _zipf),
    "record, uniform": Work(CountPerKey, 100_000, 30_000, _uniform),
    "record, new keys": Work(CountPerKey, 100_000_000, 30_000, _uniform),
    "record, 1 ms": Work(CountPerKey, 100_000, 300, _uniform, slow=True),
    "record, 1 ms, ahead": Work(CountPerKey, 100_000, 5_000, _uniform, slow=True),
    "aggregate": Work(_aggregate, 300_000, 60_000, _uniform),
    "map bundle": Work(CountPerPair, 300_000, 60_000, _uniform),
    "map bundle, large": Work(CountPerPair, 1_000_000, 100_000, _uniform),
    "map bundle, Zipf": Work(CountPerPair, 100_000, 60_000, _zipf),
    "deduplicate": Work(lambda: Deduplicate(keep="last", time="processing"), 300_000, 60_000, _uniform),
    "map bundle, 1 ms": Work(CountPerPair, 100_000, 300, _uniform, slow=True),
}
_RECORDS = ("record, 20 keys", "record, Zipf", "record, uniform")
_BUNDLES = ("aggregate", "map bundle", "map bundle, Zipf")

RULES = {
    rule.name: rule
    for rule in (
        Rule("hold", [(WriteBuffer, "hold", lambda *_: False)], (*_BUNDLES, "deduplicate")),
        Rule(
            "timed-gets",
            [(MemTable, "time_gets", lambda *_: None)],
            ("record, uniform", "record, new keys", "record, 1 ms", "record, 1 ms, ahead"),
            ("async",),
        ),
        Rule("trial", [(AdmissionPolicy, "add", lambda *_: True)], ("record, uniform", "record, new keys")),
        Rule("known-values", [(AdmissionPolicy, "begin", lambda *_: False)], _RECORDS),
        Rule(
            "cache-rest",
            [(ValueCache, "_recalls_pay", lambda *_: True)],
            ("map bundle", "map bundle, Zipf", "map bundle, large"),
        ),
        Rule(
            "read-ahead",
            [(ReadAhead, "wanted", lambda *_: [])],
            ("record, uniform", "record, new keys", "record, 1 ms", "record, 1 ms, ahead"),
            ("async",),
        ),
        Rule(
            "pacer",
            [(AdaptiveReads, "waits_for_device", property(lambda _: False))],
            ("record, uniform", "record, 1 ms", "map bundle, 1 ms"),
            ("async",),
        ),
    )
}


def _side(place: Place, work: Work, off: Sequence[Patch]) -> Side:
    """A side with a store, caches and paces of its own; without what ``off`` takes away."""
    through = SlowStore if work.slow else None
    job = place.job(work.operator(), wrap_store=through, memory=WorkerMemory())

    def run(keys: np.ndarray) -> Spent:
        with ExitStack() as patched:
            for owner, name, value in off:
                patched.enter_context(mock.patch.object(owner, name, value))
            clocks = Clocks()
            job.run(batches(keys, 20_000))
            return clocks.spent()

    return run


def measure(rule: Rule, work: Work, mode: str, pairs: int, seed: int = 1) -> Ratio:
    """What is taken without the rule by what is taken with it, of ``pairs`` micro-batches after three that do not
    count."""
    random = np.random.default_rng(seed)
    with Place(mode) as place:
        sides = {"with": _side(place, work, ()), "without": _side(place, work, rule.off)}
        drawn = (work.draw(random, work.state_keys, work.rows) for _ in range(3 + pairs))
        spent = turns(sides, pairs, drawn, warm_up=3)
    found = ratio(spent["without"], spent["with"], cpu=not work.slow)
    assert found is not None
    return found


def main(names: Sequence[str], pairs: int) -> None:
    """A row a rule, work and mode."""
    with Report("rules") as report:
        columns = (Column("lost", "ratio", times), Column("spread", "low high"))
        report.section(f"Without a rule by with it, medians of {pairs} pairs", columns)
        for rule in (RULES[name] for name in names or RULES):
            for work in rule.works:
                for mode in rule.modes:
                    name = f"{work}, {mode}"

                    def row() -> Iterator[Row]:
                        found = measure(rule, WORKS[work], mode, pairs)  # noqa: B023
                        yield Row(name=name, group=rule.name, facts=figure(found))  # noqa: B023

                    report.case(name, row, rule.name)


if __name__ == "__main__":
    main(sys.argv[1:], pairs=7)
