"""Processes that take turns by micro-batch, and their protocol with the driver of the benchmark.

Owns: ``Input``, ``Run`` and ``Timed``; ``Running``, a peer's process, and ``take_turns``.
Invariant: at most one process works at any moment.
Must not start Spark.

A process gets each of its Runs, and ``GO`` for each micro-batch of one. It answers None when it waits for its turn,
a Timed at the end of a Run, and a text, why, if it fails.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from bench.frame import CaseError
from bench.frame.measure import LAST_WORDS, reason
from bench.frame.report import LOG

GO = "go"


@dataclass(frozen=True)
class Input:
    """A folder with a folder of files for each table.

    ``files`` a micro-batch and table; ``rows`` of each micro-batch, all tables together.
    """

    folder: Path
    tables: tuple[str, ...]
    files: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One streaming query from nothing. The rows of micro-batches from ``first_kept`` on go to ``folder``/sink."""

    input: Input
    folder: Path
    first_kept: int


@dataclass(frozen=True)
class Timed:
    """Seconds of each micro-batch, from its trigger to its commit.

    ``cpu_seconds`` are those of processors: driver, JVM and Python workers, from a micro-batch's turn to the next
    one's; the last one's are unknown. Empty where the system does not report them.
    """

    seconds: list[float]
    cpu_seconds: list[float] = field(default_factory=list)


class Running:
    """One peer's process. ``timed`` is set when a Run has ended."""

    def __init__(self, peer: str, work: str, folder: Path, cores: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = [folder / LOG, folder / "log"]
        processes = multiprocessing.get_context("spawn")
        self._line, there = processes.Pipe()
        self._process = processes.Process(target=_child, args=(there, peer, work, folder, cores))
        self._process.start()
        there.close()
        self.timed: Timed | None = None

    def begin(self, run: Run) -> None:
        """Hand it a Run and wait until its first micro-batch is ready."""
        self.timed = None
        self._tell(run)

    def step(self) -> None:
        """Let it do one micro-batch, and what follows up to the next one's turn."""
        self._tell(GO)

    def close(self) -> None:
        self._line.close()
        self._process.join(30)
        self._process.kill()
        self._process.join()

    def _tell(self, what: object) -> None:
        try:
            self._line.send(what)
            answer = self._line.recv()
        except (EOFError, OSError):
            answer = "its process has ended"
        if isinstance(answer, str):
            said = "\n".join(
                log.read_text(errors="replace")[-LAST_WORDS:] for log in self._logs if log.exists()
            )
            raise CaseError(f"{answer}; the end of what it said:\n{said.strip()}")
        self.timed = answer


def _child(line: Connection, peer: str, work: str, folder: Path, cores: int) -> None:
    with (folder / "log").open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        from bench.peers.child import serve

        serve(line, peer, work, folder, cores)
    except Exception as error:
        line.send(reason(error))
        raise


class Stepping(Protocol):
    def step(self) -> Any:
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
