"""The output of the commands, and their exit codes.

Owns: ``Format``, ``print_rows``, ``print_json``, ``checked``; exit codes: 0 good, 1 something is damaged, 2 it could
not be done.
Must not import Spark.
"""

from __future__ import annotations

import enum
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncstate.errors import AsyncStateError
from asyncstate.offline.json_text import json_text

DAMAGED: Final = 1
CANNOT: Final = 2

console = Console(emoji=False)
_errors = Console(stderr=True, emoji=False)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # except the tab and the line end


_COLUMN_LEAST: Final = 6


class Format(enum.StrEnum):
    """Values of ``--format``."""

    TABLE = "table"
    JSON = "json"


@contextmanager
def checked() -> Iterator[None]:
    """Turn the project's errors into their message and exit code 2."""
    try:
        yield
    except AsyncStateError as error:
        _errors.print(
            _fit(_harmless(str(error)), _errors.encoding),
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(CANNOT) from error


def print_json(value: Any) -> None:
    """One line of JSON; characters that the terminal's encoding lacks are escaped as in JSON."""
    text = json_text(value)
    if _fit(text, sys.stdout.encoding) != text:
        text = json.dumps(json.loads(text))
    sys.stdout.write(text + "\n")


def say(text: str, aside: bool = False) -> None:
    """A line for people; ``aside``: on the stream that is not piped on."""
    to = _errors if aside else console
    to.print(_fit(_harmless(text), to.encoding), markup=False, highlight=False, soft_wrap=True)


def print_rows(title: str, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """A table of ``rows``, or a line for each value where it is too wide for the terminal; empty where a value is
    None."""
    say(title)
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    if _least_width(cells, names) > console.width:
        for row in cells:
            say("\n".join([f"{name}: {cell.plain}" for name, cell in zip(names, row, strict=True)]) + "\n")
        return
    table = Table()
    for name in names:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _least_width(cells: Sequence[Sequence[Text]], names: Sequence[str]) -> int:
    """The width of a table that can still be read: below it, rich makes columns of no width."""
    longest: list[int] = [
        max(cell.cell_len for cell in (Text(name), *column))
        for name, *column in zip(names, *cells, strict=True)
    ]
    return 1 + sum(min(length, _COLUMN_LEAST) + 3 for length in longest)


def _cell(value: Any) -> Text:
    """Not as a plain str, in which rich looks for markup."""
    if value is None:
        return Text()
    text = value if isinstance(value, str) else json_text(value)
    return Text(_fit(_harmless(text).replace("\t", r"\t"), console.encoding))


def _harmless(text: str) -> str:
    """``text`` with escapes for what controls a terminal: texts of a checkpoint may come from anywhere."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def _fit(text: str, encoding: str | None) -> str:
    """``text`` with escapes for what ``encoding`` lacks: a terminal that is not of UTF-8, surrogates."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
