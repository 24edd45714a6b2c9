"""Run a whole dataflow without Spark: rows in by source, micro-batches, rows out by sink.

Owns: ``PipelineHarness`` and ``PipelineSource``.
Invariant: operators see what they would see in a job over the same micro-batches: the watermark is the job's, all
states are committed together, and none if the micro-batch fails.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, Changelog, ChangelogMode, has_kinds
from asyncstate.clock import Clock, ManualClock
from asyncstate.codec import read_schema
from asyncstate.config import Tuning
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
    draw,
    explain,
)
from asyncstate.dataflow.arrow_rows import no_rows
from asyncstate.dataflow.changelog_inference import node_changes, operator_changes, source_changes
from asyncstate.dataflow.graph import Facts, caller
from asyncstate.dataflow.lineage import check_initial, check_sinks, graph_manifest, to_begin
from asyncstate.dataflow.nodes import NEVER_PASSED, Times, same_destinations, upstream_of, watermark_sources
from asyncstate.dataflow.sample import Sample
from asyncstate.display import html_table, time_text
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import AsyncStateError, JobError, SchemaError
from asyncstate.growth import StateGrowth
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec
from asyncstate.runtime import (
    Delay,
    SequenceBy,
    UnclaimedState,
    advance_sources,
    check_claimed,
    check_unclaimed_state,
    highest_event_time,
    watermark_after,
    watermark_holders,
    why_watermark_waits,
)
from asyncstate.storage import GraphManifest, Manifest
from asyncstate.testing.expressions import in_session, transformed
from asyncstate.testing.harness import OperatorHarness, folder_of
from asyncstate.testing.harness_rows import OutputRow, kind_codes, not_replaced, record_batch, rows_of
from asyncstate.testing.initial_state import InitialRows, initial_rows, input_batch

_KIND = pa.field(ROW_KIND_COLUMN, pa.string())


@dataclass(frozen=True)
class PipelineSource:
    """A source as ``StreamingJob.source`` declares it; ``schema``: its columns, without ``row_kind``, a pyarrow schema
    or Spark DDL text. ``mode``: the mode of its rows, "insert-only", "retract" (``changelog=True`` for short) or
    "upsert" by ``primary_key``; rows of the latter two have kinds. ``initial``: rows that precede all pushed ones, in
    the first micro-batch: a list of tuples or dicts, or a RecordBatch; kinds are in a column ``row_kind``.
    ``idle_after``: in processing time, of the harness's clock."""

    schema: pa.Schema
    event_time: str | None = None
    watermark_delay: Delay = None
    changelog: bool = False
    sequence: SequenceBy = None
    drop_stale: bool = False
    initial: InitialRows | None = None
    mode: ChangelogMode | str | None = None
    primary_key: str | Sequence[str] | None = None
    idle_after: Duration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, "source"))


class _BatchClock:
    """The clock of all operators, which has one time in a micro-batch: ``started_at``, microseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_at: int | None = None

    def now_us(self) -> int:
        """The time of day, microseconds since the epoch (UTC)."""
        return self._clock.now_us() if self.started_at is None else self.started_at


class PipelineHarness:
    """A dataflow with its states, in this process. A context manager.

    ``pipeline`` declares it: a function of streams, which it gets by the names of ``sources``; in a job the same
    function receives what ``job.source(...)`` returns. Sinks are checked for whether they accept such changes, but get
    no rows: these are in ``rows``.
    ``parallelism``, ``async_enabled``, ``options`` and ``tuning`` are those of every operator. ``spark``: a session, in
    which the functions of ``transform`` run; without one, a dataflow that has any is refused.

    Raises JobError for a dataflow that a job would refuse, with all of its problems.
    """

    def __init__(
        self,
        pipeline: Callable[..., object],
        sources: Mapping[str, PipelineSource],
        *,
        async_enabled: bool = False,
        parallelism: int = 1,
        options: Mapping[str, str] | None = None,
        tuning: Tuning | None = None,
        clock: Clock | None = None,
        spark: Any = None,
    ) -> None:
        self.clock: Clock = clock if clock is not None else ManualClock()
        self._batch_clock = _BatchClock(self.clock)
        self._spark = spark
        self._settings: dict[str, Any] = {
            "async_enabled": async_enabled,
            "parallelism": parallelism,
            "options": dict(options or {}),
            "tuning": tuning,
            "clock": self._batch_clock,
        }
        self._pipeline, self._declared_sources = pipeline, dict(sources)
        self._committed: Manifest | None = None
        self._restarted = True
        self._left: dict[str, Path] = {}
        self._pending: dict[str, list[pa.RecordBatch]] = {}
        self._finished = False
        self.outputs: dict[str, list[OutputRow]] = {}
        """By sink all rows so far, ``(row kind text, *values)``."""
        self._build({}, (), "refuse")

    def _build(
        self, saved: Mapping[str, Path], stored: Collection[str], unclaimed_state: UnclaimedState
    ) -> None:
        """Build the dataflow as it is declared, its operators over the states ``saved`` by uid; ``stored``: those that
        have any. Raises JobError."""
        sources = self._declared_sources
        self.flow = Dataflow(self._facts_of, self._sample_of)
        self._starts = {name: one.initial for name, one in sources.items() if one.initial is not None}
        self._initial: dict[Node, pa.RecordBatch] = {}
        self._operators: dict[str, OperatorHarness] = {}
        self.changes: dict[Node, Changelog] = {}
        """The changelog facts of each node's rows."""
        self._pipeline(**{name: self._declared(name, source) for name, source in sources.items()})
        self._schemas = self._opened(saved)
        superseded = self.flow.superseded - self._operators.keys()
        try:
            dropped = superseded | check_claimed(set(stored) - superseded, self._operators, unclaimed_state)
        except JobError:
            self.close()  # operators of the refused dataflow
            raise
        gone = set(stored) - set(self._operators) - dropped
        self._left = {uid: folder for uid, folder in saved.items() if uid in gone}
        self._pending = {name: self._pending.get(name, []) for name in sources}
        self.outputs = {
            **self.outputs,
            **{one.name: self.outputs.get(one.name, []) for one in self.flow.sinks},
        }

    def _declared(self, name: str, source: PipelineSource) -> Stream:
        times = Times(
            source.event_time, source.watermark_delay, source.sequence, source.drop_stale, source.idle_after
        )
        is_changelog = None if source.mode is not None and not source.changelog else source.changelog
        return self.flow.add_source(name, times, is_changelog, source.schema, source.mode, source.primary_key)

    # -- rows ---------------------------------------------------------------------------------------------

    def push(
        self,
        source: str,
        rows: pa.RecordBatch | Sequence[Sequence[Any] | Mapping[str, Any]],
        kind: str = "+I",
        kinds: Sequence[str] | None = None,
    ) -> None:
        """Add rows to the running micro-batch: tuples with one value per column, dicts by column name, or a
        RecordBatch; ``kinds``, of a changelog, has one per row. Raises JobError for an unknown source, and SchemaError
        for rows and kinds that do not fit it."""
        node = next((one for one in self.flow.sources if one.name == source), None)
        if node is None:
            names = ", ".join(one.name for one in self.flow.sources)
            raise JobError(f"push: there is no source '{source}'; there are {names}")
        assert node.schema is not None
        batch = record_batch(rows, node.schema, f"source '{source}'")
        codes = kind_codes(kind if kinds is None else kinds, batch.num_rows)
        texts = [ROW_KIND_TEXTS[code] for code in codes]
        if not node.changelog and codes.any():
            raise SchemaError(
                f"push: source '{source}' got the kinds {texts}; only a source with changelog=True accepts kinds "
                "other than +I"
            )
        self._pending[source].append(
            batch.append_column(_KIND, pa.array(texts, pa.string())) if node.changelog else batch
        )

    def advance_processing_time(self, duration: Duration) -> None:
        """Advance the clock; for a harness with its own ManualClock."""
        assert isinstance(self.clock, ManualClock), "the harness has a clock of its own; advance that"
        self.clock.advance(microseconds(duration, "advance_processing_time", "duration", JobError))

    def end_batch(self, *, crash_before: str | None = None) -> dict[str, list[OutputRow]]:
        """Run and commit the micro-batch; its output rows by sink.

        ``crash_before``: the uid of an operator, or the name of a sink. The micro-batch fails there: nothing of it is
        committed, its rows are delivered again, and sinks before it have had theirs, as in a job that is killed.
        """
        return self._run(False, crash_before)

    def finish(self) -> dict[str, list[OutputRow]]:
        """Run the last micro-batch, with the final watermark."""
        return self._run(True, None)

    def restart(
        self,
        pipeline: Callable[..., object] | None = None,
        sources: Mapping[str, PipelineSource] | None = None,
        *,
        async_enabled: bool | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
        unclaimed_state: UnclaimedState = "refuse",
    ) -> None:
        """Restart, like a job that is started again over its checkpoint, with the given arguments changed.

        Operators that keep their uid keep their state, and new ones have none. State of removed operators is refused,
        unless ``unclaimed_state`` is ``"keep"``, for a restart that has them again, or ``"drop"``.
        Pushed rows come in the next micro-batch, unless their source is gone. Raises what a job refuses; the harness is
        then unchanged.
        """
        check_unclaimed_state(unclaimed_state)
        kept = dict(self.__dict__)
        self._settings = {
            **self._settings,
            **({} if async_enabled is None else {"async_enabled": async_enabled}),
            **({} if parallelism is None else {"parallelism": parallelism}),
            **({} if options is None else {"options": dict(options)}),
        }
        self._pipeline = self._pipeline if pipeline is None else pipeline
        before, self._declared_sources = (
            self._declared_sources,
            dict(self._declared_sources if sources is None else sources),
        )
        try:
            for name, rows in self._pending.items():
                now = self._declared_sources.get(name)
                if rows and now is not None and _columns_of(now) != _columns_of(before[name]):
                    raise JobError(
                        f"restart: source '{name}' has other columns, but unprocessed rows with the old ones were "
                        "pushed; call end_batch before restart"
                    )
            stored = {*self._left, *(uid for uid, one in self._operators.items() if one.has_state)}
            saved = self._left | {uid: one.snapshot() for uid, one in self._operators.items()}
            self._build(saved, stored, unclaimed_state)
        except BaseException:
            self.__dict__.update(kept)
            raise
        self._restarted = True
        for operator in kept["_operators"].values():
            operator.close()

    # -- inspection ----------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """The watermark of the current micro-batch, microseconds."""
        return watermark_after(self._committed)

    @property
    def watermark_waits_for(self) -> list[str]:
        """The sources that hold back the watermark: those that are not idle and have advanced least."""
        if self._committed is None:
            return list(self._watermark_sources())
        return list(watermark_holders(self._committed))

    def operator(self, uid: str) -> OperatorHarness:
        """One of the operators, with its statistics and state."""
        if uid not in self._operators:
            raise JobError(f"there is no operator '{uid}'; there are {', '.join(self._operators)}")
        return self._operators[uid]

    def rows(self, sink: str) -> list[OutputRow]:
        """All rows that a sink has received, ``(row kind text, *values)``; +I where there are no kinds."""
        if sink not in self.outputs:
            raise JobError(f"there is no sink '{sink}'; there are {', '.join(self.outputs)}")
        return self.outputs[sink]

    def explain(self) -> str:
        """The dataflow as text."""
        return explain(
            self.flow, changes=self.changes, waits=why_watermark_waits(self._committed), growth=self._growth()
        )

    def _growth(self) -> dict[Node, StateGrowth]:
        """How the stored state of each operator grows."""
        operators = [
            node for node in self.flow.nodes if isinstance(node, Apply) and node.name in self._operators
        ]
        return {node: self._operators[node.name].growth for node in operators}

    def __repr__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in self._facts())
        return f"<PipelineHarness: {said}>"

    def _repr_html_(self) -> str:
        rows = [(uid, *(value for _, value in one._facts())) for uid, one in self._operators.items()]
        names = ["uid", *(name for one in [*self._operators.values()][:1] for name, _ in one._facts())]
        facts = html_table("PipelineHarness", self._facts())
        return facts + html_table("operators", rows, names) + draw(self.flow, growth=self._growth())

    def _facts(self) -> list[tuple[str, str]]:
        sinks = [f"{name} ({len(rows)} rows)" for name, rows in self.outputs.items()]
        done = "the end" if self._finished else str(self._next_batch)
        return [
            ("mode", "async" if self._settings["async_enabled"] else "sync"),
            ("partitions", str(self._settings["parallelism"])),
            ("batch", f"{done} ({sum(map(_rows_of, self._pending.values()))} rows pushed)"),
            ("watermark", time_text(self.watermark, MIN_WATERMARK, MAX_WATERMARK)),
            *[("waits for", ", ".join(waits)) for waits in [self.watermark_waits_for] if waits],
            ("sources", ", ".join(self._pending)),
            ("operators", ", ".join(self._operators) or "none"),
            ("sinks", ", ".join(sinks) or "none"),
        ]

    def close(self) -> None:
        """Delete the states."""
        for operator in self._operators.values():
            operator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running -------------------------------------------------------------------------------------------

    @property
    def _next_batch(self) -> int:
        return 0 if self._committed is None else self._committed.batch_id + 1

    def _opened(self, saved: Mapping[str, Path]) -> dict[Node, pa.Schema]:
        """The columns of each node's rows. Raises JobError with all problems."""
        self.flow.check_used()
        found: dict[Node, pa.RecordBatch | None] = {}
        problems = []
        for node in self.flow.nodes:
            inputs = [found[one] for one in node.inputs]
            found[node] = None
            if None in inputs:
                continue  # its problem is reported for an upstream node
            try:
                found[node] = self._empty(node, inputs, saved)
            except AsyncStateError as error:
                problems.append(node.problem(str(error)))
        known = {node: self.changes[node] for node, rows in found.items() if rows is not None}
        problems += [*self.flow.unused(known), *same_destinations(self.flow.sinks)]
        problems += check_sinks(self.flow, known, self._graph_before, saved)
        waiting = [uid for uid, one in self._operators.items() if one.waits_for_watermark]
        if waiting and not problems and not self._watermark_sources():
            node = next(node for node in found if isinstance(node, Apply) and node.name == waiting[0])
            problems.append(node.problem(NEVER_PASSED))
        if problems:
            self.close()
            raise JobError("\n  ".join(["the dataflow cannot run:", *problems]))
        return {node: rows.schema for node, rows in found.items() if rows is not None}

    def _facts_of(self, node: Node) -> Facts:
        """The columns and changelog facts of a node's rows, with operators that are closed again."""
        kept = self._operators, self.changes
        self._operators, self.changes = {}, {}
        found: dict[Node, pa.RecordBatch] = {}
        try:
            for one in upstream_of(node):
                try:
                    found[one] = self._empty(one, [found[given] for given in one.inputs], {})
                except AsyncStateError as error:
                    what = f"the rows of '{node.name}' are not known, because of an error upstream:"
                    raise JobError(f"{what}\n  {one.problem(str(error))}") from error
            fields = [field for field in found[node].schema if field.name != ROW_KIND_COLUMN]
            return pa.schema(fields), self.changes[node]
        finally:
            self.close()
            self._operators, self.changes = kept

    def _sample_of(self, node: Node, given: Mapping[str, Any], limit: int) -> Sample:
        """See ``Stream.show``: what another harness makes of these rows."""
        nodes = upstream_of(node)
        changelogs = {one.name: one.changelog for one in nodes if isinstance(one, Source)}
        own = list(changelogs)
        missing = [name for name in own if name not in given and self._declared_sources[name].initial is None]
        unknown = [name for name in given if name not in own]
        if missing or unknown:
            what = f"no rows of source '{missing[0]}'" if missing else f"rows of '{unknown[0]}'"
            raise JobError(
                f"{caller()}: show got {what}; give the rows of each source by its name, ({', '.join(own)}): "
                f"show({{'{own[0]}': [...]}})"
            )

        def again(**streams: Stream) -> None:
            flow = next(iter(streams.values()))._flow
            flow.nodes = [*nodes, Sink(name="show", place=caller(), inputs=(node,), sink=_nowhere)]

        sources = {name: self._declared_sources[name] for name in own}
        settings = {name: self._settings[name] for name in ("async_enabled", "options", "tuning")}
        with PipelineHarness(again, sources, spark=self._spark, **settings) as harness:
            counts = dict[str, int]()
            for name in own:
                source, rows = sources[name], _given_rows(given.get(name, []))
                kinds = changelogs[name]
                batch = initial_rows(f"source '{name}'", rows, source.schema, kinds)
                names = source.schema.names
                texts = batch.column(ROW_KIND_COLUMN).to_pylist() if kinds else None
                harness.push(name, batch.select(names), kinds=texts)
                counts[name] = batch.num_rows + len(source.initial or ())
            found = [*harness.end_batch()["show"], *harness.finish()["show"]]
            schema, changes = harness._schemas[node], harness.changes[node]
        columns = [field for field in schema if field.name != ROW_KIND_COLUMN]
        made = record_batch([row[1:] for row in found], pa.schema(columns), "show")
        made = made.append_column(_KIND, pa.array([row[0] for row in found], pa.string()))
        return Sample(pa.Table.from_batches([made]), changes, counts, MAX_WATERMARK)

    def _empty(
        self, node: Node, inputs: Sequence[pa.RecordBatch], saved: Mapping[str, Path]
    ) -> pa.RecordBatch:
        if isinstance(node, Source):
            if node.watermark is not None:
                assert node.schema is not None
                InputSpec(node.schema, (), node.times.event_time, name=f"source '{node.name}'")
            if node.name in self._starts:
                check_initial(node, self._graph_before, self._committed is None)
                what, given = f"source '{node.name}'", self._starts[node.name]
                self._initial[node] = initial_rows(what, given, node.schema, bool(node.changelog))
            schema = _schema_of(node)
            self.changes[node] = source_changes(node, schema.names, has_kinds(schema.names))
            return no_rows(schema)
        if isinstance(node, Output):
            sides = self._operators[node.inputs[0].name].outputs
            side = sides.side(node.side)
            self.changes[node] = operator_changes(node, sides.changes_of(node.side))
            return no_rows(pa.schema([*side, _KIND]))
        known = [self.changes[one] for one in node.inputs]
        if isinstance(node, Sink) and callable(check_changes := getattr(node.sink, "check_changes", None)):
            check_changes(known[0])
        if not isinstance(node, Apply):
            found = self._through(node, inputs)
            kinds = has_kinds(found.schema.names)
            self.changes[node] = node_changes(node, known, inputs[0].schema.names, kinds)
            return found
        check_one_start(node, self._starts)
        arguments = node.arguments()
        options = {**self._settings["options"], **arguments.pop("options")}
        folder = folder_of(saved[node.name]) if node.name in saved else None
        harness = OperatorHarness(
            node.operator,
            [pa.schema([field for field in one.schema if field.name != ROW_KIND_COLUMN]) for one in inputs],
            changelog=known,
            initial_state=node.initial_state,
            folder=folder,
            **arguments,
            **{**self._settings, "options": options},
        )
        harness.owns_folder = True
        self._operators[node.name] = harness
        self.changes[node] = operator_changes(node, harness.outputs.changes)
        return no_rows(pa.schema([*harness.output_schema, _KIND]))

    def _run(self, final: bool, crash_before: str | None) -> dict[str, list[OutputRow]]:
        if self._finished:
            raise JobError("the harness is finished; create a new one")
        names = {node.name for node in self.flow.nodes if isinstance(node, Apply | Sink)}
        if crash_before is not None and crash_before not in names:
            raise JobError(f"crash_before: there is no operator and no sink '{crash_before}'")
        watermark = MAX_WATERMARK if final else self.watermark
        started = self._batch_clock.started_at = max(self.clock.now_us(), _started_at(self._committed))
        seen = {name: self._highest(name) for name in watermark_sources(self.flow.nodes)}
        out: dict[str, list[OutputRow]] = {}
        try:
            crashed = not self._to_sinks(out, final, watermark, crash_before)
        except BaseException:
            for operator in self._operators.values():
                operator.discard()
            raise
        if crashed:
            self.restart(unclaimed_state="keep")  # what was settled at the last restart
            return out
        for operator in self._operators.values():
            operator.commit()
        self._pending = {name: [] for name in self._pending}
        self._commit(seen, watermark, started, final)
        return out

    def _commit(self, seen: Mapping[str, int | None], watermark: int, started: int, final: bool) -> None:
        declared = watermark_sources(self.flow.nodes)
        times = advance_sources(self._committed, declared, seen, started, self._restarted)
        graph = graph_manifest(self.flow, self.changes, self._starts, self._graph_before)
        self._committed = Manifest(
            job_id="harness",
            batch_id=self._next_batch,
            base=self._next_batch - 1,
            max_parallelism=1,
            watermark=watermark,
            processing_time=started,
            sources=times.reached | self._of_operators(),
            heard=times.heard,
            idle=times.idle,
            final=final,
            graph=graph,
        )
        self._restarted, self._finished = False, final

    def _highest(self, source: str) -> int | None:
        """The highest event time among the rows of a source in the current micro-batch."""
        node = next(one for one in self.flow.sources if one.name == source)
        assert node.times.event_time is not None
        rows = list(self._pending[source])
        if node in self._beginning:
            rows.append(self._beginning[node])
        times = [highest_event_time(one.column(node.times.event_time)) for one in rows]
        return max((time for time in times if time is not None), default=None)

    @property
    def _graph_before(self) -> GraphManifest | None:
        """The dataflow of the last commit."""
        return None if self._committed is None else self._committed.graph

    @property
    def _beginning(self) -> dict[Node, pa.RecordBatch]:
        """The initial rows that come in the current micro-batch, by source."""
        names = to_begin(self._starts, self._graph_before, self._committed is None)
        return {node: rows for node, rows in self._initial.items() if node.name in names}

    def _watermark_sources(self) -> list[str]:
        return [*watermark_sources(self.flow.nodes), *self._of_operators()]

    def _of_operators(self) -> dict[str, int]:
        """How far the inputs with their own watermark_delay have advanced."""
        return {
            f"{uid}:{index}": reached
            for uid, one in self._operators.items()
            for index, reached in one.sources.items()
        }

    def _to_sinks(
        self, out: dict[str, list[OutputRow]], final: bool, watermark: int, crash_before: str | None
    ) -> bool:
        """Run all operators and append the rows of each sink to ``out``; False if that ended at ``crash_before``."""
        rows: dict[Node, pa.RecordBatch] = {}
        first = dict[Node, pa.RecordBatch](self._beginning)
        for node in self.flow.nodes:
            if node.name == crash_before and isinstance(node, Apply | Sink):
                return False
            rows[node] = self._rows(node, rows, first, final, watermark)
            if isinstance(node, Sink):
                out[node.name] = _as_output(rows[node])
                self.outputs[node.name] += out[node.name]
        return True

    def _rows(
        self,
        node: Node,
        rows: Mapping[Node, pa.RecordBatch],
        first: dict[Node, pa.RecordBatch],
        final: bool,
        watermark: int,
    ) -> pa.RecordBatch:
        """The rows of a node; initial rows among them that no operator has had yet go to ``first``. An operator with
        state gets those before ``rows``, any other node both as one."""
        if isinstance(node, Source):
            return _joined(self._pending[node.name], self._schemas[node])
        inputs = [rows[one] for one in node.inputs]
        if isinstance(node, Output):
            aside = self._operators[node.inputs[0].name].last_side_rows
            return _joined([out.batch for out in aside if out.output == node.side], self._schemas[node])
        before = [first.get(one) for one in node.inputs]
        if isinstance(node, Sink) or (isinstance(node, Apply) and node.operator.stateless):
            inputs = [
                now
                if one is None
                else _joined([*not_replaced([one], [now], self.changes[given].upsert_key), now], now.schema)
                for given, one, now in zip(node.inputs, before, inputs, strict=True)
            ]
            before = []
        if isinstance(node, Apply):
            return self._applied(node, inputs, before, final, watermark)
        if any(one is not None for one in before):
            parts = [
                no_rows(now.schema) if one is None else one for one, now in zip(before, inputs, strict=True)
            ]
            first[node] = self._through(node, parts)
        return self._through(node, inputs)

    def _through(self, node: Node, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The rows of a node that is neither source nor operator."""
        if isinstance(node, Union):
            return _united(inputs)
        if not isinstance(node, Transform):
            return inputs[0]
        if node.kind == "transform" and self._spark is not None:
            return in_session(node, inputs, self._spark)
        return transformed(node, inputs[0])

    def _applied(
        self,
        node: Apply,
        inputs: Sequence[pa.RecordBatch],
        before: Sequence[pa.RecordBatch | None],
        final: bool,
        watermark: int,
    ) -> pa.RecordBatch:
        operator = self._operators[node.name]
        for number, given in enumerate(inputs):
            _give(operator, number, given)
        initial = [input_batch(given, number) for number, given in enumerate(before) if given is not None]
        return _joined(operator.run_batch(final, watermark, initial or None), self._schemas[node])

    def _restore(self, saved: Mapping[str, Path], **changes: Any) -> None:
        for uid, snapshot in saved.items():
            operator = self._operators[uid]
            self._operators[uid] = operator.restore(snapshot, **changes)
            operator.close()


def _nowhere(rows: Any, batch_id: int) -> None:
    """A harness gives its sinks no rows."""


def _given_rows(given: Any) -> Any:
    """Rows as a harness takes them, of a table or of a DataFrame."""
    given = given.toArrow() if callable(getattr(given, "toArrow", None)) else given
    return given.combine_chunks().to_batches()[0] if isinstance(given, pa.Table) and len(given) else given


def _started_at(committed: Manifest | None) -> int:
    """When a micro-batch started, microseconds."""
    known = None if committed is None else committed.processing_time
    return MIN_WATERMARK if known is None else known


def _columns_of(source: PipelineSource) -> tuple[Any, ...]:
    return source.schema, source.changelog, source.mode


def _rows_of(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _united(inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    inputs = _with_kinds(inputs)
    names = inputs[0].schema.names
    for other in inputs[1:]:
        if sorted(other.schema.names) != sorted(names):
            raise SchemaError(
                f"the columns ({', '.join(names)}) and ({', '.join(other.schema.names)}) are not the same"
            )
        for name in names:
            one, two = inputs[0].schema.field(name).type, other.schema.field(name).type
            if one != two:
                raise SchemaError(
                    f"column '{name}' is of type {one} in one input and {two} in another; cast one of them with "
                    "select or with_columns"
                )
    return _joined([one.select(names) for one in inputs], inputs[0].schema)


def _give(operator: OperatorHarness, number: int, rows: pa.RecordBatch) -> None:
    kinds = rows.column(ROW_KIND_COLUMN).to_pylist() if ROW_KIND_COLUMN in rows.schema.names else None
    operator.push(
        rows.select([name for name in rows.schema.names if name != ROW_KIND_COLUMN]), number, kinds=kinds
    )


def _as_output(rows: pa.RecordBatch) -> list[OutputRow]:
    if ROW_KIND_COLUMN not in rows.schema.names:
        rows = rows.append_column(_KIND, pa.array(["+I"] * rows.num_rows, pa.string()))
    return rows_of([rows])


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return no_rows(schema)
    parts = zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(part) for part in parts], schema=schema)


def _schema_of(source: Source) -> pa.Schema:
    assert source.schema is not None
    return pa.schema([*source.schema, *([_KIND] if source.changelog else [])])


def _with_kinds(inputs: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """If some batches have kinds, rows of the others are insertions."""
    have = [ROW_KIND_COLUMN in one.schema.names for one in inputs]
    if not any(have):
        return inputs
    return [
        one if has else one.append_column(_KIND, pa.array(["+I"] * one.num_rows, pa.string()))
        for one, has in zip(inputs, have, strict=True)
    ]
