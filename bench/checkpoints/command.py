"""``python -m bench checkpoints``.

Owns: the options, and ``Sizes``: which states and micro-batches are measured.
"""

from __future__ import annotations

import enum
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from asyncstate.spark.python_task import settle_worker
from bench.checkpoints import commits, recovery, sizes
from bench.frame import Report, Row
from bench.frame.picture import Panel, Series, draw
from bench.frame.report import Folder, Output, Seed, Tiny

CHANGED, STATE, WHOLE = "changed keys", "state", "long run"
"""Series of sizes: what grows, or that the run is long enough for the whole state to be rewritten."""
_LONG_RUN = 5
"""How often a long run changes each key, on average."""


class Part(enum.StrEnum):
    """Values of ``--part``."""

    ALL = "all"
    COMMITS = "commits"
    RECOVERY = "recovery"
    BYTES = "bytes"


@dataclass(frozen=True)
class Sizes:
    """How much to measure; keys a partition. ``commit_changed``: the first number has an aim.

    ``long_states`` are run with ``long_changed`` keys until each key has been changed ``_LONG_RUN`` times on average.
    """

    commit_state: int = 1_000_000
    commit_changed: tuple[int, ...] = (100_000, 10_000)
    commit_rounds: int = 30
    recovery_state: int = 5_000_000
    recovery_changed: int = 100_000
    recovery_rounds: int = 3
    bytes_state: int = 1_000_000
    bytes_changed: tuple[int, ...] = (1_000, 10_000, 100_000)
    bytes_states: tuple[int, ...] = (100_000, 1_000_000, 5_000_000)
    bytes_batches: int = 60
    long_states: tuple[int, ...] = (10_000, 100_000, 300_000)
    long_changed: int = 1_000

    def planned(self) -> Iterator[tuple[str, int, int, int]]:
        """Series, keys in the state, changed keys and micro-batches of each count of bytes."""
        middle = self.bytes_changed[len(self.bytes_changed) // 2]
        for changed in self.bytes_changed:
            yield CHANGED, self.bytes_state, changed, self.bytes_batches
        for state in self.bytes_states:
            yield STATE, state, middle, self.bytes_batches
        for state in self.long_states:
            batches = max(_LONG_RUN * state // self.long_changed, self.bytes_batches)
            yield WHOLE, state, self.long_changed, batches


TINY = Sizes(2_000, (500,), 10, 3_000, 200, 1, 1_000, (10, 100), (1_000, 4_000), 10, (500,), 100)


def checkpoints(
    part: Annotated[Part, typer.Option(help="What to measure.")] = Part.ALL,
    spark: Annotated[bool, typer.Option("--spark", help="Measure commits through Spark as well.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option(min=20, help="Pairs of micro-batches for commits; two snapshot intervals at least."),
    ] = None,
    tiny: Tiny = False,
    seed: Seed = 1,
    folder: Folder = None,
    output: Output = None,
) -> None:
    """Measure what checkpoints cost, how fast they bring state back, and the bytes that they take."""
    much = TINY if tiny else Sizes(commit_rounds=rounds or Sizes.commit_rounds)
    with Report("checkpoints", output, folder, seed=seed) as report:
        if part in (Part.ALL, Part.COMMITS):
            _commits(report, much, spark, seed)
        if part in (Part.ALL, Part.RECOVERY):
            title = f"Recovery of {much.recovery_state:,} keys: a snapshot and {recovery.DELTAS} deltas of "
            report.section(f"{title}{much.recovery_changed:,} keys", recovery.COLUMNS, recovery.NOTE)
            size = much.recovery_state, much.recovery_changed, much.recovery_rounds, seed
            report.case("recovery", lambda: recovery.recovery(report.folder, *size, report.tell))
        if part in (Part.ALL, Part.BYTES):
            _bytes(report, much, seed)


def _commits(report: Report, much: Sizes, spark: bool, seed: int) -> None:
    settle_worker()
    report.section(f"Commits, {much.commit_state:,} keys a partition", commits.COLUMNS, commits.NOTE)
    for number, changed in enumerate(much.commit_changed):
        for enabled in (False, True):
            place, aim = report.folder / f"commits-{changed}-{enabled}", None if number else commits.AIM
            size = much.commit_state, changed, much.commit_rounds, seed, aim
            report.case("async" if enabled else "sync", lambda: [commits.commit_cost(place, enabled, *size)])  # noqa: B023
            shutil.rmtree(place, ignore_errors=True)
    if spark:
        how = much.commit_state, much.commit_changed[0], much.commit_rounds, seed, report.tell
        report.case("on Spark", lambda: [commits.spark_commit_cost(report.folder / "spark", *how)])


def _bytes(report: Report, much: Sizes, seed: int) -> None:
    report.section("Bytes in the checkpoint", sizes.COLUMNS, sizes.NOTE)
    known: dict[tuple[int, int, int], dict[str, float]] = {}
    start = len(report.rows)
    for series, *planned in much.planned():
        size = (state, changed, batches) = planned[0], planned[1], planned[2]

        def count() -> Iterator[Row]:
            if size not in known:  # noqa: B023
                known[size] = sizes.checkpoint_bytes(report.folder / "bytes", *size, seed)  # noqa: B023
                shutil.rmtree(report.folder / "bytes")
            yield Row(name=name, group=series, facts=known[size])  # noqa: B023

        name = f"{changed:,} of {state:,} keys, {batches} times"
        report.case(name, count, series)
    report.draw("checkpoints.png", lambda path: _draw(path, report.rows[start:]))


def _draw(path: Path, rows: list[Row]) -> None:
    """Bytes a micro-batch as changed keys grow, and as the state grows."""
    panels = []
    for group, grows in ((CHANGED, "changed_keys"), (STATE, "state_keys")):
        found = [row.facts for row in rows if row.group == group and row.facts]
        series = [
            Series(
                name,
                [each[grows] for each in found],
                [(each["delta_bytes"] + each.get(more, 0)) / 1024 for each in found],
            )
            for name, more in (
                ("delta", ""),
                ("delta and snapshots", "snapshot_bytes"),
                ("if snapshots were whole", "whole_bytes"),
            )
        ]
        panels.append(Panel("", series, grows.replace("_", " "), "KiB a micro-batch", log=True))
    draw(path, "Bytes that a checkpoint takes", panels)
