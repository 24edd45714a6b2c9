"""The join types, as rules.

Owns: ``JoinKind`` and ``Rules``.
Must not know of rows or state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncstate.changelog import RowKind

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "mark"]
PAIRED_KINDS = ("inner", "left", "right", "full", "semi", "anti")
"""The kinds of all joins; "mark" is one of ``Join``."""


@dataclass(frozen=True)
class Rules:
    """What a join type emits for a bundle of one input (the driving one).

    ``pairs``: emit each pair. ``unmatched`` / ``matched``: emit a driving row that has no / a partner,
    alone. ``watch``: emit rows of the other input, alone, when they get their first partner or lose their
    last; ``watch_kind`` is the kind for the first case. ``keep_kind``: driving rows keep their own kind.
    """

    pairs: bool = False
    unmatched: bool = False
    matched: bool = False
    watch: bool = False
    watch_kind: RowKind = RowKind.DELETE
    keep_kind: bool = True


def rules(kind: JoinKind, side: int) -> Rules:
    """The rules of a join type for a bundle of the left (0) or right (1) input; of "mark", which rows are affected."""
    if kind == "inner":
        return Rules(pairs=True)
    if kind == "semi":
        return Rules(matched=True) if side == 0 else Rules(watch=True, watch_kind=RowKind.INSERT)
    if kind == "anti":
        return Rules(unmatched=True) if side == 0 else Rules(watch=True)
    if kind == "mark":
        return Rules(matched=True, unmatched=True) if side == 0 else Rules(watch=True)
    padded = {"left": (True, False), "right": (False, True), "full": (True, True)}[kind]
    return Rules(pairs=True, unmatched=padded[side], watch=padded[1 - side], keep_kind=False)
