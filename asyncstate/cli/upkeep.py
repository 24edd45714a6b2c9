"""``state verify`` and ``state rollback``.

Owns: what they print and ask. Invariant: ``verify`` reads only; ``rollback`` changes nothing before it was confirmed.
Must not import Spark.
"""

from __future__ import annotations

from typing import Annotated

import typer

from asyncstate.cli.inspecting import OutputFormat, Place
from asyncstate.cli.output import DAMAGED, Format, checked, print_json, say
from asyncstate.errors import CheckpointError
from asyncstate.runtime.inspection import Inspection


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
                "problems": [
                    {"file": problem.file, "versions": problem.versions, "message": problem.message}
                    for problem in found
                ],
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
    version: Annotated[int, typer.Argument(help="The version to go back to.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget all versions after VERSION. Stop the query first: it cannot commit any more."""
    with checked():
        inspection = Inspection(place)
        job = inspection.checkpoint.read(version).job_id if version in inspection.versions else ""
        dropped = [found for found in inspection.versions if found > version]
        if version not in inspection.versions:
            raise CheckpointError(
                f"cannot roll back to version {version}: the checkpoint holds {inspection.versions}"
            )
    if not dropped:
        say(f"version {version} is the newest; nothing to do")
        return
    shown = ", ".join(map(str, dropped))
    if not yes:
        typer.confirm(f"Forget versions {shown} of job '{job}' for good?", abort=True)
    with checked():
        inspection.checkpoint.claim(job)
        gone = inspection.checkpoint.rollback(version)
    say(f"job '{job}' is back at version {version}; dropped: {', '.join(map(str, sorted(gone)))}")
    say(
        f"Spark must now run batch {version + 1} again. In the query's own Spark checkpoint delete the files whose "
        f"number is above {version} in 'commits', and above {version + 1} in 'offsets' and each folder of 'sources', "
        "then start the query. What sinks got from the dropped batches is for you to take back."
    )
