"""A compiled query as text.

Owns: ``explained``; ``said``, of one node.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from asyncstate.sql import ir

_WITHOUT_LITERALS = {"avg", "count", "match_number", "max", "min", "sum"}
"""Functions whose number, in MATCH_RECOGNIZE, means nothing."""
_HIDDEN = {"inputs", "columns", "sql", "rows"}


def explained(nodes: Sequence[ir.Node], notes: Sequence[str]) -> str:
    """The nodes, each with what it reads, the part of the statement that it comes from, and notes."""
    numbers, lines = {node: str(number) for number, node in enumerate(nodes, 1)}, list[str]()
    for node, number in numbers.items():
        read = f" of {', '.join(numbers[one] for one in node.inputs)}" if node.inputs else ""
        lines.append(f"{number:>3} {said(node, read)}")
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def said(node: ir.Node, read: str = "") -> str:
    """A node in one line; ``read``: its inputs, as they are called there."""
    values = {field.name: getattr(node, field.name) for field in fields(node) if field.name not in _HIDDEN}
    for name in ("texts", "own"):
        if name in values:  # of a lookup, the columns that it adds
            given = values.pop(name)
            made = zip(given, node.names[len(node.names) - len(given) :], strict=True)
            values["columns"] = tuple(one if one == new else f"{one} AS {new}" for one, new in made)
    parts = []
    for name, value in values.items():
        if value not in (None, (), False, 0, ""):
            several = value if isinstance(value, tuple) else (value,)
            parts.append(f"{name} {', '.join(map(_part, several))}")
    source = f"  -- {node.sql}" if node.sql else ""
    return f"{type(node).__name__}{read}: {'; '.join(parts)}{source}"


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
