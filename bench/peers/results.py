"""What was measured, how far it is from what was aimed at, and its table.

Invariant: a ratio is a median over pairs of micro-batches that followed each other; what was not found right has none.
Must not import Spark or asyncstate.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bench.frame import Figure, Row, columns

COLUMNS = columns("""
    rows a batch: rows as short; rows/s: rate as short drawn slowest quickest
    spread: slowest quickest as short; CPU us: cpu_us; sync /peer: sync as times
    async /peer: async as times; spread: low high as times; aim: aim as {:g}x; met: met
""")


class Throughput(Row, kw_only=True, omit_defaults=True):
    """One peer on one piece of work: ``seconds`` of each counted micro-batch of ``rows`` rows, in order of the turns,
    and ``cpu_seconds`` those of processors, of all processes of the peer (empty where they are not known)."""

    work: str
    peer: str
    keys: int = 0
    rows: int = 0
    seconds: list[float] = msgspec.field(default_factory=list)
    cpu_seconds: list[float] = msgspec.field(default_factory=list)
    expected_rows: int = 0

    @property
    def right(self) -> bool:
        return bool(self.seconds) and not (self.failed or self.wrong or self.skipped)

    @property
    def rates(self) -> list[float]:
        return [self.rows / seconds for seconds in self.seconds]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


_PLAIN, _BUNDLE = ("ours-sync", "ours-async"), ("bundle-sync", "bundle-async")
_OURS = {*_PLAIN, *_BUNDLE}
WAYS: Mapping[str, Sequence[tuple[str, tuple[str, str]]]] = {
    "d": (("record grain", _PLAIN), ("built in", _BUNDLE)),
    "g": (("row by row", _PLAIN), ("bundled, numpy", _BUNDLE)),
}
"""For a piece of work that ours do in several ways: the ways, and who does them, sync and async."""
_FLINK = ("flink-sql", "flink-sql-async", "flink-sql-heap")
_NO_AIM = ("pyflink", "floor", "flink-read", *_FLINK)

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
PYFLINK_AIM, FLINK_AIM, FLINK_GOOD = 15.0, 1.0, 1.5


def compared(results: Sequence[Throughput]) -> list[Throughput]:
    """The results of one piece of work with their facts; those of each asyncstate variant, with the peers, in
    sequence. ``sync`` and ``async`` are the ratios of asyncstate's rows per second to a peer's."""
    shown = []
    kind = results[0].work.partition(",")[0] if results else ""
    for way, ours in WAYS.get(kind, [("", _PLAIN)]):
        here = [each for each in results if each.peer in ours or each.peer not in _OURS]
        aims = _aims(kind, way, [each for each in here if each.right and each.peer not in _OURS])
        mine = {each.peer: each for each in here if each.right and each.peer in ours}
        for each in here:
            facts: dict[str, Any] = {}
            figures: dict[str, Figure] = {}
            if each.right:
                rates = each.rates
                facts = {"rows": each.rows, "rate": each.rate, "slowest": min(rates), "quickest": max(rates)}
                if each.cpu_seconds:
                    facts["cpu_us"] = statistics.median(each.cpu_seconds) / each.rows * 1e6
            for mode, name in zip(("sync", "async"), ours, strict=True):
                if each.right and each.peer not in _OURS and name in mine:
                    paired = len(mine[name].rates) == len(each.rates)  # else not in turns, so no pairs
                    own = mine[name].rates if paired else [mine[name].rate] * len(each.rates)
                    ratios = [one / other for one, other in zip(own, each.rates, strict=True)]
                    facts[mode] = statistics.median(ratios)
                    facts["low"] = min(*ratios, facts.get("low", ratios[0]))
                    facts["high"] = max(*ratios, facts.get("high", ratios[0]))
                    figure = Figure(facts[mode], min(ratios), max(ratios), rate=True)
                    figures[f"{each.work}: {name} by {each.peer}"] = figure
            if each.peer in aims and figures:
                met = all(round(figure.value, 2) >= aims[each.peer] for figure in figures.values())
                facts |= {"aim": aims[each.peer], "met": "yes" if met else "no"}
            group = f"{each.group}, {way}" if way else each.group
            shown.append(msgspec.structs.replace(each, facts=facts, figures=figures, group=group))
    return shown


def _aims(kind: str, way: str, peers: Sequence[Throughput]) -> dict[str, float]:
    """Spark's quickest peer has an aim, and each of Flink's."""
    aim = _AIMS.get((kind, way))
    pyflink = (aim or 0.0) if kind == "g" else PYFLINK_AIM
    aims = {peer.peer: pyflink for peer in peers if peer.peer == "pyflink" and way != "built in"}
    aims |= {peer.peer: FLINK_AIM for peer in peers if peer.peer in _FLINK}
    of_spark = [peer for peer in peers if peer.peer not in _NO_AIM]
    if aim is not None and of_spark and of_spark[0].keys <= _AIMED_KEYS.get(kind, of_spark[0].keys):
        aims[max(of_spark, key=lambda peer: peer.rate).peer] = aim
    return aims
