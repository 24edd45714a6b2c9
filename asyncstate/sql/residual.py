"""Reads conditions that a join itself checks, over rows of both sides.

Owns: ``ResidualReader``, which writes them as ``conditions`` has them.
Invariant: what reads one side only is a column that Spark computes before the join. What is left compares columns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from asyncstate.sql.expressions import COMPARISONS, children, ids_in, kind_of, refusal, type_of

if TYPE_CHECKING:
    from asyncstate.sql.rows import Given

_COUNTED: Final = {"Add": "+", "Subtract": "-", "Multiply": "*"}
_FLOATS: Final = ("float", "double")


class ResidualReader:
    """Reads the conditions of a join of two sides."""

    refused = (
        "reads both sides of a join that keeps or leaves out rows without a partner",
        "compute it of one side, or compare columns of both",
    )

    def __init__(self, sides: Sequence[Given], outputs: Sequence[set[int]]) -> None:
        self._sides, self._outputs = sides, outputs

    def read(self, conditions: Sequence[Any]) -> Any:
        """The conditions, all of which must be true."""
        return functools.reduce(lambda one, two: ("and", one, two), map(self._condition, conditions))

    def _condition(self, e: Any) -> Any:
        read_by, kind = ids_in(e), kind_of(e)
        for side, own in zip(self._sides, self._outputs, strict=True):
            if read_by and read_by <= own:
                return "field", side.column("condition", e), type_of(e)
        parts = [self._condition(one) for one in children(e)]
        if kind in ("And", "Or"):
            return kind.lower(), *parts
        if kind in ("Not", "IsNull", "IsNotNull"):
            return {"Not": "not", "IsNull": "null", "IsNotNull": "valid"}[kind], *parts
        if kind in COMPARISONS and type_of(children(e)[0]).split("<")[0] not in ("array", "struct", "map"):
            kinds = {type_of(one) for one in children(e)}
            if len(kinds) == 1:
                return COMPARISONS[kind], *parts, kinds.pop() in _FLOATS
        if kind in _COUNTED and type_of(e) in ("int", "bigint", "double"):
            return _COUNTED[kind], *parts
        if not read_by:
            side = self._sides[0]
            return "field", side.computed("condition", side.text(e), type_of(e)), type_of(e)
        raise refusal(f"{e.sql()} {self.refused[0]}", self.refused[1], e)
