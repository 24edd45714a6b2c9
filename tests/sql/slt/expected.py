"""Compares rows with the lines that a file expects.

Owns: ``disagreement``.
Invariant: order does not count, as a table that is kept up to date has none.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

Row = tuple[Any, ...]
_HASH = re.compile(r"(\d+) values hashing to ([0-9a-f]{32})")
_BOOLEANS = {"t": "1", "true": "1", "f": "0", "false": "0", "True": "1", "False": "0"}
_BRACKETS = str.maketrans(dict.fromkeys("{}[]()'\",:"))


def hashed(lines: Sequence[str]) -> tuple[int, str] | None:
    """The number of values and their hash, if a file has these in place of values."""
    found = _HASH.fullmatch(lines[0].strip()) if len(lines) == 1 else None
    return None if found is None else (int(found[1]), found[2])


def has_hash(rows: Sequence[Row], columns: str, sort: str, digest: str) -> bool:
    """Whether rows, as SQLite has them, have the hash of a file."""
    texts = [[_of_sqlite(value, kind) for value, kind in zip(row, columns, strict=True)] for row in rows]
    if sort == "rowsort":
        texts.sort()
    values = [value for row in texts for value in row]
    if sort == "valuesort":
        values.sort()
    return hashlib.md5("".join(f"{one}\n" for one in values).encode()).hexdigest() == digest


def _of_sqlite(value: Any, kind: str) -> str:
    if value is None:
        return "NULL"
    if kind == "I":
        try:
            return str(int(value))
        except ValueError:
            return "0"
    if kind == "R":
        return f"{float(value):.3f}"
    return str(value) or "(empty)"


def disagreement(
    rows: Sequence[Row],
    lines: Sequence[str],
    columns: str,
    sort: str,
    engine: str,
) -> tuple[list[Any], list[Any]] | None:
    """The rows that are too many, and the lines that are missing; None if there are none. A line of RisingWave
    is a row; of the others it may be a value. In SQLite's columns of the letter I numbers have no fraction."""
    cut, by_value = engine == "sqlite" and "I" in columns, engine != "risingwave"
    have = [[one for value in row for one in _texts(value, engine)] for row in rows]
    want = [_split(one) for one in lines]
    width = len(rows[0]) if rows else max(len(columns), 1)
    if by_value and not any("\t" in one for one in lines) and len(lines) == len(rows) * width > len(rows):
        if sort == "valuesort":
            have = [_texts(value, engine) for row in rows for value in row]
        else:
            want = [[*chain(*want[at : at + width])] for at in range(0, len(want), width)]
    left = sorted(want)
    more = []
    for row in sorted(have):
        found = next((at for at, one in enumerate(left) if _alike(row, one, cut)), None)
        if found is None:
            more.append(row)
        else:
            del left[found]
    return (more, left) if more or left else None


def _split(line: str) -> list[str]:
    if any(one in line for one in "[{("):
        line = re.sub(r"([,:])\s+", r"\1", line)
    return [one for part in line.split() for one in _plain(part)]


def _plain(text: str) -> list[str]:
    text = text.removesuffix("+00:00")
    return [one for one in [text.translate(_BRACKETS) if text != "(empty)" else "(empty)"] if one]


def _texts(value: Any, engine: str) -> list[str]:
    """A value as the words that a file has for it. Structs of RisingWave have no names."""
    if value is None:
        return ["NULL"]
    if isinstance(value, float):
        return _plain(repr(value)) if not math.isfinite(value) or value != int(value) else [str(int(value))]
    if isinstance(value, decimal.Decimal):
        return [f"{value:f}"]
    if isinstance(value, dt.datetime):
        return _split(value.replace(tzinfo=None).isoformat(" "))
    if isinstance(value, list | tuple):
        return ["".join(one for part in value for one in _texts(part, engine))]
    if isinstance(value, dict):
        names = engine != "risingwave"
        parts = (one for name, part in value.items() for one in (name * names, *_texts(part, engine)))
        return ["".join(parts)]
    if isinstance(value, bytes):
        return [f"\\x{value.hex()}"]
    return _split(str(value)) if str(value).strip() else ["(empty)"]


def _alike(have: Sequence[str], want: Sequence[str], cut: bool) -> bool:
    return len(have) == len(want) and all(
        one == two or _BOOLEANS.get(one, one) == _BOOLEANS.get(two, two) or _near(one, two, cut)
        for one, two in zip(have, want, strict=True)
    )


def _near(one: str, two: str, cut: bool) -> bool:
    """Numbers, which files have with three or more digits."""
    try:
        have, want = float(one), float(two)
    except ValueError:
        return False
    is_cut = cut and math.isfinite(have) and math.trunc(have) == want
    return is_cut or math.isclose(have, want, rel_tol=1e-6, abs_tol=6e-4)
