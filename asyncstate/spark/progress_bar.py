"""The progress of a running job, kept up to date in a terminal or a notebook.

Owns: ``ProgressBar``, ``Snapshot`` and the screens.
Invariant: nothing is written where nobody reads it live (a file, a pipe); at the end the screen is as if the bar had
never been there; nothing here can make a micro-batch fail, or wait.
Must not import storage; rich, which is optional, only where there is a terminal.
"""

from __future__ import annotations

import atexit
import html
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from asyncstate.errors import ConfigurationError

_SECONDS: Final = 0.25  # between two updates
_JOIN_SECONDS_MAX: Final = 5.0
_WIDTH: Final = 24
_MIB: Final = 1 << 20


class Snapshot(NamedTuple):
    """The state of a job at a moment. ``batch_id`` and ``running`` (an operator) are None between micro-batches;
    ``tasks``: done and all of Spark's running stages; ``rows`` went into operators in ``seconds`` of the last
    micro-batch."""

    job: str
    batch_id: int | None = None
    running: str | None = None
    batch_seconds: float = 0.0
    tasks: tuple[int, int] = (0, 0)
    last_batch_id: int | None = None
    rows: int = 0
    seconds: float = 0.0
    state_bytes: int = 0
    watermark: str = ""

    @property
    def now(self) -> str:
        """The line about the current activity."""
        if self.batch_id is None:
            return f"{self.job}: waiting for rows"
        doing = f"operator '{self.running}'" if self.running else "function, sinks and commit"
        return f"{self.job}: batch {self.batch_id}, {doing}, {self.batch_seconds:.1f} s"

    @property
    def bar(self) -> str:
        """The bar of finished tasks."""
        done, count = self.tasks
        full = _WIDTH * done // count if count else 0
        return f"[{'#' * full}{'.' * (_WIDTH - full)}] {done}/{count} tasks" if count else ""

    @property
    def last(self) -> str:
        """The line about the last micro-batch."""
        if self.last_batch_id is None:
            return "no micro-batch yet"
        pace = f" ({self.rows / self.seconds:,.0f}/s)" if self.seconds else ""
        return (
            f"last: batch {self.last_batch_id}, {self.rows:,} rows in {self.seconds:.1f} s{pace}, "
            f"{self.state_bytes / _MIB:,.1f} MiB of state, watermark {self.watermark}"
        )

    @property
    def lines(self) -> list[str]:
        """All non-empty lines."""
        return [line for line in (self.now, self.bar, self.last) if line]


class Screen(Protocol):
    """Shows lines in place of the previous ones."""

    def show(self, lines: list[str]) -> None:
        """Show these lines."""

    def clear(self) -> None:
        """Remove the lines."""


class TerminalScreen:
    """Lines below the program's other output."""

    def __init__(self, console: Any, *, with_stdout: bool) -> None:
        from rich.live import Live

        # Output printed meanwhile goes above the lines; output into a file must not be redirected here.
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=with_stdout,
            redirect_stderr=True,
        )
        self._live.start()

    def show(self, lines: list[str]) -> None:
        """Show these lines."""
        from rich.text import Text

        text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis", style="dim")
        self._live.update(text, refresh=True)

    def clear(self) -> None:
        """Remove the lines."""
        self._live.stop()


class NotebookScreen:
    """Lines in the output of a cell."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]  # there in a notebook

        self._html = HTML
        self._handle = display(HTML(""), display_id=True)

    def show(self, lines: list[str]) -> None:
        """Show these lines."""
        self._handle.update(self._html(f"<pre>{html.escape(chr(10).join(lines))}</pre>"))

    def clear(self) -> None:
        """Remove the lines."""
        self._handle.update(self._html(""))


class ProgressBar:
    """Shows ``snapshot()`` a few times a second as long as ``is_active()``; a context manager.

    Without a screen it does nothing. It ends by itself when the query does, at the latest with the process.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], is_active: Callable[[], bool], screen: Screen | None
    ) -> None:
        self._snapshot = snapshot
        self._is_active = is_active
        self._screen = screen
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if screen is not None:
            self._thread = threading.Thread(target=self._run, name="asyncstate-progress", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self) -> None:
        """Remove the bar from the screen; may be called twice."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS_MAX)
            atexit.unregister(self.close)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        assert self._screen is not None
        try:
            while not self._ended.wait(_SECONDS) and self._is_active():
                self._screen.show(self._snapshot().lines)
        except Exception:  # the JVM or the screen is gone: nothing to show, and nobody to notify
            pass
        finally:
            with suppress(Exception):
                self._screen.clear()


def screen_of_this_process() -> Screen | None:
    """A notebook's cell, a terminal, or None where output goes elsewhere.

    Raises ConfigurationError for a terminal without rich.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if type(shell).__name__ == "ZMQInteractiveShell":  # the kernel of a notebook
        return NotebookScreen()
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError as error:
        raise ConfigurationError(
            "a progress bar in a terminal needs rich: pip install 'asyncstate[cli]', or leave progress out"
        ) from error
    return TerminalScreen(Console(stderr=True), with_stdout=sys.stdout is not None and sys.stdout.isatty())
