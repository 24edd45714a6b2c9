"""``python -m bench checkpoints``.

Owns: the options, and ``Sizes``: which states and micro-batches are measured.
"""

from __future__ import annotations

import enum
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from asyncstate.errors import AsyncStateError
from bench.options import made
from bench.report import write_json

if TYPE_CHECKING:
    from bench.checkpoints.commits import CommitResult
    from bench.checkpoints.recovery import RecoveryResult
    from bench.checkpoints.sizes import SizeResult

_CANNOT_RUN = 2
_LONG_RUN = 5
"""How often a long run changes each key, on average."""

Tell = Callable[[str], None]


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


TINY = Sizes(
    commit_state=2_000,
    commit_changed=(500,),
    commit_rounds=10,
    recovery_state=3_000,
    recovery_changed=200,
    recovery_rounds=1,
    bytes_state=1_000,
    bytes_changed=(10, 100),
    bytes_states=(1_000, 4_000),
    bytes_batches=10,
    long_states=(500,),
    long_changed=100,
)


def checkpoints(
    part: Annotated[Part, typer.Option(help="What to measure.")] = Part.ALL,
    spark: Annotated[bool, typer.Option("--spark", help="Measure commits through Spark as well.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option(min=20, help="Pairs of micro-batches for commits; two snapshot intervals at least."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the keys drawn.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to put checkpoints and stores; by default the temporary directory."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints.json and checkpoints.png.")
    ] = None,
) -> None:
    """Measure what checkpoints cost, how fast they bring state back, and the bytes that they take."""
    from bench.checkpoints.report import commits_table, recovery_table, sizes_table, write_sizes_plot

    console = Console()
    sizes = TINY if tiny else Sizes(commit_rounds=rounds or Sizes.commit_rounds)
    results: list[msgspec.Struct] = []
    scratch = Path(tempfile.mkdtemp(prefix="asyncstate-checkpoints-", dir=made(folder)))
    try:
        with console.status("measuring") as status:
            if part in (Part.ALL, Part.COMMITS):
                commits = list(_commits(sizes, scratch, spark, seed, status.update))
                console.print(commits_table(commits), "")
                results += commits
            if part in (Part.ALL, Part.RECOVERY):
                recovered = _recovery(sizes, scratch, seed, status.update)
                console.print(recovery_table(recovered), "")
                results += recovered
            if part in (Part.ALL, Part.BYTES):
                counted = list(_bytes(sizes, scratch, seed, status.update))
                console.print(sizes_table(counted), "")
                results += counted
                if output is not None:
                    write_sizes_plot(counted, output / "checkpoints.png", "Bytes that a checkpoint takes")
    except AsyncStateError as error:
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(_CANNOT_RUN) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if output is not None:
        write_json(results, output / "checkpoints.json", seed=seed, machine=platform.platform())
        console.print(f"written to {output}", highlight=False)


def _commits(sizes: Sizes, scratch: Path, spark: bool, seed: int, tell: Tell) -> Iterator[CommitResult]:
    from asyncstate.spark.task import settle_worker
    from bench.checkpoints.commits import AIM, commit_cost

    settle_worker()
    for number, changed in enumerate(sizes.commit_changed):
        for enabled in (False, True):
            tell(f"commits: {changed:,} keys, {'async' if enabled else 'sync'}")
            place = scratch / f"commits-{changed}-{enabled}"
            aim = None if number else AIM
            yield commit_cost(place, enabled, sizes.commit_state, changed, sizes.commit_rounds, seed, aim)
            shutil.rmtree(place)
    if spark:
        from bench.checkpoints.onspark import spark_commit_cost

        place, changed = scratch / "spark", sizes.commit_changed[0]
        yield spark_commit_cost(place, sizes.commit_state, changed, sizes.commit_rounds, seed, tell)
        shutil.rmtree(place)


def _recovery(sizes: Sizes, scratch: Path, seed: int, tell: Tell) -> list[RecoveryResult]:
    from bench.checkpoints.recovery import recovery

    place = scratch / "recovery"
    results = recovery(place, sizes.recovery_state, sizes.recovery_changed, sizes.recovery_rounds, seed, tell)
    shutil.rmtree(place)
    return results


def _bytes(sizes: Sizes, scratch: Path, seed: int, tell: Tell) -> Iterator[SizeResult]:
    from bench.checkpoints.report import CHANGED, STATE, WHOLE
    from bench.checkpoints.sizes import checkpoint_bytes

    middle = sizes.bytes_changed[len(sizes.bytes_changed) // 2]
    planned = [
        *((CHANGED, sizes.bytes_state, changed, sizes.bytes_batches) for changed in sizes.bytes_changed),
        *((STATE, state, middle, sizes.bytes_batches) for state in sizes.bytes_states),
        *(
            (
                WHOLE,
                state,
                sizes.long_changed,
                max(_LONG_RUN * state // sizes.long_changed, sizes.bytes_batches),
            )
            for state in sizes.long_states
        ),
    ]
    known: dict[tuple[int, int, int], SizeResult] = {}
    for series, state, changed, batches in planned:
        measured = known.get((state, changed, batches))
        if measured is None:
            tell(f"bytes: {changed:,} of {state:,} keys, {batches} micro-batches")
            place = scratch / "bytes"
            measured = checkpoint_bytes(place, series, state, changed, batches, seed)
            shutil.rmtree(place)
            known[state, changed, batches] = measured
        yield msgspec.structs.replace(measured, series=series)
