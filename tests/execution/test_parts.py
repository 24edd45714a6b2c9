"""The parts of the controller, each by itself."""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.changelog import RowKind
from asyncstate.errors import FutureStateError
from asyncstate.execution import AsyncLimits, BatchFrame, Completion, ListGet, Pacer, Record
from asyncstate.execution.in_flight import InFlightRecords
from asyncstate.execution.reads import ReadRequest, Reads, Values
from asyncstate.execution.record_failures import Failures
from asyncstate.futures import StateFuture
from asyncstate.storage import MemTable
from tests.memory_store import MemoryStore

_FOUR_THREADS = AsyncLimits(io_parallelism=4)
_FRAME = BatchFrame(0, 0, None, pa.schema([]))  # type: ignore[arg-type]


class Bench:
    """A mailbox whose records wait, after their own code, until the test lets go of them."""

    def __init__(self, limit: int = 1_000) -> None:
        self.outputs: list[Any] = []
        self.running: dict[bytes, Record] = {}
        self.mailbox = InFlightRecords(self._run, self.outputs, Failures("op", {}), limit)

    def _run(self, record: Record) -> None:
        assert record.encoded_key not in self.running, "its key is being processed"
        self.running[record.encoded_key] = record
        self.mailbox.hold(record)

    def take(self, key: bytes, item: int) -> Record:
        record = Record(_FRAME, b"\0\0", key, (key,), lambda item, ctx: None, item)
        self.mailbox.take(record)
        return record

    def end(self, key: bytes) -> Record:
        record = self.running.pop(key)
        assert record.out is not None
        record.out.append((RowKind.INSERT, (record.item,)))
        self.mailbox.let_go(record)
        self.mailbox.run_ready()
        return record

    @property
    def released(self) -> list[int]:
        return [values[0] for _, values, *_ in self.outputs]


class TestMailbox:
    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
    def test_one_record_of_a_key_at_a_time_and_rows_leave_in_order(
        self, steps: list[tuple[bool, int]]
    ) -> None:
        bench = Bench()
        lines: dict[bytes, list[int]] = {}  # the first of each line runs
        ended: set[int] = set()
        for item, (arrives, number) in enumerate(steps):
            key = bytes([number])
            if arrives:
                bench.take(key, item)
                lines.setdefault(key, []).append(item)
            elif lines.get(key):
                ended.add(bench.end(key).item)
                lines[key].pop(0)
            arrived = [item for item, (arrives, _) in enumerate(steps[: item + 1]) if arrives]
            assert {key: record.item for key, record in bench.running.items()} == {
                key: line[0] for key, line in lines.items() if line
            }
            assert bench.mailbox.in_flight == len(arrived) - len(ended)
            assert bench.mailbox.blocked == sum(len(line) - 1 for line in lines.values() if line)
            first_open = next(
                (place for place, item in enumerate(arrived) if item not in ended), len(arrived)
            )
            assert bench.released == arrived[:first_open]

    def test_it_is_full_of_records_in_flight_or_of_rows_that_must_not_leave(self) -> None:
        bench = Bench(limit=3)
        bench.take(b"first", 0)
        bench.take(b"k", 1)
        assert not bench.mailbox.full
        bench.take(b"l", 2)
        assert bench.mailbox.full
        bench.end(b"l")
        taken = 3
        while not bench.mailbox.full:
            bench.end(b"k")
            bench.take(b"k", taken)
            taken += 1
        assert taken == 12, "records behind the first, four times the limit"
        bench.end(b"first")
        assert not bench.mailbox.full

    def test_records_that_nothing_lets_go_of_are_named(self) -> None:
        bench = Bench()
        bench.take(b"k", 0)
        bench.take(b"l", 1)
        with pytest.raises(FutureStateError, match=r"operator 'op', key .*k.*2 records can never end"):
            bench.mailbox.raise_stuck()


class Asked(ReadRequest):
    """Notes what arrives; has enough when it has seen ``enough_at`` keys."""

    def __init__(self, keys: list[bytes], enough_at: int | None = None) -> None:
        super().__init__(keys)
        self.all = keys
        self.found: dict[bytes, bytes | None] = {}
        self._enough_at = enough_at

    def arrived(self, start: int, values: Values) -> None:
        assert not self.found.keys() & set(self.all[start : start + len(values)]), "answered once"
        self.found.update(zip(self.all[start:], values, strict=False))
        assert self.missing == len(self.keys) - len(self.found)

    def enough(self, values: Values) -> bool:
        return self._enough_at is not None and len(self.found) >= self._enough_at


class Moody(Pacer):
    """Changes its mind as the test has it, each time it is told something."""

    def __init__(self, moods: list[bool], probe: int) -> None:
        self._moods = moods
        self._probe = probe
        super().__init__()

    def measured(self, keys: int, seconds: float) -> None:
        super().measured(keys, 1.0)
        self._moods[:-1] = self._moods[1:]

    @property
    def waits_for_device(self) -> bool:
        return self._moods[0]

    def probe_keys(self) -> int:
        return self._probe


class Sent:
    """Reads of 1,000 keys, of which every second exists, and the list gets that were sent off."""

    def __init__(self, pacer: Pacer, limits: AsyncLimits = _FOUR_THREADS) -> None:
        self.keys = [b"%04d" % number for number in range(1_000)]
        self.store = MemoryStore((key, b"v" + key) for key in self.keys[::2])
        self.gets: list[ListGet] = []
        self.threads = 0
        self.answered: list[tuple[bytes, bytes | None]] = []
        self.reads = Reads(MemTable(self.store), pacer, limits, self._submit, self._answer, self._fail)

    def _submit(self, gets: Any, threads: int) -> None:
        self.gets += gets
        self.threads = threads

    def _answer(self, requests: Any, values: Values) -> None:
        self.answered.extend(zip((key for key, *_ in requests), values, strict=True))

    def _fail(self, get: ListGet, error: BaseException) -> NoReturn:
        raise error

    def answer(self, get: ListGet, seconds: float = 1.0) -> None:
        self.reads.answered(Completion(get, self.store.get_many(get.keys), None, seconds))


class TestReads:
    @given(
        st.integers(0, 1_000),
        st.lists(st.booleans(), min_size=1, max_size=5),
        st.integers(0, 5),
        st.integers(1, 6),
        st.randoms(use_true_random=False),
    )
    def test_every_key_is_answered_once_wherever_it_is_read(
        self, count: int, moods: list[bool], probe: int, together: int, random: Any
    ) -> None:
        bench = Sent(Moody(moods, probe))
        asked = Asked(bench.keys[:count])
        bench.reads.read(asked, together)
        assert asked.missing == sum(len(get.keys) for get in bench.gets)
        assert bench.reads.outstanding == len(bench.gets)
        assert bench.threads <= min(4, len(bench.gets))
        random.shuffle(bench.gets)
        for get in bench.gets:
            bench.answer(get)
        assert asked.missing == bench.reads.outstanding == 0
        assert asked.found == {key: bench.store.get(key) for key in bench.keys[:count]}

    def test_what_is_found_not_worth_reading_is_not_read(self) -> None:
        bench = Sent(Pacer())
        asked = Asked(bench.keys, enough_at=1)
        bench.reads.read(asked)
        assert 0 < len(asked.found) < 200
        assert list(asked.found) == asked.keys
        assert asked.missing == 0
        assert not bench.gets

    def test_a_slow_list_get_ends_reads_at_once_and_quick_answers_bring_them_back(self) -> None:
        bench = Sent(Moody([False, True], 0))
        assert bench.reads.at_once
        bench.reads.read(Asked(bench.keys))
        assert bench.gets
        assert not bench.reads.at_once
        bench.reads.pacer._moods[:] = [False]  # type: ignore[attr-defined]
        bench.answer(bench.gets[0])
        assert bench.reads.at_once

    def test_reads_that_are_to_be_gathered_are_never_made_at_once(self) -> None:
        bench = Sent(Pacer(), AsyncLimits(batch_hot_reads=True))
        bench.reads.took(1e-6)
        assert not bench.reads.at_once


def test_requests_that_were_gathered_are_read_by_key_once() -> None:
    bench = Sent(Pacer(), AsyncLimits(buffer_size=3, buffer_timeout_ms=0))
    reads = bench.reads
    futures: list[StateFuture[Any]] = [StateFuture() for _ in range(3)]
    for key, future in zip([b"0002", b"0000", b"0001"], futures, strict=True):
        assert not reads.full
        reads.add((key, lambda value: value, future, None))
    assert reads.full
    assert reads.overdue
    reads.send_requests()
    assert bench.answered == [(b"0000", b"v0000"), (b"0001", None), (b"0002", b"v0002")]
    assert reads.requests == []
    assert not reads.overdue
