"""SQL over the streams of a job, and as a pipeline, for tests without a running job.

Owns: ``JobSql``: the statements of one ``StreamingJob``; ``sql_pipeline``; ``table_of`` and ``view_of``, streams as
tables.
Invariant: tables are known as soon as they are declared; what a job's checkpoint has of a plan is used as long as its
text is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow import Source, Stream
from asyncstate.dataflow.changelog_inference import source_changes
from asyncstate.errors import CheckpointCorruptionError, SqlError
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.sql.build import Built
from asyncstate.sql.changes import stream_digest
from asyncstate.sql.statements import Compiled, SqlContext, Table, plans_from_json, plans_to_json
from asyncstate.state.expiring.ttl import Ttl
from asyncstate.storage import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PLANS: Final = "sql/"
"""Where plans are in a checkpoint."""
_JSON: Final = ".json"
_EARLIER: Final = "sql-earlier/"
"""Where those are of which operators have started with empty state since: a rollback may return to theirs."""


class JobSql:
    """The tables and statements of one job. ``committed``: the uids whose state the checkpoint has, None if there is
    none. ``plans``: the text of compiled statements, which are run instead of compiling any."""

    def __init__(
        self,
        spark: SparkSession,
        files: CheckpointFiles,
        committed: Collection[str] | None,
        plans: str | None,
    ) -> None:
        self._files = files
        self._stored = {name: files.get_bytes(name) for name in files.list(_PLANS) if name.endswith(_JSON)}
        stored = _plans(self._stored)
        earlier = _plans({name: files.get_bytes(name) for name in files.list(_EARLIER)})
        self.context = SqlContext(spark, {plan.name: plan for plan in stored}, committed, earlier)
        if plans is not None:
            self.context.give(plans_from_json(plans))

    @property
    def plans(self) -> str:
        """The compiled statements, as the text of a file."""
        return plans_to_json(self.context.compiled.values())

    def save(self) -> None:
        """Write the plans of the job into its checkpoint: the same statements run by them again, whatever the optimizer
        of another Spark makes of their texts."""
        for name, plan in self.context.compiled.items():
            if plan.root is None:
                continue
            place, text = f"{_PLANS}{name}.json", plan.to_json().encode()
            if self._stored.get(place) != text:
                for before in _plans({place: self._stored[place]} if place in self._stored else {}):
                    if before.generation != plan.generation:
                        kept = f"{_EARLIER}{name}/{before.generation}.json"
                        self._files.put_bytes(kept, self._stored[place])
                self._files.put_bytes(place, text)
                self._stored[place] = text

    def source(self, name: str, stream: Stream, df: DataFrame) -> None:
        """A source of the job as a table."""
        schema = arrow_schema_of(df)
        if ROW_KIND_COLUMN in df.columns:
            schema = schema.append(pa.field(ROW_KIND_COLUMN, pa.string()))
        self.context.add(name, table_of(stream, schema))

    def view(self, name: str, stream: Stream) -> None:
        """A stream of the graph as a table. Raises JobError for errors of the graph so far."""
        self.context.check_free(name)
        if isinstance(stream.node, Source):
            raise SqlError(
                f"'{stream.node.name}' is a source, and known by that name; use it in the statement"
            )
        self.context.add(name, view_of(stream))


def _plans(texts: Mapping[str, bytes]) -> list[Compiled]:
    """The plans of this format, by the names of their files. Others are compiled again. Raises
    CheckpointCorruptionError for what is no plan."""
    found = []
    for name, text in texts.items():
        try:
            found.append(Compiled.from_json(text.decode()))
        except SqlError:  # of another format
            continue
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointCorruptionError(
                f"{name} in the checkpoint is no compiled statement: {error!r}. Restore it from a copy; without it the "
                "statement would be compiled again, and not compared with the one whose state is there"
            ) from error
    return found


def sql_pipeline(
    *statements: str,
    spark: SparkSession | None = None,
    plans: Sequence[Compiled] = (),
    sink: str = "out",
    state_ttl: Ttl = None,
    windows: str | None = None,
    lookups: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[..., None]:
    """A pipeline for ``PipelineHarness``: the last of the statements goes to a sink called ``sink``.

    ``spark``: the classic session that compiles; with ``plans``, compiled before, none is needed. The function keeps
    what it has compiled in ``plans`` of its own, so that a restart uses the same. ``state_ttl``: as in ``job.sql``.
    ``windows``: as in ``job.sql``, for the last statement; compiled plans have their own. ``lookups``: by name, the
    arguments of ``job.lookup``. Raises SqlError for arguments that do not fit.
    """
    if plans and windows is not None:
        raise SqlError(
            "plans say whether their windows are updated; leave out windows=, or compile them with it"
        )
    kept: list[Compiled] = list(plans)

    def pipeline(**streams: Stream) -> None:
        context = SqlContext(spark)
        for name, stream in streams.items():
            context.add(name, table_of(stream))
        for name, given in (lookups or {}).items():
            try:
                context.add_lookup(name, **given)
            except TypeError as error:
                raise SqlError(
                    f"lookup '{name}': give a dict with lookup, key, columns and options, as job.lookup takes them"
                ) from error
        if kept:
            for plan in (one for one in kept if one.root is not None):
                built = context.build(plan, state_ttl)
                context.add(plan.name, Table(built))
            stream = context.tables[kept[-1].name].built.stream
        else:
            last = len(statements) - 1
            found = [
                context.run(text, state_ttl=state_ttl, windows=windows if at == last else None)
                for at, text in enumerate(statements)
            ]
            if not isinstance(found[-1], Stream):
                raise SqlError("the last statement of a pipeline is to be a query")
            stream = found[-1]
            kept.extend(context.compiled.values())
        stream.to(_nowhere, name=sink)

    pipeline.plans = kept  # type: ignore[attr-defined]
    return pipeline


def table_of(stream: Stream, schema: pa.Schema | None = None) -> Table:
    """A source as a table; ``schema``: its columns where the source does not have them."""
    node = stream.node
    assert isinstance(node, Source)
    schema = node.schema if schema is None else schema
    assert schema is not None
    kinds = ROW_KIND_COLUMN in schema.names or node.changelog
    columns = pa.schema([field for field in schema if field.name != ROW_KIND_COLUMN])
    changes = source_changes(node, [*columns.names, *([ROW_KIND_COLUMN] if kinds else [])], kinds)
    return Table(Built(stream, columns, changes), node.times)


def view_of(stream: Stream) -> Table:
    """A stream of the graph as a table. Raises JobError for errors of the graph so far."""
    schema, changes = stream._flow.facts_of(stream.node)
    times = stream.node.times
    times = times._replace(event_time=times.event_time if times.event_time in schema.names else None)
    return Table(Built(stream, schema, changes), times, stream_digest(stream.node))


def _nowhere(rows: Any, batch_id: int) -> None:
    """A harness gives its sinks no rows."""
