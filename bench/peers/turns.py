"""Processes that take turns a micro-batch at a time.

Owns: ``Running``, a peer's process, and ``take_turns``.
Invariant: at any moment at most one process has been told to work.
Must not import Spark or asyncstate beyond its errors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from asyncstate.errors import AsyncStateError
from bench.peers.protocol import GO, Run, Said, Start, Timed

ROOT = Path(__file__).resolve().parents[2]
_LAST_WORDS = 2_000


class PeerError(AsyncStateError):
    """A peer's process failed; the text has what it said."""


class Running:
    """One peer's process. ``timed`` is set when a Run has ended."""

    def __init__(self, start: Start) -> None:
        folder = Path(start.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._name = start.peer
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
        self._hear()

    def step(self) -> None:
        """Let it do one micro-batch, and what follows up to the next one's turn."""
        self._tell(GO)
        self._hear()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            raise self._failure("it has ended") from None

    def _hear(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure("it has ended")
        said = msgspec.json.decode(line, type=Said)
        if said.what == "failed":
            raise self._failure(said.error)
        self.timed = said.timed

    def _failure(self, what: str) -> PeerError:
        said = self._log.read_text(errors="replace")[-_LAST_WORDS:]
        return PeerError(f"peer {self._name}: {what}; the end of what it said:\n{said}")


class Stepping(Protocol):
    """What takes turns."""

    def step(self) -> None:
        """One micro-batch."""


def take_turns(
    peers: Mapping[str, Stepping],
    alone: Mapping[str, int],
    together: int,
    tell: Callable[[str], None],
) -> dict[str, str]:
    """First each peer's ``alone`` micro-batches, then ``together`` ones in turns; what failed with what it said."""
    failed: dict[str, str] = {}

    def step(name: str, doing: str) -> None:
        if name in failed:
            return
        tell(f"{doing}: {name}")
        try:
            peers[name].step()
        except PeerError as error:
            failed[name] = str(error)

    for name in peers:
        for number in range(alone[name]):
            step(name, f"filling {number + 1}/{alone[name]}")
    for number in range(together):
        for name in peers:
            step(name, f"micro-batch {number + 1}/{together}")
    return failed
