"""The part that both execution controllers share: statistics, failures, coroutines, the end of a record.

Owns: ``ExecutionController``.
Invariant: one record of a key at a time, to the end of its chain; a failure nobody handled ends the micro-batch.
Must not import runtime or operators.

Source: Flink's ``AsyncExecutionController``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import CoroutineType, TracebackType
from typing import Any, Self

from asyncstate.errors import FutureStateError, OperatorError
from asyncstate.execution.record import OutputRow, Record
from asyncstate.futures import FailureScope, StateFuture, set_failure_scope
from asyncstate.requests import Page, StateSink
from asyncstate.storage import WriteOverlay

_STATE_ID_AT = 2  # position of the state id in a store key, behind the key group


class ExecutionController(StateSink):
    """Runs records of one operator on one partition for one micro-batch. Used by one thread, as a context manager."""

    current: Record | None = None

    def __init__(self, overlay: WriteOverlay, uid: str, state_names: Mapping[int, str]) -> None:
        self.overlay = overlay
        self.uid = uid
        self.state_names = state_names
        self.outputs: list[OutputRow] = []
        self._failures: list[tuple[StateFuture[Any], Record | None]] = []
        self._outer_scope: FailureScope | None = None
        self._reading: bytes | None = None
        # the hot calls go straight to the overlay, without a frame in between
        self.get = overlay.get  # type: ignore[method-assign]
        self.put = overlay.put  # type: ignore[method-assign,assignment]
        self.delete = overlay.delete  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        self._outer_scope = set_failure_scope(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        set_failure_scope(self._outer_scope)
        self.current = None
        self.close()

    # -- records ----------------------------------------------------------------------------------

    @abstractmethod
    def submit(self, record: Record) -> None:
        """Take a record; it runs now or when its key is free. Raises OperatorError if any record failed."""

    @abstractmethod
    def drain(self) -> None:
        """Return when every record taken so far has ended and its output is in ``outputs``."""

    @abstractmethod
    def settle(self, future: StateFuture[Any]) -> None:
        """Return when ``future``, made by a bundle operator, is settled; raise its failure as OperatorError."""

    def run_bundle(self, work: Callable[[], Any]) -> None:
        """Run bundle-grain code to its end, with the futures it returns; its exceptions become OperatorErrors."""
        self.current = None
        try:
            result = work()
        except OperatorError:
            raise
        except Exception as error:
            raise self._operator_error(error, None) from error
        if type(result) is CoroutineType:
            result.close()
            raise FutureStateError(
                f"operator '{self.uid}': bundle-grain methods cannot be coroutines; return a StateFuture instead"
            )
        if isinstance(result, StateFuture):
            self.settle(result)
        elif self._failures:
            self._raise_unhandled()

    def run_without_key(self, record: Record) -> None:
        """Run a record that belongs to no key, such as a watermark: state access in it is an error."""
        self.current = None
        try:
            result = record.work(record.item, record)
        except Exception as error:
            raise self._operator_error(error, None) from error
        if type(result) is CoroutineType:
            result.close()
            raise FutureStateError(
                f"operator '{self.uid}': on_watermark has no key and cannot be a coroutine"
            )
        if self._failures:
            self._raise_unhandled()

    def end_epoch(self) -> None:
        """Everything taken so far belongs to an epoch that ends here, what comes after to the next one."""

    def flush(self) -> None:
        """Send off what waits to be read; called before the caller may block on its input."""

    def close(self) -> None:
        """Give back threads; records in flight are dropped."""

    def take_outputs(self) -> list[OutputRow]:
        """The rows put out since the last call, in arrival order of their records."""
        outputs = self.outputs.copy()
        self.outputs.clear()  # in place: a record at the head of the line writes into this very list
        return outputs

    @abstractmethod
    def statistics(self) -> dict[str, float]:
        """Counts of this micro-batch by name; ``*_peak`` are highest values, ``*_limit`` the bounds in force."""

    # -- the sink's calls that never wait ------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """See ``StateSink``; bound to the overlay in ``__init__``."""
        raise NotImplementedError

    def put(self, key: bytes, value: bytes) -> None:
        """See ``StateSink``; bound to the overlay in ``__init__``."""
        raise NotImplementedError

    def delete(self, key: bytes) -> None:
        """See ``StateSink``; bound to the overlay in ``__init__``."""
        raise NotImplementedError

    def scan(self, start: bytes, end: bytes, limit: int) -> Page:
        """See ``StateSink``."""
        return self.overlay.scan(start, end, limit)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See ``StateSink``."""
        return self.overlay.get_many(keys)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """See ``StateSink``."""
        self.overlay.put_many(keys, values)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``StateSink``."""
        self.overlay.delete_many(keys)

    # -- failures -----------------------------------------------------------------------------------

    def future_failed(self, future: StateFuture[Any]) -> None:
        """See ``FailureScope``: remembered until the record ends, by then somebody may have handled it."""
        self._failures.append((future, self.current))

    def _raise_unhandled(self) -> None:
        """Raise the first failure that nothing was derived from."""
        failures, self._failures = self._failures, []
        for future, record in failures:
            if not future.failure_observed:
                error = future.exception()
                assert error is not None
                raise self._operator_error(error, record) from error

    def _operator_error(self, error: BaseException, record: Record | None) -> OperatorError:
        if isinstance(error, OperatorError):
            return error
        parts = [f"operator '{self.uid}'"]
        if self._reading is not None:
            parts.append(f"state '{self.state_names.get(self._reading[_STATE_ID_AT], 'unknown')}'")
        if record is not None:
            parts.append(f"key {record.key!r}")
        return OperatorError(
            f"{', '.join(parts)}: {type(error).__name__}: {error}. "
            "The micro-batch is not committed; fix the operator or the input and start the query again"
        )

    # -- coroutines -----------------------------------------------------------------------------------

    def _run(self, record: Record) -> None:
        """Run the record's own code up to its first wait; user exceptions become OperatorErrors."""
        self.current = record
        try:
            result = record.work(record.item, record)
            if type(result) is CoroutineType:
                self._step(record, result)
        except OperatorError:
            raise
        except Exception as error:
            raise self._operator_error(error, record) from error

    def _step(self, record: Record, coroutine: Coroutine[Any, None, Any]) -> None:
        """Run a coroutine operator until it awaits a pending future or ends."""
        self.current = record
        try:
            awaited = coroutine.send(None)
        except StopIteration:
            return
        if not isinstance(awaited, StateFuture):
            coroutine.close()
            raise FutureStateError(
                f"an operator can await StateFutures only, not {awaited!r}; make the outside call from a StateFuture"
            )
        self._suspend(record, coroutine, awaited)

    @abstractmethod
    def _suspend(
        self, record: Record, coroutine: Coroutine[Any, None, Any], awaited: StateFuture[Any]
    ) -> None:
        """Go on with ``coroutine`` when ``awaited`` is settled."""
