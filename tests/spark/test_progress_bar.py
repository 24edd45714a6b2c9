"""The progress bar: in a terminal, in a notebook, and nowhere else. These tests start no Spark."""

from __future__ import annotations

import io
import sys
import threading
import types
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("rich")

from rich.console import Console

from asyncstate.errors import ConfigurationError
from asyncstate.spark.progress_bar import (
    NotebookScreen,
    ProgressBar,
    Snapshot,
    TerminalScreen,
    screen_of_this_process,
)

BUSY = Snapshot("shop", 7, "totals", 3.21, (3, 8), 6, 12_000, 2.0, 5 << 20, "2026-01-01 00:00:00")


class Shown:
    """A screen that keeps what it was given, and tells when it was."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.shown, self.cleared = threading.Event(), threading.Event()

    def show(self, lines: list[str]) -> None:
        self.seen.append(lines)
        self.shown.set()

    def clear(self) -> None:
        self.cleared.set()


def test_it_says_what_runs_and_what_was() -> None:
    assert BUSY.lines == [
        "shop: batch 7, operator 'totals', 3.2 s",
        "[#########...............] 3/8 tasks",
        "last: batch 6, 12,000 rows in 2.0 s (6,000/s), 5.0 MiB of state, watermark 2026-01-01 00:00:00",
    ]
    assert Snapshot("shop").lines == ["shop: waiting for rows", "no micro-batch yet"]


def test_it_ends_with_the_query_or_when_it_is_closed() -> None:
    for end in ("query", "close"):
        screen, over = Shown(), threading.Event()
        bar = ProgressBar(lambda: BUSY, lambda over=over: not over.is_set(), screen)  # type: ignore[misc]
        assert screen.shown.wait(30)
        if end == "query":
            over.set()
        else:
            bar.close()
        assert screen.cleared.wait(30)
        bar.close()
        assert screen.seen[0] == BUSY.lines
    assert not any(thread.name == "asyncstate-progress" for thread in threading.enumerate())


def test_a_job_that_cannot_be_looked_at_ends_it_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    def gone() -> Snapshot:
        raise ConnectionError("the JVM has gone")

    screen = Shown()
    with ProgressBar(gone, lambda: True, screen):
        assert screen.cleared.wait(30)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, out, err = io.StringIO(), sys.stdout, sys.stderr
    console = Console(file=terminal, force_terminal=True, width=60)
    screen = TerminalScreen(console, with_stdout=True)
    screen.show(BUSY.lines)
    print("a row of the user's")  # goes above
    screen.show(BUSY.lines)
    screen.clear()
    assert (sys.stdout, sys.stderr) == (out, err)
    written = terminal.getvalue()
    assert "a row of the user's\n" in written
    assert "shop: batch 7" in written
    assert written.rstrip("\r\n").endswith(("\x1b[2K", "\x1b[?25h"))  # the last line erased, the cursor shown
    assert written.count("\x1b[?25h") == written.count("\x1b[?25l") == 1
    assert "…" in written  # lines are cut, not broken, so that they can be erased


def test_nothing_where_nobody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    before = threading.active_count()
    assert screen_of_this_process() is None
    ProgressBar(lambda: BUSY, lambda: True, None).close()
    assert threading.active_count() == before
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_terminal_without_rich_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ConfigurationError, match="asyncstate\\[cli\\]"):
        screen_of_this_process()


def test_a_notebook_s_cell_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[str] = []

    class Handle:
        def update(self, shown: str) -> None:
            cells[-1] = shown

    def display(shown: str, display_id: bool) -> Handle:
        cells.append(shown)
        return Handle()

    shell: Callable[[], object] = type("ZMQInteractiveShell", (), {})
    modules = {"IPython": types.ModuleType("IPython"), "IPython.display": types.ModuleType("IPython.display")}
    modules["IPython"].get_ipython = shell  # type: ignore[attr-defined]
    modules["IPython.display"].display = display  # type: ignore[attr-defined]
    modules["IPython.display"].HTML = str  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    screen = screen_of_this_process()
    assert isinstance(screen, NotebookScreen)
    screen.show(["batch <7>"])
    assert cells == ["<pre>batch &lt;7&gt;</pre>"]
    screen.clear()
    assert cells == [""]
