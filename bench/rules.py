"""What each feedback rule of the engine brings: the same micro-batches with the rule and without it.

Invariant: both sides of a pair run the same keys in the same process over stores, caches and paces of their own, in
turn, the order turned round each time; a rule is off only while its side runs. Processor time, but seconds of the clock
on the slow device, where nearly all of it is waiting. A ratio above 1 is what is lost without the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple
from unittest import mock

import numpy as np
import typer

from asyncstate.execution import Pacer
from asyncstate.execution.prefetch import ReadAhead
from asyncstate.operator import Operator
from asyncstate.runtime import WorkerMemory
from asyncstate.storage import KeyedStore, ValueCache
from asyncstate.storage.memtable import MemTable
from asyncstate.storage.write_buffer import WriteBuffer
from asyncstate.testing import FaultyStore
from bench.frame import Ratio, Report, Rounds, Row, Side, benchmark, chosen, columns, figure, ratio, turns
from bench.job import MODES, batches, count_and_sum, last_row
from bench.micro.command import CountPerKey, CountPerPair
from bench.micro.sides import Place
from bench.processor_time import Clocks, Spent

_READ_SECONDS = 0.001

Patch = tuple[object, str, Any]


class Rule(NamedTuple):
    """``off`` takes the place of what decides; the rule should matter in ``works``, in ``modes``."""

    off: Patch
    works: Sequence[str]
    modes: Sequence[str] = MODES


@dataclass(frozen=True)
class Work:
    """Micro-batches of ``rows`` rows of ``state_keys`` keys, as drawn; ``slow``: a store that waits 1 ms a read."""

    operator: Callable[[], Operator]
    state_keys: int
    rows: int
    zipf: bool = False
    slow: bool = False

    def drawn(self, seed: int) -> Iterator[np.ndarray]:
        random, keys, rows = np.random.default_rng(seed), self.state_keys, self.rows
        while True:
            yield random.zipf(1.2, rows) % keys if self.zipf else random.integers(0, keys, rows)


def slow(store: KeyedStore) -> KeyedStore:
    """Waits for each key that is read, as for a device that answers one read at a time of each thread."""
    waiting = FaultyStore(store)
    waiting.delay(0.0, seconds_a_key=_READ_SECONDS)
    return waiting


WORKS = {
    "record, 20 keys": Work(CountPerKey, 20, 30_000),
    "record, Zipf": Work(CountPerKey, 100_000, 30_000, zipf=True),
    "record, uniform": Work(CountPerKey, 100_000, 30_000),
    "record, new keys": Work(CountPerKey, 100_000_000, 30_000),
    "record, 1 ms": Work(CountPerKey, 100_000, 300, slow=True),
    "record, 1 ms, ahead": Work(CountPerKey, 100_000, 5_000, slow=True),
    "aggregate": Work(count_and_sum, 300_000, 60_000),
    "map bundle": Work(CountPerPair, 300_000, 60_000),
    "map bundle, large": Work(CountPerPair, 1_000_000, 100_000),
    "map bundle, Zipf": Work(CountPerPair, 100_000, 60_000, zipf=True),
    "deduplicate": Work(last_row, 300_000, 60_000),
    "map bundle, 1 ms": Work(CountPerPair, 100_000, 300, slow=True),
}
_PACED = ("record, uniform", "record, 1 ms", "map bundle, 1 ms")
_BUNDLES = ("aggregate", "map bundle", "map bundle, Zipf")
_READS = ("record, uniform", "record, new keys", "record, 1 ms", "record, 1 ms, ahead")

RULES = {
    "hold": Rule((WriteBuffer, "hold", lambda *_: False), (*_BUNDLES, "deduplicate")),
    "timed-gets": Rule((MemTable, "time_gets", lambda *_: None), _READS, ("async",)),
    "cache-rest": Rule((ValueCache, "_recalls_pay", lambda *_: True), (*_BUNDLES[1:], "map bundle, large")),
    "read-ahead": Rule((ReadAhead, "wanted", lambda *_: []), _READS, ("async",)),
    "pacer": Rule((Pacer, "waits_for_device", property(lambda _: False)), _PACED, ("async",)),
}


def _side(place: Place, work: Work, off: Patch | None = None) -> Side:
    """A side with a store, caches and paces of its own; without what ``off`` takes away."""
    job = place.job(work.operator(), wrap_store=slow if work.slow else None, memory=WorkerMemory())

    def run(keys: np.ndarray) -> Spent:
        with mock.patch.object(*off) if off else nullcontext():
            clocks = Clocks()
            job.run(batches(keys, 20_000))
            return clocks.spent()

    return run


def measure(rule: Rule, work: Work, mode: str, pairs: int, seed: int = 1) -> Ratio:
    """What is taken without the rule by what is taken with it, of ``pairs`` micro-batches after three that do not
    count."""
    with Place(mode) as place:
        sides = {"with": _side(place, work), "without": _side(place, work, rule.off)}
        spent = turns(sides, pairs, work.drawn(seed), warm_up=3)
    found = ratio(spent["without"], spent["with"], cpu=not work.slow)
    assert found is not None
    return found


@benchmark(rounds=1)
def rules(
    report: Report,
    names: Annotated[str, typer.Argument(help=f"{', '.join(RULES)}; with commas, or 'all'.")] = "all",
    rounds: Rounds = 7,
) -> None:
    """Compare micro-batches without each feedback rule with the same ones with it."""
    title = f"Without a rule by with it, medians of {rounds} pairs"
    report.section(title, columns("lost: ratio as times drawn low high; spread: low high"))

    def row(name: str, work: str, mode: str) -> Iterator[Row]:
        size = 50 if report.tiny else WORKS[work].rows
        found = measure(RULES[name], replace(WORKS[work], rows=size), mode, rounds)
        yield Row(name=f"{work}, {mode}", group=name, facts=figure(found))

    for name in chosen(names, RULES, "names"):
        for work in RULES[name].works:
            for mode in RULES[name].modes:
                report.case(f"{work}, {mode}", row, name, work, mode, group=name)
