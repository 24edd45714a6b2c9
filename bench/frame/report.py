"""The report of a benchmark: rows, as a table of 80 columns, as JSON and as a picture (a panel for each of its columns
that is drawn, a bar for each of its rows); the exit code, and the options that all command lines have.

Invariant: a case that fails or is wrong is in the table with the reason and does not affect the others; the JSON
is written after each row.
"""

from __future__ import annotations

import inspect
import os
import platform
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import msgspec
import typer
from rich.console import Console

from asyncstate.errors import AsyncStateError
from bench.frame.measure import LAST_WORDS, CaseError, Ratio, WrongResult, isolated, medians, ratio, reason
from bench.processor_time import Spent

WIDTH = 80
LOG = "spark.log"  # what Spark says in a benchmark, in its scratch folder
WRONG_RESULT, CANNOT_RUN = 1, 2
_NAMED = inspect.Parameter.KEYWORD_ONLY
T = TypeVar("T")

Environment = Mapping[str, str]
Sides = Mapping[str, Sequence[Spent]]
Tiny = Annotated[bool, typer.Option("--tiny", help="Small and quick, to check that it runs.")]
Seed = Annotated[int, typer.Option(help="Seed of the random data.")]
Rounds = Annotated[int, typer.Option(min=1, help="Measured rounds; the table shows medians over them.")]
Cores = Annotated[int, typer.Option(min=1, help="Cores for each engine, and partitions.")]
Output = Annotated[Path | None, typer.Option(help="Folder for the results as JSON, and the charts.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for state; by default the temporary directory.")]


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ``bench compare`` holds against an earlier run. ``rate``: more is better; ``absolute``: no ratio, so that
    only runs on one machine can be compared."""

    value: float
    low: float
    high: float
    rate: bool = False
    absolute: bool = False


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line: of ``group``, which has a line of its own above its rows, and ``name``; ``facts`` are the columns.
    ``failed`` and ``skipped`` say why there are no facts, ``wrong`` what was wrong with the result."""

    name: str
    group: str = ""
    facts: dict[str, Any] = {}
    figures: dict[str, Figure] = {}
    failed: str = ""
    skipped: str = ""
    wrong: list[str] = []

    @property
    def title(self) -> str:
        return f"{self.group}, {self.name}" if self.group else self.name


def plain(value: float) -> str:
    """Three digits or so; whole numbers as they are."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def short(value: float) -> str:
    """Three digits and a unit: 1,234,567 is 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def times(value: float) -> str:
    return f"{value:.0f}x" if value >= 99.5 else f"{value:.3g}x" if value >= 10 else f"{value:.2f}x"


SHOWN: Mapping[str, Callable[[float], str]] = {
    "kib": lambda value: plain(value / (1 << 10)),
    "mib": lambda value: plain(value / (1 << 20)),
    "ms": lambda value: f"{1e3 * value:,.0f}",
    "percent": "{:.1%}".format,
    "plain": plain,
    "short": short,
    "times": times,
    "whole": "{:,.0f}".format,
}
"""How a figure can be shown, by name."""


class Column(NamedTuple):
    """``heading`` (its last word has a line of its own) over a fact; ``fact`` may name two for a spread, ``low high``.
    With ``bars`` the column is drawn; they name the facts where the whiskers end, or are empty."""

    heading: str
    fact: str
    shown: Callable[[Any], str] = plain
    bars: str | None = None

    def cell(self, row: Row) -> str:
        values = [row.facts.get(name) for name in self.fact.split()]
        if all(value is None for value in values):
            return ""
        texts = [one if isinstance(one, str) else "" if one is None else self.shown(one) for one in values]
        return texts[0] if len(texts) == 1 else "-".join(text.removesuffix("x") for text in texts)


def columns(text: str) -> tuple[Column, ...]:
    """Columns as text, with ``;`` or a line's end between them: ``heading: fact``, then ``as`` and how it is shown (of
    ``SHOWN``, or a format), then ``drawn`` and the whiskers, if any. Raises KeyError for what is not in ``SHOWN``."""
    found = []
    for cell in filter(None, map(str.strip, text.replace("\n", ";").split(";"))):
        heading, _, rest = cell.partition(":")
        rest, drawn, bars = rest.partition(" drawn")
        fact, _, how = rest.partition(" as ")
        shown = how.format if "{" in how else SHOWN[how or "plain"]
        found.append(Column(heading.strip(), fact.strip(), shown, bars.strip() if drawn else None))
    return tuple(found)


def table(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Lines of at most ``WIDTH`` characters; a name that does not fit next to the values gets its own line."""
    columns = [column for column in columns if any(map(column.cell, rows))]
    cells = [[column.cell(row) for column in columns] for row in rows]
    heads = list(zip(*(("", *column.heading.rsplit(" ", 1))[-2:] for column in columns), strict=True))
    widths = [max(map(len, texts)) for texts in zip(*heads, *cells, strict=True)]
    names = [f"  {row.name}" if row.group else row.name for row in rows]
    room = WIDTH - sum(widths) - len(widths)
    wide = max((len(name) for name in names if len(name) <= room), default=max(room, 0))

    def line(name: str, texts: Iterable[str]) -> str:
        placed = " ".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))
        return f"{name:<{wide}} {placed}".rstrip()

    lines = [text for texts in heads if (text := line("", texts))]
    lines += ["-" * min(WIDTH, wide + sum(widths) + len(widths))] if columns else []
    group = ""
    for row, name, texts in zip(rows, names, cells, strict=True):
        if row.group and row.group != group:
            lines.append(row.group)
        group = row.group
        instead = {"FAILED": row.failed, "left out": row.skipped, "WRONG": "; ".join(row.wrong)}
        if said := [f"{name}: {what}: {why.splitlines()[0]}" for what, why in instead.items() if why]:
            lines.append(said[0])
            continue
        if len(name) > wide:
            lines.append(name)
            name = ""
        lines.append(line(name, texts))
    return lines


_WIDE = 50  # from this ratio between the longest bar and the shortest on, the axis is logarithmic


def draw(path: Path, title: str, rows: Sequence[Row], columns: Sequence[Column]) -> bool:
    """Write the picture; False if no column is drawn. Rows of one name, such as a mode, have one color."""
    panels = [
        (column, bars)
        for column in columns
        if column.bars is not None and (bars := [row for row in rows if column.fact in row.facts])
    ]
    if not panels:
        return False
    from matplotlib.figure import Figure as Picture

    names = list(dict.fromkeys(row.name for row in rows))
    heights = [0.3 * len(bars) + 1.0 for _, bars in panels]
    picture = Picture((10, 0.8 + sum(heights)), layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", fontsize=12, wrap=True)
    grid = picture.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, (column, bars) in zip(grid[:, 0], panels, strict=True):
        colors = [f"C{names.index(row.name) % 10}" if len(names) < len(rows) else "C0" for row in bars]
        _panel(axes, column, bars, colors)
    picture.savefig(path, dpi=130)
    return True


def _panel(axes: Any, column: Column, rows: Sequence[Row], colors: Sequence[str]) -> None:
    values = [row.facts[column.fact] for row in rows]
    ends = (column.bars or "").split() or (column.fact,) * 2
    spread = [
        [abs(row.facts[column.fact] - row.facts.get(end, row.facts[column.fact])) for row in rows]
        for end in ends
    ]
    bars = axes.barh(range(len(rows)), values, 0.8, color=colors, xerr=spread, error_kw={"lw": 1})
    axes.bar_label(bars, [column.shown(value) for value in values], padding=4, fontsize=8)
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=min(0, *values))
    axes.set_xlabel(column.heading)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


Measure = Callable[..., Iterable[Row]]


class Report:
    """The rows of one run of a benchmark. Use as a context manager: at its end the tables are shown, and the command
    ends with 1 if a result is wrong, 2 if a case failed. ``folder`` is scratch room. A ``tiny`` run shows that it runs,
    in this process alone where that will do. With ``output`` all rows and ``facts`` are written to ``BENCH.json`` after
    each row, and at the end a picture a table, ``BENCH.png``, ``BENCH-2.png`` and so on."""

    def __init__(
        self, bench: str, output: Output = None, folder: Folder = None, tiny: bool = False, **facts: Any
    ) -> None:
        self.tiny = tiny
        self.rows: list[Row] = []
        self._sections: list[tuple[str, Sequence[Column], str, int]] = []
        self._path = None if output is None else output / f"{bench}.json"
        self.facts = {**facts, "machine": platform.platform(), "load_at_start": os.getloadavg()[0]}
        self.folder = Path(tempfile.mkdtemp(prefix=f"asyncstate-{bench}-", dir=made(folder)))
        self._console = Console()
        self._status = self._console.status("") if self._console.is_terminal else None
        self._started = time.perf_counter()

    def section(self, title: str, columns: Sequence[Column], note: str = "") -> None:
        """The rows that follow are a table of their own."""
        self._sections.append((title, columns, note, len(self.rows)))

    def tell(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        else:
            self.say(f"{time.perf_counter() - self._started:7.1f} s  {text}", style="dim")

    def say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def add(self, *rows: Row) -> None:
        self.rows += rows
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            document = msgspec.json.encode({**self.facts, "results": self.rows}, enc_hook=str)
            self._path.write_bytes(msgspec.json.format(document, indent=2) + b"\n")

    def case(self, name: str, measure: Measure, *given: Any, group: str = "", alone: bool = False) -> bool:
        """Take in the rows of ``measure(*given)`` as they come; ``alone``: in a process of its own. A case that fails
        has a row that says why. Returns whether it did not."""
        row = Row(name=name, group=group)
        self.tell(row.title)
        try:
            for found in self.alone(measure, *given) if alone else measure(*given):
                self.add(found)
        except Exception as error:  # of one case: the others keep their results
            if isinstance(error, WrongResult):
                row.wrong = [str(error)]
            else:
                row.failed = reason(error)
            self.add(row)
        return not (row.failed or row.wrong)

    def alone(self, function: Callable[..., T], *given: Any, environment: Environment | None = None) -> T:
        """``isolated``; of a tiny run only where it needs an environment."""
        if self.tiny and environment is None:
            return function(*given)
        return isolated(function, *given, environment=environment)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
        written = [] if self._path is None or not self.rows else [self._path]
        ends = [*(start for *_, start in self._sections[1:]), len(self.rows)]
        for number, (title, columns, note, start) in enumerate(self._sections):
            rows = self.rows[start : ends[number]]
            if rows:
                self.say("\n".join(["", title, *table(rows, columns), *textwrap.wrap(note, WIDTH)]))
            if written and error is None:
                picture = written[0].with_name(f"{written[0].stem}{f'-{number + 1}' if number else ''}.png")
                written += [picture] if draw(picture, title, rows, columns) else []
        wrong, failed = ([row for row in self.rows if getattr(row, what)] for what in ("wrong", "failed"))
        for row in failed:
            self.say(f"{row.title}: {row.failed}", style="red")
        log = self.folder / LOG
        if failed and log.exists() and (said := log.read_text(errors="replace")):
            self.say(f"the end of Spark's output:\n{said[-LAST_WORDS:].strip()}")
        for row in wrong:
            self.say("\n  ".join([f"{row.title}: WRONG result:", *row.wrong]), style="red")
        if written:
            self.say("written: " + ", ".join(map(str, written)))
        if wrong:
            self.say(f"the files of the wrong ones are in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        expected = isinstance(error, CaseError | AsyncStateError)
        if error is not None and expected:
            self.say(reason(error), style="red")
        code = WRONG_RESULT if wrong else CANNOT_RUN if failed or expected else 0
        if code and (error is None or expected):
            raise typer.Exit(code) from None


def figure(found: Ratio | None) -> dict[str, Any]:
    return {} if found is None else {"ratio": found.value, "low": found.low, "high": found.high}


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers from 1 on, with commas between them. Raises typer.BadParameter."""
    parts = [part.replace("_", "").strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"'{text}': give numbers from 1 on, separated by commas", param_hint=option)
    return tuple(map(int, parts))


def chosen(names: str, known: Iterable[str], option: str) -> list[str]:
    """Those of ``known`` that are named, with commas between them, or all. Raises typer.BadParameter."""
    known = list(known)
    wanted = set(known) if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := ", ".join(sorted(wanted - set(known))):
        raise typer.BadParameter(f"{unknown}: choose from {', '.join(known)}", param_hint=option)
    return [name for name in known if name in wanted]


def made(folder: Path | None) -> Path | None:
    """``folder``, which is made if it is missing. Raises typer.BadParameter if it cannot be written to."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise typer.BadParameter(f"{error}; give a writable folder", param_hint="--folder") from None
    return folder


def costs(unit: str, of: str = "a row") -> tuple[Column, ...]:
    return columns(f"{unit} {of}: cost; CPU {unit}: cpu; ratio: ratio drawn low high; spread: low high")


def sides(
    spent: Sides, units: float, base: str, group: str = "", *, speed: bool = False, scale: float = 1e6
) -> list[Row]:
    """A row a side of ``turns``: what a unit costs it, and its time by that of ``base`` (``speed``: the other way)."""
    rows = []
    for name, mine in spent.items():
        cost, cpu = medians(mine, units, scale)
        found = ratio(spent[base], mine) if speed else ratio(mine, spent[base])
        rows.append(Row(name=name, group=group, facts={"cost": cost, "cpu": cpu, **figure(found)}))
    return rows


def benchmark(**small: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command of a benchmark: a function of its Report and of options of its own, which are facts of the Report.
    All have ``--tiny``, ``--folder`` and ``--output``; ``small`` are what options are in a tiny run."""

    def command_of(function: Callable[..., None]) -> Callable[..., None]:
        def command(*, tiny: bool, folder: Path | None, output: Path | None, **options: Any) -> None:
            options |= small if tiny else {}
            with Report(function.__name__.replace("_", "-"), output, folder, tiny, **options) as report:
                function(report, **options)

        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        for name, kind, value in (("tiny", Tiny, False), ("folder", Folder, None), ("output", Output, None)):
            own.append(inspect.Parameter(name, _NAMED, default=value, annotation=kind))
        command.__signature__ = inspect.Signature([each.replace(kind=_NAMED) for each in own])  # type: ignore[attr-defined]
        command.__annotations__, command.__doc__ = {}, function.__doc__
        return command

    return command_of
