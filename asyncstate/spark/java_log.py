"""What Spark's own log leaves out in sessions of ``build_session``.

Owns: ``quieten``. Invariant: a line is left out only if nothing can be done about it; the level of the whole log,
and of loggers that the user has configured, are left as they are; nothing here can make a job fail.
Must not import storage.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

LOCAL_CHECKPOINTS: Final = "org.apache.spark.rdd.MapPartitionsRDD"
"""Warns that rows of a local checkpoint cannot be made again, for each of them at each micro-batch."""


def quieten(context: SparkContext) -> None:
    """Leave out the warnings of local checkpoints, which the job makes and releases itself."""
    with suppress(Exception):
        jvm = context._jvm
        assert jvm is not None
        log4j = jvm.org.apache.logging.log4j
        loggers = log4j.LogManager.getContext(False)
        configuration = loggers.getConfiguration()
        if configuration.getLoggerConfig(LOCAL_CHECKPOINTS).getName() != LOCAL_CHECKPOINTS:
            level = log4j.Level.valueOf("ERROR")
            configuration.addLogger(
                LOCAL_CHECKPOINTS, log4j.core.config.LoggerConfig(LOCAL_CHECKPOINTS, level, True)
            )
            loggers.updateLoggers()
