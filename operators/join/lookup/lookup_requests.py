"""The requests of a lookup join: some keys each, with their retries and the cache of their answers.

Owns: ``Retry``, ``LookupCache``, ``Requests``.
Invariant: a key is requested once per bundle, or not at all while the cache has it; an answer has rows for each
requested key. The functions that run in calls touch neither the cache nor the context.
Must not know of state or row kinds.

Source: Flink's ``LookupOptions`` and its lookup cache.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tenacity
from cachetools import Cache, LRUCache, TTLCache

from asyncstate.durations import Seconds, seconds
from asyncstate.errors import OperatorError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.lookups.lookup_source import Key, Rows
from asyncstate.operator import BundleContext
from asyncstate.specs import RowError

from ...core.operator_checks import check_number


@dataclass(frozen=True)
class Retry:
    """Up to ``attempts`` requests in all, ``delay`` (seconds, a text or timedelta) from one to the next, or longer
    where the exception has an attribute ``retry_after``, seconds."""

    attempts: int = 3
    delay: Seconds = 0.1

    def __post_init__(self) -> None:
        check_number(self.attempts, 1, "attempts", "Retry")
        object.__setattr__(self, "delay", seconds(self.delay, "Retry", "delay"))


@dataclass(frozen=True)
class LookupCache:
    """Cached answers, empty ones too: at most ``rows`` rows of them, where an empty answer counts as one.

    ``seconds`` (a number, a text or timedelta): how long, in each worker process and across micro-batches;
    None: from one bundle to the next of a micro-batch and partition; the next micro-batch requests again.
    """

    rows: int = 10_000
    seconds: Seconds | None = None

    def __post_init__(self) -> None:
        check_number(self.rows, 1, "rows", "LookupCache")
        if self.seconds is not None:
            object.__setattr__(
                self, "seconds", seconds(self.seconds, "LookupCache", "seconds", above_zero=True)
            )

    def answers(self, name: str) -> Cache[Key, Rows]:
        """The cached answers of the operator ``name``."""
        if self.seconds is None:
            return LRUCache(self.rows, getsizeof=_size)
        return _of_process(name, self.rows, seconds(self.seconds, "LookupCache", "seconds"))


def _size(rows: Rows) -> int:
    return max(len(rows), 1)


@functools.lru_cache(maxsize=64)  # operators of a worker process: those of ended jobs are evicted
def _of_process(name: str, rows: int, seconds: float) -> Cache[Key, Rows]:
    return TTLCache(rows, ttl=seconds, timer=_now, getsizeof=_size)


def _now() -> float:
    return time.monotonic()


class FailedRows(list[Any]):
    """The rows of a key whose request has finally failed, of which there are none."""

    def __init__(self, error: RowError) -> None:
        super().__init__()
        self.error = error


class _NotFoundYetError(Exception):
    """Some keys have no rows, and more attempts are left."""


@dataclass
class Requests:
    """Calls ``function`` with keys, at most ``batch`` per request. Errors name ``owner``.

    ``retry`` is for requests that raise, ``retry_empty`` for keys without rows, which alone are requested again.
    ``timeout`` bounds a request with its retries (seconds; None: as configured). ``known``: the cached answers.
    ``on_failed``: called with the number of keys of a request that has finally failed; their rows are then
    ``FailedRows``, which are not cached. None: the failure raises OperatorError.
    """

    function: Callable[[Sequence[Key]], Any]
    owner: str
    batch: int
    retry: Retry | None = None
    retry_empty: Retry | None = None
    timeout: float | None = None
    known: Cache[Key, Rows] | None = None
    on_failed: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        calls = getattr(self.function, "__call__", None)  # noqa: B004 - an object with an async __call__, not a check
        waits = inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(calls)
        self._request: Callable[[Sequence[Key]], Any] = self._ask_async if waits else self._ask

    def start(
        self, keys: Sequence[Key], ctx: BundleContext
    ) -> list[tuple[list[int], StateFuture[list[Rows]]]]:
        """Request distinct ``keys``: the positions of some of the keys, and a future of the rows of each of these."""
        asked = list(range(len(keys)))
        parts: list[tuple[list[int], StateFuture[list[Rows]]]] = []
        known = self.known
        if known is not None:
            found = [known.get(key) for key in keys]
            asked = [at for at in asked if found[at] is None]
            remembered = [at for at, rows in enumerate(found) if rows is not None]
            parts.append((remembered, completed_future([rows for rows in found if rows is not None])))
        for begin in range(0, len(asked), self.batch):
            places = asked[begin : begin + self.batch]
            parts.append((places, self._send([keys[at] for at in places], ctx)))
        return parts

    def _send(self, keys: list[Key], ctx: BundleContext) -> StateFuture[list[Rows]]:
        call = ctx.call(self._request, keys, timeout_seconds=self.timeout)
        return call.recover(lambda error: self._failed(keys, error)).then_apply(
            lambda rows: self._remember(keys, rows)
        )

    def _failed(self, keys: list[Key], error: BaseException) -> list[Rows]:
        if self.on_failed is not None:
            self.on_failed(len(keys))
            return [FailedRows(RowError.of(error))] * len(keys)
        raise OperatorError(
            f"{self.owner}: the lookup of {_sample(keys)} failed: {type(error).__name__}: {error}. Fix the lookup, or "
            "give retry=, a longer timeout= or on_failure="
        ) from error

    def _remember(self, keys: list[Key], answers: list[Rows]) -> list[Rows]:
        if self.known is not None:
            for key, rows in zip(keys, answers, strict=True):
                if not isinstance(rows, FailedRows) and _size(rows) <= self.known.maxsize:
                    self.known[key] = rows
        return answers

    # -- inside calls --------------------------------------------------------------------------------------

    def _ask(self, keys: Sequence[Key]) -> list[Rows]:
        if self.retry_empty is None:  # an attempt of tenacity costs more than the rest of a request
            return self._checked(keys, self._once(keys))
        found: list[Rows] = [()] * len(keys)
        empty, left = list(range(len(keys))), self.retry_empty.attempts
        for attempt in tenacity.Retrying(**_attempts(self.retry_empty, _NotFoundYetError)):
            with attempt:
                asked = [keys[at] for at in empty]
                left -= 1
                empty = self._take(found, empty, asked, self._once(asked), left)
        return found

    async def _ask_async(self, keys: Sequence[Key]) -> list[Rows]:
        if self.retry_empty is None:
            return self._checked(keys, await self._once_async(keys))
        found: list[Rows] = [()] * len(keys)
        empty, left = list(range(len(keys))), self.retry_empty.attempts
        async for attempt in tenacity.AsyncRetrying(**_attempts(self.retry_empty, _NotFoundYetError)):
            with attempt:
                asked = [keys[at] for at in empty]
                left -= 1
                empty = self._take(found, empty, asked, await self._once_async(asked), left)
        return found

    def _once(self, keys: Sequence[Key]) -> Any:
        if self.retry is None:
            return self.function(keys)
        return tenacity.Retrying(**_attempts(self.retry, Exception))(self.function, keys)

    async def _once_async(self, keys: Sequence[Key]) -> Any:
        if self.retry is None:
            return await self.function(keys)
        return await tenacity.AsyncRetrying(**_attempts(self.retry, Exception))(self.function, keys)

    def _take(
        self, found: list[Rows], places: list[int], asked: list[Key], answer: Any, left: int
    ) -> list[int]:
        """Write the answer to the requested ``places`` of ``found``; return those that are still empty.

        Raises _NotFoundYetError if there are some, and attempts are ``left``: the caller's ``places`` shrink anyway.
        """
        for place, rows in zip(list(places), self._checked(asked, answer), strict=True):
            found[place] = rows
        places[:] = [place for place in places if not found[place]]
        if places and left:
            raise _NotFoundYetError
        return places

    def _checked(self, keys: Sequence[Key], answer: Any) -> list[Rows]:
        if not isinstance(answer, list | tuple) or len(answer) != len(keys):
            what = (
                f"{len(answer)} answers" if isinstance(answer, list | tuple) else repr(type(answer).__name__)
            )
            raise OperatorError(
                f"{self.owner}: the lookup returned {what} for {len(keys)} keys; return a list with one list of rows "
                "per key, in the order of the keys"
            )
        rows = [() if found is None else found for found in answer]
        for key, found in zip(keys, rows, strict=True):
            if not isinstance(found, list | tuple):
                raise OperatorError(
                    f"{self.owner}: the lookup answered key {key!r} with {found!r}; return a list of rows for each key"
                )
        return rows


def _attempts(retry: Retry, on: type[Exception]) -> dict[str, Any]:
    """Arguments for tenacity: the same delay between all attempts, or the longer one that the exception asks for."""
    delay = seconds(retry.delay, "Retry", "delay")

    def wait(state: tenacity.RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        # Exceptions of other packages may have None or a text there.
        asked = getattr(error, "retry_after", None)
        return max(delay, asked) if isinstance(asked, int | float) else delay

    return {
        "retry": tenacity.retry_if_exception_type(on),
        "stop": tenacity.stop_after_attempt(retry.attempts),
        "wait": wait,
        "reraise": True,
    }


def _sample(keys: Sequence[Key]) -> str:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"key {keys[0]!r}{more}"
