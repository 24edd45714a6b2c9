"""Some rows of a stream, as a text for people.

Owns: ``Sample``, and ``sample_text``.
Invariant: nothing is cut off without a word about it.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog

_CHARACTERS_MAX: Final = 20  # of a value, as in Spark's show


class Sample(NamedTuple):
    """The rows that a node emits for some rows of its sources. ``read``: the rows of each source; ``limit``: the rows
    at which reading a source ended."""

    rows: pa.Table
    changes: Changelog
    read: Mapping[str, int]
    limit: int


def sample_text(sample: Sample, n: int, changes: bool) -> str:
    """The first ``n`` rows as a table in the form of Spark's ``show``, and how many rows there are and were read.
    ``changes``: the rows with their kinds, instead of the table that they describe."""
    names = [name for name in sample.rows.column_names if name != ROW_KIND_COLUMN]
    columns = [sample.rows.column(name).to_pylist() for name in names]
    rows = list(zip(*columns, strict=True)) if columns else [()] * sample.rows.num_rows
    has_kinds = ROW_KIND_COLUMN in sample.rows.column_names
    kinds = sample.rows.column(ROW_KIND_COLUMN).to_pylist() if has_kinds else ["+I"] * len(rows)
    if changes:
        names, rows = [ROW_KIND_COLUMN, *names], [(kind, *row) for kind, row in zip(kinds, rows, strict=True)]
    else:
        rows = _net(rows, kinds, [names.index(name) for name in sample.changes.upsert_key or ()])
    lines = _grid([names, *rows[:n]])
    if len(rows) > n:
        lines.append(f"only showing the first {n:,} rows")
    what = "changes" if changes else "rows"
    read = [
        f"{count:,} of {name}{' (more were not read)' if count >= sample.limit else ''}"
        for name, count in sample.read.items()
    ]
    return "\n".join([*lines, f"{len(rows):,} {what}; rows read: {', '.join(read)}"])


def _net(rows: Sequence[tuple[Any, ...]], kinds: Sequence[str], key: Sequence[int]) -> list[tuple[Any, ...]]:
    """The rows that are left, in the order in which they came; ``key``: the places of the columns by which they replace
    each other."""
    left: dict[str, list[tuple[Any, ...]]] = {}
    for row, kind in zip(rows, kinds, strict=True):
        equal = left.setdefault(repr([row[at] for at in key] if key else row), [])
        if key:
            equal.clear()
        if kind in ("+I", "+U"):
            equal.append(row)
        elif equal:
            equal.pop()
    return [row for equal in left.values() for row in equal]


def _grid(rows: Sequence[Sequence[Any]]) -> list[str]:
    texts = [[_text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    line = "+" + "".join("-" * (width + 2) + "+" for width in widths)
    made = [
        "|" + "".join(f" {text:>{width}} |" for text, width in zip(row, widths, strict=True)) for row in texts
    ]
    return [line, made[0], line, *made[1:], line]


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix("+00:00")
    text = "NULL" if value is None else " ".join(str(value).split())
    return text if len(text) <= _CHARACTERS_MAX else f"{text[: _CHARACTERS_MAX - 1]}…"
