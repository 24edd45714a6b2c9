"""Outside calls: functions of the operator's author that wait for HTTP or a database.

Owns: ``OutsideCalls``, the operator's ``open_calls`` and ``close_calls``, and ``LoopThread``, the event loop of all of
them; ``CallLimits`` and ``OutsideCall``.
Invariants: at most ``CallLimits.in_flight`` calls run at once, those counted whose plain functions run on after their
timeout, and the event loop has a few times as many; a call ends at its timeout at the latest, with an answer in
``completions``; after ``close`` no call runs except a plain function on a thread, which nothing can stop, and its
result is dropped.
Store reads do not use the event loop, and only starting and ending it blocks the task's thread, each for a given time:
a function that blocks the loop delays other calls only.
Only this module and ``read_threads`` start threads (and anyio's worker threads, from the loops that start here).
Must not touch state or records.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeGuard

import anyio
import anyio.abc
import anyio.to_thread

from asyncstate.durations import Seconds, seconds
from asyncstate.errors import FutureStateError, OperatorError
from asyncstate.execution.completions import Completion, Completions
from asyncstate.futures import StateFuture
from asyncstate.metrics import Count, Elapsed, Limit, MaxGauge

running_call: Final[ContextVar[str | None]] = ContextVar("running_call", default=None)
"""The name of the outside call whose function runs, on the loop or on a separate thread."""

Hook = Callable[[], Awaitable[None]]

_LONGEST_SECONDS: Final = 86_400.0
_AHEAD_FACTOR: Final = 4  # calls given to the loop, in multiples of those that may run: it never idles
_PATIENCE_SECONDS: Final = 10.0  # for what has been cancelled to end


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStatistics:
    """``calls`` were started, of which ``call_timeouts`` ended at their time-out; for ``call_wait_seconds`` the task
    could only wait for them; ``calls_in_flight_peak`` ran at once, of at most ``call_limit``."""

    calls: Count
    call_timeouts: Count
    call_wait_seconds: Elapsed
    calls_in_flight_peak: MaxGauge
    call_limit: Limit


@dataclass(frozen=True)
class CallLimits:
    """The bounds of OutsideCalls: the operator's ``call_limit`` and ``call_timeout``, and how long a read may take."""

    in_flight: int = 100
    timeout_ms: int = 60_000
    watchdog_timeout_ms: int = 60_000


class OutsideCall:
    """One call: what to run, its timeout, and its record (None: the current bundle). The ticket of its Completion."""

    __slots__ = ("arguments", "function", "future", "name", "record", "timeout_seconds")

    def __init__(
        self, record: Any, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_seconds: float
    ) -> None:
        self.record = record
        self.function = function
        self.arguments = arguments
        self.timeout_seconds = timeout_seconds
        self.name = _name_of(function)
        self.future: StateFuture[Any]


async def _nothing() -> None:
    pass


class LoopThread:
    """An event loop on a separate thread. Runs ``opening``, then what is passed to ``run_soon``, then ``closing``; the
    hooks in one and the same task.

    Between ``start`` and ``stop`` the thread that made it may call ``run_soon``.
    """

    def __init__(self, name: str, opening: Hook, closing: Hook) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._opening = opening
        self._closing = closing
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._tasks: anyio.abc.TaskGroup
        self._stopping: anyio.Event
        self.closing_error: BaseException | None = None
        """The error of ``closing``; known when ``stop`` has returned True."""

    def start(self, timeout_seconds: float) -> None:
        """Return when ``opening`` has ended; raises what it raises, and TimeoutError."""
        self._thread.start()
        self._started.result(timeout_seconds)

    def run_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Start ``function(*arguments)`` as a task, which must not raise."""
        self._loop.call_soon_threadsafe(self._start, function, arguments)

    def stop(self, timeout_seconds: float) -> bool:
        """Cancel the tasks, then run ``closing`` and end the thread.

        False when that is not done after ``timeout_seconds``: the thread is then abandoned.
        """
        if self._started.done() and self._started.exception() is None:
            with suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], arguments: tuple[Any, ...]) -> None:
        self._tasks.start_soon(function, *arguments)

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="asyncio")
        except BaseException as error:
            if self._started.done():
                self.closing_error = error
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = anyio.Event()
        await self._opening()
        try:
            async with anyio.create_task_group() as self._tasks:
                self._started.set_result(None)
                await self._stopping.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            await self._closing()


class OutsideCalls:
    """The calls of one task. A context manager: at the end of the block all calls end."""

    def __init__(
        self,
        uid: str,
        limits: CallLimits | None = None,
        opening: Hook = _nothing,
        closing: Hook = _nothing,
    ) -> None:
        self.uid = uid
        self.limits = limits or CallLimits()
        self.completions = Completions()
        """Where outcomes arrive: those of calls, and those of reads."""
        self.wait_seconds = 0.0
        """For how long the task's thread could only wait for calls."""
        self.in_flight = 0
        """Calls that the event loop has and whose outcome has not been processed."""
        self._held: deque[OutsideCall] = deque()  # a bundle may make very many at once
        self._opening = opening
        self._closing = closing
        self._loop: LoopThread | None = None
        self._closed = False
        self._patience_seconds = self.limits.timeout_ms / 1000 + _PATIENCE_SECONDS
        self._slots: anyio.CapacityLimiter
        self._threads: anyio.CapacityLimiter
        self._unlimited: anyio.CapacityLimiter
        self._event_loop: asyncio.AbstractEventLoop
        self._started = 0
        self._longest_seconds = 0.0
        self._timeouts = 0
        self._running = 0
        self._peak_running = 0

    # -- for the controller ---------------------------------------------------------------------------

    def prepared(
        self,
        record: Any,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_seconds: Seconds | None,
        keywords: Mapping[str, Any],
    ) -> OutsideCall:
        """The call, checked. Raises FutureStateError for what is no function and for an impossible timeout."""
        given: Any = function
        if not callable(given) or inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()  # else Python also warns that it was never awaited
            raise FutureStateError(
                f"ctx.call got {function!r}, which is not a function; pass the function and its arguments, "
                "such as ctx.call(client.get, url) and not ctx.call(client.get(url))"
            )
        if timeout_seconds is None:
            timeout = self.limits.timeout_ms / 1000
        else:
            what = f"ctx.call({_name_of(function)})"
            timeout = seconds(timeout_seconds, what, "timeout_seconds", FutureStateError, above_zero=True)
            if timeout > _LONGEST_SECONDS:
                raise FutureStateError(
                    f"{what}: timeout_seconds is {timeout_seconds!r}; give seconds, more than 0 and at most "
                    f"{_LONGEST_SECONDS:.0f}"
                )
        if keywords:
            function = functools.partial(function, **keywords)
        return OutsideCall(record, function, arguments, timeout)

    def start(self, call: OutsideCall) -> None:
        """Run ``call`` as soon as there is room; the first one opens the loop and awaits ``open_calls``."""
        if self._closed:
            raise FutureStateError(
                f"operator '{self.uid}': {call.name} was called after the end of the task; make calls in process() or "
                "process_bundle(), and in callbacks of their futures"
            )
        if self._loop is None:
            self._loop = self._open_loop()
        self._started += 1
        self._longest_seconds = max(self._longest_seconds, call.timeout_seconds)
        if self.in_flight < _AHEAD_FACTOR * self.limits.in_flight:
            self._send(self._loop, call)
        else:
            self._held.append(call)

    def ended(self) -> None:
        """Called when the outcome of a call has been processed."""
        self.in_flight -= 1
        if self._held and self._loop is not None:
            self._send(self._loop, self._held.popleft())

    def _send(self, loop: LoopThread, call: OutsideCall) -> None:
        self.in_flight += 1
        self.completions.expect(call)
        loop.run_soon(self._perform, call)

    @property
    def watchdog_seconds(self) -> float:
        """How long to wait until a call is answered: the calls' own timeouts come first."""
        return self._longest_seconds + self.limits.watchdog_timeout_ms / 1000

    def statistics(self) -> CallStatistics:
        """The statistics of this micro-batch."""
        return CallStatistics(
            calls=self._started,
            call_timeouts=self._timeouts,
            call_wait_seconds=self.wait_seconds,
            calls_in_flight_peak=self._peak_running,
            call_limit=self.limits.in_flight,
        )

    # -- the end ----------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The loop does not answer any more: ``close`` will not wait for it."""
        self._patience_seconds = 0.0

    def close(self) -> None:
        """Cancel what runs, await ``close_calls`` and end the loop; a second call is allowed.

        Raises OperatorError when ``close_calls`` fails, or when a function blocks the loop.
        """
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if not loop.stop(self._patience_seconds):
            raise OperatorError(
                f"operator '{self.uid}': the event loop of its outside calls does not end, because a coroutine blocks "
                "it or ignores its cancellation; its thread keeps running. Await in the coroutine, or make it a "
                "plain function, which runs on a thread"
            )
        if loop.closing_error is not None:
            raise self._hook_error("close_calls", loop.closing_error) from loop.closing_error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except OperatorError as closing:
            if error is None:
                raise
            error.add_note(f"closing the outside calls failed as well: {closing}")

    # -- the event loop ---------------------------------------------------------------------------------

    def _open_loop(self) -> LoopThread:
        loop = LoopThread("asyncstate-calls", self._open, self._close)
        try:
            loop.start(self._patience_seconds)
        except Exception as error:
            raise self._hook_error("open_calls", error) from error
        return loop

    def _hook_error(self, hook: str, error: BaseException) -> OperatorError:
        return OperatorError(
            f"operator '{self.uid}': {hook} failed: {type(error).__name__}: {error}. The micro-batch is not "
            "committed; fix the operator and restart the query"
        )

    async def _open(self) -> None:
        self._slots = anyio.CapacityLimiter(self.limits.in_flight)
        self._threads = anyio.CapacityLimiter(self.limits.in_flight)
        self._unlimited = anyio.CapacityLimiter(math.inf)
        self._event_loop = asyncio.get_running_loop()
        with anyio.fail_after(self.limits.timeout_ms / 1000):
            await self._opening()

    async def _close(self) -> None:
        with anyio.fail_after(self.limits.timeout_ms / 1000):
            await self._closing()

    async def _perform(self, call: OutsideCall) -> None:
        try:
            async with self._slots:
                completion = Completion(call, await self._timed(call), None)
        except anyio.get_cancelled_exc_class() as error:
            if self._closed:
                raise
            completion = Completion(call, None, _cancelled_itself(call, error))
        except BaseException as error:
            completion = Completion(call, None, error)
        self.completions.put(completion)

    async def _timed(self, call: OutsideCall) -> Any:
        self._running += 1
        self._peak_running = max(self._peak_running, self._running)
        try:
            with anyio.move_on_after(call.timeout_seconds):
                return await self._invoke(call)
        finally:
            self._running -= 1
        self._timeouts += 1
        raise TimeoutError(
            f"the call of {call.name} took longer than {call.timeout_seconds:g} seconds; recover() from it, pass "
            "timeout_seconds, or set the operator's call_timeout"
        )

    async def _invoke(self, call: OutsideCall) -> Any:
        running_call.set(call.name)
        if _is_coroutine_function(call.function):
            return await call.function(*call.arguments)
        result = await self._on_thread(call)
        # A lambda around a coroutine function, or a client whose methods return awaitables.
        return await result if inspect.isawaitable(result) else result

    async def _on_thread(self, call: OutsideCall) -> Any:
        """Run a plain function. Where anyio would let another one begin as soon as this call is cancelled, its place is
        taken until the function has returned."""
        await self._threads.acquire_on_behalf_of(call)
        begun = threading.Lock()  # who acquires it frees the place

        def run() -> Any:
            if not begun.acquire(blocking=False):
                return None  # cancelled before it began
            try:
                return call.function(*call.arguments)
            finally:
                with suppress(RuntimeError):  # the loop has ended
                    self._event_loop.call_soon_threadsafe(self._threads.release_on_behalf_of, call)

        try:
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._unlimited)
        except BaseException:
            if begun.acquire(blocking=False):
                self._threads.release_on_behalf_of(call)
            raise


def _cancelled_itself(call: OutsideCall, error: BaseException) -> FutureStateError:
    cancelled = FutureStateError(
        f"the call of {call.name} was cancelled from inside; let its coroutine return or raise an exception"
    )
    cancelled.__cause__ = error
    return cancelled


def _is_coroutine_function(function: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    if isinstance(function, functools.partial):
        return _is_coroutine_function(function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__, not a check
    )


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name_of(function.func)
    name: str = getattr(function, "__qualname__", None) or repr(function)
    return name
