"""Spark settings that suit stateful Python work, a session built with them, and filters for its log.

Owns: ``recommended_conf`` and ``build_session``, and the adaptation of a session built otherwise; ``quieten``, for
sessions of ``build_session``, and ``suppress_log``.
Invariant: nothing here is needed for correct results; a job runs on any session. A log line is left out only if the
user cannot act on it, or if it is reported elsewhere. The level of the whole log, and of loggers that the user has
configured, are left as they are; nothing about the log can make a job fail.
Must not import storage.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from asyncstate.spark.compatibility import context_of, streaming_class
from asyncstate.spark.java import check_java
from asyncstate.spark.task_errors import noted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_ADDRESS: Final = ("spark.driver.bindAddress", "spark.driver.host")
_LOCAL_IP: Final = "SPARK_LOCAL_IP"
"""The environment variable with the address where Spark's UI listens; there is no setting for it."""
_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_FILES: Final = ("checkpointing", "FileSystemBasedCheckpointFileManager")

LOCAL_CHECKPOINTS: Final = "org.apache.spark.rdd.MapPartitionsRDD"
"""Warns that rows of a local checkpoint cannot be recomputed, for each of them at each micro-batch."""
QUERIES: Final = ("runtime", "MicroBatchExecution")
"""Logs the error of a query, with all Java frames; see ``streaming_class``."""
TASKS: Final = "org.apache.spark.scheduler.TaskSetManager"
BLOCKS: Final = "org.apache.spark.storage.BlockManager"
EXECUTOR: Final = "org.apache.spark.executor.Executor"
"""Logs the error of a task, with all Java frames; TaskSetManager logs it, too."""
LOST_BLOCKS: Final = ".*Block rdd_.* could not be removed as it was not found on disk or in memory.*"
"""Logs the missing rows of a failed task."""
SCHEDULER: Final = "org.apache.spark.scheduler.DAGScheduler"
"""Warns that a query that is stopped between two micro-batches has no jobs to cancel."""


def recommended_conf() -> dict[str, str]:
    """Settings that were measured to help; each can be overridden.

    Unix domain sockets halve the fixed cost of a micro-batch compared with TCP, worker reuse keeps interpreters and
    imports between micro-batches, Arrow batches of 100,000 rows were the fastest, and few shuffle partitions beat many:
    key groups, not partitions, spread the keys.
    """
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def build_session(
    name: str = "asyncstate", master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with ``recommended_conf()`` overlaid by ``conf``, its workers on this interpreter. With a local master,
    named here, it listens on 127.0.0.1 only, and queries write their logs without forking, unless configured otherwise.

    Raises EnvironmentSetupError if the machine has no JDK that Spark can start.
    """
    check_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    given = dict(conf or {})
    address = local_address(master, given)
    for key, value in (recommended_conf() | address | local_logs(master, given) | given).items():
        builder = builder.config(key, value)
    with _environment({_LOCAL_IP: address[_ADDRESS[0]]} if address else {}):
        spark = builder.getOrCreate()
    quieten(spark.sparkContext)
    return spark


def remote_session(url: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session of the Spark Connect server at ``url`` (``sc://host:15002``)."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(url).getOrCreate()
    for key, value in (conf or {}).items():
        spark.conf.set(key, value)
    return spark


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context manager: processes that start inside also have these environment variables."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def local_address(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """The listen address of the driver of a session with ``master``: no other machine needs to reach a local one, and
    Spark's default is the host's address. Empty for other masters, and where the user has set one."""
    chosen = _LOCAL_IP in os.environ or any(key in conf for key in _ADDRESS)
    return dict.fromkeys(_ADDRESS, "127.0.0.1") if _is_local(master, conf) and not chosen else {}


def local_logs(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """How queries of a session with ``master`` write the logs of their own checkpoints: files of a local disk are
    renamed by Hadoop's FileSystem. Spark's default goes through FileContext, which starts a process (``readlink``) for
    each rename, a third of a small micro-batch (decision 0068). Empty for other masters."""
    if not _is_local(master, conf) or _FILE_MANAGER in conf:
        return {}
    return {_FILE_MANAGER: streaming_class(*_LOCAL_FILES)}


def _is_local(master: str | None, conf: Mapping[str, str]) -> bool:
    """Whether driver and workers are one process, so that their files are on one machine."""
    return re.fullmatch(r"local(\[.*\])?", conf.get("spark.master", master or "").strip()) is not None


def settle_session(spark: SparkSession) -> None:
    """Adapt any session to a job: workers on this interpreter, a warning about speculation.

    Spark starts its workers with the ``python3`` of the PATH unless configured otherwise, and that one may lack what
    this interpreter's environment has. Only local workers certainly find this interpreter, so a cluster's are left as
    they are, and so is what the user has set.
    """
    context = context_of(spark)
    if context is None:
        return  # a server's workers are the server's
    _drop_functions_at_exit()
    conf = context.getConf()
    chosen = "PYSPARK_PYTHON" in os.environ or conf.contains("spark.pyspark.python")
    if not chosen and (context.master or "").startswith("local"):
        context.pythonExec = sys.executable
    if str(conf.get("spark.speculation", "false")).strip().lower() == "true":
        _log.warning(
            "spark.speculation is true: a speculative attempt restores all state of its partition, and if Spark "
            "keeps the rows of one attempt and the report of the other, the micro-batch fails and must be replayed; "
            "set spark.speculation to false for this application"
        )


@cache
def _drop_functions_at_exit() -> None:
    """When the process ends, drop the functions that the JVM has called. Threads that wait for its calls keep them, and
    a native module that they refer to, such as DuckDB's, would report all that it has as leaked."""

    def drop() -> None:
        from pyspark import SparkContext

        with suppress(Exception):  # another Spark may keep them elsewhere
            SparkContext._gateway.gateway_property.pool.clear()  # type: ignore[union-attr]

    atexit.register(drop)


def quieten(context: SparkContext) -> None:
    """Leave out the warnings about local checkpoints, which the job makes and releases itself, those about idle stops,
    and the four log entries of a task that fails with an AsyncStateError, which is raised on the driver."""
    with suppress(Exception):
        log4j = _log4j(context)
        loggers = log4j.LogManager.getContext(False)
        configuration = loggers.getConfiguration()
        if configuration.getLoggerConfig(LOCAL_CHECKPOINTS).getName() != LOCAL_CHECKPOINTS:
            level = log4j.Level.valueOf("ERROR")
            configuration.addLogger(
                LOCAL_CHECKPOINTS, log4j.core.config.LoggerConfig(LOCAL_CHECKPOINTS, level, True)
            )
            _deny(log4j, SCHEDULER, ".*Failed to cancel job group .* Cannot find active jobs.*")
            # The error of a task is raised on the driver.
            _deny(log4j, TASKS, noted())
            _deny(log4j, BLOCKS, noted())
            _deny(log4j, BLOCKS, LOST_BLOCKS)
            if (context.master or "").startswith("local"):
                _deny(log4j, EXECUTOR, "Exception in task .* in stage .*")


@contextmanager
def suppress_log(context: SparkContext | None, run_id: object) -> Iterator[None]:
    """Context manager: the log does not report the error of the query ``run_id``; the caller that awaits the query gets
    it."""
    undo: Callable[[], None] | None = None
    with suppress(Exception):  # there may be no context, over Spark Connect
        undo = _deny(
            _log4j(context), streaming_class(*QUERIES), f".*{re.escape(str(run_id))}.*terminated with error.*"
        )
    try:
        yield
    finally:
        if undo is not None:
            with suppress(Exception):
                undo()


def _deny(log4j: Any, name: str, words: str) -> Callable[[], None]:
    """Leave out matching lines of this logger; returns the function that undoes it."""
    loggers = log4j.LogManager.getContext(False)
    logger = loggers.getConfiguration().getLoggerConfig(name)  # usually the root
    denies, passes = map(log4j.core.Filter.Result.valueOf, ("DENY", "NEUTRAL"))
    denied = log4j.core.filter.RegexFilter.createFilter(words, None, False, denies, passes)
    logger.addFilter(denied)
    loggers.updateLoggers()

    def undo() -> None:
        logger.removeFilter(denied)
        loggers.updateLoggers()

    return undo


def _log4j(context: SparkContext | None) -> Any:
    assert context is not None
    assert context._jvm is not None
    return context._jvm.org.apache.logging.log4j
