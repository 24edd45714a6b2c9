"""How the stored state of an operator grows with its input rows.

Owns: ``StateGrowth``, its texts, and ``most``, the worst of several.
Imports nothing of the project.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class StateGrowth:
    """How stored state grows, in the words of ``explain()``; ``rank``: the higher, the faster it grows.

    Use ``NOTHING``, ``WITH_KEYS``, ``WITH_VALUES``, ``WITH_ROWS`` and ``bounded_by("ttl")``. Growth is from one
    micro-batch to the next: rows that leave with their micro-batch do not count.
    """

    text: str
    rank: int = 5

    def __str__(self) -> str:
        return self.text


NOTHING: Final = StateGrowth("keeps nothing", 0)
WITH_KEYS: Final = StateGrowth("grows with the number of keys", 3)
WITH_VALUES: Final = StateGrowth("grows with the number of keys and of distinct values in each", 4)
WITH_ROWS: Final = StateGrowth("grows with every row", 7)


def bounded_by(what: str) -> StateGrowth:
    """State that is removed without more rows: ``"ttl"``, ``"watermark"``, ``"window"``."""
    return StateGrowth(f"bounded by {what}", 1)


def rows_per_key(count: int | str) -> StateGrowth:
    """At most ``count`` rows per key; a text: the column with the number."""
    named = f"the number in '{count}' of" if isinstance(count, str) else str(count)
    return StateGrowth(f"bounded by {named} row{'' if count == 1 else 's'} per key", 2)


def with_rows(retracted: bool) -> StateGrowth:
    """All rows; ``retracted``: without those that the input retracts."""
    return StateGrowth(f"{WITH_ROWS.text} that is not retracted", 6) if retracted else WITH_ROWS


def most(found: Iterable[StateGrowth]) -> StateGrowth:
    """The fastest growth."""
    return max(found, key=lambda one: one.rank, default=NOTHING)
