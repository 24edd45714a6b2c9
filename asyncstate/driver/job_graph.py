"""The dataflow of a job: its check before any row is read, and its execution in each micro-batch.

Owns: ``JobGraph``.
Invariant: a micro-batch has the same effect as the same calls of ``MicroBatch.apply`` in a function.
Must not import storage or Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog, ChangelogMode, has_kinds
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
from asyncstate.dataflow.changelog_inference import node_changes, operator_changes, source_changes
from asyncstate.dataflow.graph import Facts
from asyncstate.dataflow.lineage import check_initial, check_sinks, graph_manifest, to_begin
from asyncstate.dataflow.nodes import NEVER_PASSED, Times, same_destinations, upstream_of, watermark_sources
from asyncstate.driver.dropped_rows import counted_where, dropped_metric
from asyncstate.driver.executor import Executor, Feed, R
from asyncstate.driver.fusion import FusedChain, call_of, places_of, plan_fusion
from asyncstate.driver.micro_batch import MicroBatch
from asyncstate.driver.operator_call import Downstream, FusedTask, Upstream
from asyncstate.driver.source_times import Watch, metric_name, watches_of
from asyncstate.errors import AsyncStateError, JobError, SchemaError
from asyncstate.growth import StateGrowth
from asyncstate.metrics import DROPPED, Observed
from asyncstate.operator import InputSpec, OutputSpec, unknown_output


class JobGraph(Generic[R]):
    """The dataflow of a job. The ``shape`` of a source has the columns of its rows."""

    def __init__(self, executor: Executor[R], flow: Dataflow | None = None) -> None:
        self.flow = Dataflow() if flow is None else flow
        self._tails: dict[Apply, FusedChain] = {}
        self._empty_rows: dict[Node, R] = {}
        """For each node an empty frame with the columns of its rows; set by ``check``."""
        self._side_outputs: dict[Node, Mapping[str, R]] = {}
        self._outputs: dict[Node, OutputSpec] = {}
        self.changes: dict[Node, Changelog] = {}
        """The changelog properties of each node's rows; set by ``check``."""
        self._kinds_kept: set[Node] = set()
        """Selections over a changelog that do not list ``row_kind``, which stays with their rows."""
        self.places: dict[Node, str] = {}
        """Where nodes run that do not run in their kind's usual place; set by ``check``."""
        self.states: dict[Node, Sequence[str]] = {}
        """The states of each operator, in words; set by ``check``."""
        self.growth: dict[Node, StateGrowth] = {}
        """How the state of each operator grows; set by ``check``."""
        self._executor = executor
        self._shapes: dict[str, R] = {}
        self.initial: dict[str, Any] = {}
        """The initial rows of sources, by name."""
        self._watches: dict[Source, Watch] = {}
        """How the event times of sources are observed; set by ``check``."""
        self._dropping: dict[Source, bool] = {}
        """The sources whose rows are marked where they are to be dropped, and whether a stage counts them; set by
        ``check``."""

    def source(
        self,
        name: str,
        shape: R,
        times: Times,
        changelog: bool | None,
        initial: Any = None,
        mode: ChangelogMode | str | None = None,
        primary_key: str | Sequence[str] | None = None,
        streams: bool = True,
    ) -> Stream:
        """A source with the columns of ``shape``; ``initial``: rows that precede the stream, read once;
        ``streams``: False for a table, which has no others."""
        stream = self.flow.add_source(name, times, changelog, None, mode, primary_key, streams)
        self._shapes[name] = shape
        if initial is not None:
            self.initial[name] = initial
        return stream

    def take(self, flow: Dataflow, shapes: Mapping[str, R], initial: Mapping[str, Any]) -> None:
        """Become the graph that was declared as ``flow``, whose sources have the columns of ``shapes``."""
        self.flow = flow
        self._shapes, self.initial = dict(shapes), dict(initial)

    def run(self, read: Mapping[str, R], batch: MicroBatch[R]) -> None:
        """Run a micro-batch over the rows ``read`` from each source: operators and sinks in their declared order."""
        executor = self._executor
        rows: dict[Node, R] = {
            source: self._source_rows(source, read[source.name]) for source in self.flow.sources
        }
        fed: dict[Node, Feed] = {}
        first = self._first_rows(rows, to_begin(self.initial, batch.graph_before, batch.is_first))
        done = dict[Node, Upstream]()
        for node in self.flow.nodes:
            if isinstance(node, Apply) and all(one in rows or one in fed for one in node.inputs):
                last = self._apply(node, batch, rows, fed, first, done)
                if last.next is not None and last.before is not None:
                    done[last.next] = last.before
            elif isinstance(node, Output):
                rows[node] = self._known(node, batch.side_output(node.inputs[0].name, node.side))
            elif node in rows:
                continue  # ran inside an operator's task
            elif not all(one in rows for one in node.inputs):
                continue  # likewise; not the last node of that task
            elif isinstance(node, Sink):
                (given,) = node.inputs
                with _named(node):
                    whole = self._known(given, self._with_first(given, first.get(given), rows[given]))
                    executor.write(node.sink, node.name, whole, batch)
            elif not isinstance(node, Source):
                rows[node] = self._known(node, self._transformed(node, self._given(node, rows)))
                if any(one in first for one in node.inputs):
                    found = self._given(node, first, initial=True)
                    parts = [
                        executor.no_rows_like(rows[one]) if given is None else given
                        for one, given in zip(node.inputs, found, strict=True)
                    ]
                    first[node] = self._transformed(node, parts)
        batch.superseded = self.flow.superseded
        batch.sources = watermark_sources(self.flow.nodes)
        batch.graph = graph_manifest(self.flow, self.changes, self.initial, batch.graph_before)
        for source, counted in self._dropping.items():
            if not batch.final:
                batch.dropped[source.name] = self._dropped(source, counted, batch, read[source.name])
        for source, watch in self._watches.items():
            parts = [frames[source] for frames in (rows, first) if source in frames]
            batch.event_times[source.name] = self._highest(source, watch, batch, parts)

    def _given(self, node: Node, frames: Mapping[Node, Any], initial: bool = False) -> list[Any]:
        """What ``frames`` has for the inputs of ``node``; observes event times if ``node`` is the source's consumer."""
        found = []
        for index, one in enumerate(node.inputs):
            given = frames.get(one)
            watch = self._watches.get(one) if isinstance(one, Source) else None
            if watch is not None and watch.consumer is node and one not in node.inputs[:index]:
                assert isinstance(one, Source)
                if given is not None:
                    name = metric_name(one, initial)
                    seen = self._executor.observe(given, name, str(one.times.event_time))
                    given = self._known(one, seen)
            found.append(given)
        return found

    def _highest(self, source: Source, watch: Watch, batch: MicroBatch[R], parts: Sequence[R]) -> int | None:
        """The highest event time of all rows of the source; ``parts`` are these rows."""
        if batch.final:
            return None
        names = [metric_name(source, initial=bool(number)) for number in range(len(parts))]
        if watch.uid is not None:
            records = batch.applied[watch.uid].records
            times = [record.max_event_times[watch.input_index] for record in records]
        elif watch.consumer is not None and all(name in batch.observed for name in names):
            times = [batch.observed[name].value for name in names]
        else:
            times = [self._executor.highest(part, str(source.times.event_time)) for part in parts]
        return max((time for time in times if time is not None), default=None)

    def _dropped(self, source: Source, counted: bool, batch: MicroBatch[R], rows: R) -> Observed:
        """The rows of the source that are dropped; ``rows``: all of them."""
        found = batch.observed.get(dropped_metric(source)) if counted else None
        return self._executor.dropped(rows) if found is None else found

    def _apply(
        self,
        node: Apply,
        batch: MicroBatch[R],
        rows: dict[Node, R],
        fed: dict[Node, Feed],
        first: Mapping[Node, R],
        done: Mapping[Node, Upstream],
    ) -> FusedChain:
        """Run the operator and the others in its task, or plan them if the next stage consumes their rows. Returns the
        chain at the end of the task."""
        inputs = self._given(node, {**rows, **fed})
        starts = self._given(node, first, initial=True)
        initial: Any = None
        if node.operator.stateless:
            inputs = [
                self._known(one, self._with_first(one, start, given))
                for one, start, given in zip(node.inputs, starts, inputs, strict=True)
            ]
        elif any(one is not None for one in starts):
            initial = starts
        downstream, last = self._chain(node)
        task = FusedTask(call_of(node), self._tails[node].after, done.get(node), downstream)
        if last.feeds and node.initial_state is None and initial is None and not first:
            planned = batch.plan(task, inputs)
            fed[last.last] = Feed(planned, self._empty_rows[last.last])
            return last
        out = batch.run(task, inputs, node.initial_state, initial)
        out = self._executor.without_kinds(out) if last.without_kinds else out
        rows[last.last] = self._known(last.last, out)
        return last

    def _source_rows(self, source: Source, rows: R) -> R:
        """The rows of a source, with row kinds if they are changes; upserts may come without."""
        if source in self._dropping:
            rows = self._executor.kept(rows, dropped_metric(source))
        changes = self.changes[source]
        return self._known(source, rows if changes.is_insert_only else self._executor.with_kinds(rows))

    def _known(self, node: Node, rows: R) -> R:
        """The rows of a node, annotated with their changelog properties."""
        return self._executor.with_changes(rows, self.changes[node])

    def _first_rows(self, rows: Mapping[Node, R], begun: Collection[str]) -> dict[Node, R]:
        """The initial rows of the sources ``begun``, in their first micro-batch."""
        return {
            source: self._executor.before(f"source '{source.name}'", self.initial[source.name], rows[source])
            for source in self.flow.sources
            if source.name in begun
        }

    def _chain(self, node: Apply) -> tuple[list[Downstream], FusedChain]:
        """The operators that run in the task of ``node``, and the chain of the last one."""
        tail, downstream = self._tails[node], list[Downstream]()
        while tail.joined is not None and isinstance(tail.next, Apply):
            joined, tail = tail.joined, self._tails[tail.next]
            downstream.append(joined._replace(after=tail.after))
        return downstream, tail

    def check(self, batch: MicroBatch[R]) -> None:
        """Raise JobError with all problems of the graph, each with its node and where that was declared."""
        self.flow.check_used()
        found: dict[Node, R | None] = {}
        problems = list(self._problems(batch, found))
        if problems:
            many = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise JobError("\n  ".join([f"the job's graph has {many}; nothing was read:", *problems]))
        empty = self._empty_rows = {node: df for node, df in found.items() if df is not None}
        self._tails = plan_fusion(self.flow, empty, batch)
        self._watches = watches_of(self.flow, watermark_sources(self.flow.nodes), empty, self._executor)
        self.places = places_of(self._tails)

    def facts_of(self, node: Node, batch: MicroBatch[R]) -> Facts:
        """The columns of a node's rows, without ``row_kind``, and their changelog properties. Raises JobError with the
        problems of the nodes upstream."""
        found: dict[Node, R | None] = {}
        problems = list(self._inferred(upstream_of(node), batch, found, []))
        rows = found.get(node)
        if rows is None:
            what = f"the rows of '{node.name}' are not known, because of an error upstream:"
            raise JobError("\n  ".join([what, *problems]))
        fields = [field for field in self._executor.schema(rows) if field.name != ROW_KIND_COLUMN]
        return pa.schema(fields), self.changes[node]

    def _problems(self, batch: MicroBatch[R], found: dict[Node, R | None]) -> Iterator[str]:
        waiting: list[Apply] = []
        yield from self._inferred(self.flow.nodes, batch, found, waiting)
        known = {node: self.changes[node] for node, rows in found.items() if rows is not None}
        yield from self.flow.unused(known)
        yield from same_destinations(self.flow.sinks)
        yield from check_sinks(self.flow, known, batch.graph_before, batch.stored_uids)
        try:
            claimed = [node.name for node in self.flow.nodes if isinstance(node, Apply)]
            batch.check_claimed([*claimed, *self.flow.superseded])
        except JobError as error:
            yield str(error)
        if waiting and not any(_has_delay(node) for node in self.flow.nodes):
            yield waiting[0].problem(NEVER_PASSED)

    def _inferred(
        self, nodes: Sequence[Node], batch: MicroBatch[R], found: dict[Node, R | None], waiting: list[Apply]
    ) -> Iterator[str]:
        """The problems of ``nodes``; adds empty rows of each node to ``found``, or None."""
        for node in nodes:
            inputs = [found.get(one) for one in node.inputs]
            found[node] = None
            if not isinstance(node, Source) and None in inputs:
                continue  # the problem is upstream
            try:
                found[node] = self._empty(node, [df for df in inputs if df is not None], batch, waiting)
            except AsyncStateError as error:
                yield node.problem(str(error))
            except Exception as error:  # from the engine, or user code in bind or a function of columns
                yield node.problem(self._executor.describe(error))

    def _empty(self, node: Node, inputs: list[R], batch: MicroBatch[R], waiting: list[Apply]) -> R | None:
        executor = self._executor
        if isinstance(node, Source):
            shape = self._shapes[node.name]
            columns = executor.columns(shape)
            if DROPPED in columns:
                self._dropping[node] = counted_where(self.flow, node)
                shape = executor.kept(executor.no_rows_like(shape), dropped_metric(node))
                columns = executor.columns(shape)
            _check_source(node, columns)
            self.changes[node] = source_changes(node, columns, has_kinds(columns))
            if node.watermark is not None:
                InputSpec(executor.schema(shape), (), node.times.event_time, name=f"source '{node.name}'")
            if node.name in self.initial:
                check_initial(node, batch.graph_before, batch.is_first)
                first = executor.check_static(node.name, self.initial[node.name])
                executor.before(f"source '{node.name}'", first, shape)
            return self._source_rows(node, executor.no_rows_like(shape))
        if isinstance(node, Apply):
            check_one_start(node, self.initial)
            expected = batch.check(call_of(node), inputs, node.initial_state)
            waiting += [node] if expected.waits else []
            self._side_outputs[node] = expected.side_outputs
            self.states[node], self.growth[node] = expected.states, expected.growth
            self._outputs[node] = expected.output
            self.changes[node] = operator_changes(node, expected.output.changes)
            return self._known(node, expected.rows)
        if isinstance(node, Output):
            (operator,) = node.inputs
            sides = self._side_outputs[operator]
            if node.side not in sides:
                raise unknown_output(node.side, sides)
            self.changes[node] = operator_changes(node, self._outputs[operator].changes_of(node.side))
            return self._known(node, sides[node.side])
        if isinstance(node, Sink):
            self.changes[node] = self.changes[node.inputs[0]]
            executor.check_sink(node.sink, inputs[0])
            return inputs[0]
        found = self._selected(node, inputs)
        known, columns = [self.changes[one] for one in node.inputs], executor.columns(inputs[0])
        kinds = has_kinds(executor.columns(found))
        self.changes[node] = node_changes(node, known, columns, kinds)
        return self._known(node, found)

    def _selected(self, node: Node, inputs: list[R]) -> R:
        """Apply a node to empty inputs; records whether ``row_kind`` stays with a selection that does not list it."""
        executor = self._executor
        found = self._transformed(node, inputs)
        selects = isinstance(node, Transform) and node.kind == "select"
        given = executor.columns(inputs[0])
        if selects and ROW_KIND_COLUMN in given and ROW_KIND_COLUMN not in executor.columns(found):
            self._kinds_kept.add(node)
            return self._transformed(node, inputs)
        return found

    def _transformed(self, node: Node, inputs: list[R]) -> R:
        assert isinstance(node, Transform | Union)
        return self._executor.transformed(node, inputs, node in self._kinds_kept)

    def _with_first(self, node: Node, first: R | None, rows: R) -> R:
        key = self.changes[node].upsert_key
        return rows if first is None else self._executor.concat(first, rows, key)


@contextmanager
def _named(node: Node) -> Iterator[None]:
    """Add the name of the sink to a failure inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in {node.called}")
        raise


def _check_source(node: Source, columns: Sequence[str]) -> None:
    for name in (node.times.event_time, *_names(node.times.sequence)):
        if name is not None and name not in columns:
            raise SchemaError(f"there is no column '{name}'; the columns are {', '.join(columns)}")


def _names(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def _has_delay(node: Node) -> bool:
    given = node.watermark_delay if isinstance(node, Apply) else node.times.watermark_delay
    return any(one is not None for one in (given if isinstance(given, list | tuple) else [given]))
