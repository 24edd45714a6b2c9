"""Synchronous execution: every state request is answered at once, on the calling thread.

Owns: ``SyncExecutionController``.
Invariant: when ``submit`` returns, the record has ended.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from asyncstate.errors import FutureStateError
from asyncstate.execution.controller import ExecutionController
from asyncstate.execution.record import Record
from asyncstate.futures import StateFuture, completed_future, failed_future
from asyncstate.requests import Decoder, Page

T = TypeVar("T")


class SyncExecutionController(ExecutionController):
    """Reads one key at a time at record grain, one list get a bundle at bundle grain."""

    def submit(self, record: Record) -> None:
        """See ``ExecutionController``."""
        record.out = self.outputs
        self._run(record)
        if self._failures:
            self._raise_unhandled()
        record.out = None

    def drain(self) -> None:
        """Nothing is ever in flight."""

    def settle(self, future: StateFuture[Any]) -> None:
        """See ``ExecutionController``."""
        if not future.done:
            raise FutureStateError(
                f"operator '{self.uid}' returned a future that nothing completes; derive it from a state request"
            )
        self._raise_unhandled()
        error = future.exception()
        if error is not None:
            raise self._operator_error(error, None) from error

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """See ``StateSink``."""
        try:
            return completed_future(decode(self.get(key)))
        except Exception as error:
            self._reading = key
            return failed_future(error)

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """See ``StateSink``."""
        return completed_future(self.overlay.scan(start, end, limit))

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """See ``StateSink``."""
        return completed_future(self.overlay.get_many(keys))

    def prefetch(self, keys: list[bytes]) -> None:
        """Nothing: a synchronous read happens when it is asked for."""

    def statistics(self) -> dict[str, float]:
        """See ``ExecutionController``."""
        return self.overlay.statistics()

    def _suspend(
        self, record: Record, coroutine: Coroutine[Any, None, Any], awaited: StateFuture[Any]
    ) -> None:
        coroutine.close()
        raise FutureStateError(
            f"operator '{self.uid}', key {record.key!r}: awaits a future that nothing completes; "
            "await futures that come from state requests"
        )
