"""Reads sqllogictest files.

Owns: ``Record``; ``records``, which follows ``include``, unrolls ``loop`` and ``foreach``, and leaves out what is not
for this runner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SORTS = ("nosort", "rowsort", "valuesort", "partialsort")
_RUNNERS = ("madsim", "asyncstate")
"""What ``skipif`` and ``onlyif`` may name besides an engine; this is neither."""


@dataclass(frozen=True)
class Record:
    """``kind``: ok, error (a statement that the engine refuses), or query, with the lines that are ``expected``.
    ``columns``: the letters of a query's columns."""

    path: Path
    line: int
    kind: str
    sql: str
    columns: str = ""
    sort: str = "nosort"
    expected: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The file and the line."""
        return f"{self.path}:{self.line}"


def records(path: Path, engine: str) -> Iterator[Record]:
    """The records of a file that are for an engine."""
    numbered = list(enumerate(path.read_text(errors="replace").splitlines(), 1))
    yield from _records(path, numbered, engine)


def _records(path: Path, lines: Sequence[tuple[int, str]], engine: str) -> Iterator[Record]:
    at, wanted, muted = 0, True, False
    while at < len(lines):
        number, line = lines[at]
        words = line.split("#")[0].split() if not line.startswith("#") else []
        at += 1
        if not words:
            continue
        match words[0]:
            case "skipif":
                wanted = wanted and words[1] != engine
            case "onlyif":
                wanted = wanted and words[1] == engine
            case "mode":
                muted = words[1] == "skip" or (muted and words[1] != "unskip")
            case "halt" if wanted:
                return
            case "include":
                for one in sorted(path.parent.glob(words[1])):
                    yield from records(one, engine)
            case "loop" | "foreach" | "concurrentloop" | "concurrentforeach":
                end = _end(lines, at)
                values = (
                    [str(one) for one in range(int(words[2]), int(words[3]))]
                    if words[0].endswith("loop")
                    else words[2:]
                )
                for value in values if wanted else ():
                    inner = [(one, text.replace(f"${{{words[1]}}}", value)) for one, text in lines[at:end]]
                    yield from _records(path, inner, engine)
                at, wanted = end + 1, True
            case "statement" | "query":
                body, at = _block(lines, at)
                if wanted and not muted:
                    yield _record(path, number, words, body)
                wanted = True
            case _:
                wanted = True


def _end(lines: Sequence[tuple[int, str]], at: int) -> int:
    depth = 1
    while at < len(lines):
        word = (lines[at][1].split() or [""])[0]
        depth += word in ("loop", "foreach", "concurrentloop", "concurrentforeach")
        depth -= word == "endloop"
        if depth == 0:
            return at
        at += 1
    return at


def _block(lines: Sequence[tuple[int, str]], at: int) -> tuple[list[str], int]:
    """The lines up to an empty one. In RisingWave's files two empty lines end an error's message."""
    body = []
    while at < len(lines) and (lines[at][1].strip() or not body):
        body.append(lines[at][1])
        at += 1
    return body, at


def _record(path: Path, number: int, words: list[str], body: list[str]) -> Record:
    rule = next((at for at, one in enumerate(body) if one.strip() == "----"), len(body))
    sql = re.sub(r"[;\s]*(--[^\n]*)?\s*$", "", "\n".join(body[:rule])).strip()
    if words[0] == "statement" or (len(words) > 1 and words[1] in ("error", "ok")):
        kind = "error" if len(words) > 1 and words[1] in ("error", "maybe") else "ok"
        return Record(path, number, kind, re.sub(r"\s*<REGEX>.*", "", sql))
    sort = next((one for one in words[2:] if one in _SORTS), "nosort")
    expected = tuple(one.rstrip("\r") for one in body[rule + 1 :])
    return Record(path, number, "query", sql, words[1] if len(words) > 1 else "", sort, expected)
