"""A statement as a pipeline, for tests without a running job.

Owns: ``sql_pipeline``; ``table_of`` and ``view_of``, streams as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec import SchemaLike
from asyncstate.dataflow import Source, Stream
from asyncstate.dataflow.changelog_inference import source_changes
from asyncstate.errors import SqlError
from asyncstate.sql.build import Built
from asyncstate.sql.changes import stream_digest
from asyncstate.sql.statements import Compiled, SqlContext, Table
from asyncstate.state.expiring.ttl import Ttl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
                _add_lookup(context, name, **given)
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


def _add_lookup(
    context: SqlContext, name: str, lookup: Any, key: SchemaLike, columns: SchemaLike, **options: Any
) -> None:
    context.add_lookup(name, lookup, key, columns, options)


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
