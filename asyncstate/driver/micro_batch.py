"""One micro-batch: the object through which the user's function applies operators.

Owns: ``MicroBatch`` and what its operators have reported so far.
Invariant: when ``apply`` returns, the operator's stage has run exactly once and completely; nothing is committed here.
Must not import Spark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple

import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.config import Config
from asyncstate.driver.executor import Executor, Feed, Planned, Prepared, R, Stage
from asyncstate.driver.operator_call import (
    Call,
    Downstream,
    FusedTask,
    Inputs,
    Upstream,
    check_not_taken,
    check_operator_options,
    input_specs,
    routed,
)
from asyncstate.driver.operator_manifests import (
    Fingerprint,
    check_fingerprint,
    fingerprint,
    operator_after,
    previous_processing_time,
    previous_watermark,
)
from asyncstate.driver.partial_aggregation_policy import (
    choose_partial_aggregation,
    choose_partial_limit,
    may_run_locally,
    task_partial_aggregation,
    task_partial_limit,
)
from asyncstate.driver.progress import metrics_of, operator_progress
from asyncstate.driver.write_marks import UNKNOWN, Origin
from asyncstate.errors import JobError
from asyncstate.growth import StateGrowth
from asyncstate.metrics import Observed
from asyncstate.operator import MAX_WATERMARK, InputSpec, Operator, OutputSpec
from asyncstate.runtime import (
    FIRST_ARRIVAL,
    CommitRecord,
    Delay,
    InitialValues,
    Keys,
    OrderBy,
    OutputPipeline,
    PartialAggregate,
    PartialTopN,
    SequenceBy,
    Step,
    TaskSpec,
    UnclaimedState,
    WatermarkSource,
    check_claimed,
    check_is_operator,
    check_keeps,
    check_num_inputs,
    check_parallelism,
    check_stateless,
    check_uid,
    check_values,
    checked_inputs,
    growth_of,
    report_of_both,
    stored_meaning,
    warn_of_missing_rows,
    watermark_after,
    watermark_wait_reason,
)
from asyncstate.storage import GraphManifest, Manifest, OperatorManifest, StateSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobFrame(Generic[R]):
    """What all micro-batches of a job share. ``resolve`` derives an operator's Config from its own options. ``checks``:
    for each operator what it was last checked with, and what that gave. ``unclaimed_state``: what becomes of state that
    no operator has."""

    job_id: str
    checkpoint: str = field(repr=False)
    config: Config
    resolve: Any
    executor: Executor[R]
    unclaimed_state: UnclaimedState = "refuse"
    checks: dict[str, _Check] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Applied:
    """One operator of the batch: its identity and what its partitions reported.

    ``waiting``: why its rows wait for the watermark, None if none do. ``stage`` has its rows, None if another operator
    consumed them in the same task; the seconds of such a stage are those of its last operator."""

    uid: str
    operator: str
    parallelism: int
    delays: Sequence[int | None]
    declared: Fingerprint
    waiting: str | None
    route: list[int]
    records: list[CommitRecord]
    output: OutputSpec
    stage: Stage[Any] | None = None
    plan_seconds: float = 0.0
    stage_seconds: float = 0.0
    in_driver: bool = False

    def stored(self, batch_id: int, declared: Fingerprint) -> OperatorManifest:
        """Its entry in the manifest of micro-batch ``batch_id``."""
        parallelism, records = self.parallelism, self.records
        return operator_after(self.uid, self.operator, batch_id, parallelism, records, declared, self.route)


def _nothing() -> None:
    pass


class MicroBatch(Generic[R]):
    """Applies stateful operators to the DataFrames of one micro-batch; usable until the function returns.

    Two applies may run from two threads of the user's function; each uid at most once.
    """

    def __init__(
        self,
        frame: JobFrame[R],
        batch_id: int,
        base: Manifest | None,
        now_us: int,
        final: bool,
        origin: Origin = UNKNOWN,
    ) -> None:
        self._frame = frame
        self._base = base
        self._lock = threading.Lock()
        self._uids: list[str] = []
        self._open = True
        self.batch_id = batch_id
        self.origin = origin
        """Its job and checkpoint, by which sinks distinguish its writes from others."""
        self.written: set[tuple[str, str]] = set()
        """The place and writer of each sink that has been written to."""
        self.before_writing: Callable[[], None] = _nothing
        """Called before a sink gets rows that it will not take again: from then on a repeated micro-batch starts at the
        same time, so that it has the same rows."""
        self.watermark: int = MAX_WATERMARK if final else watermark_after(base)
        """Microseconds; MIN_WATERMARK before any event time was seen, MAX_WATERMARK in ``finish``."""
        self.processing_time = max(now_us, previous_processing_time(base))
        """Microseconds; when the driver started this micro-batch. It never decreases, even if the clock does."""
        self.final = final
        """True in the last run, made by ``StreamingJob.finish`` with an empty DataFrame."""
        self.applied: dict[str, Applied] = {}
        self._started: dict[str, OperatorManifest] = {}
        self._first_stages: list[Stage[R]] = []
        self.stateless: dict[str, R] = {}
        """The output rows of stateless operators, which report nothing."""
        self.sources: Mapping[str, WatermarkSource] | None = None
        """The sources of a graph that advance the watermark, by name; None in a function."""
        self.graph: GraphManifest | None = None
        """The graph's entry for the manifest; None in a function."""
        self.dropped_since: Collection[str] = frozenset()
        """The uids whose state the version of this micro-batch, which is repeated, no longer has."""
        self.superseded: Collection[str] = frozenset()
        """The uids whose stored state the program drops."""
        self.event_times: dict[str, int | None] = {}
        """The highest event time of each source in ``sources``, microseconds; None if it has none."""
        self.observed: dict[str, Observed] = {}
        """What the executor has observed in the stages that ran, by name; the highest value if several have."""
        self.dropped: dict[str, Observed] = {}
        """The rows that the readers of sources have dropped, by source."""
        self._stateless_changes: dict[str, Changelog] = {}

    def apply(
        self,
        operator: Operator,
        *inputs: R,
        uid: str,
        key: Keys = None,
        event_time: str | Sequence[str | None] | None = None,
        watermark_delay: Delay | Sequence[Delay] = None,
        order_by: OrderBy = None,
        sequence: SequenceBy = None,
        drop_stale: bool | Sequence[bool] = False,
        options: Mapping[str, object] | None = None,
        initial_state: Any = None,
        changes: Changelog | Sequence[Changelog | None] | None = None,
    ) -> R:
        """Run ``operator`` over this micro-batch's rows of ``inputs``; returns its output with a ``row_kind`` column.

        ``key``: the key columns, one name or several; None for one global key; with two inputs one entry for
        each. The operator's broadcast input has no key: its entry is None or omitted; the driver collects its
        rows, which keep their order. ``event_time`` names the timestamp column; with ``watermark_delay`` the
        input holds back the watermark. ``order_by`` names columns, the event time first: rows are buffered in state
        until the watermark has passed them, are processed in this order, and are dropped if they are late;
        with two inputs one entry for each, None where rows are processed as they arrive. ``sequence`` names columns (a
        position in a log, a version) that order the changes of a key within the micro-batch, where Spark keeps no
        order; ``drop_stale`` drops rows of a key that are not newer than its rows of previous micro-batches, and counts
        them (``stale_rows_dropped``). With two inputs, both have one entry for each. ``options`` are ``async-state.*``
        settings of this operator. ``uid`` ties the operator to its state in the checkpoint: keep it when the
        job changes. ``initial_state`` is what the operator starts from in its first micro-batch, and only if the
        checkpoint has no state of it: a DataFrame of rows that precede those of ``inputs`` (with several inputs
        one each, or None), or ``{name of a state: DataFrame of the key's columns and "value"}``. ``changes``: the
        changelog properties of an input's rows, ``Changelog.insert_only()``, ``Changelog.retract()`` or
        ``Changelog.upsert("id")``; with two inputs one entry for each. They are known for a DataFrame that ``apply`` or
        ``side_output`` returned. For any other DataFrame, even one derived from these, a column ``row_kind`` means
        ``Changelog.retract()``.

        The result can be read any number of times, or not at all, until the function returns. Raises
        SchemaError, StateDeclarationError, ConfigurationError and JobError before any row is read, and
        OperatorError and StoreError while the operator runs.

        A stateless operator does not run here. It runs when its rows are read, and its OperatorErrors are raised there.
        It takes ``event_time`` and ``options``; arguments that need state or a report are refused.
        """
        call = Call(
            operator, uid, key, event_time, watermark_delay, order_by, sequence, drop_stale, options, changes
        )
        rows = self.run(FusedTask(call), inputs, initial_state)
        output = self.applied[uid].output.changes if uid in self.applied else self._stateless_changes[uid]
        return self._known(rows, f"operator '{uid}' ({type(operator).__name__})", output)

    def run(
        self,
        task: FusedTask,
        inputs: Sequence[R | Feed],
        initial_state: Any = None,
        initial_rows: Any = None,
    ) -> R:
        """``apply`` for a graph: returns the rows of the last operator of ``task``. The stages of planned ``inputs``
        run in the same Spark job. ``initial_rows``: for each input the initial rows of its source, or None; they are
        processed first, even if the operator has run before."""
        self._enter(task)
        call, frames = task.call, [one for one in inputs if not isinstance(one, Feed)]
        if call.operator.stateless:
            check_keeps(call.uid, initial_state)
            return self._map(call, frames)
        first: dict[str, Applied] = {}
        if initial_rows is None and self._stored(call.uid) is None:
            initial_rows = initial_state
        if initial_rows is not None:
            first = self._begin(task, frames, initial_rows)
        ran = self._run_stage(task, inputs)
        ran = [_both(first[one.uid], one) if one.uid in first else one for one in ran]
        self.applied |= {one.uid: one for one in ran}
        assert ran[-1].stage is not None  # the last operator of a task holds its rows
        rows: R = ran[-1].stage.rows
        return rows

    def _known(self, rows: R, origin: str, changes: Changelog) -> R:
        """The rows, annotated with their changelog properties."""
        return self._frame.executor.with_changes(rows, replace(changes, origin=origin))

    def plan(self, task: FusedTask, inputs: Sequence[R | Feed]) -> Planned:
        """Plan what ``run`` would run, for a stage that consumes its rows."""
        self._enter(task)
        return self._planned(task, inputs)

    def _enter(self, task: FusedTask) -> None:
        """Reserve the operators' uids."""
        with self._lock:
            for one in (task.call, *(downstream.call for downstream in task.then)):
                self._check_open(one.uid)
                check_uid(one.uid)
                check_not_taken(one.uid, self._uids)
                self._uids.append(one.uid)
        check_is_operator(task.call.uid, task.call.operator)

    def _begin(self, task: FusedTask, inputs: Sequence[R], given: Any) -> dict[str, Applied]:
        """Run an operator over its initial state, in a stage before that of the micro-batch's rows, which builds on the
        result. Nothing is committed in between."""
        call = task.call
        initial = self._frame.executor.initial_of(call.uid, given, inputs)
        if initial.values:
            own = self._check(call, inputs)
            for state, writing, df in self._writing_values(call, own, initial.values):
                (one,) = self._run_stage(FusedTask(writing), [df])
                self._keep(one, fingerprint(call.operator, own.specs.inputs, own.output))
                _log.info("operator '%s': initial values of state '%s' written", call.uid, state)
            return {}
        ran = self._run_stage(task._replace(before=None), initial.rows)
        for one in ran:
            self._keep(one, one.declared)
        return {one.uid: one for one in ran}

    def _writing_values(
        self, call: Call, checked: _Checked, values: Mapping[str, R]
    ) -> Iterator[tuple[str, Call, R]]:
        """The calls that write the values of each state. Raises StateDeclarationError for columns that do not fit."""
        keyed = next(spec for spec in checked.ready if not spec.broadcast)
        for state, df in values.items():
            check_values(call.uid, state, self.schema(df), keyed.key_schema)
            writer = InitialValues(call.operator, checked.ready, state)
            yield state, Call(writer, call.uid, keyed.key, options=call.options), df

    def _keep(self, ran: Applied, declared: Fingerprint) -> None:
        """Make the result of this stage the base of the operator's next stage."""
        assert ran.stage is not None or ran.records
        if ran.stage is not None:
            self._first_stages.append(ran.stage)
        self._started[ran.uid] = ran.stored(self.batch_id, declared)

    def _stored(self, uid: str) -> OperatorManifest | None:
        if uid in self._started:
            return self._started[uid]
        return self._base.operators.get(uid) if self._base is not None else None

    def _chain(self, task: FusedTask, inputs: Sequence[R | Feed]) -> list[Prepared]:
        call, after, before, then = task
        seen = [one.shape if isinstance(one, Feed) else one for one in inputs]
        seen = seen if before is None else [before.rows]
        checked = self._check(call, seen)
        if before is not None:
            checked = checked._replace(ready=(replace(checked.ready[0], local=before.local),))
        elif not any(isinstance(one, Feed) for one in inputs):
            checked = self._done_before(call.operator, seen, checked)
        chain = [self._prepare(call, checked, after)]
        for downstream in then:
            checked = self._check(downstream.call, [downstream.rows], downstream.route)
            chain.append(self._prepare(downstream.call, checked, downstream.after))
        return chain

    def _planned(self, task: FusedTask, inputs: Sequence[R | Feed]) -> Planned:
        return self._frame.executor.plan(self._chain(task, inputs), inputs, task.before is not None)

    def _run_stage(self, task: FusedTask, inputs: Sequence[R | Feed]) -> list[Applied]:
        started = time.perf_counter()
        planned = self._planned(task, inputs)
        before = sum(one.plan_seconds for one in planned.all[:-1])
        ended = time.perf_counter()
        stage, records = self._frame.executor.run(planned, self.stateless)
        for name, found in stage.observed.items():
            known = self.observed.get(name)
            if (
                known is None
                or known.value is None
                or (found.value is not None and found.value > known.value)
            ):
                self.observed[name] = found
        ran = [replace(self._applied(one, reported), in_driver=stage.in_driver) for one, reported in records]
        plan, run = before + ended - started, time.perf_counter() - ended
        ran[-1] = replace(ran[-1], stage=stage, plan_seconds=plan, stage_seconds=run)
        self._frame.executor.ran(metrics_of({one.uid: operator_progress(one) for one in ran}))
        return ran

    def _applied(self, one: Prepared, records: list[CommitRecord]) -> Applied:
        spec = one.spec
        warn_of_missing_rows(spec.uid, self.batch_id, spec.config, records)
        return Applied(
            uid=spec.uid,
            operator=type(spec.operator).__name__,
            parallelism=spec.parallelism,
            delays=one.delays,
            declared=one.declared,
            waiting=watermark_wait_reason(spec.uid, spec.operator, spec.inputs),
            route=[spec.inputs[0].key.index(name) for name in spec.inputs[0].route_by],
            records=records,
            output=one.output,
        )

    @property
    def is_first(self) -> bool:
        """Whether no micro-batch of the job has been committed yet."""
        return self._base is None

    @property
    def graph_before(self) -> GraphManifest | None:
        """The checkpoint's entry for the job's graph; None if no graph has run."""
        return None if self._base is None else self._base.graph

    @property
    def stored_uids(self) -> Collection[str]:
        """The uids of the operators that the checkpoint knows."""
        return () if self._base is None else self._base.operators.keys()

    def check(self, call: Call, inputs: Sequence[R], initial_state: Any = None) -> Expected[R]:
        """What ``run`` would return, without running. Raises what ``run`` raises before any row is read."""
        operator, uid = call.operator, call.uid
        check_uid(uid)
        check_is_operator(uid, operator)
        checked = self._check(call, inputs)
        if operator.stateless:
            check_keeps(uid, initial_state)
        elif initial_state is not None:
            values = self._frame.executor.initial_of(uid, initial_state, inputs).values
            for _, writing, df in self._writing_values(call, checked, values):
                self._check(writing, [df])
        if checked.stored is not None and not operator.stateless:
            declared = fingerprint(operator, checked.specs.inputs, checked.output)
            check_fingerprint(uid, checked.stored.schema, declared.schemas)
        self._parallelism(uid, checked.config, checked.stored)
        no_rows = self._frame.executor.no_rows
        return Expected(
            no_rows(uid, checked.output.schema),
            {name: no_rows(uid, schema) for name, schema in checked.output.side_outputs.items()},
            watermark_wait_reason(uid, operator, checked.ready) is not None,
            [f"{state.name} ({state.kind.replace('_', ' ')})" for state in checked.states],
            growth_of(operator, checked.ready, checked.states),
            checked.output,
        )

    def schema(self, rows: R) -> pa.Schema:
        """The columns of ``rows`` except ``row_kind``."""
        return self._frame.executor.schema(rows)

    def check_claimed(self, uids: Collection[str]) -> None:
        """Raise JobError for state that belongs to none of ``uids``, unless unclaimed state is to be kept or
        dropped."""
        operators = {} if self._base is None else self._base.operators
        stored = [uid for uid, one in operators.items() if one.has_state]
        check_claimed(stored, uids, self._frame.unclaimed_state)

    @property
    def fusion(self) -> bool:
        """Whether parts of a graph may be fused into one task."""
        return self._frame.config.tuning.fusion

    def side_output(self, uid: str, name: str) -> R:
        """The rows that operator ``uid``, applied earlier in this micro-batch, has emitted to its side output ``name``,
        with a ``row_kind`` column.

        It can be read in addition to the result of ``apply``, any number of times, and is valid as long as that. Raises
        JobError for an operator that has not been applied, and for a name that it does not declare.
        """
        if not self._open:
            raise JobError(
                f"side output {name!r} of operator '{uid}': micro-batch {self.batch_id} is over; call side_output "
                "inside the micro_batch function"
            )
        if uid not in self.applied:
            known = ", ".join(map(repr, self.applied)) or "none"
            raise JobError(
                f"side output {name!r}: no operator {uid!r} with state has been applied in this micro-batch (applied: "
                f"{known}); call apply(..., uid={uid!r}) first"
            )
        stage = self.applied[uid].stage
        assert stage is not None  # operators with side outputs are the last of their tasks
        changes = self.applied[uid].output.changes_of(name)
        return self._known(stage.side(name), f"side output '{uid}.{name}'", changes)

    @property
    def failed_uids(self) -> list[str]:
        """Operators whose ``apply`` raised an error."""
        return [uid for uid in self._uids if uid not in self.applied and uid not in self.stateless]

    def close(self) -> None:
        """Release all rows, even if a release fails; called when the function has returned or failed."""
        self._open = False
        for uid, rows in self.stateless.items():
            self._frame.executor.withdraw(rows, f"the output of operator '{uid}' in batch {self.batch_id}")
        with ExitStack() as releasing:
            for stage in self._first_stages:
                releasing.callback(stage.release)
            for applied in self.applied.values():
                if applied.stage is not None:
                    releasing.callback(applied.stage.release)

    def _check_open(self, uid: str) -> None:
        if not self._open:
            raise JobError(
                f"operator '{uid}': micro-batch {self.batch_id} is over; call apply inside the micro_batch "
                "function"
            )

    def _map(self, call: Call, inputs: Sequence[R]) -> R:
        """A lazy map over the input's existing partitions: Spark runs the operator as part of each action that reads
        its rows."""
        checked = self._check(call, inputs)
        spec = self._task_spec(call, checked._replace(stored=None), 1)
        rows = self.stateless[call.uid] = self._frame.executor.stateless(
            spec, checked.output.schema, inputs[0]
        )
        self._stateless_changes[call.uid] = checked.output.changes
        return rows

    def _check(self, call: Call, inputs: Sequence[R], route: tuple[str, ...] = ()) -> _Checked:
        """Check a call. ``route``: the key columns that route a new operator, if not all; a stored one keeps its
        route."""
        operator, uid, options = call.operator, call.uid, call.options or {}
        check_num_inputs(uid, operator, len(inputs))
        check_operator_options(uid, options)
        config: Config = self._frame.resolve(options)
        specs = input_specs(call, inputs, self._frame.executor)
        stored = self._stored(uid)
        if operator.stateless:
            check_stateless(uid, operator, specs.inputs, specs.delays, stored)
        elif uid in self.dropped_since:
            assert self._base is not None
            raise JobError(
                f"operator '{uid}': Spark repeats batch {self.batch_id}, whose version no longer has the state of this "
                f"operator, but version {self._base.batch_id}, from which it would start, has it. To start with empty "
                f"state, run `python -m asyncstate state rollback CHECKPOINT {self._base.batch_id}`, then `python -m "
                f"asyncstate state migrate drop-operator CHECKPOINT {uid}`; to continue with that state, the first "
                "command alone. Then start the query"
            )
        specs = routed(specs, route, stored)
        states_before = stored.states if stored is not None else ()
        # Each micro-batch of a graph checks the same operators: what has not changed gives what it gave.
        given = (specs.inputs, config, states_before, stored_meaning(operator, stored))
        known = self._frame.checks.get(uid)
        if known is None or not known.is_of(operator) or known.given != given:
            copied = partial(self._frame.executor.shipped_copy, uid)
            found = checked_inputs(uid, operator, *given[:3], copied, given[3])
            known = self._frame.checks[uid] = _Check(operator, dict(vars(operator)), given, found)
        return _Checked(config, specs, stored, *known.found)

    def _done_before(self, operator: Operator, inputs: Sequence[R], checked: _Checked) -> _Checked:
        """Add the partial aggregation or limit that Spark applies to the inputs' rows before the exchange."""
        ready = checked.ready
        phase = choose_partial_aggregation(operator, ready, checked.stored, self.batch_id)
        if phase is not None:
            ready = (replace(ready[0], local=phase),)
        limit = choose_partial_limit(operator, ready)
        if limit is not None and self._frame.executor.has_exchanges:
            ready = (replace(ready[0], limit=limit),)
        return checked._replace(ready=ready)

    def _prepare(self, call: Call, checked: _Checked, after: OutputPipeline | None) -> Prepared:
        stored, output = checked.stored, checked.output
        declared = fingerprint(call.operator, checked.specs.inputs, output)
        if stored is not None and call.uid not in self._started:
            check_fingerprint(call.uid, stored.schema, declared.schemas)
        sent = output if after is None else OutputSpec(after.schema, output.side_outputs)
        spec = self._task_spec(call, checked, self._parallelism(call.uid, checked.config, stored))
        return Prepared(spec, after, sent, checked.specs.delays, declared, output)

    def routed_output(self, call: Call, inputs: Sequence[R], route: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Groups of output columns of ``call`` that hold the values which route its rows. Empty if it has side outputs,
        since no operator can follow in its task then. ``route``: the key columns that route a new operator; empty
        means all."""
        checked = self._check(call, inputs, route)
        if checked.output.side_outputs:
            return []
        own = next(spec for spec in checked.ready if not spec.broadcast)
        at = [own.key.index(name) for name in own.route]
        return [tuple(key[i] for i in at) for key in call.operator.keyed_output(checked.ready)]

    def downstream(
        self,
        first: Call,
        inputs: Sequence[R],
        following: Call,
        rows: R,
        routes: Collection[tuple[str, ...]],
    ) -> Downstream | None:
        """How ``following`` can run in the task of ``first``, whose routing values its input ``rows`` holds in each of
        the column groups ``routes``; None if it cannot, because its rows have or need a different partitioning."""
        ours, theirs = self._check(first, inputs), self._check(following, [rows])
        parallelism = self._parallelism(first.uid, ours.config, ours.stored)
        if (
            not theirs.config.tuning.fusion
            or ours.config.max_parallelism != theirs.config.max_parallelism
            or parallelism != self._parallelism(following.uid, theirs.config, theirs.stored)
        ):
            return None
        own = theirs.ready[0]
        if theirs.stored is not None:
            return Downstream(following, rows, None, own.route_by) if own.route in routes else None
        for route in routes:
            if set(route) <= set(own.key) and (route or not own.key):
                return Downstream(following, rows, None, () if route == own.key else route)
        return None

    def first_step(self, call: Call, rows: R) -> tuple[Step, pa.Schema, Upstream] | None:
        """The first step of the operator of ``call`` that can run in the upstream task, over rows with the columns of
        ``rows``. Returns the step, its output columns, and the ``Upstream`` that ``run`` needs; None if there is no
        such step."""
        checked = self._check(call, [rows])
        (spec,) = checked.ready
        if not checked.config.tuning.fusion or spec.ordering is not None or spec.sequence or spec.broadcast:
            return None
        phase = task_partial_aggregation(call.operator, checked.ready)
        if phase is not None:
            local = replace(spec, local=phase)
            step: Step = PartialAggregate(call.operator, local)
            return step, local.row_schema, Upstream(rows, phase)
        limit = task_partial_limit(call.operator, checked.ready)
        if limit is not None and self._frame.executor.has_exchanges:
            step = PartialTopN(call.operator, replace(spec, limit=limit))
            return step, self.schema(rows), Upstream(rows, None)
        return None

    def kept(
        self,
        first: Call,
        inputs: Sequence[R],
        following: Call,
        frames: Sequence[R],
        index: int,
        stepped: bool,
    ) -> str:
        """Why Spark must materialize the rows of ``first`` before they go to input ``index`` of ``following``, whose
        inputs are ``frames``; empty if they can go there in the same Spark job. ``stepped``: its first step runs
        upstream."""
        ours, theirs = self._check(first, inputs), self._check(following, frames)
        if not theirs.config.tuning.fusion:
            return "fusion is off"
        if ours.output.side_outputs:
            return f"'{first.uid}' has side outputs"
        if theirs.ready[index].broadcast:
            return "each of its partitions gets all rows"
        if not stepped and may_run_locally(following.operator, theirs.ready):
            return "Spark may aggregate them before the exchange"
        return ""

    def _task_spec(self, call: Call, checked: _Checked, parallelism: int) -> TaskSpec:
        uid, config = call.uid, checked.config
        return TaskSpec(
            job_id=self._frame.job_id,
            uid=uid,
            operator=call.operator,
            inputs=checked.ready,
            config=config,
            parallelism=parallelism,
            max_parallelism=config.max_parallelism,
            batch_id=self.batch_id,
            base_version=self._base.batch_id if self._base is not None else -1,
            base=checked.stored,
            watermark=self.watermark,
            previous_watermark=previous_watermark(self._base, uid),
            processing_time=self.processing_time,
            previous_processing_time=previous_processing_time(self._base, uid),
            checkpoint=self._frame.checkpoint,
            local_dir=config.local_dir,
            first_arrival=FIRST_ARRIVAL if uid in self._started else 0,
        )

    def _parallelism(self, uid: str, config: Config, stored: OperatorManifest | None) -> int:
        """The parallelism from the options; by default the stored one, or for new state one partition per core."""
        auto = stored.parallelism if stored is not None else self._frame.executor.default_parallelism
        chosen = config.parallelism or min(auto, config.max_parallelism)
        check_parallelism(uid, chosen, config.max_parallelism)
        return chosen


class Expected(NamedTuple, Generic[R]):
    """What an operator would return: empty frames with the columns of its output and of its side outputs; whether rows
    wait for the watermark; its states in words, and how they grow; the declaration of its outputs."""

    rows: R
    side_outputs: Mapping[str, R]
    waits: bool
    states: Sequence[str]
    growth: StateGrowth
    output: OutputSpec


class _Check(NamedTuple):
    """A check of an operator, with the ``attributes`` that it had, and what the check ``found``."""

    operator: Operator
    attributes: Mapping[str, Any]
    given: tuple[Any, ...]
    found: Any

    def is_of(self, operator: Operator) -> bool:
        """Whether it was of this operator, and no attribute has another object since."""
        now = vars(operator)
        return (
            self.operator is operator
            and now.keys() == self.attributes.keys()
            and all(now[name] is one for name, one in self.attributes.items())
        )


class _Checked(NamedTuple):
    config: Config
    specs: Inputs
    stored: OperatorManifest | None
    output: OutputSpec
    ready: tuple[InputSpec, ...]
    states: list[StateSpec]


def _both(first: Applied, then: Applied) -> Applied:
    """Merge two runs of an operator: the rows of both, and the state that the second run left."""
    before = {record.partition: record for record in first.records}
    records = [report_of_both(before[record.partition], record) for record in then.records]
    stage = then.stage
    if stage is not None and first.stage is not None:
        stage = stage.preceded_by(first.stage, then.output.changes.upsert_key)
    return replace(
        then,
        stage=stage,
        records=records,
        plan_seconds=first.plan_seconds + then.plan_seconds,
        stage_seconds=first.stage_seconds + then.stage_seconds,
    )


def check_watermark(applied: Mapping[str, Applied], sources: Collection[str]) -> None:
    """Raise JobError if rows would wait for a watermark that no input of the job advances."""
    waiting = next((one.waiting for one in applied.values() if one.waiting is not None), None)
    if waiting is not None and not sources:
        raise JobError(
            f"{waiting}, so its rows wait for the watermark, but no input of the job has a watermark_delay: they "
            "would wait until finish(). Give the input a watermark_delay (how late its rows can arrive, such as '10 "
            "seconds'), or do not use event time there; nothing was committed"
        )
