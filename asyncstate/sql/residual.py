"""Conditions that a join itself checks, over rows of both sides.

Owns: ``ResidualReader``, which writes them as nested tuples, and ``arrow_condition``, which makes Arrow expressions of
these.
Invariant: the Arrow expression has Spark's answer for every row: NaN equals itself and is the largest number, and null
is not known.

What reads one side only is a column that Spark computes before the join. What is left compares columns.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from asyncstate.errors import SqlError

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader
    from asyncstate.sql.rows import Given

_COMPARED: Final = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_COUNTED: Final = {"Add": "+", "Subtract": "-", "Multiply": "*"}
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_FLOATS: Final = ("float", "double")
_PYTHON: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


class ResidualReader:
    """Reads the conditions of a join of two sides."""

    refused = (
        "reads both sides of a join that keeps or leaves out rows without a partner",
        "compute it of one side, or compare columns of both",
    )

    def __init__(self, reader: Reader, sides: Sequence[Given], outputs: Sequence[set[int]]) -> None:
        self._reader, self._sides, self._outputs = reader, sides, outputs

    def read(self, conditions: Sequence[Any]) -> Any:
        """The conditions, all of which must be true."""
        return functools.reduce(lambda one, two: ("and", one, two), map(self._condition, conditions))

    def _condition(self, e: Any) -> Any:
        from asyncstate.sql.expressions import children, ids_in, kind_of, refusal, type_of

        read_by, kind = ids_in(e), kind_of(e)
        for side, own in zip(self._sides, self._outputs, strict=True):
            if read_by and read_by <= own:
                return "field", side.column("condition", e), type_of(e)
        parts = [self._condition(one) for one in children(e)]
        if kind in ("And", "Or"):
            return kind.lower(), *parts
        if kind in ("Not", "IsNull", "IsNotNull"):
            return {"Not": "not", "IsNull": "null", "IsNotNull": "valid"}[kind], *parts
        if kind in _COMPARED and type_of(children(e)[0]).split("<")[0] not in ("array", "struct", "map"):
            kinds = {type_of(one) for one in children(e)}
            if len(kinds) == 1:
                return _COMPARED[kind], *parts, kinds.pop() in _FLOATS
        if kind in _COUNTED and type_of(e) in ("int", "bigint", "double"):
            return _COUNTED[kind], *parts
        if not read_by:
            text = self._reader.text(e, {})
            return "field", self._sides[0].computed("condition", text, type_of(e)), type_of(e)
        raise refusal(f"{e.sql()} {self.refused[0]}", self.refused[1], e)


def arrow_condition(given: Any) -> pc.Expression:
    """The Arrow expression of a condition as ``ResidualReader`` writes it."""
    what, *parts = given
    if what == "field":
        return pc.field(parts[0])
    if what in ("and", "or"):
        one, two = map(arrow_condition, parts)
        return one & two if what == "and" else one | two
    if what in ("not", "null", "valid"):
        (one,) = map(arrow_condition, parts)
        return ~one if what == "not" else one.is_null() if what == "null" else one.is_valid()
    if what in ("+", "-", "*"):
        one, two = map(arrow_condition, parts)
        return _PYTHON[what](one, two)
    one, two, floats = arrow_condition(parts[0]), arrow_condition(parts[1]), parts[2]
    if what == "<=>":
        both = one.is_null() & two.is_null()
        same = _compared("=", one, two, floats)
        return both | (one.is_valid() & two.is_valid() & same)
    if what not in _PYTHON:
        raise SqlError(
            f"a stored plan has the condition {what!r}, which this version does not know; compile it again"
        )
    return _compared(what, one, two, floats)


def _compared(what: str, one: Any, two: Any, floats: bool) -> Any:
    plain = _PYTHON[what](one, two)
    if not floats:
        return plain
    # A NaN is equal to a NaN, and greater than any other number. Null in either makes all of it null.
    first, second = pc.is_nan(one), pc.is_nan(two)
    if what == "=":
        return plain | (first & second)
    if what in (">", ">="):
        return plain | (first if what == ">=" else first & ~second)
    return plain | (second if what == "<=" else second & ~first)
