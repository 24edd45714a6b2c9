"""``state verify`` and ``state rollback``.

Owns: their output and prompts. Invariant: ``verify`` reads only; ``rollback`` changes nothing before it was confirmed,
and nothing at all if Spark's checkpoint cannot be rewound with it. Must not import Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer

from asyncstate.cli.inspecting import OutputFormat, Place
from asyncstate.cli.output import DAMAGED, Format, checked, print_json, say
from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.offline.inspection import Inspection, Problem
from asyncstate.spark.query_checkpoint import QueryCheckpoint, Rewind


def verify(place: Place, output: OutputFormat = Format.TABLE) -> None:
    """Read every file of every version and compare its size and checksum; exit code 1 if one is damaged."""
    with checked():
        versions, files, found = _verified(place)
    if output is Format.JSON:
        print_json(
            {
                "versions": versions,
                "files": files,
                "problems": [dataclasses.asdict(problem) for problem in found],
            }
        )
    else:
        for problem in found:
            needed = f" (versions {_numbers(problem.versions)})" if problem.versions else ""
            say(f"{problem.message}{needed}")
        bad = {version for problem in found for version in problem.versions}
        whole = [version for version in versions if version not in bad]
        say(f"{files} files of {len(versions)} versions read, {len(found)} problems")
        if found:
            say(f"versions without a problem: {_numbers(whole)}")
    if found:
        raise typer.Exit(DAMAGED)


def _verified(place: str) -> tuple[list[int], int, list[Problem]]:
    """The versions, the number of their files, and what is damaged."""
    try:
        inspection = Inspection(place)
    except CheckpointCorruptionError as error:  # in the file that says which versions there are
        return [], 0, [Problem("owners", (), str(error))]
    found = list(inspection.problems())
    return inspection.versions, inspection.num_files(), found


def rollback(
    place: Place,
    version: Annotated[int, typer.Argument(help="The version to return to.")],
    spark_checkpoint: Annotated[
        str | None,
        typer.Option("--spark-checkpoint", help="The query's own checkpoint, which is rolled back too."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be dropped, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget all versions after VERSION. Stop the query first: it cannot commit any more."""
    with checked():
        inspection = Inspection(place)
        if version not in inspection.versions:
            raise CheckpointError(
                f"cannot roll back to version {version}: the checkpoint holds {inspection.versions}"
            )
        job = inspection.checkpoint.read(version).job_id
        dropped = [found for found in inspection.versions if found > version]
        if dropped and (damage := inspection.checkpoint.problems(version)):
            raise CheckpointCorruptionError(
                f"version {version} is damaged: {damage[0]}. Restore it from a copy, or roll back to another "
                "version; `state verify` lists the intact ones"
            )
        rewind = None if spark_checkpoint is None else QueryCheckpoint(spark_checkpoint).rewind_to(version)
    if not dropped and not (rewind and rewind.files):
        say(f"version {version} is the newest; nothing to do")
        return
    _show(job, dropped, rewind)
    if dry_run:
        say("nothing was changed")
        return
    if not yes:
        what = f"Forget versions {_numbers(dropped)} of job '{job}'" if dropped else "Delete these files"
        typer.confirm(f"{what} for good?", abort=True)
    with checked():
        if dropped:
            inspection.checkpoint.claim(job)
            dropped = sorted(inspection.checkpoint.rollback(version))  # and what was committed meanwhile
        if spark_checkpoint is not None:
            _rewind(spark_checkpoint, job, version)
    say(f"job '{job}' is back at version {version}; dropped: {_numbers(dropped)}")
    say(_what_is_left(version, spark_checkpoint is not None))


def _rewind(place: str, job: str, version: int) -> None:
    """Rewind Spark's checkpoint, as it is now that the job can no longer commit."""
    try:
        query = QueryCheckpoint(place)
        query.apply(query.rewind_to(version))
    except CheckpointError as error:
        raise CheckpointError(
            f"the state of job '{job}' is back at version {version}, but Spark's checkpoint is not: {error}. "
            "Fix that and run this command again before you start the query"
        ) from error


def _show(job: str, dropped: Sequence[int], rewind: Rewind | None) -> None:
    if dropped:
        say(f"versions {_numbers(dropped)} of job '{job}' are to go")
    for folder, numbers in (rewind.numbers if rewind is not None else {}).items():
        say(f"of Spark's checkpoint: {folder} {_numbers(numbers)}")


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _what_is_left(version: int, has_rewound: bool) -> str:
    sinks = (
        "Rows that sinks got from the dropped batches stay there unless the sinks overwrite them; remove "
        "them yourself."
    )
    if has_rewound:
        return f"Start the query: Spark runs batch {version + 1} again, with the same rows. {sinks}"
    return (
        f"Spark must now run batch {version + 1} again: run this command with the query's own checkpoint too "
        f"(--spark-checkpoint) before you start the query. {sinks}"
    )
