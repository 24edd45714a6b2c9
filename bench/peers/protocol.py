"""What the driver of the benchmark and the process of a peer say to each other: a line of JSON each.

Owns: ``Input``, ``Start``, ``Run``, ``Timed`` and ``Said``.
Must not import Spark, asyncstate or DuckDB.

A process is started with a Start as its argument, and then gets a line for each of its Runs, and a line ``go`` for each
micro-batch of one. It answers ``Said(what="ready")`` when it waits for a ``go``, and ``Said(what="done")`` at the end.
"""

from __future__ import annotations

import msgspec

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
    """Which peer, on which work. ``options`` are ``async-state.*`` settings."""

    peer: str
    work: str
    folder: str
    cores: int
    options: dict[str, str] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One streaming query from nothing. The rows of micro-batches from ``first_kept`` on go to ``folder``/sink."""

    input: Input
    folder: str
    first_kept: int


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each micro-batch, from its trigger to its commit, and what asyncstate says they went into.

    ``cpu_seconds`` are those of processors: driver, JVM and Python workers, from a micro-batch's turn to the next
    one's; of the last, which has none behind it, nothing is known. Empty where the system does not tell.
    """

    seconds: list[float]
    cpu_seconds: list[float] = []
    parts: list[dict[str, float]] = []


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """``what`` is ready, done or failed."""

    what: str
    timed: Timed | None = None
    error: str = ""
