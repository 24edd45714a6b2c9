"""The changes that the rows of a micro-batch make to a table: rows removed, rows added, unmatched retractions.

Owns: ``ConsolidatedRows`` and its two computations: for rows identified by content, and by a unique key.
Invariant: the rows of one call count as a set. A retraction removes a row of equal content, whether that row is
stored, came before the retraction or comes after it; what is left of both is the change. Only updates that replace a
row without retracting it (+U without -U) need an order.
Pure functions over numpy and Arrow; must not know of state or of operators.

Source: the netting of Z-sets (DBSP), and the unique-key states of Flink's ``StreamingJoinOperator``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncstate.changelog import RowKind, accumulates
from asyncstate.codec.sorting import rows_by

from .arrays import BoolArray, Int8Array, Int64Array, last_of, place_among_equals, run_begins

_NO_ROWS: Int64Array = np.empty(0, np.int64)


@dataclass(frozen=True)
class ConsolidatedRows:
    """The net change of n rows against m stored ones.

    ``removed`` (m) marks the stored rows to remove, ``added`` the rows (indices, ascending) to add. ``cause`` has one
    row for each removed row, in their order: the retraction that removes it, or the row that replaces it.
    ``missing`` are the retractions (ascending) without a matching row.
    """

    removed: BoolArray
    added: Int64Array
    cause: Int64Array
    missing: Int64Array


def net_by_content(
    stored: Int64Array, rows: Int64Array, accumulate: BoolArray, refresh: bool = False
) -> ConsolidatedRows:
    """The change where content identifies a row: ids of m stored and n other rows, ``accumulate`` (n).

    Of equal rows the oldest stored ones are removed and the last ones added. A row that is stored and is retracted and
    added again is no change; with ``refresh`` it is removed, and added as a new one.
    """
    total = int(max(stored.max(initial=-1), rows.max(initial=-1))) + 1
    plus, minus = np.flatnonzero(accumulate), np.flatnonzero(~accumulate)
    if not len(minus):
        return ConsolidatedRows(np.zeros(len(stored), np.bool_), plus, _NO_ROWS, _NO_ROWS)
    have = np.bincount(stored, minlength=total)
    coming = np.bincount(rows[plus], minlength=total)
    going = np.bincount(rows[minus], minlength=total)
    if refresh:
        gone = np.minimum(going, have)
        cancel = np.minimum(going - gone, coming)
    else:
        cancel = np.minimum(going, coming)
        gone = np.minimum(going - cancel, have)
    retraction, taken = place_among_equals(rows[minus]), rows[minus]
    takes = retraction < gone[taken]
    removed = place_among_equals(stored) < gone[stored]
    return ConsolidatedRows(
        removed,
        plus[place_among_equals(rows[plus]) >= cancel[rows[plus]]],
        _in_order_of(stored[removed], minus[takes], taken[takes]),
        minus[retraction >= (gone + cancel)[taken]],
    )


def _in_order_of(wanted: Int64Array, rows: Int64Array, ids: Int64Array) -> Int64Array:
    """``rows`` with these ``ids``, in the order in which ``wanted`` has the same ids."""
    matched = np.empty(len(rows), np.int64)
    matched[rows_by(wanted)] = rows[rows_by(ids)]
    return matched


@dataclass(frozen=True)
class Identified:
    """Rows with a unique key: ``ids`` equal for equal unique keys, ``content`` for equal rows."""

    ids: Int64Array
    content: Int64Array

    def slice(self, start: int, end: int) -> Identified:
        """The rows from ``start`` to before ``end``."""
        return Identified(self.ids[start:end], self.content[start:end])


def net_by_unique_key(
    stored: Identified,
    rows: Identified,
    kinds: Int8Array,
    refresh: bool = False,
    newness: Int64Array | None = None,
    in_order: bool = False,
    by_key: bool = False,
) -> ConsolidatedRows:
    """The change where a unique key identifies a row: m stored rows (one per key), n others and their kinds.

    Rows that cancel out by content are no change. Of the remaining rows the newest one of a key replaces the
    stored one: the last, or the one with the highest ``newness`` (n, distinct). Where the rows of a key have +U but
    no -U, and each retraction is for the row that the key has then, they replace each other without being
    retracted, so only the newest row counts: a newer retraction of it still removes the key. A retraction
    removes only a row of its own content. With ``refresh`` a row replaces one of equal content, too.
    ``in_order``: the order is known to be right, so it decides for every key. ``by_key``: a retraction without a
    row of its content removes one of its key, if no other remaining row replaces that one.
    """
    if not len(kinds):
        return ConsolidatedRows(np.zeros(len(stored.ids), np.bool_), _NO_ROWS, _NO_ROWS, _NO_ROWS)
    accumulate = accumulates(kinds)
    order = np.arange(len(kinds)) if newness is None else rows_by(newness)
    keys = int(max(stored.ids.max(initial=-1), rows.ids.max(initial=-1))) + 1
    balance = _Balance.of(stored.content, rows.content, accumulate, refresh)
    if in_order:
        replacing = np.ones(keys, np.bool_)
    else:
        replacing = _only_replaces(rows.ids, kinds, keys)
        replacing &= ~_out_of_order(stored, rows, accumulate, order, keys)
    candidate = accumulate & (replacing[rows.ids] | (balance.left[rows.content] > 0))
    winner = _newest(rows.ids, order, candidate, keys)
    again = ~accumulate & replacing[rows.ids] & (rows.content == rows.content[winner[rows.ids]])
    undone = _is_newer(_newest(rows.ids, order, again, keys), winner, order)
    ended = replacing & undone & (winner >= 0)
    missing = balance.missing(rows.content, accumulate)
    if by_key and len(missing):
        gone, missing = _taken_by_key(stored, rows, balance, missing, keys)
        ended |= gone & ~replacing
    winner[ended] = -1

    new = winner[stored.ids]
    same = (new >= 0) & (rows.content[new] == stored.content) & ~np.bool_(refresh)
    removed = np.where(new >= 0, ~same, ended[stored.ids] | balance.taken[stored.content])
    comes = winner >= 0
    comes[stored.ids[same]] = False
    cause = np.where(new >= 0, new, _newest(rows.ids, order, ~accumulate, keys)[stored.ids])
    first = balance.retraction[stored.content]
    cause = np.where(first >= 0, first, cause)
    return ConsolidatedRows(removed, np.sort(winner[comes]), cause[removed], missing)


def net_by_upsert_key(
    stored: Identified, rows: Identified, accumulate: BoolArray, refresh: bool
) -> ConsolidatedRows:
    """The change where rows replace each other by a key: m stored rows (one per key), n others (``accumulate``: n).

    The last row of a key counts; a retraction removes whatever row the key has. With ``refresh`` a row replaces one of
    equal content, too.
    """
    keys = int(max(stored.ids.max(initial=-1), rows.ids.max(initial=-1))) + 1
    last = last_of(rows.ids, np.arange(len(rows.ids)), keys)
    comes = (last >= 0) & accumulate[last]
    new = last[stored.ids]
    same = (new >= 0) & comes[stored.ids] & (rows.content[new] == stored.content) & ~np.bool_(refresh)
    removed = (new >= 0) & ~same
    comes[stored.ids[same]] = False
    there = np.zeros(keys, np.bool_)
    there[stored.ids] = there[rows.ids[accumulate]] = True
    gone = (last >= 0) & ~accumulate[last]
    return ConsolidatedRows(removed, np.sort(last[comes]), new[removed], np.sort(last[gone & ~there]))


def _taken_by_key(
    stored: Identified, rows: Identified, balance: _Balance, missing: Int64Array, keys: int
) -> tuple[BoolArray, Int64Array]:
    """The keys that have no row left when each retraction of ``missing`` removes one of its key, and those of
    ``missing`` that still have no match."""
    have = np.bincount(stored.ids[~balance.taken[stored.content]], minlength=keys)
    first = np.unique(rows.content, return_index=True)[1]
    left = np.maximum(balance.left[rows.content[first]], 0)
    have += np.bincount(rows.ids[first], weights=left, minlength=keys).astype(np.int64)
    short = np.bincount(rows.ids[missing], minlength=keys)
    ids = rows.ids[missing]
    return (short > 0) & (short >= have), missing[place_among_equals(ids) >= have[ids]]


@dataclass(frozen=True)
class _Balance:
    """By content: how many rows remain to be added (``left``), whether the stored one is removed (``taken``), a
    ``retraction`` of it (-1: none), and how many retractions have no match (``short``)."""

    left: Int64Array
    taken: BoolArray
    retraction: Int64Array
    short: Int64Array

    @staticmethod
    def of(stored: Int64Array, rows: Int64Array, accumulate: BoolArray, refresh: bool) -> _Balance:
        total = int(max(stored.max(initial=-1), rows.max(initial=-1))) + 1
        have = np.zeros(total, np.int64)
        have[stored] = 1
        plus = np.bincount(rows[accumulate], minlength=total)
        minus = np.bincount(rows[~accumulate], minlength=total)
        retraction = np.full(total, -1, np.int64)
        backwards = np.flatnonzero(~accumulate)[::-1]
        retraction[rows[backwards]] = (
            backwards  # for repeated indices the last assignment wins: the first row
        )
        left = plus - (np.maximum(minus - have, 0) if refresh else minus)
        return _Balance(left, minus > plus, retraction, np.maximum(minus - plus - have, 0))

    def missing(self, rows: Int64Array, accumulate: BoolArray) -> Int64Array:
        """The last retractions of each content without a match."""
        if not self.short.any():
            return _NO_ROWS
        backwards = np.flatnonzero(~accumulate)[::-1]
        found: Int64Array = np.sort(
            backwards[place_among_equals(rows[backwards]) < self.short[rows[backwards]]]
        )
        return found


def _only_replaces(ids: Int64Array, kinds: Int8Array, keys: int) -> BoolArray:
    """The keys whose rows have +U but no -U."""
    replacing = np.zeros(keys, np.bool_)
    replacing[ids[kinds == RowKind.UPDATE_AFTER]] = True
    replacing[ids[kinds == RowKind.UPDATE_BEFORE]] = False
    return replacing


def _out_of_order(
    stored: Identified, rows: Identified, accumulate: BoolArray, order: Int64Array, keys: int
) -> BoolArray:
    """The keys with a retraction that, in ``order``, does not match the row that the key has then."""
    found = np.zeros(keys, np.bool_)
    if accumulate.all():
        return found
    has = np.full(keys, -1, np.int64)
    has[stored.ids] = stored.content
    events = order[rows_by(rows.ids[order])]
    ids, content = rows.ids[events], rows.content[events]
    begins = run_begins(ids)
    there = np.empty(len(events), np.int64)  # the content of the key's row before each event, -1: none
    there[1:] = np.where(accumulate[events][:-1], content[:-1], -1)
    there[begins] = has[ids[begins]]
    found[ids[~accumulate[events] & (there != content)]] = True
    return found


def _newest(ids: Int64Array, order: Int64Array, chosen: BoolArray, keys: int) -> Int64Array:
    """The newest of the ``chosen`` rows of each key, -1 without any; ``order`` has the rows from the oldest on."""
    rows = order[chosen[order]]
    return last_of(ids[rows], rows, keys)


def _is_newer(rows: Int64Array, others: Int64Array, order: Int64Array) -> BoolArray:
    """Where there is a row and it is newer than the other one."""
    place = np.empty(len(order) + 1, np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    newer: BoolArray = (rows >= 0) & (place[rows] > place[others])
    return newer
