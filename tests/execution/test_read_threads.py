"""The threads that read: side by side, each list get answered once, and gone when they are closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asyncstate.errors import StoreError
from asyncstate.execution import Completion, Completions, ListGet, ReadThreads, read_threads
from asyncstate.execution.reads import ReadRequest, Values


class Nobody(ReadRequest):
    """The threads only hand it back."""

    def arrived(self, start: int, values: Values) -> None:
        raise AssertionError("on a thread that reads")


def _get(*keys: bytes) -> ListGet:
    return ListGet([*keys], Nobody([*keys]))


def _echo(keys: list[bytes]) -> Values:
    return [*keys]


@contextmanager
def _threads(threads: ReadThreads) -> Iterator[ReadThreads]:
    try:
        yield threads
    finally:
        assert threads.close(30)


def _next(completions: Completions) -> Completion:
    completion = completions.next(30)
    assert completion is not None
    return completion


def test_list_gets_run_side_by_side_and_come_back_as_they_were() -> None:
    completions = Completions()
    both = threading.Barrier(2, timeout=30)

    def read(keys: list[bytes]) -> Values:
        both.wait()
        return _echo(keys)

    gets = [_get(b"a"), _get(b"b", b"c")]
    with _threads(ReadThreads(read, 2, completions)) as threads:
        threads.submit(gets, 2)
        done = sorted((_next(completions), _next(completions)), key=lambda each: gets.index(each.ticket))
    assert all(completion.ticket is get for completion, get in zip(done, gets, strict=True))
    assert [completion.values for completion in done] == [[b"a"], [b"b", b"c"]]
    assert all(completion.error is None and completion.seconds > 0 for completion in done)
    assert len(completions) == 0


def test_every_list_get_is_answered_once_whatever_the_number_of_threads() -> None:
    completions = Completions()
    gets = [_get(b"%d" % number) for number in range(500)]
    with _threads(ReadThreads(_echo, 8, completions)) as threads:
        for wanted, start in enumerate(range(0, 500, 100), 1):
            threads.submit(gets[start : start + 100], wanted * 3)
        assert threads.threads_peak == 8
        assert {id(_next(completions).ticket) for _ in gets} == {id(get) for get in gets}
        assert completions.next(0) is None


def test_an_error_is_carried_not_raised() -> None:
    completions = Completions()

    def read(keys: list[bytes]) -> Values:
        raise OSError(f"cannot read {keys}")

    with _threads(ReadThreads(read, 1, completions)) as threads:
        for _ in range(2):  # the thread goes on
            threads.submit([_get(b"k")], 1)
            assert isinstance(_next(completions).error, OSError)


def test_no_thread_starts_before_the_first_list_get() -> None:
    before = threading.active_count()
    assert ReadThreads(_echo, 4, Completions()).close(30)
    assert threading.active_count() == before


def test_close_ends_every_thread_and_drops_what_waits() -> None:
    completions = Completions()
    before = set(threading.enumerate())
    started, gate = threading.Semaphore(0), threading.Event()
    ran: list[bytes] = []

    def read(keys: list[bytes]) -> Values:
        started.release()
        assert gate.wait(30)
        ran.extend(keys)
        return _echo(keys)

    threads = ReadThreads(read, 2, completions)
    threads.submit([_get(b"%d" % number) for number in range(50)], 2)
    for _ in range(2):
        assert started.acquire(timeout=30)
    assert not threads.close(0.0)  # two reads hang
    gate.set()
    deadline = time.monotonic() + 30
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert set(threading.enumerate()) <= before
    assert sorted(ran) == [b"0", b"1"]


def test_a_machine_without_threads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(read_threads.threading.Thread, "start", refuse)
    with (
        _threads(ReadThreads(_echo, 4, Completions())) as threads,
        pytest.raises(StoreError, match=r"can't start new thread.*limit of threads"),
    ):
        threads.submit([_get(b"k")], 4)
