"""Newer entries laid over older ones, in key order, a page at a time.

Owns: ``scan_over`` and ``changes_over``. Invariant: of a key that both layers have, the newer entry counts, and None
in it hides the older one; no more than a page of either layer is held.
Must not import stores or rocksdict.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from asyncstate.storage.contract import Change

_NEWER_MIN: Final = 64  # entries asked of the newer layer, at least: finding where they start costs most

Entry = tuple[bytes, bytes]
NewerScan = Callable[[bytes, bytes | None, int], Sequence[Change]]
"""The first entries in a range, deletes among them; fewer than asked for means that there are no more."""
OlderScan = Callable[[bytes, bytes | None, int], list[Entry]]


def scan_over(newer: NewerScan, older: OlderScan, start: bytes, end: bytes | None, limit: int) -> list[Entry]:
    """Return at most ``limit`` entries with start <= key < end, ascending, ``newer`` laid over ``older``."""
    found: list[Entry] = []
    while len(found) < limit:
        wanted = limit - len(found)
        page = older(start, end, wanted)
        asked = max(wanted, _NEWER_MIN)
        merged, reached = _merge(page, len(page) == wanted, newer(start, end, asked), asked)
        found += merged
        if reached is None:
            break
        start = reached + b"\0"
    return found[:limit]


def _merge(
    page: list[Entry], page_full: bool, mine: Sequence[Change], asked: int
) -> tuple[list[Entry], bytes | None]:
    """Merge two pages; also tell up to which key both are complete, None for all."""
    if not mine:
        return page, page[-1][0] if page_full else None
    ends = ([page[-1][0]] if page_full else []) + ([mine[-1][0]] if len(mine) >= asked else [])
    reached = min(ends) if ends else None
    merged: dict[bytes, bytes | None] = dict(page)
    merged.update(mine)
    live = sorted((key, value) for key, value in merged.items() if value is not None)
    if reached is not None:
        live = [entry for entry in live if entry[0] <= reached]
    return live, reached


def changes_over(
    newer: Mapping[bytes, bytes | None], keys: Sequence[bytes], older: Iterable[Sequence[Change]]
) -> Iterator[Change]:
    """Give the entries of ``older``, pages in key order, with those of ``newer`` under its sorted ``keys`` over them.

    Deletes of both are entries; each key comes once.
    """
    position = 0
    for page in older:
        stop = bisect_right(keys, page[-1][0], position)
        if stop == position:
            yield from page
            continue
        merged = dict(page)
        merged.update((key, newer[key]) for key in keys[position:stop])
        yield from sorted(merged.items())
        position = stop
    for key in keys[position:]:
        yield key, newer[key]
