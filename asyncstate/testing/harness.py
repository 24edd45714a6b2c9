"""Run an operator without Spark: push rows, end micro-batches, inspect output and state.

Owns: ``OperatorHarness``.
Invariant: rows are routed, run and committed by the same code as in a Spark job; only the exchange is done here.
Must not import Spark.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from asyncstate.changelog import INSERT_ONLY, RETRACT, Changelog, Key
from asyncstate.clock import Clock, ManualClock
from asyncstate.config import SPARK_PREFIX, Tuning, resolve
from asyncstate.display import html_table, ignoring_errors, time_text
from asyncstate.driver.local_tasks import with_copy
from asyncstate.driver.operator_manifests import (
    check_fingerprint,
    check_key_groups,
    fingerprint,
    operator_after,
    previous_processing_time,
    previous_watermark,
)
from asyncstate.driver.partial_aggregation_policy import choose_partial_aggregation
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import AsyncStateError, ConfigurationError, JobError
from asyncstate.metrics import to_dict
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec, Operator, OutputSpec, unknown_output
from asyncstate.runtime import (
    FIRST_ARRIVAL,
    CommitRecord,
    Delay,
    InputBatch,
    Keys,
    OrderBy,
    OutBatch,
    RowStatistics,
    SequenceBy,
    SideBatch,
    TaskSpec,
    WorkerMemory,
    advance_sources,
    aggregated_before,
    check_is_operator,
    check_num_inputs,
    check_parallelism,
    check_stateless,
    check_uid,
    checked_inputs,
    drop_stale_of_inputs,
    each_input,
    growth_of,
    input_sources,
    keys_of_inputs,
    pack_broadcast,
    pack_records,
    read_state,
    report_of_both,
    run_partitions,
    run_stateless,
    sequences_of_inputs,
    sort_keys_of_inputs,
    stored_meaning,
    sum_records,
    times_of_inputs,
    unpack_records,
    warn_of_missing_rows,
    watermark_after,
    watermark_wait_reason,
    worker_memory,
)
from asyncstate.storage import (
    Checkpoint,
    CheckpointFiles,
    KeyedStore,
    LocalFiles,
    Manifest,
    OperatorManifest,
    StateSpec,
    checkpoint_files,
    held,
)
from asyncstate.testing.harness_rows import OutputRow, kind_codes, not_replaced, record_batch, rows_of
from asyncstate.testing.initial_state import InitialState, initial_of
from asyncstate.testing.local_exchange import copies_of, exchanged
from asyncstate.tracebacks import users_frames

__tracebackhide__ = True  # pytest shows the test's own line

_JOB = "harness"
_ARGUMENTS = ("async-state.enabled", "async-state.max-parallelism")


@functools.cache
def _scratch() -> str:
    """The folder of this process's harnesses and snapshots, deleted at its end."""
    folder = tempfile.mkdtemp(prefix="asyncstate-harness-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _new_folder(kind: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=_scratch()))


class _Ran(NamedTuple):
    """The output and the reports of all partitions."""

    rows: list[pa.RecordBatch]
    aside: list[SideBatch]
    records: list[CommitRecord]

    def then(self, downstream: _Ran, key: Key | None) -> _Ran:
        """This, followed by a later run in the same micro-batch over its results; ``key``: its rows are upserts by
        it."""
        first = {record.partition: record for record in self.records}
        records = [report_of_both(first[record.partition], record) for record in downstream.records]
        older = list(not_replaced(self.rows, downstream.rows, key))
        return _Ran(older + downstream.rows, self.aside + downstream.aside, records)


class OperatorHarness:
    """One operator, its partitions and its checkpoint, in this process. A context manager, also for ``async with``.

    ``inputs``, ``key``, ``event_time``, ``watermark_delay`` (microseconds, or as in a job) have one entry per input;
    for a single input the entry itself may be passed; the checks of a job apply here as well.
    ``order_by`` is as in a job's ``apply``: a column or a list of columns, for several inputs one entry for each, None
    where rows come as they are; so are ``sequence`` and ``drop_stale``. The operator's broadcast input has no key: its
    entry in ``key`` is None or left out. ``changelog``: whether rows of an input have kinds, or a ``Changelog`` that
    says how they change its table, and what identifies a row (default: whether the operator accepts changelogs).
    ``checkpoint`` is the location of the checkpoint, a path or a URI; by default it is in ``folder``, next to the local
    stores. ``wrap_store`` receives each leased store and returns the store that the operator reads instead, such as a
    FaultyStore around it. A stateless operator gets the rows of a micro-batch as one part, whatever the
    ``parallelism``, and ``key`` is None.
    ``initial_state`` is the state from which a new operator starts, as in a job's ``apply``: rows that precede all
    others of its first micro-batch, or values by name of state, ``{"balance": [("ann", 7)]}``; rows in the forms that
    ``push`` accepts, for several inputs one entry for each, None where there are none. Kinds are in a column
    ``row_kind``. ``worker``: the worker cache between micro-batches, for tests that simulate several workers; by
    default that of this process. ``uid``: its name in errors and in the checkpoint. ``tuning``: settings of the engine
    for tests; see ``Tuning``. ``partitions_per_task``: how many partitions run together, as up to 16 do in the driver
    of a job. ``filters``: see ``InputSpec``; a ``PipelineHarness`` sets them.

    >>> from asyncstate.testing import OperatorHarness
    """

    def __init__(
        self,
        operator: Operator,
        inputs: pa.Schema | Sequence[pa.Schema],
        key: Keys,
        *,
        event_time: str | Sequence[str | None] | None = None,
        watermark_delay: Delay | Sequence[Delay] = None,
        changelog: bool | Changelog | Sequence[bool | Changelog] | None = None,
        order_by: OrderBy = None,
        sequence: SequenceBy = None,
        drop_stale: bool | Sequence[bool] = False,
        initial_state: InitialState = None,
        async_enabled: bool = False,
        wrap_store: Callable[[KeyedStore], KeyedStore] | None = None,
        parallelism: int = 1,
        max_parallelism: int = 128,
        options: Mapping[str, str] | None = None,
        tuning: Tuning | None = None,
        clock: Clock | None = None,
        folder: str | Path | None = None,
        checkpoint: str | None = None,
        worker: WorkerMemory | None = None,
        uid: str = "operator",
        filters: Sequence[str | None] | None = None,
        partitions_per_task: int = 1,
    ) -> None:
        self._uid = uid
        check_uid(uid)
        check_is_operator(uid, operator)
        check_parallelism(uid, parallelism, max_parallelism)
        self._together = _checked_together(partitions_per_task)
        schemas = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        count = len(schemas)
        check_num_inputs(uid, operator, count)
        keys = keys_of_inputs(uid, _key(key, count), count, operator.broadcast_input)
        times, self._delays = times_of_inputs(uid, event_time, watermark_delay, count)
        orders = sort_keys_of_inputs(uid, order_by, count)
        sequences = sequences_of_inputs(uid, sequence, count)
        drops = drop_stale_of_inputs(uid, drop_stale, sequences)
        changes = _changes(uid, operator.accepts_changelog if changelog is None else changelog, count)
        self._specs = tuple(
            InputSpec(
                schema,
                keys[i],
                times[i],
                changes[i],
                f"input {i}",
                i == operator.broadcast_input,
                orders[i],
                sequences[i],
                drops[i],
                filters=None if filters is None else filters[i],
            )
            for i, schema in enumerate(schemas)
        )
        self._operator = copies_of(operator)
        self._shown = ignoring_errors(lambda: repr(operator), type(operator).__name__)
        self._options = dict(options or {})
        self._config = resolve(
            {
                "async-state.enabled": str(async_enabled).lower(),
                "async-state.max-parallelism": str(max_parallelism),
                **(options or {}),
            },
            {},
            tuning,
        )
        self.parallelism = parallelism
        self._wrap_store = wrap_store
        self.worker = worker_memory() if worker is None else worker
        self.clock: Clock = clock if clock is not None else ManualClock()
        self.owns_folder = folder is None
        """Whether ``close`` deletes the folder."""
        self._folder = Path(folder) if folder is not None else _new_folder("harness")
        self._files = checkpoint_files(checkpoint or str(self._folder / "checkpoint"))
        self._checkpoint = Checkpoint(self._files)
        check_key_groups(self._files.shown, self._checkpoint.latest(), self._config)
        self._checkpoint.claim(_JOB)
        self._manifest = self._checkpoint.latest()
        self._pending: list[InputBatch] = []
        self._watermark: int | None = None
        self.output: list[OutputRow] = []
        self.batches: list[dict[str, float]] = []
        stored = self._stored(self._manifest)
        if operator.stateless:
            check_stateless(uid, operator, self._specs, self._delays, stored)
        self._output, self._task_inputs, states = checked_inputs(
            uid,
            operator,
            self._specs,
            self._config,
            self.states(),
            lambda _: self._operator(),
            stored_meaning(operator, stored),
        )
        self.growth = growth_of(operator, self._task_inputs, states)
        """How the stored state of the operator grows, as in ``explain()`` of a job."""
        self._declared = fingerprint(operator, self._specs, self._output)
        if stored is not None and not operator.stateless:
            check_fingerprint(uid, stored.schema, self._declared.schemas)
        self._initial_state = initial_state
        self._initial = initial_of(
            uid, initial_state, operator, self._specs, self._task_inputs, states, self._check_writer
        )
        self._running: tuple[TaskSpec, _Ran, bool] | None = None
        self.last_side_rows: list[SideBatch] = []
        """The rows that the last micro-batch emitted to side outputs."""
        self._side_rows: dict[str, list[OutputRow]] = {name: [] for name in self._output.side_outputs}

    def _check_writer(self, writer: Operator, spec: InputSpec) -> None:
        checked_inputs(
            self._uid, writer, (spec,), self._config, self.states(), lambda given: copies_of(given)()
        )

    # -- pushing -----------------------------------------------------------------------------------

    def push(
        self,
        rows: pa.RecordBatch | Sequence[Sequence[Any] | Mapping[str, Any]],
        input: int = 0,
        kind: str = "+I",
        kinds: Sequence[str] | None = None,
    ) -> None:
        """Add rows to the running micro-batch, in order: tuples, dicts by column name, or a RecordBatch; ``kind`` for
        all or one of ``kinds`` per row.

        Raises SchemaError for rows and kinds that do not fit the input, and JobError for an unknown input.
        """
        if type(input) is not int or input not in range(len(self._specs)):
            raise JobError(
                f"push: there is no input {input!r}; the operator has {len(self._specs)}, from 0 on"
            )
        spec = self._specs[input]
        batch = record_batch(rows, spec.schema, spec.name)
        if not batch.num_rows:
            return
        codes = kind_codes(kind if kinds is None else kinds, batch.num_rows)
        self._pending.append(InputBatch(batch, codes if codes.any() else None, input))

    def advance_watermark(self, watermark_us: int) -> None:
        """Set the watermark of the running micro-batch; it never goes back."""
        self._watermark = watermark_us

    def advance_processing_time(self, duration: Duration) -> None:
        """Advance the clock that sets ``ctx.processing_time``; for a harness with its own ManualClock.

        ``duration``: a string such as "10 minutes", a timedelta, or an int of microseconds."""
        if not isinstance(self.clock, ManualClock):
            raise JobError(
                f"the harness was given {type(self.clock).__name__} as its clock; advance that, or use a ManualClock"
            )
        self.clock.advance(microseconds(duration, "advance_processing_time", "duration", JobError))

    def end_batch(self) -> list[OutputRow]:
        """Run and commit the micro-batch; its output rows as ``(row kind text, *values)``, in order."""
        return self._run(final=False)

    def finish(self) -> list[OutputRow]:
        """Run the last micro-batch with the final watermark."""
        return self._run(final=True)

    # -- inspection ----------------------------------------------------------------------------------

    @property
    def sources(self) -> dict[int, int]:
        """For each input with a watermark delay: how far it would let the watermark advance, microseconds."""
        known = {} if self._manifest is None else self._manifest.sources
        delayed = [index for index, delay in enumerate(self._delays) if delay is not None]
        return {index: known.get(f"{self._uid}:{index}", MIN_WATERMARK) for index in delayed}

    @property
    def waits_for_watermark(self) -> bool:
        """Whether rows are kept until the watermark has passed them."""
        return watermark_wait_reason(self._uid, self._operator(), self._task_inputs) is not None

    @property
    def outputs(self) -> OutputSpec:
        """The columns of all outputs, without ``row_kind``."""
        return self._output

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of the main output, without ``row_kind``."""
        return self._output.schema

    def side_output(self, name: str) -> list[OutputRow]:
        """The rows of the side output ``name`` since the last call, like those of ``end_batch``, in order. Raises
        SchemaError for one that is not declared."""
        if name not in self._side_rows:
            raise unknown_output(name, self._side_rows)
        rows, self._side_rows[name] = self._side_rows[name], []
        return rows

    @property
    def watermark(self) -> int:
        """The watermark that the next micro-batch would have, microseconds."""
        return watermark_after(self._manifest)

    def statistics(self) -> dict[str, float]:
        """Metrics of the last micro-batch, summed over partitions (highest value for ``*_peak``)."""
        return dict(self.batches[-1]) if self.batches else {}

    def state_entries(self) -> dict[bytes, bytes]:
        """Every stored key and value, as committed."""
        if self._manifest is None:
            return {}
        partitions = self.parallelism if self._uid in self._manifest.operators else 0
        return dict(read_state(self._spec(self._manifest, MAX_WATERMARK), partitions, self.worker.stores))

    def states(self) -> list[StateSpec]:
        """The states as in the checkpoint: id, name, kind and types."""
        stored = self._stored(self._manifest)
        return [] if stored is None else stored.states

    @property
    def has_state(self) -> bool:
        """Whether its checkpoint has anything that a program without the operator would lose."""
        stored = self._stored(self._manifest)
        return stored is not None and stored.has_state

    # -- snapshot and restore ------------------------------------------------------------------------

    def snapshot(self) -> Path:
        """A copy of the committed checkpoint; pass it to ``restore``. Kept until the process ends."""
        copied = _new_folder("snapshot")
        _copy_checkpoint(self._files, LocalFiles(copied / "checkpoint"))
        return copied

    def restore(self, snapshot: Path, **changes: Any) -> OperatorHarness:
        """A new harness for the same operator over a copy of ``snapshot``, with other ``parallelism``,
        ``async_enabled``, ``operator``, ``options`` or ``checkpoint``. Raises ConfigurationError for another
        ``max_parallelism``, which its first micro-batch has fixed."""
        folder = _new_folder("harness")
        place = changes.get("checkpoint") or str(folder / "checkpoint")
        _copy_checkpoint(LocalFiles(snapshot / "checkpoint"), checkpoint_files(place))
        started = Checkpoint(LocalFiles(snapshot / "checkpoint")).latest()
        orders = [list(spec.order_by) for spec in self._specs]
        sequences = [list(spec.sequence) or None for spec in self._specs]
        settings: dict[str, Any] = {
            "event_time": [spec.event_time for spec in self._specs],
            "watermark_delay": self._delays,
            "changelog": [spec.changes for spec in self._specs],
            "order_by": orders if len(orders) > 1 else orders[0],
            "sequence": sequences if len(sequences) > 1 else sequences[0],
            "drop_stale": [spec.drop_stale for spec in self._specs],
            "initial_state": self._initial_state if self._stored(started) is None else None,
            "async_enabled": self._config.enabled,
            "parallelism": self.parallelism,
            "max_parallelism": self._config.max_parallelism,
            # Arguments of the constructor are passed above, as they are in force.
            "options": {
                key: value
                for key, value in self._options.items()
                if key.removeprefix(SPARK_PREFIX) not in _ARGUMENTS
            },
            "tuning": self._config.tuning,
            "clock": self.clock,
            "worker": self.worker,
            "uid": self._uid,
            "filters": [spec.filters for spec in self._specs],
            "partitions_per_task": self._together,
        }
        operator = changes.pop("operator", None) or self._operator()
        harness = OperatorHarness(
            operator,
            [spec.schema for spec in self._specs],
            [None if spec.broadcast else spec.key for spec in self._specs],
            folder=folder,
            **{**settings, **changes},
        )
        harness.owns_folder = True
        return harness

    def __repr__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in self._facts()[1:])
        return f"<OperatorHarness {self._shown}: {said}>"

    def _repr_html_(self) -> str:
        return html_table("OperatorHarness", self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        states = ", ".join(f"{state.name} ({state.kind})" for state in self.states()) or "none yet"
        waiting = sum(given.batch.num_rows for given in self._pending)
        done = "the end" if self._manifest is not None and self._manifest.final else str(self._next_batch)
        return [
            ("operator", self._shown),
            ("mode", "async" if self._config.enabled else "sync"),
            ("partitions", str(self.parallelism)),
            ("batch", f"{done} ({waiting} rows pushed)"),
            ("watermark", time_text(self.watermark, MIN_WATERMARK, MAX_WATERMARK)),
            ("states", states),
        ]

    @property
    def _next_batch(self) -> int:
        return 0 if self._manifest is None else self._manifest.batch_id + 1

    def close(self) -> None:
        """Delete the harness's folder, if it made it, and close what is open in it."""
        held.close(self._folder)
        if self.owns_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running -------------------------------------------------------------------------------------

    def _run(self, final: bool) -> list[OutputRow]:
        before = len(self.output)
        try:
            self.run_batch(final)
            self.commit()
        except AsyncStateError as error:
            raise users_frames(error)  # noqa: B904 - the error itself, with its cause
        return self.output[before:]

    def run_batch(
        self, final: bool, watermark: int | None = None, before: Sequence[InputBatch] | None = None
    ) -> list[pa.RecordBatch]:
        """Like ``end_batch`` or ``finish``, but without the commit, and with the output as batches. ``watermark``: that
        of the job of which the operator is part, where its own inputs do not decide; ``before``: rows that come first,
        in the first micro-batch of their source (None: none)."""
        if self._manifest is not None and self._manifest.final:
            raise JobError("the harness is finished; create a new one")
        if watermark is None:
            wanted = self.watermark if self._watermark is None else self._watermark
            watermark = MAX_WATERMARK if final else max(self.watermark, wanted)
        spec = self._spec(self._manifest, watermark)
        ran = self._ran(spec, before)
        warn_of_missing_rows(self._uid, spec.batch_id, self._config, ran.records)
        self._running = (spec, ran, final)
        self.last_side_rows = ran.aside
        return ran.rows

    def commit(self) -> None:
        """Commit what ``run_batch`` has run."""
        assert self._running is not None, "run_batch comes first"
        spec, ran, final = self._running
        records = ran.records
        inputs = list(input_sources(self._uid, self._delays, records))
        sources = advance_sources(
            self._manifest,
            {name: source for name, source, _ in inputs},
            {name: time for name, _, time in inputs},
            spec.processing_time,
        )
        manifest = Manifest(
            job_id=_JOB,
            batch_id=spec.batch_id,
            base=spec.base_version,
            max_parallelism=spec.max_parallelism,
            watermark=spec.watermark,
            processing_time=spec.processing_time,
            sources=sources.reached,
            final=final,
            operators={self._uid: self._operator_after(spec, records)} if records else {},
        )
        self._checkpoint.commit(manifest)
        self._manifest = manifest
        self._pending, self._running = [], None
        self.output.extend(rows_of(ran.rows))
        for out in ran.aside:
            self._side_rows[out.output].extend(rows_of([out.batch]))
        if records:
            sums, peaks = sum_records(records)
            self.batches.append(sums | peaks)

    def discard(self) -> None:
        """Drop the pushed rows and the results of ``run_batch``: the next micro-batch begins at the last
        commit."""
        self._pending, self._running = [], None

    def _ran(self, spec: TaskSpec, before: Sequence[InputBatch] | None) -> _Ran:
        """The micro-batch, after the initial state of an operator or source. Nothing is committed in between."""
        if spec.operator.stateless:
            return self._collected(self._stateless(spec))
        first = None
        if spec.base is None:
            for writer, given, values in self._initial.values:
                writing = replace(spec, operator=writer, inputs=(given,))
                written = self._collected(self._partitions(writing, [values], copies_of(writer)))
                spec = self._downstream(spec, written)
            before = self._initial.rows if before is None else before
        if before is not None:
            first = self._collected(self._partitions(spec, before, self._operator))
            spec = self._downstream(spec, first)
        ran = self._collected(self._partitions(spec, self._pending, self._operator))
        return ran if first is None else first.then(ran, self._output.changes.upsert_key)

    def _downstream(self, spec: TaskSpec, ran: _Ran) -> TaskSpec:
        """The same micro-batch, starting from the result of ``ran``."""
        return replace(spec, base=self._operator_after(spec, ran.records), first_arrival=FIRST_ARRIVAL)

    def _collected(self, outs: Iterable[OutBatch | CommitRecord | RowStatistics]) -> _Ran:
        ran = _Ran([], [], [])
        for out in outs:
            if isinstance(out, CommitRecord):
                ran.records.extend(unpack_records(pack_records([out])))
            elif isinstance(out, SideBatch):
                ran.aside.append(out)
            elif isinstance(out, pa.RecordBatch):
                ran.rows.append(out)
            else:
                self.batches.append(to_dict(out))
        return ran

    def _partitions(
        self, spec: TaskSpec, pushed: Sequence[InputBatch], copies: Callable[[], Operator]
    ) -> Iterator[OutBatch | CommitRecord]:
        spec = replace(
            spec, broadcast=self._broadcast(spec, pushed), inputs=self._with_partial_aggregation(spec)
        )
        if spec.inputs[0].local is not None:
            sender = copies()
            pushed = [aggregated_before(sender, spec.inputs[0], one) for one in pushed]
        of_operator = self.parallelism, self._config.max_parallelism
        for partitions, rows in exchanged(spec.inputs, pushed, *of_operator, self._together):
            own = with_copy(spec, copies)
            yield from run_partitions(own, partitions, iter(rows), self._wrap_store, self.worker)

    def _stateless(self, spec: TaskSpec) -> Iterator[OutBatch | RowStatistics]:
        """All rows as they were pushed: there is no exchange, so partitions have no meaning."""
        columns = spec.inputs[0].schema.names
        pushed = [replace(given, batch=given.batch.select(columns)) for given in self._pending]
        return run_stateless(with_copy(spec, self._operator), iter(pushed))

    def _stored(self, base: Manifest | None) -> OperatorManifest | None:
        return None if base is None else base.operators.get(self._uid)

    def _spec(self, base: Manifest | None, watermark: int) -> TaskSpec:
        return TaskSpec(
            job_id=_JOB,
            uid=self._uid,
            operator=self._operator(),
            inputs=self._task_inputs,
            config=self._config,
            parallelism=self.parallelism,
            max_parallelism=self._config.max_parallelism,
            batch_id=self._next_batch,
            base_version=-1 if base is None else base.batch_id,
            base=self._stored(base),
            watermark=watermark,
            previous_watermark=previous_watermark(base),
            processing_time=max(self.clock.now_us(), previous_processing_time(base)),
            previous_processing_time=previous_processing_time(base),
            checkpoint=self._files.place,
            local_dir=str(self._folder / "local"),
        )

    def _broadcast(self, spec: TaskSpec, pushed: Sequence[InputBatch]) -> bytes | None:
        """The pushed rows of the broadcast input, as a Spark job sends them to every task."""
        index = next((i for i, given in enumerate(spec.inputs) if given.broadcast), None)
        if index is None:
            return None
        sent = [batch for batch in pushed if batch.input_index == index]
        return pack_broadcast(self._uid, self._specs[index], sent, self._config.shares.broadcast)

    def _with_partial_aggregation(self, spec: TaskSpec) -> tuple[InputSpec, ...]:
        phase = choose_partial_aggregation(spec.operator, spec.inputs, spec.base, spec.batch_id)
        return spec.inputs if phase is None else (replace(spec.inputs[0], local=phase),)

    def _operator_after(self, spec: TaskSpec, records: list[CommitRecord]) -> OperatorManifest:
        name = type(spec.operator).__name__
        return operator_after(self._uid, name, spec.batch_id, self.parallelism, records, self._declared)


def folder_of(snapshot: Path) -> Path:
    """A new folder for a harness that continues from ``snapshot``."""
    folder = _new_folder("harness")
    _copy_checkpoint(LocalFiles(snapshot / "checkpoint"), LocalFiles(folder / "checkpoint"))
    return folder


def _copy_checkpoint(source: CheckpointFiles, target: CheckpointFiles) -> None:
    with tempfile.TemporaryDirectory(prefix="asyncstate-copy-") as folder:
        for number, name in enumerate(source.list("")):
            local = Path(folder, str(number))
            source.get_file(name, local)
            target.put_file(local, name)


def _key(key: Any, count: int) -> Any:
    """``key`` in the form that ``apply`` takes: for a single input its entry."""
    if count == 1 and isinstance(key, (list, tuple)) and len(key) <= 1:
        return next(iter(key), None)
    return key


def _checked_together(partitions: object) -> int:
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise ConfigurationError(f"partitions_per_task is {partitions!r}; give a whole number of at least 1")
    return partitions


def _changes(
    uid: str, changelog: bool | Changelog | Sequence[bool | Changelog], count: int
) -> list[Changelog]:
    given = each_input("changelog", uid, changelog, count)
    if not all(isinstance(one, bool | Changelog) for one in given):
        raise JobError(
            f"operator '{uid}': changelog is {changelog!r}; give True, False or a Changelog, or one of them for each "
            "input"
        )
    return [one if isinstance(one, Changelog) else RETRACT if one else INSERT_ONLY for one in given]
