"""A compiled query as text.

Owns: ``explained``.
Must not import Spark.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from asyncstate.sql import ir

if TYPE_CHECKING:
    from asyncstate.sql.statements import Compiled

_WITHOUT_LITERALS = {"avg", "count", "match_number", "max", "min", "sum"}
"""Functions whose number, in MATCH_RECOGNIZE, means nothing."""
_HIDDEN = {"inputs", "columns", "sql", "rows"}


def explained(compiled: Compiled) -> str:
    """The nodes, each with what it reads, the part of the statement that it comes from, and warnings."""
    assert compiled.root is not None
    nodes = list(ir.walk(compiled.root))
    numbers = {node: number for number, node in enumerate(nodes, 1)}
    lines = [_line(node, numbers) for node in nodes]
    return "\n".join([*lines, *(f"note: {note}" for note in compiled.notes)])


def _line(node: ir.Node, numbers: dict[ir.Node, int]) -> str:
    read = f" of {', '.join(str(numbers[one]) for one in node.inputs)}" if node.inputs else ""
    return f"{numbers[node]:3} {said(node, read)}"


def said(node: ir.Node, read: str = "") -> str:
    """A node in one line; ``read``: its inputs, as they are called there."""
    values = {field.name: getattr(node, field.name) for field in fields(node) if field.name not in _HIDDEN}
    for name in ("texts", "own"):
        if name in values:  # of a lookup, the columns that it adds
            given = values.pop(name)
            made = zip(given, node.names[len(node.names) - len(given) :], strict=True)
            values["columns"] = tuple(one if one == new else f"{one} AS {new}" for one, new in made)
    parts = [_said(name, value) for name, value in values.items()]
    source = f"  -- {node.sql}" if node.sql else ""
    return f"{type(node).__name__}{read}: {'; '.join(filter(None, parts))}{source}"


def _said(name: str, value: Any) -> str:
    if value in (None, (), False, 0, ""):
        return ""
    if isinstance(value, tuple):
        return f"{name} {', '.join(map(_part, value))}"
    return f"{name} {value}"


def _part(value: Any) -> str:
    if isinstance(value, ir.Call):
        literals = () if value.function in _WITHOUT_LITERALS else value.numbers
        read = ", ".join([*value.columns, *map(repr, literals)])
        inner = f"DISTINCT {read}" if value.distinct else read
        order = f" ORDER BY {', '.join(map(_part, value.order))}" if value.order else ""
        where = f" where {value.where}" if value.where else ""
        return f"{value.function}({inner}{order}){where} AS {value.name}"
    if isinstance(value, ir.Order):
        nulls = f" NULLS {'FIRST' if value.nulls_first else 'LAST'}"
        is_usual = value.nulls_first is not value.descending
        return f"{value.column}{' DESC' if value.descending else ''}{'' if is_usual else nulls}"
    return str(value)
