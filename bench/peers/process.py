"""Processes that take turns by micro-batch, and their protocol with the driver of the benchmark.

Owns: ``Input``, ``Start``, ``Run``, ``Timed`` and ``Said``, a line of JSON each; ``Running``, a peer's process, and
``take_turns``.
Invariant: at most one process works at any moment.
Must not start Spark.

A process is started with a Start as its argument, and then gets a line for each of its Runs, and a line ``go`` for each
micro-batch of one. It answers ``Said(what="ready")`` when it waits for a ``go``, and ``Said(what="done")`` at the end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from bench.frame import CaseError
from bench.frame.measure import LAST_WORDS, ROOT
from bench.session import LOG

GO = "go\n"


class Input(msgspec.Struct, frozen=True):
    """A folder with a folder of files for each table.

    ``files`` a micro-batch and table; ``rows`` of each micro-batch, all tables together.
    """

    folder: str
    tables: tuple[str, ...]
    files: int
    rows: tuple[int, ...]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Which peer, on which work."""

    peer: str
    work: str
    folder: str
    cores: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One streaming query from nothing. The rows of micro-batches from ``first_kept`` on go to ``folder``/sink."""

    input: Input
    folder: str
    first_kept: int


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each micro-batch, from its trigger to its commit.

    ``cpu_seconds`` are those of processors: driver, JVM and Python workers, from a micro-batch's turn to the next
    one's; the last one's are unknown. Empty where the system does not report them.
    """

    seconds: list[float]
    cpu_seconds: list[float] = []


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """``what`` is ready, done or failed."""

    what: str
    timed: Timed | None = None
    error: str = ""


class Running:
    """One peer's process. ``timed`` is set when a Run has ended."""

    def __init__(self, start: Start) -> None:
        folder = Path(start.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.peers.child", msgspec.json.encode(start).decode()],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.timed: Timed | None = None

    def begin(self, run: Run) -> None:
        """Hand it a Run and wait until its first micro-batch is ready."""
        self.timed = None
        self._tell(msgspec.json.encode(run).decode() + "\n")

    def step(self) -> None:
        """Let it do one micro-batch, and what follows up to the next one's turn."""
        self._tell(GO)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _tell(self, line: str) -> None:
        """Say a line, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        said = (
            msgspec.json.decode(answer, type=Said)
            if answer
            else Said(what="failed", error="its process has ended")
        )
        if said.what == "failed":
            logs = (self._log.with_name(name) for name in (LOG, self._log.name))
            text = "\n".join(log.read_text(errors="replace")[-LAST_WORDS:] for log in logs if log.exists())
            raise CaseError(f"{said.error}; the end of its output:\n{text.strip()}")
        self.timed = said.timed


class Stepping(Protocol):
    """What takes turns."""

    def step(self) -> None:
        """One micro-batch."""


def take_turns(
    peers: Mapping[str, Stepping], alone: Mapping[str, int], together: int, tell: Callable[[str], None]
) -> dict[str, str]:
    """First each peer's ``alone`` micro-batches, then ``together`` ones in turns; what failed with what it said."""
    failed: dict[str, str] = {}
    steps = [(name, f"filling {at + 1}/{alone[name]}") for name in peers for at in range(alone[name])]
    steps += [(name, f"micro-batch {at + 1}/{together}") for at in range(together) for name in peers]
    for name, doing in steps:
        if name not in failed:
            tell(f"{doing}: {name}")
            try:
                peers[name].step()
            except CaseError as error:
                failed[name] = str(error)
    return failed
