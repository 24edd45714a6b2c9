"""``sql run``, ``sql explain`` and ``sql compile``: a job from a file of statements.

Owns: the commands of the group. Invariant: a query ends between two micro-batches; nothing that is printed has a secret
of the file.
"""

from __future__ import annotations

import difflib
import json
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from asyncstate.cli.output import checked, say
from asyncstate.cli.script import Script, ScriptOption, ScriptStatement, read_script
from asyncstate.codec import read_type
from asyncstate.config import OPTIONS
from asyncstate.errors import AsyncStateError, CheckpointError, JobError, SqlError
from asyncstate.locations import is_uri, local_path

if TYPE_CHECKING:
    from asyncstate.spark import StreamingJob

group = typer.Typer(
    no_args_is_help=True, help="Run, explain and compile a job that is a file of SQL statements."
)

_OWN: Final = ("trigger", "checkpoint", "name", "state-ttl")
_LINE: Final = re.compile(r"\bline (\d+)")
_QUERY: Final = re.compile(r"(SELECT|WITH|VALUES|FROM|TABLE)\b|\(", re.I)
_POLL_SECONDS: Final = 1
_FRAME: Final = re.compile(r"\s+(at |\.\.\. \d+ more)")  # of a stack of Java

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of statements.", exists=True, dir_okay=False)
]
Master = Annotated[str | None, typer.Option("--master", help="Spark's master; by default local[*].")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.")]


class _Place(NamedTuple):
    script: Script
    checkpoint: str | None
    options: dict[str, str]
    conf: dict[str, str]
    trigger: str | None
    name: str


@group.command("run")
def run(
    file: File,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="The job's checkpoint: a folder or URI.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", "--once", help="Process the rows that are there, and end.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Run by the plans of `sql compile`, and compile nothing.", exists=True),
    ] = None,
    start_anew: Annotated[
        list[str] | None,
        typer.Option(
            "--start-anew",
            metavar="NAME",
            help="A statement that has changed: its changed operators start empty.",
        ),
    ] = None,
    master: Master = None,
    remote: Annotated[
        str | None, typer.Option("--remote", help="A server of Spark Connect, sc://host; needs --plan.")
    ] = None,
    conf: Conf = None,
    unclaimed_state: Annotated[
        str,
        typer.Option(
            "--unclaimed-state",
            metavar="refuse|keep|drop",
            help="What becomes of state that no statement of the file has.",
        ),
    ] = "refuse",
) -> None:
    """Run the statements until Ctrl-C, which ends the query after the running micro-batch."""
    with _read(file, checkpoint, conf) as place:
        if place.checkpoint is None:
            raise SqlError(
                f"{file.name}: the job needs a checkpoint; give --checkpoint DIR, or SET checkpoint"
            )
        plans = None if plan is None else _text_of(plan)
        spark = _session(place, master, remote)
        with _asked_to_stop() as asked, _said(file):
            job = _job(spark, place, place.checkpoint, plans, start_anew, unclaimed_state=unclaimed_state)
            query = job.start(trigger="availableNow" if available_now else place.trigger, progress=True)
            while not asked.is_set() and not job.await_termination(query, _POLL_SECONDS):
                pass
            if asked.is_set():
                say(f"{file.name}: ending after the running micro-batch", aside=True)
            job.stop(query)
        last = job.last_progress
        done = "no new rows" if last is None else f"micro-batch {last['batch_id']} is committed"
        say(f"{file.name}: {done}")


@group.command("explain")
def explain(
    file: File,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Also compare with the state of this checkpoint.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Show the operators of the statements: changelog modes, keys, and how state grows. Nothing is read or written."""
    with _read(file, checkpoint, conf) as place, _folder(_compared(place, checkpoint)) as folder:
        say(_job(_session(place, master, None), place, folder, None, None, shown=True).explain())


@group.command("compile")
def compile_(
    file: File,
    out: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write the compiled plans of the statements, for `sql run --plan`, also over Spark Connect."""
    with _read(file, None, conf) as place, _folder(None) as folder:
        job = _job(_session(place, master, None), place, folder, None, None, shown=True)
        try:
            out.write_text(job.compiled_plans() + "\n", "utf-8")
        except OSError as error:
            raise _no_file(out, "written", error) from error
    say(f"{out}: the plans of {file.name}")


@contextmanager
def _read(file: Path, checkpoint: str | None, conf: Sequence[str] | None) -> Iterator[_Place]:
    """The statements and settings of a file; errors inside are shown without its secrets."""
    from asyncstate.cli.connectors import check_options, secrets_of
    from asyncstate.spark.kafka.client_options import Redaction

    with checked():
        script = read_script(file.name, _text_of(file))
        hidden = Redaction(secrets_of(script))
        try:
            check_options(script)
            yield _settled(script, checkpoint, conf or [])
        except AsyncStateError as error:
            if hidden(error) == str(error):
                raise
            raise type(error)(hidden(error)) from None


def _text_of(file: Path) -> str:
    """The text of a file. Raises SqlError for one that has none."""
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SqlError(f"{file} is no text in UTF-8: {error}; save it in this encoding") from error
    except OSError as error:
        raise _no_file(file, "read", error) from error


def _no_file(file: Path, done: str, error: OSError) -> SqlError:
    return SqlError(f"{file} cannot be {done}: {error.strerror}; check the path and its permissions")


def _compared(place: _Place, asked: str | None) -> str | None:
    """The checkpoint to compare with; None if the file names one that is not there yet, since explaining makes none.
    Raises CheckpointError if it was ``asked`` for."""
    checkpoint = place.checkpoint
    if checkpoint is None or is_uri(checkpoint) or Path(local_path(checkpoint)).is_dir():
        return checkpoint
    if asked is None:
        return None
    raise CheckpointError(
        f"there is no checkpoint folder {asked}; give that of a job, or leave --checkpoint out"
    )


def _settled(script: Script, checkpoint: str | None, conf: Sequence[str]) -> _Place:
    """What the settings of the file say. Raises SqlError for one that nobody knows."""
    known = [*_OWN, *(option.key for option in OPTIONS.values())]
    own: dict[str, str] = {}
    options: dict[str, str] = {}
    given = dict(one.split("=", 1) for one in conf if "=" in one)
    if len(given) < len(conf):
        raise SqlError("--conf takes KEY=VALUE")
    settings: dict[str, str] = {}
    for one in script.settings:
        if one.name in _OWN:
            own[one.name] = one.value
        elif one.name in known:
            options[one.name] = one.value
        elif one.name.startswith("spark."):
            settings[one.name] = one.value
        else:
            near = difflib.get_close_matches(one.name, known, n=1, cutoff=0.5)
            meant = (
                f"; did you mean '{near[0]}'"
                if near
                else f"; there are {', '.join(_OWN)}, async-state.* and spark.*"
            )
            raise script.error(one.line, f"there is no setting '{one.name}'{meant}")
    place = checkpoint if checkpoint is not None else own.get("checkpoint")
    name = own.get("name", Path(script.name).stem)
    return _Place(script, place, options, settings | given, own.get("trigger"), name)


def _session(place: _Place, master: str | None, remote: str | None) -> Any:
    from asyncstate.spark.session import build_session, remote_session

    if remote is not None:
        return remote_session(remote, place.conf)
    chosen = master or (None if "spark.master" in place.conf else "local[*]")
    return build_session(place.name, chosen, place.conf)


@contextmanager
def _folder(checkpoint: str | None) -> Iterator[str]:
    """The checkpoint, or an empty one that goes away."""
    if checkpoint is not None:
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="asyncstate-sql-") as folder:
        yield folder


def _job(
    spark: Any,
    place: _Place,
    checkpoint: str,
    plans: str | None,
    start_anew: Sequence[str] | None,
    shown: bool = False,
    unclaimed_state: Any = "refuse",
) -> StreamingJob:
    """The job of a file; ``shown``: its sinks are not opened."""
    from asyncstate.cli.connectors import ShownSink, declare_source, sink_of
    from asyncstate.spark import StreamingJob

    script = place.script
    job = StreamingJob(spark, checkpoint, place.options, place.name, unclaimed_state=unclaimed_state)
    if plans is not None:
        job.load_plans(plans)
    for table in script.tables:
        if table.name.lower() in script.targets:
            sink = sink_of(script, table)
            job.sink(table.name, ShownSink(sink) if shown else sink)
        else:
            declare_source(job, spark, script, table)
    anew, ttl = set(start_anew or ()), None
    if unknown := anew - {one.name for one in script.statements if isinstance(one, ScriptStatement)}:
        raise SqlError(f"`--start-anew`: there is no statement '{min(unknown)}'")
    for one in script.statements:
        if isinstance(one, ScriptOption):
            ttl = (one.value or None) if one.name == "state-ttl" else ttl
            continue
        _run(job, spark, script, one, ttl, one.name in anew)
        if one.target is not None:
            _check_columns(job, script, one)
    return job


def _run(
    job: StreamingJob,
    spark: Any,
    script: Script,
    one: ScriptStatement,
    ttl: str | None,
    anew: bool,
) -> None:
    if _QUERY.match(one.text):
        raise script.error(
            one.line, "nothing reads the rows of this query; write INSERT INTO a table, or a view"
        )
    try:
        if one.in_spark:
            spark.sql(one.text)
            return
        # A materialized view has its name in its text.
        given = one.name if one.target is not None else None
        found = job.sql(one.text, given, ttl if one.name else None, "start-anew" if anew else None)
        if isinstance(found, str):
            say(found)
    except AsyncStateError as error:
        raise _placed(script, one, str(error)) from error
    except Exception as error:  # from Spark, about a statement for it
        if not type(error).__module__.startswith("pyspark."):
            raise
        raise _placed(script, one, str(error).splitlines()[0]) from error


def _check_columns(job: StreamingJob, script: Script, one: ScriptStatement) -> None:
    """Raise SqlError unless the rows of an INSERT have the columns that its table declares."""
    table = next(table for table in script.tables if table.name.lower() == str(one.target).lower())
    if not table.columns:
        return
    plan = next(plan for plan in json.loads(job.compiled_plans()) if plan["name"] == one.name)
    given = {column: kind for column, kind in plan["nodes"][-1]["columns"]}
    declared = {column: kind for column, kind, _ in table.columns}
    if given.keys() != declared.keys():
        raise script.error(
            one.line,
            f"the query has the columns {', '.join(given)}, and table '{table.name}' has {', '.join(declared)}; name "
            "them with AS",
        )
    for column, kind in declared.items():
        if read_type(kind, f"column '{column}'") != read_type(given[column], f"column '{column}'"):
            raise script.error(
                one.line,
                f"column '{column}' is {given[column]} in the query, and {kind} in table '{table.name}'; cast it",
            )


def _placed(script: Script, one: ScriptStatement, message: str) -> SqlError:
    """The error with the line of the file, if it has one of the statement."""
    found = _LINE.search(message)
    line = one.line + (int(found[1]) - 1 if found else 0)
    if found and found.start() == 0:
        message = message[found.end() :].lstrip(": ")
    return script.error(line, message)


@contextmanager
def _said(file: Path) -> Iterator[None]:
    """Errors of Spark, and of a client of a sink, as one of the project's, without the frames of the JVM."""
    try:
        yield
    except AsyncStateError:
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip() and not _FRAME.match(line)]
        what = "\n  ".join([type(error).__name__, *lines])
        raise JobError(
            f"{file.name}: the query has failed: {what}\nNothing of its micro-batch is committed; it is replayed when "
            "the job is started again"
        ) from error


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM. Spark's own handler would cancel the jobs of the running micro-batch."""
    asked = threading.Event()
    before = {one: signal.signal(one, lambda *_: asked.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
