"""Synchronous execution: every state request and outside call is answered at once, on the calling thread.

Owns: ``SyncExecutionController``.
Invariant: when ``submit`` returns, the record has ended.
"""

from __future__ import annotations

import time
from types import CoroutineType
from typing import Any, NoReturn, TypeVar

from asyncstate.errors import OperatorError
from asyncstate.execution.controller import ExecutionController
from asyncstate.execution.failed_rows import GuardedRecord
from asyncstate.execution.outside_calls import OutsideCall
from asyncstate.execution.record import Record
from asyncstate.execution.record_failures import throw_into
from asyncstate.futures import StateFuture, completed_future, failed_future
from asyncstate.state_backend import Decoder, Page

T = TypeVar("T")


class SyncExecutionController(ExecutionController):
    """Reads one key at a time at record grain, one list get per bundle at bundle grain."""

    __slots__ = ()

    def submit(self, record: Record) -> None:
        """Accept a record; it runs now or when its key is free."""
        record.out = self.outputs
        self._run(record)
        if self._unhandled:
            self.failures.raise_for(record)
        record.out = None

    def submit_guarded(self, record: GuardedRecord) -> None:
        """Submit a record whose row goes to the side output of errors if it fails."""
        outputs = self.outputs
        begin = len(outputs)
        self.submit(record)
        if record.error is not None:
            outputs[begin:] = [self.failures.failed_row(record)]

    def drain(self) -> None:
        """Nothing is ever in flight."""

    def _await_settled(self, future: StateFuture[Any]) -> None:
        if not future.done:
            self.failures.raise_all()
            raise self.failures.never(None, "returned")

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """A future of ``decode(value or None)``."""
        try:
            value = self.get(key)
        except Exception as error:
            failed_future(error)  # fails the record, whatever catches it below
            raise
        try:
            return completed_future(decode(value))
        except Exception as error:
            self.failures.read_failed(error, key)
            return failed_future(error)

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        """A future of the same."""
        return completed_future(self.scan(start, end, limit))

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        """A future of the same."""
        return completed_future(self.get_many(keys))

    def prefetch(self, keys: list[bytes]) -> None:
        """Does nothing: a synchronous read happens when it is requested."""

    def _call(self, call: OutsideCall) -> StateFuture[Any]:
        completions = self.calls.completions
        self.calls.start(call)
        started = time.perf_counter()
        completion = completions.next(self.calls.watchdog_seconds)
        self.calls.wait_seconds += time.perf_counter() - started
        if completion is None:
            self.calls.abandon()
            text = self.failures.unanswered(completions.outstanding())
            raise self.failures.named(OperatorError(text))
        self.calls.ended()
        if completion.error is None:
            return completed_future(completion.values)
        self.failures.call_failed(completion.error, call.name)
        return failed_future(completion.error)

    def _suspend(
        self, record: Record, coroutine: CoroutineType[Any, Any, Any], awaited: StateFuture[Any]
    ) -> NoReturn:
        throw_into(coroutine, self.failures.never(record, "awaits"))

    def _await_returned(self, record: Record, returned: StateFuture[Any]) -> NoReturn:
        raise self.failures.never(record, "returned")
