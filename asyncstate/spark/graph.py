"""A dataflow on Spark: its sources packed into one query, its nodes as DataFrames of a micro-batch.

Owns: ``JobGraph``: packing, the check before the first row, and the run of a micro-batch.
Invariant: a micro-batch does what the same calls of ``MicroBatch.apply`` in a function would do.
Must not import storage.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow import (
    Apply,
    Dataflow,
    Node,
    Output,
    Sink,
    Source,
    Stream,
    Transform,
    Union,
    check_one_start,
)
from asyncstate.dataflow.nodes import NEVER_PASSED, Times, watermark_sources
from asyncstate.errors import AsyncStateError, JobError, SchemaError
from asyncstate.operator import unknown_output
from asyncstate.runtime import WatermarkSource
from asyncstate.spark.apply import Before, Behind, InTask
from asyncstate.spark.arrow_columns import kept_where, with_arrow_columns
from asyncstate.spark.columns import quoted
from asyncstate.spark.exchange import input_spec
from asyncstate.spark.fusion import Tail, call_of, places_of, tails_of
from asyncstate.spark.inputs import Packing, before, check_streaming, nothing, static
from asyncstate.spark.source_times import Watch, highest_of, metric_name, observed, watches_of
from asyncstate.spark.stages import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.spark.batch import MicroBatch


class JobGraph:
    """The dataflow of a job, and the streaming DataFrames of its sources by name."""

    def __init__(self, spark: SparkSession) -> None:
        self.flow = Dataflow()
        self._tails: dict[Apply, Tail] = {}
        self._empty_rows: dict[Node, DataFrame] = {}
        """The columns of each node's rows, without rows; after ``check``."""
        self._side_outputs: dict[Node, Mapping[str, StructType]] = {}
        self._kinds_kept: set[Node] = set()
        """Selections of a changelog that do not name the kinds, which stay with their rows."""
        self.places: dict[Node, str] = {}
        """Where nodes run, of those that do not run where their kind usually does; after ``check``."""
        self.states: dict[Node, Sequence[str]] = {}
        """What operators keep; after ``check``."""
        self._spark = spark
        self._packing = Packing()
        self._initial: dict[str, DataFrame] = {}
        self._watches: dict[Source, Watch] = {}
        """How the times of sources are found; after ``check``."""

    @property
    def watermark_sources(self) -> dict[str, WatermarkSource]:
        """The sources that move the watermark, by name."""
        return watermark_sources(self.flow.nodes)

    def source(
        self, name: str, df: object, times: Times, changelog: bool | None, initial: DataFrame | None = None
    ) -> Stream:
        """A source that is read from ``df``; ``initial``: the rows that come before them, once."""
        check_streaming(name, df)
        stream = self.flow.add_source(name, times, changelog)
        self._packing.add(name, df)
        if initial is not None:
            self._initial[name] = initial
        return stream

    def packed(self) -> DataFrame:
        """The rows of all sources as one stream."""
        return self._packing.packed()

    def run(self, df: DataFrame, batch: MicroBatch) -> None:
        """What ``foreachBatch`` gets: every operator runs, then every sink, in the order of their declaration."""
        unpacked = self._packing.unpacked(df)
        rows: dict[Node, DataFrame] = {source: unpacked[source.name] for source in self.flow.sources}
        fed: dict[Node, Feed] = {}
        first = self._first_rows(rows) if batch.is_first else {}
        batch.watched = frozenset(
            metric_name(source, initial)
            for source, watch in self._watches.items()
            for initial in (False, True)
            if watch.consumer is not None
        )
        done = dict[Node, Before]()
        for node in self.flow.nodes:
            if isinstance(node, Apply) and all(one in rows or one in fed for one in node.inputs):
                last = self._apply(node, batch, rows, fed, first, done)
                if last.next is not None and last.before is not None:
                    done[last.next] = last.before
            elif isinstance(node, Output):
                rows[node] = batch.side_output(node.inputs[0].name, node.side)
            elif node in rows:
                continue  # part of an operator's task
            elif not all(one in rows for one in node.inputs):
                continue  # likewise, before the last part
            elif isinstance(node, Sink):
                write = node.sink if callable(node.sink) else node.sink.write
                (given,) = node.inputs
                with _named(node):
                    write(_with_first(first.get(given), rows[given]), batch.batch_id)
            elif not isinstance(node, Source):
                rows[node] = _frame(node, self._given(node, rows), node in self._kinds_kept)
                if any(one in first for one in node.inputs):
                    found = self._given(node, first, initial=True)
                    parts = [
                        nothing(rows[one]) if df is None else df
                        for one, df in zip(node.inputs, found, strict=True)
                    ]
                    first[node] = _frame(node, parts, node in self._kinds_kept)
        batch.event_times = {
            source.name: self._highest(
                source, watch, batch, [one[source] for one in (rows, first) if source in one]
            )
            for source, watch in self._watches.items()
        }

    def _given(self, node: Node, frames: Mapping[Node, Any], initial: bool = False) -> list[Any]:
        """What ``frames`` has of the inputs of ``node``, observed where the times of a source are found here."""
        found = []
        for index, one in enumerate(node.inputs):
            df = frames.get(one)
            watched = isinstance(one, Source) and one in self._watches and self._watches[one].consumer is node
            if watched and df is not None and one not in node.inputs[:index]:
                assert isinstance(one, Source)
                df = observed(one, df, initial)
            found.append(df)
        return found

    def _highest(
        self, source: Source, watch: Watch, batch: MicroBatch, frames: Sequence[DataFrame]
    ) -> int | None:
        """The highest event time of all rows of the source, which are ``frames``."""
        if batch.final:
            return None
        names = [metric_name(source, initial=bool(number)) for number in range(len(frames))]
        if watch.uid is not None:
            records = batch.applied[watch.uid].records
            times = [record.max_event_times[watch.input_index] for record in records]
        elif watch.consumer is not None and all(name in batch.observed for name in names):
            times = [batch.observed[name] for name in names]
        else:
            return highest_of(source, frames)
        return max((time for time in times if time is not None), default=None)

    def _apply(
        self,
        node: Apply,
        batch: MicroBatch,
        rows: dict[Node, DataFrame],
        fed: dict[Node, Feed],
        first: Mapping[Node, DataFrame],
        done: Mapping[Node, Before],
    ) -> Tail:
        """Run the operator and those in its task, or plan them where the stage behind them takes their rows; what is
        behind the last one."""
        inputs = self._given(node, {**rows, **fed})
        initial, starts = node.initial_state, self._given(node, first, initial=True)
        if node.operator.stateless:
            inputs = [_with_first(one, df) for one, df in zip(starts, inputs, strict=True)]
        elif any(one is not None for one in starts):
            initial = starts
        behind, last = self._chain(node)
        task = InTask(call_of(node), self._tails[node].after, done.get(node), behind)
        if last.feeds and initial is None and not first:
            planned = batch.plan(task, inputs)
            fed[last.last] = Feed(planned, self._empty_rows[last.last])
            return last
        out = batch.run(task, inputs, initial)
        rows[last.last] = out.drop(ROW_KIND_COLUMN) if last.without_kinds else out
        return last

    def _first_rows(self, rows: Mapping[Node, DataFrame]) -> dict[Node, DataFrame]:
        """What comes before the rows of the sources, in the first micro-batch."""
        return {
            source: before(f"source '{source.name}'", self._initial[source.name], rows[source])
            for source in self.flow.sources
            if source.name in self._initial
        }

    def _chain(self, node: Apply) -> tuple[list[Behind], Tail]:
        """The operators that run in the task of ``node``, and what is behind the last one."""
        tail, behind = self._tails[node], list[Behind]()
        while tail.joined is not None and isinstance(tail.next, Apply):
            joined, tail = tail.joined, self._tails[tail.next]
            behind.append(joined._replace(after=tail.after))
        return behind, tail

    def check(self, batch: MicroBatch) -> None:
        """Raise JobError with all that is wrong with the graph: each with its node and where that was declared."""
        self.flow.check_used()
        found: dict[Node, DataFrame | None] = {}
        problems = list(self._problems(batch, found))
        if problems:
            many = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise JobError("\n  ".join([f"the job's graph has {many}; nothing was read:", *problems]))
        empty = self._empty_rows = {node: df for node, df in found.items() if df is not None}
        self._tails = tails_of(self.flow, empty, batch)
        self._watches = watches_of(self.flow, self.watermark_sources, empty)
        self.places = places_of(self._tails)

    def _problems(self, batch: MicroBatch, found: dict[Node, DataFrame | None]) -> Iterator[str]:
        waiting: list[Apply] = []
        for node in self.flow.nodes:
            inputs = [found.get(one) for one in node.inputs]
            found[node] = None
            if not isinstance(node, Source) and None in inputs:
                continue  # what is wrong stands before it
            try:
                found[node] = self._empty(node, [df for df in inputs if df is not None], batch, waiting)
            except AsyncStateError as error:
                yield f"{node.place}: {_called(node)}: {error}"
            except PySparkException as error:
                yield f"{node.place}: {_called(node)}: {str(error).splitlines()[0]}"
            except Exception as error:  # of a function of Arrow columns, or a bind of the user's own
                yield f"{node.place}: {_called(node)}: {type(error).__name__}: {error}"
        if waiting and not any(_has_delay(node) for node in self.flow.nodes):
            node = waiting[0]
            yield f"{node.place}: {_called(node)}: {NEVER_PASSED}"

    def _empty(
        self, node: Node, inputs: list[DataFrame], batch: MicroBatch, waiting: list[Apply]
    ) -> DataFrame | None:
        if isinstance(node, Source):
            df = self._packing.frames[node.name]
            _check_source(node, df)
            if node.name in self._initial:
                before(f"source '{node.name}'", static(node.name, self._initial[node.name]), df)
            return self._spark.createDataFrame([], df.schema)
        if isinstance(node, Apply):
            check_one_start(node, self._initial)
            expected = batch.check(call_of(node), inputs, node.initial_state)
            waiting += [node] if expected.waits else []
            self._side_outputs[node] = expected.side_outputs
            self.states[node] = expected.states
            return self._spark.createDataFrame([], expected.rows)
        if isinstance(node, Output):
            (operator,) = node.inputs
            sides = self._side_outputs[operator]
            if node.side not in sides:
                raise unknown_output(node.side, sides)
            return self._spark.createDataFrame([], sides[node.side])
        if isinstance(node, Sink):
            return inputs[0]
        found = _frame(node, inputs)
        selects = isinstance(node, Transform) and node.kind == "select"
        if selects and ROW_KIND_COLUMN in inputs[0].columns and ROW_KIND_COLUMN not in found.columns:
            self._kinds_kept.add(node)
            return _frame(node, inputs, kinds=True)
        return found


@contextmanager
def _named(node: Node) -> Iterator[None]:
    """A failure inside says in which sink it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {_called(node)}")
        raise


def _with_first(first: DataFrame | None, rows: DataFrame) -> DataFrame:
    return rows if first is None else first.union(rows)


def _frame(node: Node, inputs: list[DataFrame], kinds: bool = False) -> DataFrame:
    """The rows of a node that Spark computes; ``kinds``: a selection has ``row_kind`` besides what it names."""
    if isinstance(node, Union):
        return functools.reduce(DataFrame.unionByName, inputs)
    assert isinstance(node, Transform)
    if node.kind == "transform":
        return _transformed(node, inputs)
    (df,) = inputs
    if node.kind == "where":
        (condition,) = node.expressions
        return df.where(condition) if _is_sql(condition) else kept_where(df, condition)
    if node.kind == "drop":
        return _dropped(df, node.expressions)
    functions = {name: one for name, one in node.named.items() if not _is_sql(one)}
    if node.kind == "with_columns":
        sql = {name: _column(one) for name, one in node.named.items() if name not in functions}
        df = df.withColumns(sql) if sql else df
        return with_arrow_columns(df, functions) if functions else df
    return _selected(df, node, functions, kinds)


def _transformed(node: Transform, inputs: list[DataFrame]) -> DataFrame:
    (function,) = node.expressions
    found = function(*inputs)
    if not isinstance(found, DataFrame) or found.isStreaming:
        raise SchemaError(
            f"the function returned {found!r}; return a DataFrame made of those that it was given"
        )
    return found


def _selected(df: DataFrame, node: Transform, functions: Mapping[str, Any], kinds: bool) -> DataFrame:
    hidden = {name: f"asyncstate:{name}" for name in functions}
    if functions:
        df = with_arrow_columns(df, {hidden[name]: one for name, one in functions.items()})
    columns = [_column(one) for one in node.expressions]
    for name, one in node.named.items():
        columns.append((sf.col(quoted(hidden[name])) if name in functions else _column(one)).alias(name))
    return df.select(*columns, ROW_KIND_COLUMN) if kinds else df.select(*columns)


def _dropped(df: DataFrame, names: tuple[str, ...]) -> DataFrame:
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise SchemaError(f"there is no column '{missing[0]}' to drop; there are {', '.join(df.columns)}")
    return df.drop(*names)


def _is_sql(expression: object) -> bool:
    return isinstance(expression, str | Column)


def _column(expression: Any) -> Column:
    return sf.expr(expression) if isinstance(expression, str) else expression


def _check_source(node: Source, df: DataFrame) -> None:
    has_kinds = ROW_KIND_COLUMN in df.columns
    if node.changelog and not has_kinds:
        raise SchemaError(
            f"it is declared as a changelog but has no column '{ROW_KIND_COLUMN}' (+I, -U, +U, -D); add one, or leave "
            "changelog out"
        )
    if node.changelog is False and has_kinds:
        raise SchemaError(
            f"it is declared as no changelog but has the column '{ROW_KIND_COLUMN}'; drop the column, or leave "
            "changelog=False out"
        )
    for name in (node.times.event_time, *_names(node.times.sequence)):
        if name is not None and name not in df.columns:
            raise SchemaError(f"there is no column '{name}'; there are {', '.join(df.columns)}")
    if node.watermark is not None:
        input_spec(df, (), node.times.event_time, f"source '{node.name}'")


def _names(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def _has_delay(node: Node) -> bool:
    given = node.watermark_delay if isinstance(node, Apply) else node.times.watermark_delay
    return any(one is not None for one in (given if isinstance(given, list | tuple) else [given]))


def _called(node: Node) -> str:
    kind = "operator" if isinstance(node, Apply) else type(node).__name__.lower()
    return f"{kind} '{node.name}'" if not isinstance(node, Transform) else node.text
