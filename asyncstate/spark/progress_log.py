"""The progress of micro-batches in Python's logging, for machines and for people.

Owns: ``log_progress``, ``ProgressFormatter``, and the calling of a job's ``on_progress``.
Invariant: nothing here can make a micro-batch fail.
Must not import pyspark.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from asyncstate.spark.progress import OnProgress, Progress

LOGGER: Final = "asyncstate.progress"
"""The name of the logger that gets one record a micro-batch, at level INFO."""

_log = logging.getLogger(LOGGER)


class ProgressFormatter(logging.Formatter):
    """Log records as one line of JSON each: ``time``, ``level``, ``logger``, ``message``, ``exception``, and for a
    micro-batch ``progress``.

    For a handler of any logger: ``handler.setFormatter(ProgressFormatter())``. Without it the message of a
    micro-batch's record is the progress itself, as JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        progress: Progress | None = getattr(record, "progress", None)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage() if progress is None else _summary(progress),
        }
        if progress is not None:
            line["progress"] = progress
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ProgressReports:
    """Logs each progress and gives it to ``on_progress``, whose failures are logged, the first of them in full."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._failed = False

    def report(self, progress: Progress) -> None:
        """Log ``progress`` and pass it on."""
        log_progress(progress)
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except Exception as error:
            if not self._failed:
                self._failed = True
                _log.warning(
                    "job '%s', batch %d: on_progress failed (%s: %s); the batch is committed all the same, and later "
                    "failures of on_progress are not logged",
                    progress["job"],
                    progress["batch_id"],
                    type(error).__name__,
                    error,
                    exc_info=True,
                )


def log_progress(progress: Progress) -> None:
    """One record at INFO: its message is the progress as one line of JSON, its ``progress`` the same as a dict."""
    if _log.isEnabledFor(logging.INFO):
        text = msgspec.json.encode(progress).decode()
        _log.info("%s", text, extra={"progress": progress})


def _summary(progress: Progress) -> str:
    rows = sum(operator["rows_in"] or 0 for operator in progress["operators"])
    return (
        f"job '{progress['job']}', batch {progress['batch_id']}: {rows} rows into "
        f"{len(progress['operators'])} operators in {progress['total_seconds']:.3f} s"
    )
