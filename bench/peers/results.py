"""What was measured, and how far it is from what was aimed at.

Owns: ``Throughput``, ``Figure``, ``Comparison``, ``compare_all`` and the aims.
Invariant: a ratio is a median over pairs of micro-batches that followed each other; what was not found right has none.
Must not import Spark or asyncstate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """One peer on one piece of work.

    ``seconds`` of each counted micro-batch of ``rows`` rows, in order of the turns, and ``cpu_seconds`` those of
    processors, of all processes of the peer (empty where they are not known). ``parts`` are median seconds of a
    micro-batch (only ours). ``skipped`` says why a peer was left out, ``failed`` what it failed with, ``problems`` what
    was wrong with its result.
    """

    work: str
    title: str
    peer: str
    peer_title: str
    keys: int
    rows: int = 0
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    parts: dict[str, float] = {}
    expected_rows: int = 0
    checked: bool = False
    problems: tuple[str, ...] = ()
    skipped: str = ""
    failed: str = ""

    @property
    def wrong(self) -> bool:
        """Whether it has a result, and that is not right."""
        return not (self.checked or self.skipped or self.failed)

    @property
    def rates(self) -> list[float]:
        """Rows a second of each counted micro-batch."""
        return [self.rows / seconds for seconds in self.seconds]

    @property
    def rate(self) -> float:
        """The median of them; 0 without figures."""
        return statistics.median(self.rates) if self.seconds else 0.0

    @property
    def cpu_us(self) -> float | None:
        """Microseconds of processor time a row, median; None where it is not known."""
        return statistics.median(self.cpu_seconds) / self.rows * 1e6 if self.cpu_seconds else None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """asyncstate beside itself or beside code by hand: a ratio with its spread, and its aim.

    ``group`` is raw, growth, modes or nexmark. ``points`` are microseconds a row of what is compared, ``cpu_points``
    those of processors: by state keys (growth), by hand and ours (raw), sync and async (modes, processors alone).
    ``aim`` is None where none was set. ``low`` and ``high`` are the extremes or, if it is an ``interval``, what the
    median lies between with 95% confidence.
    """

    group: str
    name: str
    ratio: float
    low: float
    high: float
    aim: float | None
    at_most: bool
    interval: bool = False
    points: dict[str, float] = {}
    cpu_points: dict[str, float] = {}

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the aim, as it is shown; None without an aim."""
        if self.aim is None:
            return None
        ratio = round(self.ratio, 2)
        return ratio <= self.aim if self.at_most else ratio >= self.aim

    @property
    def even(self) -> bool:
        """Whether it cannot be told from its aim: the aim lies in the interval of the median."""
        return self.aim is not None and self.interval and self.low <= self.aim <= self.high


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One of ours by one peer: how many times as many rows a second. ``aim`` is None where none was set."""

    work: str
    ours: str
    peer: str
    ratio: float
    low: float
    high: float
    aim: float | None

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the aim; None without one."""
        return None if self.aim is None else round(self.ratio, 2) >= self.aim


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """What the median of what ``values`` are drawn from lies between, with a confidence of 95% or somewhat more.

    By ranks, so whatever their distribution: as many values lie below that median as coins fall heads. Fewer than six
    values cannot tell; of them the extremes.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, tail = 0, 1 / 2**count
    while tail <= (1 - CONFIDENCE) / 2:
        rank += 1
        tail += math.comb(count, rank) / 2**count
    below = max(0, rank - 1)
    return ordered[below], ordered[-1 - below]


GROUPS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "d": (("record grain", ("ours-sync", "ours-async")), ("built in", ("bundle-sync", "bundle-async"))),
    "g": (("row by row", ("ours-sync", "ours-async")), ("bundled, numpy", ("bundle-sync", "bundle-async"))),
}
"""For a piece of work that ours do in several ways: the ways, and who does them."""
_ONE_WAY = (("", ("ours-sync", "ours-async")),)
_FLINK = ("flink-sql", "flink-sql-async", "flink-sql-heap")
_OURS = {"ours-sync", "ours-async", "bundle-sync", "bundle-async"}

_AIMS: Mapping[tuple[str, str], float] = {
    ("a", ""): 5.0,
    ("b", ""): 4.0,
    ("c", ""): 5.0,
    ("d", "record grain"): 15.0,
    ("d", "built in"): 60.0,
    ("g", "row by row"): 20.0,
    ("g", "bundled, numpy"): 20.0,
}
"""At least so many times the rows a second of the quickest peer."""
_AIMED_KEYS = {"a": 1_000_000}
PYFLINK_AIM = 15.0
FLINK_AIM, FLINK_GOOD = 1.0, 1.5
RAW_AIM = 1.5
GROWTH_AIM = 1.5
MODES_AIM = 1.0
CONFIDENCE = 0.95


def ways(work: str) -> Sequence[tuple[str, tuple[str, ...]]]:
    """Ways and their peers, of the work with this name (``a, 1,000,000 keys`` is work ``a``)."""
    return GROUPS.get(kind_of(work), _ONE_WAY)


def kind_of(work: str) -> str:
    """The work's name without the number of its keys."""
    return work.partition(",")[0]


def is_ours(result: Throughput) -> bool:
    """Whether it is asyncstate at work; its floor stands among the peers."""
    return result.peer in _OURS


def compare_all(results: Sequence[Throughput]) -> list[Comparison]:
    """Every one of ours by every peer on the same work. The aim stands with the quickest peer."""
    found = []
    for work in dict.fromkeys(result.work for result in results):
        here = [result for result in results if result.work == work and result.checked and result.seconds]
        peers = [result for result in here if not is_ours(result)]
        for way, names in ways(work):
            aims = _aims(work, way, peers)
            found += [
                _compare(ours, peer, aims.get(peer.peer))
                for ours in here
                if ours.peer in names
                for peer in peers
            ]
    return found


def _aims(work: str, way: str, peers: Sequence[Throughput]) -> dict[str, float]:
    """Spark's quickest peer has an aim, and each of Flink's."""
    pyflink = _AIMS.get((kind_of(work), way), 0.0) if kind_of(work) == "g" else PYFLINK_AIM
    aims = {peer.peer: pyflink for peer in peers if peer.peer == "pyflink" and way != "built in"}
    aims |= {peer.peer: FLINK_AIM for peer in peers if peer.peer in _FLINK}
    aim, kind = _AIMS.get((kind_of(work), way)), kind_of(work)
    of_spark = [peer for peer in peers if peer.peer not in ("pyflink", "floor", "flink-read", *_FLINK)]
    if aim is not None and of_spark and of_spark[0].keys <= _AIMED_KEYS.get(kind, of_spark[0].keys):
        aims[max(of_spark, key=lambda peer: peer.rate).peer] = aim
    return aims


def _compare(ours: Throughput, peer: Throughput, aim: float | None) -> Comparison:
    if len(ours.rates) == len(peer.rates):
        ratios = [one / other for one, other in zip(ours.rates, peer.rates, strict=True)]
    else:  # not in turns, so no pairs
        ratios = [ours.rate / other for other in peer.rates]
    return Comparison(
        work=ours.work,
        ours=ours.peer,
        peer=peer.peer,
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        aim=aim,
    )
