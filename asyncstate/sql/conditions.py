"""Conditions over more rows than one, nested tuples of words and their parts.

Owns: ``arrow_condition``, of candidate rows of a join; ``is_met``, of a row and the match so far; ``COMPARED`` and
``COUNTED``, the words.
``COUNTED``, the words; ``EXACT``, types of values.
Must not import Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow.compute as pc

from asyncstate.errors import SqlError
from asyncstate.operator import Row

COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FLIPPED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""What is said with the sides exchanged."""
EXACT: Final = {
    *("tinyint", "smallint", "int", "bigint", "decimal", "string", "date", "timestamp", "timestamp_ntz")
}
"""Types whose equal values are one value: of floats, 0.0 and -0.0 are two."""
COUNTED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def _unknown(what: str) -> SqlError:
    return SqlError(
        f"a stored plan has the condition {what!r}, which this version does not know; compile it again"
    )


def arrow_condition(given: Any) -> pc.Expression:
    """The Arrow expression of a condition."""
    what, *parts = given
    if what == "field":
        return pc.field(parts[0])
    if what in ("and", "or"):
        one, two = map(arrow_condition, parts)
        return one & two if what == "and" else one | two
    if what in ("not", "null", "valid"):
        (one,) = map(arrow_condition, parts)
        return ~one if what == "not" else one.is_null() if what == "null" else one.is_valid()
    if what in COUNTED:
        return COUNTED[what](*map(arrow_condition, parts))
    one, two, floats = arrow_condition(parts[0]), arrow_condition(parts[1]), parts[2]
    if what == "<=>":
        both = one.is_null() & two.is_null()
        same = _compared("=", one, two, floats)
        return both | (one.is_valid() & two.is_valid() & same)
    if what not in COMPARED:
        raise _unknown(what)
    return _compared(what, one, two, floats)


def _compared(what: str, one: Any, two: Any, floats: bool) -> Any:
    plain = COMPARED[what](one, two)
    if not floats:
        return plain
    # A NaN is equal to a NaN, and greater than any other number. Null in either makes all of it null.
    first, second = pc.is_nan(one), pc.is_nan(two)
    if what == "=":
        return plain | (first & second)
    if what in (">", ">="):
        return plain | (first & (two.is_valid() if what == ">=" else ~second))
    return plain | (second & (one.is_valid() if what == "<=" else ~first))


def is_met(condition: Any, row: Row, match: Any) -> bool:
    """Whether a condition, nested tuples, is true for the current row and the match so far."""
    return _value(condition, row, match) is True


def _value(e: Any, row: Row, match: Any) -> Any:
    what, *parts = e
    if what == "literal":
        return parts[0]
    if what == "field":
        return row[parts[0]]
    if what == "of":
        return _of(row, match, *parts)
    if what in ("and", "or"):
        found, decides = [_value(one, row, match) for one in parts], what == "or"
        return decides if decides in found else None if None in found else not decides
    values = [
        _value(one, row, match) for one in parts[: 1 if what in ("not", "null", "valid", "cast") else 2]
    ]
    if what in ("null", "valid"):
        return (values[0] is None) == (what == "null")
    if what == "<=>":
        return (None not in values and _ordered(values[0]) == _ordered(values[1])) or values == [None, None]
    if None in values:
        return None
    if what == "not":
        return not values[0]
    if what == "cast":
        return float(values[0]) if parts[1] == "double" else values[0]
    if what in COUNTED:
        return COUNTED[what](*values)
    if what not in COMPARED:
        raise _unknown(what)
    return COMPARED[what](*map(_ordered, values))


def _ordered(value: Any) -> Any:
    """NaN after all numbers."""
    if not isinstance(value, float):
        return value
    return (True, 0.0) if value != value else (False, value)


def _of(
    row: Row, match: Any, function: str, variable: str | None, column: str | None, offset: int, own: bool
) -> Any:
    """A value of the rows of a variable, with the current row if it is of that variable."""
    if function == "prev" and own:
        given = match.prev(offset) if offset else row
        return None if given is None else given[column]
    if function == "prev":
        places = [place for place, one in enumerate(match.variables) if one == variable]
        return match[places[-1] - offset][column] if places else None
    rows = [*match.rows(variable), *([row] if own else [])]
    if function in ("first", "last"):
        at = offset if function == "first" else len(rows) - 1 - offset
        return rows[at][column] if 0 <= at < len(rows) else None
    values = [True if column is None else one[column] for one in rows]
    values = [one for one in values if one is not None]
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("min", "max"):
        return (min if function == "min" else max)(values, key=_ordered)
    return sum(values) / len(values) if function == "avg" else sum(values)
