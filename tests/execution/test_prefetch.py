"""Reading ahead of the records: what is read early, when that ends, and that nobody sees a difference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import StoreError
from asyncstate.execution import BLOCK_ROWS, AsyncLimits, Completion, ListGet, Pacer
from asyncstate.execution.prefetch import AheadBlock, ReadAhead, UpcomingRows
from asyncstate.execution.reads import Reads
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row, Timer
from asyncstate.state import MapStateDescriptor, ValueStateDescriptor
from asyncstate.storage import MemTable
from asyncstate.storage.spill import WriteBound
from asyncstate.testing import OperatorHarness
from tests.memory_store import MemoryStore

GROUP, A = b"\0\0", b"\x08"


class Slow(Pacer):
    """Takes the store for a slow one, without measuring."""

    @property
    def waits_for_device(self) -> bool:
        return True

    def probe_keys(self) -> int:
        return 0


class Braking(Pacer):
    """Takes the store for a slow one from its first list get on."""

    def measured(self, keys: int, seconds: float) -> None:
        self.us_per_key = 1_000.0


class Bench:
    """A ReadAhead whose list gets are answered when the test says so."""

    def __init__(self, pacer: Pacer | None = None, rows_ahead: int = 2 * BLOCK_ROWS) -> None:
        self.store = MemoryStore([(GROUP + A + key(n), b"a%d" % n) for n in range(0, 10_000, 2)])
        self.sent: list[ListGet] = []
        self.answered = 0
        self.begin(MemTable(self.store), pacer or Slow(), rows_ahead)

    def begin(self, overlay: MemTable, pacer: Pacer, rows_ahead: int) -> None:
        self.overlay = overlay
        self.reads = Reads(
            overlay, pacer, AsyncLimits(), lambda gets, threads: self.sent.extend(gets), print, self.failed
        )
        self.ahead = ReadAhead(overlay, self.reads, rows_ahead)

    def failed(self, get: ListGet, error: BaseException) -> NoReturn:
        raise StoreError(f"{get.wanted.about(get.start)[0]!r}") from error

    def wait(self, block: Any) -> None:
        self.answer()
        assert not block.missing

    def answer(self) -> None:
        sent, self.sent[:] = list(self.sent), []
        for get in sent:
            self.answered += len(get.keys)
            self.reads.answered(Completion(get, self.store.get_many(get.keys), None, 1.0))

    def rows(self, numbers: Sequence[int]) -> UpcomingRows:
        return UpcomingRows(self.ahead, self.wait, 0, [GROUP] * len(numbers), [key(n) for n in numbers])

    def want(self, *state_ids: bytes) -> None:
        for state_id in state_ids:
            for _ in range(BLOCK_ROWS):
                self.ahead.waited(GROUP + state_id + key(1), key(1))
        self.ahead.learn(0, BLOCK_ROWS)

    @property
    def read(self) -> float:
        return self.ahead.keys_read


def key(number: int) -> bytes:
    return b"k%06d" % number


def test_nothing_is_read_before_records_have_waited() -> None:
    bench = Bench()
    rows = bench.rows(range(3_000))
    for row in range(0, 3_000, BLOCK_ROWS):
        rows.at(row)
    rows.done()
    assert bench.read == 0


def test_what_records_waited_for_is_read_for_the_rows_to_come() -> None:
    bench = Bench()
    bench.want(A)
    rows = bench.rows(range(5_000))
    rows.at(0)
    assert bench.read == 3 * BLOCK_ROWS, "this block and two ahead"
    reads = bench.overlay.statistics().store_reads
    assert bench.overlay.peek(GROUP + A + key(4)) == b"a4"
    assert bench.overlay.peek(GROUP + A + key(5)) is None, "absence is read ahead, too"
    assert bench.overlay.statistics().store_reads == reads
    rows.at(BLOCK_ROWS)
    assert bench.read == 4 * BLOCK_ROWS


def test_of_a_quick_store_the_rows_at_hand_are_read_on_this_thread() -> None:
    bench = Bench(Pacer())
    bench.want(A)
    rows = bench.rows(range(5_000))
    rows.at(0)
    assert bench.read == BLOCK_ROWS
    assert not bench.answered
    assert not bench.sent
    assert bench.overlay.peek(GROUP + A + key(4)) == b"a4"
    for number in range(BLOCK_ROWS):
        bench.overlay.peek(GROUP + A + key(number))
    rows.at(BLOCK_ROWS)
    assert bench.read == 2 * BLOCK_ROWS
    assert bench.overlay.peek(GROUP + A + key(1_004)) == b"a1004"


def test_of_a_slow_store_the_rows_to_come_are_read_as_well() -> None:
    pacer = Pacer()
    bench = Bench(pacer)
    bench.want(A)
    for _ in range(50):
        pacer.measured(1, 1.0)
    bench.rows(range(5_000)).at(0)
    assert bench.read == 3 * BLOCK_ROWS
    assert bench.answered == 3 * BLOCK_ROWS


def test_a_store_that_becomes_slow_is_read_on_the_threads_from_then_on() -> None:
    bench = Bench(Braking())
    bench.want(A)
    rows = bench.rows(range(BLOCK_ROWS))
    rows.at(0)
    assert 0 < bench.answered < BLOCK_ROWS, "the rest; the rows are at hand, so it was waited for"
    assert bench.read == BLOCK_ROWS
    assert [bench.overlay.peek(GROUP + A + key(n)) for n in (0, 998)] == [b"a0", b"a998"]


def test_keys_that_memory_knows_are_not_looked_for_while_the_store_is_quick() -> None:
    bench = Bench(Pacer())
    bench.want(A)
    for n in range(0, BLOCK_ROWS - 100):
        bench.overlay.remember(GROUP + A + key(n), b"cached")
    rows = bench.rows(range(2 * BLOCK_ROWS))
    rows.at(0)
    assert bench.read == 0
    assert bench.ahead.wanted(0) == []
    rows.at(BLOCK_ROWS)
    assert bench.read == 0, "until records ask the store again"


def test_places_that_no_two_records_share_are_not_counted_without_bound() -> None:
    bench = Bench()
    for number in range(50_000):
        bench.ahead.waited(GROUP + A + key(1) + b"%d" % number, key(1))
        assert len(bench.ahead._waited) <= 10 * BLOCK_ROWS
    bench.ahead.learn(0, BLOCK_ROWS)
    assert bench.ahead.wanted(0) == []


def test_an_entry_that_most_rows_ask_for_is_read_ahead_others_are_not() -> None:
    bench = Bench()
    bench.store.apply([(GROUP + A + key(7) + b"common", b"7")], 1)
    for number in range(BLOCK_ROWS):
        bench.ahead.waited(GROUP + A + key(1) + b"common", key(1))
        bench.ahead.waited(GROUP + A + key(1) + b"own %d" % number, key(1))
    bench.ahead.learn(0, BLOCK_ROWS)
    assert bench.ahead.wanted(0) == [(A, b"common")]
    bench.rows(range(10)).at(0)
    assert bench.read == 10
    assert bench.overlay.peek(GROUP + A + key(7) + b"common") == b"7"


def test_what_is_remembered_of_places_is_bounded() -> None:
    bench = Bench(rows_ahead=0)
    for window in range(200):
        for _ in range(BLOCK_ROWS):
            bench.ahead.waited(GROUP + A + key(1) + b"%d" % window, key(1))
        bench.ahead.learn(0, BLOCK_ROWS)
        rows = bench.rows([window])
        rows.at(0)
        rows.done()
        assert len(bench.ahead.wanted(0)) <= 1
        assert len(bench.ahead._access_patterns) <= 64


def test_a_state_that_few_records_read_is_left_alone() -> None:
    bench = Bench()
    for _ in range(BLOCK_ROWS // 10):
        bench.ahead.waited(GROUP + A + key(1), key(1))
    bench.ahead.learn(0, BLOCK_ROWS)
    assert bench.ahead.wanted(0) == []


def test_what_nobody_asks_for_ends_the_reading_ahead_for_longer_each_time() -> None:
    bench = Bench(rows_ahead=0)
    blocks_until_wanted = []
    for _ in range(4):
        waited = 0
        while not bench.ahead.wanted(0):
            bench.want(A)
            waited += 1
        blocks_until_wanted.append(waited)
        rows = bench.rows(range(2 * BLOCK_ROWS))
        rows.at(0)
        bench.answer()
        rows.done()
    assert blocks_until_wanted == [1, 2, 3, 5]
    assert bench.ahead.keys_unused == bench.read
    assert bench.overlay.drop_read_ahead([GROUP + A + key(n) for n in range(5_000)]) == 0, "all gone"


@pytest.mark.parametrize(("pacer", "goes_on"), [(Slow(), True), (Pacer(), False)])
def test_a_quick_store_has_to_be_asked_for_more_of_what_was_read(pacer: Pacer, goes_on: bool) -> None:
    bench = Bench(pacer, rows_ahead=0)
    bench.want(A)
    rows = bench.rows(range(BLOCK_ROWS))
    rows.at(0)
    bench.answer()
    for number in range(6 * BLOCK_ROWS // 10):
        bench.overlay.peek(GROUP + A + key(number))
    rows.done()
    assert bench.ahead.keys_unused == 4 * BLOCK_ROWS // 10
    assert bool(bench.ahead.wanted(0)) is goes_on


def test_absent_keys_of_a_quick_store_are_left_to_its_filter() -> None:
    bench = Bench(Pacer())
    bench.want(A)
    rows = bench.rows(range(20_000, 22_000))
    rows.at(0)
    assert 0 < bench.read < BLOCK_ROWS / 2, "enough to tell"
    rows.at(BLOCK_ROWS)
    assert bench.read < BLOCK_ROWS / 2
    assert bench.ahead.wanted(0) == []


def test_a_quick_store_is_not_read_in_vain_for_more_than_one_block() -> None:
    bench = Bench(Pacer())
    bench.want(A)
    rows = bench.rows(range(4 * BLOCK_ROWS))
    for row in range(0, 4 * BLOCK_ROWS, BLOCK_ROWS):
        rows.at(row)
    assert bench.read == BLOCK_ROWS


def test_a_key_is_read_once_and_known_keys_not_at_all() -> None:
    bench = Bench()
    bench.want(A)
    bench.overlay.put(GROUP + A + key(3), b"written")
    bench.overlay.remember(GROUP + A + key(4), b"cached")
    rows = bench.rows([1, 2, 3, 4] * 750)
    rows.at(0)
    assert bench.read == 2
    assert bench.overlay.peek(GROUP + A + key(3)) == b"written"


class Probing(Slow):
    """Reads three keys on the calling thread, to see whether the store is still slow."""

    def probe_keys(self) -> int:
        return 3


class Broken(MemoryStore):
    """Cannot be read."""

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        raise StoreError("the disk is gone")


def test_a_probe_that_fails_says_what_it_read() -> None:
    bench = Bench()
    bench.begin(MemTable(Broken()), Probing(), 0)
    bench.want(A)
    with pytest.raises(StoreError, match=re.escape(repr(GROUP + A + key(2)))):
        bench.ahead.read(AheadBlock(0, [GROUP], [key(2)]))


def test_an_answer_from_before_a_spill_is_not_believed() -> None:
    bench = Bench()
    bench.begin(MemTable(bench.store, bound=WriteBound(1 << 20, MemoryStore, "memory")), Slow(), 0)
    bench.want(A)
    block = AheadBlock(0, [GROUP], [key(2)])
    bench.ahead.read(block)
    bench.overlay.put(GROUP + A + key(2), b"new")
    bench.overlay.spill()
    bench.wait(block)
    assert bench.overlay.get(GROUP + A + key(2)) == b"new"


def test_a_spill_ends_what_was_read_ahead() -> None:
    bench = Bench()
    bench.begin(MemTable(bench.store, 0, bound=WriteBound(1 << 20, MemoryStore, "memory")), Slow(), 0)
    bench.want(A)
    block = AheadBlock(0, [GROUP], [key(2)])
    bench.ahead.read(block)
    bench.wait(block)
    bench.overlay.delete(GROUP + A + key(2))
    bench.overlay.spill()
    assert bench.overlay.get(GROUP + A + key(2)) is None


# -- in a whole operator ---------------------------------------------------------------------------------

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Sums(RecordOperator):
    """Two sums a key, of which ``second`` is only read for odd values; a map by value; a timer that takes the sum."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("first", pa.int64()), ("second", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.first: Any = context.get_state(ValueStateDescriptor("first", pa.int64()))
        self.second: Any = context.get_state(ValueStateDescriptor("second", pa.int64()))
        self.seen: Any = context.get_state(MapStateDescriptor("seen", pa.int64(), pa.int64()))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        first = (await self.first.async_value() or 0) + row.v
        await self.first.async_update(first)
        second = None
        if row.v % 2:
            second = (await self.second.async_value() or 0) + 1
            await self.second.async_update(second if row.v % 3 else None)
        seen = await self.seen.async_get(row.v % 4) or 0
        await self.seen.async_put(row.v % 4, seen + 1)
        if row.v % 5 == 0:
            ctx.timers.register_processing_time(ctx.processing_time)
        ctx.emit(row.k, first, second)

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        first = await self.first.async_value()
        ctx.emit(ctx.key[0], -1 if first is None else first, timer.time)
        if first is not None and first % 2:
            self.first.clear()


def _run(
    batches: list[list[tuple[int, int]]], asynchronous: bool, **options: Any
) -> tuple[list[Any], Any, dict[str, float]]:
    settled = {"async-state.enabled": asynchronous, **{f"async-state.{n}": v for n, v in options.items()}}
    figures: dict[str, float] = {}
    out = []
    with OperatorHarness(Sums(), SCHEMA, ["k"], options=settled) as harness:
        for rows in batches:
            harness.push(rows)
            out.append(harness.end_batch())
            for name, value in harness.statistics().items():
                figures[name] = figures.get(name, 0) + value
        return out, harness.state_entries(), figures


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pacer, "waits_for_device", property(lambda self: True))


@pytest.mark.long
@pytest.mark.usefixtures("slow_store")
@pytest.mark.parametrize(
    "more", [{}, {"write-cache-size": "1mb", "cache-size": "0b"}, {"in-flight-limit": 7}]
)
def test_results_and_state_are_as_without(more: dict[str, Any]) -> None:
    batches = [[((n * 7919) % 3_000, n + batch) for n in range(6_000)] for batch in range(2)]
    options = {"cache-size": "64kb", **more}
    sync, stored, _ = _run(batches, False, **options)
    out, stored_async, figures = _run(batches, True, **options)
    assert out == sync
    assert stored_async == stored
    assert figures["read_ahead_keys"] > 4_000


@pytest.mark.parametrize(
    "more",
    [{}, {"write-cache-size": "1mb"}, {"in-flight-limit": 7}],
)
def test_results_and_state_are_as_without_on_a_quick_store(more: dict[str, Any]) -> None:
    batches = [[((n * 7919) % 6_007, n + batch) for n in range(5_000)] for batch in range(3)]
    options = {"cache-size": "0b", **more}
    sync, stored, figures = _run(batches, False, **options)
    assert figures["store_reads"] > 10_000
    out, stored_async, figures = _run(batches, True, **options)
    assert out == sync
    assert stored_async == stored
    assert figures["read_ahead_keys"] > 6_000


@pytest.mark.usefixtures("slow_store")
@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 2_500), st.integers(1, 50), st.integers(1, 2_000)), min_size=1, max_size=3
    )
)
def test_any_rows_give_what_sync_gives(shapes: list[tuple[int, int, int]]) -> None:
    batches = [[((n * 31 + salt) % keys, n * salt) for n in range(rows)] for rows, salt, keys in shapes]
    sync = _run(batches, False)[:2]
    assert _run(batches, True)[:2] == sync


@pytest.mark.usefixtures("slow_store")
def test_most_reads_of_a_record_are_there_when_it_comes() -> None:
    batches = [[(n, n) for n in range(10_000)] for _ in range(2)]
    *_, figures = _run(batches, True, **{"cache-size": "64kb"})
    used = figures["read_ahead_keys"] - figures["read_ahead_unused"]
    # "first" for each row and "second" for half of them, but for the blocks that taught it
    assert 2 * 15_000 - 4 * BLOCK_ROWS <= used <= 2 * 25_000
    assert used >= 0.4 * figures["read_ahead_keys"]
