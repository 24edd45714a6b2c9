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
from asyncstate.offline.inspection import Inspection
from asyncstate.spark.query_checkpoint import QueryCheckpoint, Rewind


def verify(place: Place, output: OutputFormat = Format.TABLE) -> None:
    """Read every file of every version and compare its size and checksum; exit code 1 if one is damaged."""
    with checked():
        inspection = Inspection(place)
        found = list(inspection.problems())
        files = inspection.num_files()
    if output is Format.JSON:
        print_json(
            {
                "versions": inspection.versions,
                "files": files,
                "problems": [dataclasses.asdict(problem) for problem in found],
            }
        )
    else:
        for problem in found:
            say(f"{problem.message} (versions {', '.join(map(str, problem.versions))})")
        bad = {version for problem in found for version in problem.versions}
        whole = [version for version in inspection.versions if version not in bad]
        say(f"{files} files of {len(inspection.versions)} versions read, {len(found)} problems")
        if found:
            say(f"versions without a problem: {', '.join(map(str, whole)) or 'none'}")
    if found:
        raise typer.Exit(DAMAGED)


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
        query = QueryCheckpoint(spark_checkpoint) if spark_checkpoint is not None else None
        rewind = query.rewind_to(version) if query is not None else None
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
            inspection.checkpoint.rollback(version)
        if query is not None and rewind is not None:
            _apply(query, rewind, job, version)
    say(f"job '{job}' is back at version {version}; dropped: {_numbers(dropped)}")
    say(_what_is_left(version, query is not None))


def _apply(query: QueryCheckpoint, rewind: Rewind, job: str, version: int) -> None:
    try:
        query.apply(rewind)
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
