"""The output of a regular join when rows of one input change, and what other joins share with it.

Owns: the matching of driving rows with the rows stored for the other input (``Matches``, over any ``Candidates``), and
the output that a join type's ``Rules`` make from the pairs, and its order.
Invariant: summed over bundles the output is the join of the two tables; the other input does not change while
a bundle drives.
Pure functions over numpy and Arrow; must not know of state or contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import RowKind, accumulates
from asyncstate.codec.sorting import rows_by

from ..core.arrays import BoolArray, Int8Array, Int64Array
from ..core.row_kinds import distinct
from .rules import Rules

PAIRS = 1 << 18
"""Candidate pairs that are evaluated together; bounds the memory of a skewed key."""

_RETRACT_PAD, _ROW, _RETURN_PAD = range(3)  # order of the output rows of one pair


@dataclass(frozen=True)
class JoinRows:
    """Rows of one input: one array (n) per column, and the index of each row's key (n), -1: it never matches."""

    columns: Sequence[pa.Array]
    key_index: npt.NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.key_index)


@dataclass(frozen=True)
class JoinEmission:
    """Output rows: index of the driving and of the other row of each (-1: none), and the kinds."""

    probe: Int64Array
    other: Int64Array
    kinds: Int8Array

    def select(self, chosen: BoolArray) -> JoinEmission:
        """Some of the rows."""
        return JoinEmission(self.probe[chosen], self.other[chosen], self.kinds[chosen])


Residual = Callable[[Sequence[pa.Array], Sequence[pa.Array]], BoolArray]
"""The condition in addition to the keys: columns of driving rows and of other rows (n pairs) to a mask (n)."""


def oriented(residual: Residual | None, side: int) -> Residual | None:
    """A condition over (left, right) columns as one over (driving, other), if rows of ``side`` drive."""
    if residual is None or side == 0:
        return residual
    return lambda probe, other: residual(other, probe)


@dataclass(frozen=True)
class Candidates:
    """The other rows that each of n driving rows is compared with: ``counts`` (n) rows, from ``first`` (n) on.

    Both refer to ``order``, indices of other rows; None: to the other rows in their own order.
    """

    first: Int64Array
    counts: Int64Array
    order: Int64Array | None = None


def equal_keys(probe: JoinRows, other: JoinRows, num_keys: int) -> Candidates:
    """All other rows (ascending by key) with the key of the driving row."""
    counts = np.append(np.bincount(other.key_index, minlength=num_keys), 0)  # the last is for key -1
    return Candidates((np.cumsum(counts) - counts)[probe.key_index], counts[probe.key_index])


class Matches:
    """Pairs of driving rows and their candidates that pass the residual.

    Pairs are made in chunks of whole driving rows, about ``PAIRS`` candidates each.
    """

    def __init__(
        self, probe: JoinRows, other: JoinRows, candidates: Candidates, residual: Residual | None
    ) -> None:
        self._probe = probe
        self._other = other
        self._candidates = candidates
        self._residual = residual
        self.chunks = _chunks(candidates.counts)
        self._only: tuple[Int64Array, Int64Array] | None = None

    def pairs(self, chunk: tuple[int, int]) -> tuple[Int64Array, Int64Array]:
        """Indices of the driving and the other row of each pair, by driving row, then in order of candidates."""
        if self._only is not None:
            return self._only
        low, high = chunk
        counts = self._candidates.counts[low:high]
        probe = np.repeat(np.arange(low, high), counts)
        within = np.arange(len(probe)) - np.repeat(np.cumsum(counts) - counts, counts)
        other = self._candidates.first[probe] + within
        if self._candidates.order is not None:
            other = self._candidates.order[other]
        if self._residual is not None and len(probe):
            passed = self._residual(
                [column.take(pa.array(probe)) for column in self._probe.columns],
                [column.take(pa.array(other)) for column in self._other.columns],
            )
            probe, other = probe[passed], other[passed]
        if len(self.chunks) == 1:
            self._only = probe, other
        return probe, other


def _chunks(candidates: Int64Array) -> list[tuple[int, int]]:
    """Ranges of driving rows with about ``PAIRS`` candidates each."""
    if not len(candidates):
        return []
    number = np.cumsum(candidates) // PAIRS
    return list(pairwise([0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(candidates)]))


def partners(stored: JoinRows, other: JoinRows, num_keys: int, residual: Residual) -> Int64Array:
    """How many of the ``stored`` rows each of the other rows matches."""
    matches = Matches(stored, other, equal_keys(stored, other, num_keys), residual)
    counts = np.zeros(len(other), np.int64)
    for chunk in matches.chunks:
        counts += np.bincount(matches.pairs(chunk)[1], minlength=len(other))
    return counts


@dataclass(frozen=True)
class _Transitions:
    """Other rows whose number of partners leaves or reaches zero: the driving row, the other row, the phase."""

    probe: Int64Array
    other: Int64Array
    phase: Int64Array


def _transitions(matches: Matches, kinds: Int8Array, before: Int64Array) -> _Transitions:
    """Net over the whole bundle: a row that gains and loses its partners within it is not among them."""
    size = len(before)
    delta, first, last = np.zeros(size, np.int64), np.full(size, -1), np.full(size, -1)
    sign = np.where(accumulates(kinds), 1, -1)
    for chunk in matches.chunks:
        probe, other = matches.pairs(chunk)
        delta += np.bincount(other, sign[probe], size).astype(np.int64)
        last[other] = probe
        new = first[other] < 0
        first[other[new][::-1]] = probe[new][::-1]  # of repeated indices the last assignment stays
    gained = np.flatnonzero((before == 0) & (delta > 0))
    lost = np.flatnonzero((before > 0) & (before + delta == 0))
    phase = np.repeat([_RETRACT_PAD, _RETURN_PAD], [len(gained), len(lost)])
    return _Transitions(np.concatenate([first[gained], last[lost]]), np.concatenate([gained, lost]), phase)


def join(
    rule: Rules, kinds: Int8Array, matches: Matches, before: Int64Array | None
) -> Iterator[JoinEmission]:
    """The output for driving rows of ``kinds``: retractions, then additions, each in order of the driving, then of
    the other rows.

    ``before``: partners of each other row before this bundle; needed where the rule watches.
    """
    emissions = _by_probe_row(rule, kinds, matches, before)
    if not rule.watch and accumulates(kinds).all():
        yield from emissions
        return
    # Only indices are buffered until the end: one key of a consumer may have rows of several chunks.
    held = []
    for emission in emissions:
        added = accumulates(emission.kinds)
        held.append(emission.select(added))
        yield emission.select(~added)
    yield from held


def _by_probe_row(
    rule: Rules, kinds: Int8Array, matches: Matches, before: Int64Array | None
) -> Iterator[JoinEmission]:
    changed = None
    if rule.watch:
        assert before is not None
        changed = _transitions(matches, kinds, before)
    row_kinds = kinds if rule.keep_kind else _plain_kinds(kinds)
    for low, high in matches.chunks:
        parts = _probe_parts(rule, matches, (low, high))
        if changed is not None:
            here = (changed.probe >= low) & (changed.probe < high)
            parts.append((changed.probe[here], changed.other[here], changed.phase[here]))
        yield _ordered(rule, parts, row_kinds)


_Part = tuple[Int64Array, Int64Array, Int64Array]  # driving row, other row, phase


def _probe_parts(rule: Rules, matches: Matches, chunk: tuple[int, int]) -> list[_Part]:
    if not (rule.pairs or rule.matched or rule.unmatched):
        return []
    probe, other = matches.pairs(chunk)
    parts: list[_Part] = []
    if rule.pairs:
        parts.append((probe, other, np.full(len(probe), _ROW)))
    if rule.matched or rule.unmatched:
        matched = np.bincount(probe - chunk[0], minlength=chunk[1] - chunk[0]) > 0
        alone = np.flatnonzero(matched if rule.matched else ~matched) + chunk[0]
        parts.append((alone, np.full(len(alone), -1), np.full(len(alone), _ROW)))
    return parts


def _ordered(rule: Rules, parts: list[_Part], row_kinds: Int8Array) -> JoinEmission:
    """One emission of all parts: a watched row that gets a partner comes before the pair, else after it."""
    probe, other, phase = (np.concatenate([part[i] for part in parts]) for i in range(3))
    if len(parts) > 1 or rule.watch:
        order = rows_by(probe, other, phase)
        probe, other, phase = probe[order], other[order], phase[order]
    kinds = row_kinds[probe]
    if rule.watch:
        opposite = RowKind.INSERT if rule.watch_kind is RowKind.DELETE else RowKind.DELETE
        kinds = np.where(
            phase == _RETRACT_PAD, rule.watch_kind, np.where(phase == _RETURN_PAD, opposite, kinds)
        )
        probe = np.where(phase == _ROW, probe, -1)
    return JoinEmission(probe, other, kinds.astype(np.int8))


def _plain_kinds(kinds: Int8Array) -> Int8Array:
    """+I for added rows, -D for retracted ones."""
    return np.where(accumulates(kinds), RowKind.INSERT, RowKind.DELETE).astype(np.int8)


@dataclass(frozen=True)
class MarkedRows:
    """Output rows of a mark join: indices of the rows that are marked, their kinds and their marks."""

    rows: Int64Array
    kinds: Int8Array
    marks: pa.Array


def marked(kinds: Int8Array, found: Sequence[Matches]) -> Iterator[MarkedRows]:
    """Driving rows of ``kinds`` with their marks. ``found``: the pairs that match, and if the mark is null-aware those
    of which that is unknown."""
    for low, high in found[0].chunks:
        counts = [np.bincount(matches.pairs((low, high))[0] - low, minlength=high - low) for matches in found]
        rows = np.arange(low, high)
        yield MarkedRows(rows, kinds[rows], _marks(counts))


def marked_again(kinds: Int8Array, found: Sequence[Matches], before: Sequence[Int64Array]) -> MarkedRows:
    """The other rows whose mark changes, with -D and their old mark, then with +I and the new one. ``kinds``: those of
    the driving rows; ``before``: for each of ``found``, the number of such partners of each other row."""
    sign = np.where(accumulates(kinds), 1, -1)
    after = [counts.copy() for counts in before]
    for counts, matches in zip(after, found, strict=True):
        for chunk in matches.chunks:
            probe, other = matches.pairs(chunk)
            counts += np.bincount(other, sign[probe], len(counts)).astype(np.int64)
    old, new = _marks(before), _marks(after)
    rows = np.flatnonzero(distinct([old], [new], len(old)))
    marks = pa.concat_arrays([old.take(pa.array(rows)), new.take(pa.array(rows))])
    changes = np.repeat(np.array([RowKind.DELETE, RowKind.INSERT], np.int8), len(rows))
    return MarkedRows(np.tile(rows, 2), changes, marks)


def _marks(counts: Sequence[Int64Array]) -> pa.Array:
    """Whether rows (n) have partners, from the number of these; null if they only have unknown ones."""
    matched = counts[0] > 0
    return pa.array(matched, mask=~matched & (counts[1] > 0) if len(counts) > 1 else None)
