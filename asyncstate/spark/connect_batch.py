"""Micro-batches of a query that was started over Spark Connect, which run in a process of the server's.

Owns: ``ConnectBatch``, the client's function for ``foreachBatch``; ``ServerBatch``, what becomes of it on the server;
how DataFrames and the session travel there with a user's functions.
Invariant: the server's process rebuilds the job, from what the client's job was given and over the same checkpoint,
which it claims as any new driver does. Nothing else of the client's job is used there.
Must not import storage.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from asyncstate import __version__
from asyncstate.errors import EnvironmentSetupError, JobError
from asyncstate.spark.compatibility import is_connect
from asyncstate.spark.task_errors import adopt_mark, marking

if TYPE_CHECKING:
    from asyncstate.spark.job import StreamingJob

_local: Final = threading.local()
"""``session``: the one that DataFrames are unpickled for."""


class ConnectJob(NamedTuple):
    """What a job is made of in the server's process. ``arguments``: of StreamingJob; ``flow``: its graph, with the
    columns of its sources as JSON and their initial rows, or None, and then ``function`` is that of the micro-batch.
    ``tables``: those of the sources that do not stream."""

    arguments: dict[str, Any]
    run: str
    mark: str
    function: Callable[..., object] | None
    flow: Any
    schemas: dict[str, str]
    initial: dict[str, Any]
    tables: tuple[str, ...] = ()


class ConnectBatch:
    """``call`` in this process; where it is pickled, a ServerBatch of the job that ``described`` returns then."""

    def __init__(self, call: Callable[[DataFrame, int], None], described: Callable[[], ConnectJob]) -> None:
        self._call = call
        self._described = described

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run and commit a micro-batch, as a classic session does."""
        self._call(df, batch_id)

    def __reduce__(self) -> tuple[Any, ...]:
        job = self._described()
        return ServerBatch, (_pickled(job), job.mark, __version__)


class ServerBatch:
    """``foreachBatch``'s function in the server's process. ``version``: of this package in the client."""

    def __init__(self, pickled: bytes, mark: str, version: str) -> None:
        self._pickled = pickled
        self._mark = mark
        self._version = version
        self._session: object = None
        self._job: StreamingJob | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerBatch, (self._pickled, self._mark, self._version)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run and commit a micro-batch. Errors are marked, so that the client can restore them. Raises TurnedAwayError
        if the client stops the query."""
        with marking(self._mark, "the micro-batch", every=True):
            self._job_of(df.sparkSession).run_on_server(df, int(batch_id))

    def _job_of(self, session: SparkSession) -> StreamingJob:
        if self._version != __version__:
            raise EnvironmentSetupError(
                f"the server of Spark Connect has asyncstate {__version__}, and the client {self._version}; install "
                "the same version on both"
            )
        if self._job is None or self._session is not session:
            from asyncstate.spark.job import StreamingJob

            adopt_mark(self._mark)
            _local.session = session
            try:
                described: ConnectJob = pickle.loads(self._pickled)
            finally:
                _local.session = None
            self._job, self._session = StreamingJob.on_server(session, described), session
        return self._job


class _Pickler(cloudpickle.CloudPickler):
    """Pickles DataFrames of Spark Connect as their plans, and the session as that of the process that unpickles."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, DataFrame) and is_connect(obj):
            if obj.isStreaming:
                raise JobError(
                    "a function of the job uses a streaming DataFrame, which is none inside a micro-batch; use the "
                    "rows that the function is given"
                )
            plan: Any = obj
            return _frame, (plan._plan.plan(plan.sparkSession.client).SerializeToString(),)
        if isinstance(obj, SparkSession) or _is_session(obj):
            return _session, ()
        if type(obj).__name__ == "StreamingJob" and type(obj).__module__.startswith("asyncstate."):
            raise JobError(
                f"a function of job '{obj.name}' uses the job itself, which over Spark Connect is in another process "
                "than the micro-batches; use only the micro-batch that the function is given"
            )
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def cause_in_pickling(error: BaseException) -> JobError | None:
    """The JobError that pickling a ConnectBatch has raised, which pyspark wraps into errors of its own."""
    one: BaseException | None = error
    while one is not None and isinstance(one, pickle.PicklingError):
        one = one.__cause__ or one.__context__
        if isinstance(one, JobError):
            return one
    return None


def _is_session(obj: object) -> bool:
    return is_connect(obj) and type(obj).__name__ == "SparkSession"


def _pickled(job: ConnectJob) -> bytes:
    file = io.BytesIO()
    try:
        pickler: Any = _Pickler
        pickler(file).dump(job)
    except JobError:
        raise
    except Exception as error:  # any error of the objects that a user's function holds
        raise JobError(
            f"job '{job.arguments['name']}' cannot be sent to the server of Spark Connect: {type(error).__name__}: "
            f"{error}. Make what cannot be pickled (clients, locks, open files) inside the function that uses it"
        ) from error
    return file.getvalue()


def _session() -> SparkSession:
    session: SparkSession | None = getattr(_local, "session", None)
    return SparkSession.builder.getOrCreate() if session is None else session


def _frame(relation: bytes) -> DataFrame:
    """The DataFrame of a plan, in the session of this process."""
    from pyspark.sql.connect import proto
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LogicalPlan

    class Shipped(LogicalPlan):
        def plan(self, session: Any) -> Any:
            found = proto.Relation()
            found.ParseFromString(relation)
            found.common.plan_id = self._root_plan_id
            return found

    session: Any = _session()
    frame: DataFrame = ConnectFrame(Shipped(None), session)
    return frame
