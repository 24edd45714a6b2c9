"""What Spark's own log leaves out.

Owns: ``quieten``, for sessions of ``build_session``, and ``unsaid_failure``. Invariant: a line is left out only if
nothing can be done about it, or if somebody else says it; the level of the whole log, and of loggers that the user has
configured, are left as they are; nothing here can make a job fail.
Must not import storage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

LOCAL_CHECKPOINTS: Final = "org.apache.spark.rdd.MapPartitionsRDD"
"""Warns that rows of a local checkpoint cannot be made again, for each of them at each micro-batch."""
QUERIES: Final = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
"""Says with what a query has failed, with all Java frames."""
SCHEDULER: Final = "org.apache.spark.scheduler.DAGScheduler"
"""Warns that a query that is stopped between two micro-batches has no jobs to cancel."""


def quieten(context: SparkContext) -> None:
    """Leave out the warnings of local checkpoints, which the job makes and releases itself, and of stops at rest."""
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


@contextmanager
def unsaid_failure(context: SparkContext, run_id: object) -> Iterator[None]:
    """Inside, the log does not say with what the query ``run_id`` has failed: whoever waits for it will."""
    undo: Callable[[], None] | None = None
    with suppress(Exception):
        undo = _deny(_log4j(context), QUERIES, f".*{re.escape(str(run_id))}.*terminated with error.*")
    try:
        yield
    finally:
        if undo is not None:
            with suppress(Exception):
                undo()


def _deny(log4j: Any, name: str, words: str) -> Callable[[], None]:
    """Leave out lines of this logger that match; what takes it back."""
    loggers = log4j.LogManager.getContext(False)
    logger = loggers.getConfiguration().getLoggerConfig(name)  # mostly the root
    denies, passes = map(log4j.core.Filter.Result.valueOf, ("DENY", "NEUTRAL"))
    denied = log4j.core.filter.RegexFilter.createFilter(words, None, False, denies, passes)
    logger.addFilter(denied)
    loggers.updateLoggers()

    def undo() -> None:
        logger.removeFilter(denied)
        loggers.updateLoggers()

    return undo


def _log4j(context: SparkContext) -> Any:
    assert context._jvm is not None
    return context._jvm.org.apache.logging.log4j
