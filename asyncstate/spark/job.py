"""A streaming job: one foreachBatch function, one checkpoint, one commit per micro-batch.

Owns: ``StreamingJob``: configuration frozen at construction, the order of batch ids, commit and finish.
Invariant: the manifest of a batch is written after the user's function has returned, and only then.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from pyspark.sql.types import StructType

from asyncstate.changelog import ChangelogMode
from asyncstate.clock import Clock, SystemClock
from asyncstate.config import SPARK_PREFIX, Config, own_settings, resolve
from asyncstate.dataflow import Dataflow, Node, NodeMetrics, Stream, draw, explain
from asyncstate.dataflow.graph import Facts
from asyncstate.dataflow.lineage import check_order
from asyncstate.dataflow.nodes import Times
from asyncstate.display import html_table, time_text
from asyncstate.driver.chain import RunPartitions
from asyncstate.driver.commit_log import CommitLog, batch_schema
from asyncstate.driver.job_driver import JobDriver
from asyncstate.driver.job_graph import JobGraph
from asyncstate.driver.micro_batch import JobFrame
from asyncstate.driver.operator_call import check_job_name
from asyncstate.driver.progress import OnProgress, Progress, metrics_of, sum_of, watermark_of
from asyncstate.durations import Duration
from asyncstate.errors import ConfigurationError, JobError, SqlError
from asyncstate.locations import absolute
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.runtime import (
    Delay,
    SequenceBy,
    UnclaimedState,
    check_unclaimed_state,
    why_watermark_waits,
)
from asyncstate.spark.compatibility import (
    check_session,
    context_of,
    is_connect,
    knows_sources_by_name,
    query_of_this_thread,
    runs_locally,
    session_settings,
)
from asyncstate.spark.connect_batch import ConnectBatch, ConnectJob, cause_in_pickling
from asyncstate.spark.connect_client import ConnectClient, lost_server, server_named
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.spark.facts import drops_unseen, marked_rows, source_facts
from asyncstate.spark.packed_inputs import Packing, check_streaming
from asyncstate.spark.progress_bar import ProgressBar, Snapshot, screen_of_this_process
from asyncstate.spark.query_start import query_place, trigger_of
from asyncstate.spark.session import settle_session, suppress_log
from asyncstate.spark.sources.malformed import MARKED
from asyncstate.spark.spark_executor import SparkExecutor
from asyncstate.spark.spark_micro_batch import MicroBatch
from asyncstate.spark.stopping import INTERRUPTED, Stopping, TurnedAwayError, call_to_its_end
from asyncstate.spark.task_errors import own_mark, restore
from asyncstate.storage import held
from asyncstate.tracebacks import from_users_code

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from asyncstate.changelog import Changelog
    from asyncstate.codec import SchemaLike
    from asyncstate.dataflow.sample import Sample
    from asyncstate.lookups import Lookup
    from asyncstate.spark.kafka import KafkaStream, MessageFormat, SchemaRegistry
    from asyncstate.spark.kafka.job_source import OnMalformed
    from asyncstate.spark.kafka.reading import Connector, Starting
    from asyncstate.sql.job import JobSql
    from asyncstate.state.expiring.ttl import Ttl
    from asyncstate.storage import Manifest

BatchFunction = Callable[..., object]
"""A function of the micro-batch's DataFrame and the MicroBatch."""

_log = logging.getLogger(__name__)


class StreamingJob:
    """Runs stateful operators inside ``foreachBatch`` and keeps their state in ``checkpoint_dir``.

    ``options`` are ``async-state.*`` settings; they win over the session's, which are read once, here. ``name`` is
    stored in the checkpoint: another job's checkpoint is refused. ``first_batch_id`` is the batch id with which a job
    without a checkpoint may start, for a query that has already run without it. ``on_progress`` is called with the
    ``last_progress`` of each committed micro-batch; it cannot fail the batch. ``unclaimed_state``: what becomes of
    state that no operator of the job has: ``"refuse"``, ``"keep"`` or ``"drop"``.

    Raises ConfigurationError for invalid settings and CheckpointError for a checkpoint that cannot be used.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint_dir: str | None = None,
        options: Mapping[str, object] | None = None,
        name: str = "asyncstate",
        *,
        first_batch_id: int = 0,
        on_progress: OnProgress | None = None,
        unclaimed_state: UnclaimedState = "refuse",
        _clock: Clock | None = None,  # of tests and benchmarks, like the next one
        _run: RunPartitions | None = None,
        _settings: Mapping[str, object] | None = None,  # of a client's session, over Spark Connect
    ) -> None:
        check_job_name(name)
        check_unclaimed_state(unclaimed_state)
        check_session(spark, f"job '{name}'")
        settle_session(spark)
        given = dict(options or {})
        if checkpoint_dir is not None:
            given["async-state.checkpoint-dir"] = checkpoint_dir
        session = session_settings(spark) if _settings is None else _settings
        self.config: Config = resolve(given, session)
        """The settings of operators that have no options themselves."""
        if self.config.checkpoint_dir is None:
            raise ConfigurationError(
                f"job '{name}' has no checkpoint folder; give StreamingJob(checkpoint_dir=...) or set "
                "async-state.checkpoint-dir to a folder that driver and workers can reach"
            )
        if is_connect(spark):  # the server's process is in another folder
            given["async-state.checkpoint-dir"] = absolute(self.config.checkpoint_dir)
            self.config = resolve(given, session)
        self.name = name
        self._spark = spark
        self._ledger = CommitLog(self.config, name, first_batch_id)
        self._function: BatchFunction | None = None
        self._on_batch: Callable[[DataFrame, int], None] | None = None
        self._sources = Packing()
        self._bar = ProgressBar(lambda: Snapshot(name), lambda: False, None)
        self._stopping = Stopping(name)
        self._query: StreamingQuery | None = None
        self._first_query: str | None = None
        """The id of the query that has run the first micro-batch."""
        self._statements: JobSql | None = None
        self._plans: str | None = None
        self._readable: dict[str, Stream] = {}  # of sources that also have messages which cannot be read
        if self.config.executor == "local" and not runs_locally(spark):
            raise ConfigurationError(
                "async-state.executor is local, but operators run in the driver's process only with a classic session "
                "of Spark 4.0 or newer; leave the key out"
            )
        self._executor = SparkExecutor(spark, _run, self.config.executor)
        self._graph: JobGraph[DataFrame] = JobGraph(self._executor, Dataflow(self._facts_of, self._sample_of))
        frame = JobFrame(
            job_id=self._ledger.job_id,
            checkpoint=self._ledger.place,
            config=self.config,
            resolve=lambda own: resolve({**given, **own}, session),
            executor=self._executor,
            unclaimed_state=unclaimed_state,
        )
        self._driver = JobDriver(frame, self._ledger, _clock or SystemClock(), on_progress, MicroBatch)
        self._arguments: dict[str, Any] = {
            "options": given,
            "name": name,
            "first_batch_id": first_batch_id,
            "unclaimed_state": unclaimed_state,
            "_clock": _clock,
            "_run": _run,
            "_settings": own_settings(session),
        }
        self._client: ConnectClient | None = None
        """Over Spark Connect: the micro-batches of the job's query run in another process."""
        if is_connect(spark):
            self._client = ConnectClient(name, self._ledger.files, self._driver.record, self._failed)
        self._server: ConnectFiles | None = None
        """In that process: the way to the client."""

    @property
    def history(self) -> deque[Progress]:
        """The progress of the last 100 committed micro-batches, the newest last."""
        if self._client is not None:
            self._client.refresh()
        return self._driver.history

    @property
    def last_error(self) -> BaseException | None:
        """The error of the last micro-batch; None after a successful one. Over Spark Connect it is there when the query
        has ended, if ``start`` has started or ``await_termination`` awaited it."""
        return self._driver.last_error

    @property
    def last_progress(self) -> Progress | None:
        """The progress of the last micro-batch, the last entry of ``history``; None before the first commit. See
        ``Progress``."""
        return self.history[-1] if self.history else None

    @classmethod
    def on_server(cls, spark: SparkSession, told: ConnectJob) -> StreamingJob:
        """The job of a client of Spark Connect, in the server's process that runs its micro-batches."""
        job = cls(spark, **told.arguments)
        job._client = None
        job._server = ConnectFiles(job._ledger.files, told.run)
        job._server.check_begun(job.name)
        job._driver.on_progress(job._server.write_progress)
        if told.flow is None:
            job._function = told.function
            return job
        for name, schema in told.schemas.items():
            columns = StructType.fromJson(json.loads(schema))
            into = job._sources.tables if name in told.tables else job._sources.frames
            into[name] = spark.createDataFrame([], columns)
        job._graph.take(told.flow, job._sources.frames | job._sources.tables, told.initial)
        job.check()
        job._function = job._run_graph
        return job

    def run_on_server(self, df: DataFrame, batch_id: int) -> None:
        """Run and commit a micro-batch. Raises TurnedAwayError if the client stops the query."""
        assert self._server is not None
        if self._server.stop_asked():
            self._server.refuse()
            raise TurnedAwayError(INTERRUPTED)
        self._run(df, batch_id, final=False)

    def _told(self) -> ConnectJob:
        """What the server's process makes the job of; each call is another start of its query."""
        assert self._client is not None
        self._driver.last_error = None
        graph = bool(self._graph.flow.nodes)
        return ConnectJob(
            arguments=self._arguments,
            run=self._client.begin(),
            mark=own_mark(),
            function=None if graph else self._function,
            flow=self._graph.flow if graph else None,
            schemas={
                name: df.schema.json() for name, df in (self._sources.frames | self._sources.tables).items()
            },
            initial=self._graph.initial,
            tables=tuple(self._sources.tables),
        )

    def micro_batch(self, function: BatchFunction) -> Callable[[DataFrame, int], None]:
        """Decorator: turns ``function(df, batch)`` into the function that ``writeStream.foreachBatch`` takes."""
        if not callable(function):
            raise JobError(
                "job.micro_batch decorates a function (df, batch); write @job.micro_batch above it"
            )
        if self._graph.flow.nodes and function != self._run_graph:
            raise JobError(
                f"job '{self.name}' has sources, so it cannot also have a micro_batch function; use one of the two "
                "forms"
            )
        if self._function is not None:
            raise JobError(
                f"job '{self.name}' already has a micro_batch function; create one StreamingJob for each query"
            )
        self._function = function

        def on_batch(df: DataFrame, batch_id: int) -> None:
            _check_call(df, batch_id)
            with self._stopping.micro_batch():
                self._check_query(int(batch_id))
                self._run(df, int(batch_id), final=False)

        made = on_batch if self._client is None else ConnectBatch(on_batch, self._told)
        made.__name__ = getattr(function, "__name__", "on_batch")
        made.__doc__ = function.__doc__
        self._on_batch = made
        return made

    def _check_query(self, batch_id: int) -> None:
        """Raise JobError for a micro-batch of a second query that would replace the last one: its number is the same,
        as if it were repeated."""
        last = self._driver.committed
        if last is not None and batch_id > last.batch_id:
            return
        query = query_of_this_thread(self._spark)
        if last is None:
            if self._driver.now is None:  # else it is refused
                self._first_query = query
        elif query is not None and self._first_query not in (None, query):
            self._driver.last_error = JobError(
                f"job '{self.name}' runs in two queries: micro-batch {batch_id} of this one would replace that of the "
                "other, as if it were repeated; create one StreamingJob, with a checkpoint of its own, for each query. "
                "Nothing was committed"
            )
            raise self._driver.last_error

    def source(
        self,
        name: str,
        df: DataFrame,
        *,
        event_time: str | None = None,
        watermark_delay: Delay = None,
        changelog: bool | None = None,
        sequence: SequenceBy = None,
        drop_stale: bool = False,
        initial: DataFrame | None = None,
        mode: ChangelogMode | str | None = None,
        primary_key: str | Sequence[str] | None = None,
        idle_after: Duration | None = None,
    ) -> Stream:
        """Declare rows from outside, read from a streaming DataFrame; see ``docs/dataflow.md``.

        The declarations of time and order hold for every downstream operator, up to the first one that emits new rows.
        With ``watermark_delay`` the job's watermark lags the source's highest event time by this delay, even if its
        rows are dropped later. After ``idle_after`` without an event, by the driver's clock, the source does not hold
        the watermark back until its next event (``docs/time.md``).

        ``mode``: "insert-only" (the default of rows without a column ``row_kind``), "retract" (the default of rows with
        one: a change retracts the whole previous row; ``changelog=True`` for short), or "upsert": a row replaces the
        one with the same ``primary_key``, and of a -D only the key counts. If a micro-batch can have several changes of
        a key, ``sequence`` gives their order. A DataFrame that a reader with ``upsert_key`` returned has this mode and
        key without declaration. ``primary_key``: columns that identify a row of the table. ``initial``: rows that
        precede the whole stream, processed in the job's first micro-batch, such as the table whose changes the stream
        has. A job has sources or a function, not both.
        """
        self._check_takes_sources()
        check_streaming(name, df)
        if self._statements is not None:
            self._statements.context.check_free(name)
        times = Times(event_time, watermark_delay, sequence, drop_stale, idle_after)
        mode, primary_key = source_facts(name, df, mode, changelog, primary_key)
        both = marked_rows(df)
        if both is None and drops_unseen(df):
            _log.warning(
                "job '%s': the reader of source '%s' drops malformed rows, and they are not counted, because Spark's "
                "operations come after it; give job.source the DataFrame that the reader returned, and transform the "
                "stream that it returns",
                self.name,
                name,
            )
        stream = self._graph.source(
            name, df if both is None else both, times, changelog, initial, mode, primary_key
        )
        self._sources.add(name, df, both)
        if self._statements is not None and MARKED not in df.columns:
            self._statements.source(name, stream, df)
        return stream

    def kafka(
        self,
        name: str,
        servers: str,
        topics: str | Sequence[str] | re.Pattern[str],
        format: MessageFormat | None = None,
        *,
        registry: SchemaRegistry | None = None,
        malformed: OnMalformed = "fail",
        starting: Starting = "latest",
        max_rows: int | None = None,
        fail_on_data_loss: bool = True,
        headers: bool = False,
        options: Mapping[str, str] | None = None,
        connector: Connector = "auto",
        **declared: Any,
    ) -> KafkaStream:
        """Declare the messages of Kafka's ``topics`` as a source; see ``docs/sources.md``.

        ``format``: how messages become rows, such as ``Json("id bigint not null, amount decimal(10, 2)")`` or
        ``Debezium(...)`` of ``asyncstate.spark.kafka``; without it the rows are Kafka's own columns. ``registry``: the
        ``SchemaRegistry`` that has the messages' schemas, for Avro and Protobuf. ``malformed``: messages that cannot be
        read "fail" the query, are dropped ("drop"), or go to the side output "malformed" ("output"):
        ``orders.output("malformed")`` has Kafka's columns and the reason. ``declared``: the arguments of ``source``.
        All others, and the errors, are those of ``asyncstate.spark.kafka.read_kafka``.
        """
        from asyncstate.spark.kafka.job_source import kafka_source
        from asyncstate.spark.kafka.reading import read_kafka

        df = read_kafka(
            self._spark,
            servers,
            topics,
            starting=starting,
            max_rows=max_rows,
            fail_on_data_loss=fail_on_data_loss,
            headers=headers,
            options=options,
            connector=connector,
        )
        stream = kafka_source(self, name, df, format, registry, malformed, declared)
        if malformed == "output":
            self._readable[name] = stream
            if self._statements is not None:
                self._statements.view(name, stream)
        return stream

    def table(self, name: str, df: DataFrame, *, primary_key: str | Sequence[str] | None = None) -> Stream:
        """Declare the rows of a DataFrame that does not stream, as a source of the graph.

        All rows are processed once, in the first micro-batch of the table, as insertions; they never change, also if
        ``df`` later reads others. ``primary_key``: columns that identify a row. At least one source must stream.
        """
        self._check_takes_sources()
        if self._statements is not None:
            self._statements.context.check_free(name)
        shape = self._sources.add_table(name, df)
        stream = self._graph.source(
            name, shape, Times(), None, df, ChangelogMode.INSERT_ONLY, primary_key, streams=False
        )
        if self._statements is not None:
            self._statements.source(name, stream, shape)
        return stream

    def _check_takes_sources(self) -> None:
        if self._function is not None:
            raise JobError(
                f"job '{self.name}' has a micro_batch function, so it cannot also have sources; use one of the two "
                "forms"
            )

    def lookup(
        self,
        name: str,
        lookup: Lookup | Callable[..., Any],
        *,
        key: SchemaLike,
        columns: SchemaLike,
        **options: Any,
    ) -> None:
        """Name a lookup for statements, which join it ON its key; see ``docs/sql.md``.

        ``lookup``: what ``LookupJoin`` takes; ``key``: the columns that are sent to it, and ``columns``: those of a
        row that it finds, as ``"id bigint"`` or schemas. ``options``: others of ``LookupJoin``, such as ``batch``,
        ``retry`` and ``cache``. Raises SqlError for arguments that do not fit.
        """
        self._sql.context.add_lookup(name, lookup, key, columns, **options)

    def sql(
        self,
        statement: str,
        name: str | None = None,
        state_ttl: Ttl = None,
        changed: Literal["start-anew"] | None = None,
        windows: Literal["updating"] | None = None,
    ) -> Any:
        """Run a statement of Spark SQL over the job's sources; see ``docs/sql.md``.

        A query returns its rows as a ``Stream``: after every micro-batch their net is what Spark's batch engine would
        answer over all rows so far. ``name``: the name of the result, for later statements, and in the uids of its
        operators. ``CREATE VIEW`` returns None, ``CREATE MATERIALIZED VIEW`` and ``INSERT INTO`` a sink of ``job.sink``
        return the stream, ``EXPLAIN`` a text. ``state_ttl``: a group without rows, and a row of a join, is forgotten
        after so long; by default nothing is. ``changed="start-anew"``: if the checkpoint has the state of another text
        of this statement, the operators that changed start with empty state; by default they are refused.
        ``windows="updating"``: windows and joins within an interval of event time are kept up to date as others are,
        and none is closed by the watermark. Raises SqlError, with the place in the statement and what to do, for what
        cannot be kept right; nothing is added to the job then.
        """
        return self._sql.context.run(statement, name, state_ttl, changed, windows)

    def load_plans(self, plans: str) -> None:
        """Run statements by ``plans``, the text that ``compiled_plans`` returned or ``asyncstate sql compile`` wrote,
        and compile none. It comes before the first statement. Raises SqlError for another text; ``sql`` raises it for
        a statement, a source or a setting that is not the one that was compiled."""
        if self._statements is not None:
            raise SqlError(f"job '{self.name}': load_plans comes before the first statement, view and sink")
        self._plans = plans

    def compiled_plans(self) -> str:
        """The compiled plans of the statements so far, as text for ``load_plans``."""
        return self._sql.plans

    def sink(self, name: str, sink: Any) -> None:
        """Name a sink for ``INSERT INTO``; it is what ``Stream.to`` takes."""
        self._sql.context.add_sink(name, sink)

    def view(self, name: str, stream: Stream) -> None:
        """Name a stream of the graph for statements. Raises JobError for errors of the graph so far."""
        self._sql.view(name, stream)

    @property
    def _sql(self) -> JobSql:
        if is_connect(self._spark) and self._plans is None:
            raise ConfigurationError(
                f"job '{self.name}': over Spark Connect, statements run by plans that a classic session has compiled; "
                "run `asyncstate sql compile job.sql -o plan.json` there, and call job.load_plans with the text of "
                "plan.json"
            )
        if self._statements is None:
            from asyncstate.sql.job import JobSql

            latest = self._ledger.latest()
            committed = None if latest is None else latest.operators.keys()
            self._statements = JobSql(self._spark, self._ledger.files, committed, self._plans)
            flow = self._graph.flow
            for node in flow.sources:
                if node.name in self._readable:
                    self._statements.view(node.name, self._readable[node.name])
                else:
                    stream = Stream(flow, node)
                    self._statements.source(node.name, stream, self._sources.shape_of(node.name))
        return self._statements

    def _facts_of(self, node: Node) -> Facts:
        with self._driver.dry_run() as batch:
            return self._graph.facts_of(node, batch)

    def _sample_of(self, node: Node, given: Mapping[str, Any], limit: int) -> Sample:
        from asyncstate.spark.sample import sample_of

        own = {
            "async-state.executor": "local" if runs_locally(self._spark) else "spark",
            "async-state.parallelism": 1,
        }

        def run(folder: str, *given: Any) -> Mapping[Node, Changelog]:
            local = Path(folder, "local")
            here = {"async-state.checkpoint-dir": f"{folder}/state", "async-state.local-dir": str(local)}
            settings = {**own, **here}
            others = {
                name: value
                for name, value in self._arguments["options"].items()
                if name.removeprefix(SPARK_PREFIX) not in settings
            }
            try:
                return StreamingJob(self._spark, None, {**others, **settings}, self.name)._run_once(*given)
            finally:
                held.close(local)  # its stores would stay open, as those of a job that goes on

        return sample_of(node, given, limit, self._sources, self._graph.initial, run)

    def _run_once(
        self,
        flow: Dataflow,
        shapes: Mapping[str, DataFrame],
        initial: Mapping[str, Any],
        rows: Mapping[str, DataFrame],
    ) -> Mapping[Node, Changelog]:
        """Become the job of ``flow``, whose sources have the columns of ``shapes``, process ``rows`` and finish.
        Returns the changelog properties of its nodes. Raises JobError."""
        self._graph.take(flow, shapes, initial)
        self.check()
        of_batch: list[Mapping[str, DataFrame]] = [rows, shapes]
        self._function = lambda df, batch: self._graph.run(of_batch[batch.batch_id], batch)
        for number, last in enumerate((False, True)):
            self._run(next(iter(shapes.values())), number, final=last)
        return self._graph.changes

    def check(self) -> None:
        """Raise JobError with all errors of the job's graph; no row is read. ``start`` calls it too."""
        with self._driver.dry_run() as batch:
            self._graph.check(batch)
            if not knows_sources_by_name(self._spark):
                check_order(self._graph.flow, batch.graph_before)

    def explain(self) -> str:
        """The graph as text: what each node does and where it runs, and the metrics of the last micro-batch.

        Raises JobError as ``check`` does.
        """
        self.check()
        graph, waits = self._graph, why_watermark_waits(self._ledger.latest())
        return explain(
            graph.flow, self._figures(), graph.places, graph.states, graph.changes, waits, graph.growth
        )

    def __repr__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in self._facts())
        return f"<StreamingJob '{self.name}': {said}>"

    def _repr_html_(self) -> str:
        graph, metrics = self._graph, self._figures()
        shown = html_table(self.name, self._facts())
        if graph.flow.nodes:
            return shown + draw(graph.flow, metrics, graph.places, graph.states, graph.growth)
        rows = [(uid, one.text, one.state_text) for uid, one in metrics.items()]
        return shown + (html_table("last micro-batch", rows, ("operator", "rows", "state")) if rows else "")

    def _facts(self) -> list[tuple[str, str]]:
        last, flow = self.last_progress, self._graph.flow
        form = "graph" if flow.nodes else "function" if self._function is not None else "nothing declared yet"
        sources = [source.name for source in flow.sources]
        return [
            ("mode", "async" if self.config.enabled else "sync"),
            ("checkpoint", self._ledger.folder),
            ("form", form),
            *([("sources", ", ".join(sources))] if sources else []),
            ("batch", "none yet" if last is None else f"{last['batch_id']}, {last['total_seconds']:.2f} s"),
            *(
                []
                if last is None
                else [("watermark", time_text(watermark_of(last), MIN_WATERMARK, MAX_WATERMARK))]
            ),
            *([("failed with", type(self.last_error).__name__)] if self.last_error is not None else []),
        ]

    def start(
        self,
        *,
        trigger: Mapping[str, Any] | str | None = None,
        query_checkpoint: str | None = None,
        options: Mapping[str, str] | None = None,
        progress: bool = False,
    ) -> StreamingQuery:
        """Check the graph and start one query over all its sources.

        ``trigger``: a time such as ``"10 seconds"``, ``"availableNow"``, or in Spark's form
        (``{"availableNow": True}``). Spark keeps the sources' offsets in ``query_checkpoint``, by default next to the
        job's checkpoint, with ``-query`` appended to its name; it identifies sources by their order. ``options``: of
        Spark's stream writer. ``progress``: show a ``progress_bar``. Raises ConfigurationError for an invalid trigger,
        and for a location that Spark cannot use. After an error the job can be started again.
        """
        how = trigger_of(trigger, self.name)
        place = query_place(self._spark, str(self.config.checkpoint_dir), query_checkpoint)
        before = self._function, self._on_batch
        try:
            packed, process = self._started()
            writer = packed.writeStream.foreachBatch(process).options(**(options or {}))
            writer = writer.option("checkpointLocation", place)
            self._query = query = (writer.trigger(**how) if how else writer).start()
        except BaseException as error:
            self._function, self._on_batch = before  # it can be started once the error is fixed
            refused = cause_in_pickling(error)
            if refused is not None:
                raise refused from refused.__cause__
            raise
        if self._client is not None:
            self._client.follow(query)
        if progress:
            self.progress_bar(query)
        return query

    def stop(self, query: StreamingQuery | None = None, timeout_seconds: float | None = None) -> None:
        """End the query between two micro-batches, with nothing left to repeat and no error in Spark's log.

        The running micro-batch is awaited and committed; no other begins. ``query``: by default the last one that
        ``start`` has started. Does nothing if the query has ended. ``timeout_seconds``: the longest wait, by default
        unlimited. Raises JobError after the timeout, and when called from within a micro-batch; the query then goes on.
        Also raises the error of the running micro-batch. A job is also a context manager that stops the query on exit.
        """
        query = query if query is not None else self._query
        if query is None:
            return
        stopping = self._stopping if self._client is None else self._client
        with server_named(self.name) if self._client is not None else nullcontext():
            was_active = query.isActive
            with suppress_log(context_of(self._spark), query.runId):
                stopping.stop(query, timeout_seconds)
            self._bar.close()
            failure = query.exception() if was_active else None
        if failure is not None and not self._is_refused:
            raise self._own(failure) or failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception as stopping:
            if error is None:
                raise
            error.add_note(f"stopping job '{self.name}' failed as well: {stopping}")

    def progress_bar(self, query: StreamingQuery) -> ProgressBar:
        """Show what the job does as long as ``query`` runs, in a terminal or in a notebook; elsewhere it does nothing.

        It ends with the query and leaves no output; other output printed meanwhile appears above it. To end it earlier,
        close it or use it as a context manager. Raises ConfigurationError in a terminal without rich (extra ``cli``).
        """
        self._bar.close()
        context = context_of(self._spark)
        tracker = None if context is None else context.statusTracker()
        screen = screen_of_this_process()
        self._bar = ProgressBar(lambda: self._snapshot(query, tracker), lambda: query.isActive, screen)
        return self._bar

    def _snapshot(self, query: StreamingQuery, tracker: StatusTracker | None) -> Snapshot:
        last, now = self.last_progress, self._driver.now
        found = Snapshot(self.name)
        if self._client is not None:
            seconds = self._client.seconds_at_work(query)
            if seconds is not None:
                following = 0 if last is None else last["batch_id"] + 1
                found = found._replace(batch_id=following, batch_seconds=seconds)
        elif now is not None and tracker is not None:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done, count = (
                sum(getattr(stage, name) for stage in stages if stage is not None)
                for name in ("numCompletedTasks", "numTasks")
            )
            seconds = time.perf_counter() - now[1]
            running = self._executor.texts.running
            found = found._replace(
                batch_id=now[0], running=running, batch_seconds=seconds, tasks=(done, count)
            )
        if last is None:
            return found
        return found._replace(
            last_batch_id=last["batch_id"],
            rows=sum_of(last, "rows_in"),
            seconds=last["total_seconds"],
            state_bytes=sum_of(last, "state_bytes"),
            watermark=time_text(watermark_of(last), MIN_WATERMARK, MAX_WATERMARK),
        )

    def _started(self) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
        """The rows of all sources, and the function that is called with the rows of a micro-batch."""
        if self._on_batch is not None and not self._graph.flow.nodes:
            raise JobError(
                f"job '{self.name}' has a micro_batch function; give it to df.writeStream.foreachBatch, or declare "
                "sources with job.source instead"
            )
        self._check_and_save()
        process = self.micro_batch(self._run_graph)
        process.__name__ = self.name
        return self._sources.packed(), process

    def _check_and_save(self) -> None:
        """Check the graph, and write the plans of its statements into the checkpoint."""
        self.check()
        if self._statements is not None:
            self._statements.save()

    def _run_graph(self, df: DataFrame, batch: MicroBatch) -> None:
        if not batch.final and self._graph.flow.reads_sources_apart and self._executor.brings_sources():
            read = self._graph.flow.columns_read(
                {name: rows.columns for name, rows in self._sources.frames.items()}
            )
            rows = self._sources.narrowed(df, read) if read else None
            found = None if rows is None else self._executor.brought(rows)
            df = df if found is None else found
        self._graph.run(self._sources.unpacked(df), batch)

    def _figures(self) -> dict[str, NodeMetrics]:
        return {} if self.last_progress is None else metrics_of(self.last_progress["operators"])

    def finish(self) -> None:
        """After the query has ended: one more run, no rows, the final watermark; closes the checkpoint.

        All windows and event-time timers fire, and rows buffered for ordering are processed; a processing-time timer
        fires only if it is due. Raises JobError if no micro-batch has ever run, CheckpointError if the job has been
        finished before.
        """
        latest = self._ledger.latest()
        schema = None if latest is None else self._schema_at_the_end(latest)
        if latest is None or schema is None:
            raise JobError(f"job '{self.name}' has not run a micro-batch yet, so there is nothing to finish")
        if self._function is None and self._graph.flow.nodes:  # another process has run the query
            self._check_and_save()
        empty = self._spark.createDataFrame([], schema)
        self._run(empty, latest.batch_id + 1, final=True)

    def _schema_at_the_end(self, latest: Manifest) -> StructType | None:
        """The columns of the rows that ``finish`` has none of: those of the sources as they are now, or of a function's
        last micro-batch; None if a function has applied no operator yet."""
        if self._graph.flow.nodes:
            return self._sources.packed().schema
        text = self._driver.schema or batch_schema(latest)
        return None if text is None else StructType.fromJson(json.loads(text))

    def await_termination(
        self, query: StreamingQuery | None = None, timeout: int | None = None
    ) -> bool | None:
        """``query.awaitTermination`` that raises the job's own error instead of the exception that Spark wraps it in.

        That is the very exception of the operator, the sink or the function, with the user's frames and a note of the
        micro-batch; Spark's log does not repeat it. ``query``: by default the last one that ``start`` has started.
        ``timeout``: in seconds; with it the method returns whether the query has ended.
        """
        query = query if query is not None else self._query
        if query is None:
            raise JobError(f"job '{self.name}' has not been started; call start(), or name the query")
        if self._client is not None:
            self._client.follow(query)
        is_lost = False
        try:
            with suppress_log(context_of(self._spark), query.runId):
                return query.awaitTermination(timeout)
        except Exception as failure:
            if self._is_refused:  # another thread has called stop()
                return None if timeout is None else True
            error = self._own(failure)
            if error is None:
                raise
            is_lost = error.__cause__ is failure  # as lost_server says
        finally:
            self._awaited(query, is_lost=is_lost)
        raise error  # outside the except clause it keeps its own context, not Spark's

    def _awaited(self, query: StreamingQuery, *, is_lost: bool) -> None:
        """Show the state of a query that may have ended. A server that is lost cannot say it: each question to it would
        wait for minutes."""
        if self._client is not None:
            self._client.refresh()
        with suppress(Exception):  # without a JVM the state is unknown; the bar then ends by itself
            if is_lost or not query.isActive:
                self._bar.close()
                if self._client is not None and not is_lost:
                    self._client.end(query)

    @property
    def _is_refused(self) -> bool:
        """Over Spark Connect: whether a micro-batch was refused because the job is being stopped."""
        return self._client is not None and self._client.is_refused

    def _own(self, failure: Exception) -> Exception | None:
        """The error that caused Spark's exception: that of the last micro-batch, or of a task."""
        if self._client is not None:  # the micro-batch has failed in another process
            found = restore(str(failure)) or lost_server(self.name, failure)
            self._driver.last_error = found or failure
            return found
        error = self.last_error
        if error is None:
            return restore(str(failure))
        from_users_code(error)
        return error if isinstance(error, Exception) else None

    def _failed(self, failure: Exception) -> None:
        """Over Spark Connect: keep the error of a query that nobody has awaited."""
        if self._driver.last_error is None:
            self._own(failure)

    def _run(self, df: DataFrame, batch_id: int, final: bool) -> None:
        function = self._run_graph if self._function is None and self._graph.flow.nodes else self._function
        if function is None:
            raise JobError(f"job '{self.name}' has no function; decorate one with @job.micro_batch")
        self._driver.run(
            lambda batch: call_to_its_end(lambda: function(df, batch), batch_id),
            batch_id,
            final,
            df.schema.json(),
        )


def _check_call(df: object, batch_id: object) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame) or not isinstance(batch_id, int) or isinstance(batch_id, bool):
        raise JobError(
            f"the micro_batch function was called with {type(df).__name__} and {batch_id!r}; pass it to "
            "writeStream.foreachBatch, or call it with a DataFrame and a batch id"
        )
    if df.isStreaming:
        raise JobError(
            "the micro_batch function got a streaming DataFrame; pass the function to "
            "writeStream.foreachBatch instead of calling it"
        )
