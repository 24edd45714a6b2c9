"""Time to live: what reads show, what they renew, what the store still holds, and what may be declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    StateTtl,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.codec import encode_namespace
from asyncstate.errors import StateDeclarationError
from asyncstate.state.keyed import chunks
from asyncstate.testing import OperatorHarness
from tests.state.fakes import FakeContext, FakeSink, record, run_records
from tests.state.ttl_probe import INPUT, MS, NOTHING, Bench, Probe, add

TTL_MS = 100
TTL_US = TTL_MS * MS


@pytest.fixture(params=["processing", "event"])
def domain(request: pytest.FixtureRequest) -> str:
    """Runs the test once in each time domain."""
    return str(request.param)


@pytest.fixture
def bench(domain: str, async_enabled: bool) -> Iterator[Callable[..., Bench]]:
    """Makes benches with a Probe of the declared ttl."""
    made: list[Bench] = []

    def make(
        operator: RecordOperator | None = None, *, options: dict[str, Any] | None = None, **ttl: str
    ) -> Bench:
        operator = Probe(StateTtl(TTL_US, domain, **ttl)) if operator is None else operator
        one = Bench(operator, domain, async_enabled=async_enabled, **(options or {}))
        made.append(one)
        return one

    yield make
    for one in made:
        one.harness.close()


def seen(*numbers: int) -> tuple[Any, ...]:
    """What ``read`` puts out after ``put`` of ``numbers``."""
    return ("+I", numbers[-1], list(numbers), sorted(numbers), sum(numbers), sorted(numbers))


# -- what reads show ----------------------------------------------------------------------------------------


def test_an_entry_has_expired_when_its_time_is_over(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.batch(1_000, ("put", 7))
    assert one.batch(1_099, ("read",)) == [seen(7)]
    assert one.batch(1_100, ("read",)) == [NOTHING]


def test_writing_renews(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.batch(1_000, ("put", 7))
    one.batch(1_060, ("put", 7))
    assert one.batch(1_159, ("read",)) == [
        ("+I", 7, [7], [7], 14, [7])
    ]  # of the elements only the second is left


@pytest.mark.parametrize("visibility", ["never-return-expired", "return-if-not-cleaned"])
def test_reading_renews_where_it_is_declared_to(bench: Callable[..., Bench], visibility: str) -> None:
    one = bench(update="read-and-write", visibility=visibility)
    one.batch(1_000, ("put", 7))
    for time in (1_060, 1_150, 1_249):
        assert one.batch(time, ("read",)) == [seen(7)]
    one.batch(1_399, ("nothing",))
    assert one.batch(1_400, ("read",)) == [NOTHING]


def test_reading_does_not_renew_otherwise(bench: Callable[..., Bench]) -> None:
    one = bench(update="create-and-write")
    one.batch(1_000, ("put", 7))
    stored = one.entries
    assert one.batch(1_060, ("read",)) == [seen(7)]
    assert one.entries == stored
    assert one.batch(1_100, ("read",)) == [NOTHING]


@pytest.mark.parametrize("update", ["create-and-write", "read-and-write"])
def test_expired_entries_can_be_shown_until_they_are_cleaned(
    bench: Callable[..., Bench], update: str
) -> None:
    one = bench(update=update, visibility="return-if-not-cleaned")
    one.batch(1_000, ("put", 7))
    assert one.batch(1_100, ("read",)) == [seen(7)]  # not renewed by it, or the last read would show it
    one.batch(1_100 + TTL_MS // 2, ("nothing",))
    assert one.batch(1_151, ("read",)) == [NOTHING]


def test_elements_and_entries_expire_each_by_itself(bench: Callable[..., Bench]) -> None:
    one = bench()
    for number in range(6):
        one.batch(1_000 + 10 * number, ("put", number))
    for number in range(5):
        expected = [*range(number + 1, 6)]
        (found,) = one.batch(1_100 + 10 * number, ("read",))
        assert found == ("+I", 5, expected, expected, 15, expected)
    assert one.batch(1_150, ("read",)) == [NOTHING]


def test_keys_do_not_share_their_time(bench: Callable[..., Bench]) -> None:
    one = bench(update="read-and-write")
    one.batch(1_000, ("put", 7, 1), ("put", 8, 2))
    one.batch(1_060, ("read", 0, 1))
    assert one.batch(1_120, ("read", 0, 1), ("read", 0, 2)) == [seen(7), NOTHING]


class Edges(RecordOperator):
    """Emits what the reads say that a Probe does not make; ``put`` writes."""

    def __init__(self, ttl: StateTtl) -> None:
        self.ttl = ttl

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("seen", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", int, default=-1, ttl=self.ttl))
        entries: MapStateDescriptor[int, str] = MapStateDescriptor("map", int, str, ttl=self.ttl)
        elements: ListStateDescriptor[str] = ListStateDescriptor("list", str, ttl=self.ttl)
        self.map = context.get_state(entries)
        self.list = context.get_state(elements)

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if row.op == "put":
            self.value.update(row.number)
            self.map.put_all({row.number: "a", row.number + 1: "b"})
            self.list.add_all(["a", "b"])
        elif row.op == "contains":
            ctx.emit(str(await self.map.async_contains(row.number)))
        elif row.op == "is_empty":
            plain = [self.map.is_empty(), self.value.is_empty()]
            ctx.emit(str([*plain, await self.map.async_is_empty(), await self.value.async_is_empty()]))
        elif row.op == "clear":
            self.map.clear()
            self.list.clear()
            self.value.clear()
        elif row.op == "read":
            found = [
                self.value.value(),
                list(self.map.entries()),
                list(self.map.values()),
                list(self.list.get()),
            ]
            ctx.emit(repr([*found, self.map.get(row.number), self.map.contains(row.number)]))


def test_what_has_expired_is_absent_to_every_read(bench: Callable[..., Bench], domain: str) -> None:
    one = bench(Edges(StateTtl(TTL_US, domain)))
    (there,) = one.batch(1_000, ("put", 4), ("read", 4))
    assert there[1] == "[4, [(4, 'a'), (5, 'b')], ['a', 'b'], ['a', 'b'], 'a', True]"
    assert [text for _, text in one.batch(1_050, ("contains", 4), ("is_empty",))] == [
        "True",
        "[False, False, False, False]",
    ]
    gone = one.batch(1_100, ("read", 4), ("contains", 4), ("is_empty",))
    assert [text for _, text in gone] == [
        "[-1, [], [], [], None, False]",
        "False",
        "[True, True, True, True]",
    ]


def test_asking_whether_an_entry_is_there_renews_it_and_asking_for_emptiness_does_not(
    bench: Callable[..., Bench], domain: str
) -> None:
    one = bench(Edges(StateTtl(TTL_US, domain, "read-and-write")))
    one.batch(1_000, ("put", 4))
    one.batch(1_060, ("contains", 4), ("is_empty",))
    assert [text for _, text in one.batch(1_120, ("read", 4))] == ["[-1, [(4, 'a')], ['a'], [], 'a', True]"]


def test_plain_reads_renew_too(bench: Callable[..., Bench], domain: str) -> None:
    one = bench(Edges(StateTtl(TTL_US, domain, "read-and-write")))
    one.batch(1_000, ("put", 4))
    for time in (1_090, 1_180, 1_270):
        (found,) = one.batch(time, ("read", 4))
        assert found[1] == "[4, [(4, 'a'), (5, 'b')], ['a', 'b'], ['a', 'b'], 'a', True]"


def test_clearing_removes_expired_entries_too(bench: Callable[..., Bench], domain: str) -> None:
    one = bench(Edges(StateTtl(TTL_US, domain)))
    one.batch(1_000, ("put", 4))
    one.batch(1_100, ("clear",))
    assert one.entries == {}


def test_long_lists_and_maps_are_read_past_what_has_expired(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole chunks and pages of two have nothing to show, at the front, in between and at the end."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 60)  # three elements
    one = bench(update="read-and-write", visibility="never-return-expired")
    live = [*range(12, 20), *range(32, 40)]
    one.batch(1_000, *(("put", number) for number in range(50) if number not in live))
    one.batch(1_040, *(("put", number) for number in live))
    (found,) = one.batch(1_110, ("read",))
    assert found == ("+I", 39, live, live, sum(range(50)), live)
    (found,) = one.batch(1_209, ("read",))  # renewed by the read before, across all chunks and pages
    assert found == ("+I", 39, live, live, sum(range(50)), live)
    assert one.batch(1_400, ("read",)) == [NOTHING]


class Sessions(RecordOperator):
    """``put`` into the namespace 1, ``merge`` that into 0, ``read`` 0."""

    def __init__(self, ttl: StateTtl) -> None:
        self.ttl = ttl

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("elements", pa.list_(pa.int64())), ("total", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        elements: ListStateDescriptor[int] = ListStateDescriptor("list", int, namespaced=True, ttl=self.ttl)
        self.list = context.get_state(elements)
        total = ReducingStateDescriptor("total", add, int, namespaced=True, ttl=self.ttl)
        self.total = context.get_state(total)

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if row.op == "put":
            self.list.at(1).async_add(row.number)
            self.total.at(1).async_add(row.number)
        elif row.op == "merge":
            self.list.async_merge_namespaces(0, [1])
            self.total.async_merge_namespaces(0, [1])
        else:
            ctx.emit(list(self.list.at(0).get()), await self.total.at(0).async_get())


def test_merging_keeps_the_time_of_elements_and_writes_what_is_folded(
    bench: Callable[..., Bench], domain: str
) -> None:
    one = bench(Sessions(StateTtl(TTL_US, domain)))
    one.batch(1_000, ("put", 1))
    one.batch(1_050, ("put", 2), ("merge",))
    assert one.batch(1_120, ("read",)) == [("+I", [2], 3)]
    assert one.batch(1_150, ("read",)) == [("+I", [], None)]


def test_what_has_expired_is_not_merged(bench: Callable[..., Bench], domain: str) -> None:
    one = bench(Sessions(StateTtl(TTL_US, domain)))
    one.batch(1_000, ("put", 1))
    assert one.batch(1_100, ("merge",), ("read",)) == [("+I", [], None)]
    one.batch(1_151)
    assert one.entries == {}


# -- time -----------------------------------------------------------------------------------------------------


def test_event_time_counts_from_the_record_or_the_watermark(async_enabled: bool) -> None:
    with Bench(Probe(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        early, late = (1, 1_080 * MS, "put", 7), (2, 500 * MS, "put", 8)
        one.harness.push([early, late])
        one.go_to(1_000)
        one.harness.end_batch()
        assert one.batch(1_099, ("read", 0, 1), ("read", 0, 2)) == [seen(7), seen(8)]
        assert one.batch(1_100, ("read", 0, 1), ("read", 0, 2)) == [seen(7), NOTHING]
        assert one.batch(1_180, ("read", 0, 1)) == [NOTHING]


def test_a_late_read_does_not_shorten_a_life(async_enabled: bool) -> None:
    with Bench(
        Probe(StateTtl(TTL_US, "event", "read-and-write")), "event", async_enabled=async_enabled
    ) as one:
        one.harness.push([(1, 1_080 * MS, "put", 7), (1, 1_010 * MS, "read", 0)])
        one.go_to(1_000)
        assert one.harness.end_batch() == [seen(7)]
        assert one.batch(1_150, ("read",)) == [seen(7)]


def test_nothing_expires_before_there_is_a_watermark(async_enabled: bool) -> None:
    with Bench(Probe(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        one.harness.push([(1, 10, "put", 7), (1, 5_000 * MS, "read", 0)])
        assert one.harness.end_batch() == [seen(7)]
        assert one.batch(5_000, ("read",)) == [NOTHING]


class Timed(Probe):
    """Reads when a timer fires that ``put`` has set a minute after the record."""

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.timers.register_event_time(row.number)
        return self.put(row.number)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        return self.read().then_accept(lambda found: ctx.emit(*found))


def test_timers_of_the_last_micro_batch_find_their_state(async_enabled: bool) -> None:
    """The end of the input is no time at which everything has expired."""
    with Bench(Timed(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        one.batch(1_000, ("put", 9_000 * MS))
        assert one.harness.finish() == [seen(9_000 * MS)]


def test_timers_stamp_with_their_time(async_enabled: bool) -> None:
    class Writes(Timed):
        def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
            return self.value.async_update(1)

    globals()["Writes"] = Writes  # so that it can be pickled
    Writes.__qualname__ = "Writes"
    with Bench(Writes(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        one.batch(1_000, ("put", 1_050 * MS))
        one.batch(1_060)
        stamps = {raw[:8] for key, raw in one.entries.items() if key[2] == 8}
        assert stamps == {encode_namespace(1_060 * MS)}  # the watermark: it is past the timer's time


class TwoInputs(Probe):
    """Only the second input has an event time."""

    num_inputs = 2


def test_records_without_event_time_count_from_the_first_watermark(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 60)
    with OperatorHarness(
        TwoInputs(StateTtl(TTL_US, "event")),
        [INPUT, INPUT],
        [["key"], ["key"]],
        event_time=[None, "time"],
        async_enabled=async_enabled,
    ) as harness:

        def batch(watermark: int, op: str, number: int = 0) -> Any:
            harness.advance_watermark(watermark * MS)
            harness.push([(1, 0, op, number)])
            return harness.end_batch()

        for number in range(9):
            harness.push([(1, 0, "put", number)])
        harness.end_batch()
        expected = ("+I", 8, [*range(9)], [*range(9)], 36, [*range(9)])
        assert batch(1_000, "read") == [expected]
        assert batch(1_099, "read") == [expected]
        assert batch(1_100, "read") == [NOTHING]
        assert batch(1_151, "nothing") == []
        assert harness.state_entries() == {}


# -- writes and renewals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("change", ["overwrite", "remove", "leave"])
def test_a_renewal_never_undoes_a_later_write_of_its_record(
    deferred: bool, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads have been asked for but not answered when the record writes."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 40)  # three elements
    ttl = StateTtl(TTL_US, update="read-and-write")
    sink = FakeSink(deferred)

    def states(time: int) -> tuple[Any, Any, Any]:
        context = FakeContext(sink, page_size=2, processing_time=time * MS)
        return (
            context.get_state(ValueStateDescriptor("value", int, ttl=ttl)),
            context.get_state(MapStateDescriptor("map", int, int, ttl=ttl)),
            context.get_state(ListStateDescriptor("list", int, ttl=ttl)),
        )

    def write() -> None:
        value, entries, items = states(1_000)
        value.update(1)
        entries.put_all({key: key for key in range(5)})
        items.update(range(5))

    def read_and_write() -> None:
        value, entries, items = states(1_050)
        for asked in (value.async_value(), entries.async_get(0), entries.async_contains(1)):
            asked.then_accept(lambda _: None)
        entries.async_entries().then_compose(lambda found: found.to_list())
        items.async_get().then_compose(lambda found: found.to_list())
        if change == "overwrite":
            value.async_update(2)
            entries.async_put_all({0: 10, 1: 11, 4: 14})
            items.async_update([9])
        elif change == "remove":
            for state in (value, entries, items):
                state.async_clear()

    run_records(sink, [record(1, write)])
    sink.commit()
    run_records(sink, [record(1, read_and_write)])
    sink.commit()

    new = encode_namespace(1_050 * MS)
    if change == "remove":
        assert sink.base == {}
        return
    found: list[Any] = []

    def read() -> None:
        value, entries, items = states(1_050)
        found.extend([value.value(), dict(entries.entries()), list(items.get())])

    run_records(sink, [record(1, read)])
    if change == "overwrite":
        assert found == [2, {0: 10, 1: 11, 2: 2, 3: 3, 4: 14}, [9]]
    else:
        assert found == [1, {key: key for key in range(5)}, [*range(5)]]
    assert {raw[:8] for key, raw in sink.base.items() if key[2] != 10} == {new}
    lists = [raw for key, raw in sink.base.items() if key[2] == 10]
    assert len(lists) == (1 if change == "overwrite" else 2)
    assert sum(raw.count(new) for raw in lists) == len(found[2])


def test_what_is_stored_is_a_stamp_and_the_same_bytes(bench: Callable[..., Bench], domain: str) -> None:
    """For values and map entries; and without a ttl nothing has a stamp."""
    with_ttl, without = bench(), bench(Probe(None))
    for one in (with_ttl, without):
        one.batch(1_000, ("put", 7))
    assert with_ttl.entries.keys() == without.entries.keys()
    for key, raw in with_ttl.entries.items():
        if key[2] == 9:  # the list: [chunks: 4][length: 1][element]
            plain = without.entries[key]
            assert raw == plain[:4] + bytes([plain[4] + 8]) + encode_namespace(1_000 * MS) + plain[5:]
        else:
            assert raw == encode_namespace(1_000 * MS) + without.entries[key]


# -- the clean-up -----------------------------------------------------------------------------------------------


def test_what_has_expired_leaves_the_store_in_bounded_time(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the ttl and one micro-batch after it has expired, for every key, wherever its key group's turn is."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 60)
    one = bench()
    keys = range(40)
    one.batch(1_000, *(("put", number, key) for key in keys for number in range(8)))
    one.batch(1_099)
    assert one.expired == 0
    removed = 0.0
    for time in range(1_100, 1_100 + TTL_MS // 2 + 1, 10):
        one.batch(time)
        removed += one.expired
    assert one.entries == {}
    assert removed == len(keys) * (1 + 8 + 8 + 1 + 8)


def test_the_clean_up_is_spread_over_micro_batches(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.batch(1_000, *(("put", 1, key) for key in range(200)))
    one.batch(1_099)
    swept = []
    for time in range(1_100, 1_160, 10):
        one.batch(time)
        swept.append(one.expired)
    assert sum(swept) == 200 * 5
    assert max(swept) < 200 * 5 / 2


def test_the_clean_up_leaves_what_lives(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a list is stored as if the rest had never been there."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 60)
    one, other = bench(), bench()
    one.batch(1_000, *(("put", number) for number in range(0, 40, 2)))
    for each in (one, other):
        each.batch(1_070, *(("put", number) for number in range(1, 40, 2)))
    one.batch(1_151)
    other.batch(1_151)
    assert one.expired == 3 * 20  # elements, map entries, map entries in namespaces
    lists = [{key: raw for key, raw in each.entries.items() if key[2] == 9} for each in (one, other)]
    assert lists[0] == lists[1]
    assert one.entries.keys() == other.entries.keys()
    (found,) = one.batch(1_160, ("read",))
    assert found[2] == [*range(1, 40, 2)]


def test_without_micro_batches_nothing_is_cleaned_and_the_next_one_does_it_all(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    one.batch(1_000, *(("put", 1, key) for key in range(20)))
    one.batch(1_000_000)
    assert one.entries == {}


def test_the_last_micro_batch_sweeps_nothing_in_event_time(async_enabled: bool) -> None:
    with Bench(Probe(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        one.batch(1_000, ("put", 7))
        stored = one.entries
        one.harness.finish()
        assert one.entries == stored


# -- restarts -----------------------------------------------------------------------------------------------------


def story(one: Bench) -> Iterator[list[tuple[Any, ...]]]:
    """Micro-batches in which some entries are renewed, some expire and some are swept; gives their outputs."""
    for step in range(12):
        time = 1_000 + 30 * step
        puts = [("put", step * 10 + key, key) for key in range(12) if (key + step) % 3 == 0]
        reads = [("read", 0, key) for key in range(0, 12, 2)]
        yield one.batch(time, *puts, *reads)


@pytest.mark.parametrize("update", ["create-and-write", "read-and-write"])
def test_both_modes_both_stores_and_any_parallelism_agree(
    domain: str, update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 60)
    outcomes = []
    for options in (
        {},
        {"async_enabled": True},
        {"async_enabled": True, "parallelism": 3},
    ):
        with Bench(Probe(StateTtl(TTL_US, domain, update)), domain, **options) as one:
            outcomes.append(([sorted(map(repr, rows)) for rows in story(one)], one.entries))
    assert outcomes[0][1]
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])


def test_a_restart_with_another_parallelism_and_mode_changes_nothing(
    bench: Callable[..., Bench], async_enabled: bool
) -> None:
    one = bench(update="read-and-write")
    for _, step in zip(range(6), story(one), strict=False):
        assert step is not None
    other = one.restored(parallelism=3, async_enabled=not async_enabled)
    rest = {1_200: [("read", 0, 2)], 1_230: [("read", 0, 4)], 1_290: [("read", 0, 4), ("read", 0, 6)]}
    for time, ops in rest.items():
        assert sorted(map(repr, one.batch(time, *ops))) == sorted(map(repr, other.batch(time, *ops)))
        assert one.entries == other.entries
    other.harness.close()


def test_a_replayed_micro_batch_gives_the_same(bench: Callable[..., Bench]) -> None:
    one = bench(update="read-and-write")
    one.batch(1_000, *(("put", key, key) for key in range(30)))
    one.batch(1_070, *(("put", key, key) for key in range(10, 20)))
    again = one.restored()
    outcomes = []
    for each in (one, again):
        outcomes.append((each.batch(1_120, ("read", 0, 1), ("read", 0, 12)), each.entries, each.expired))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2] > 0
    again.harness.close()


# -- declarations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "then", "difference"),
    [
        (None, "processing", "declared with no ttl but the checkpoint has a ttl in processing time"),
        ("processing", None, "declared with a ttl in processing time but the checkpoint has no ttl"),
        (
            "event",
            "processing",
            "declared with a ttl in event time but the checkpoint has a ttl in processing time",
        ),
    ],
)
def test_switching_the_ttl_of_a_stored_state_is_refused(
    now: str | None, then: str | None, difference: str
) -> None:
    def probe(domain: str | None) -> Probe:
        return Probe(None if domain is None else StateTtl(TTL_US, domain))

    with Bench(probe(then), "processing") as one:
        one.batch(1_000, ("put", 7))
        with pytest.raises(StateDeclarationError) as refused:
            one.restored(operator=probe(now))
    message = str(refused.value)
    assert "operator 'operator', state 'value'" in message
    assert difference in message
    assert "Declare it as it is stored, or give the state a new name" in message


def test_the_other_options_may_change(async_enabled: bool) -> None:
    with Bench(Probe(StateTtl(TTL_US)), "processing", async_enabled=async_enabled) as one:
        one.batch(1_000, ("put", 7))
        longer = StateTtl(2 * TTL_US, update="read-and-write", visibility="return-if-not-cleaned")
        with one.restored(operator=Probe(longer)) as other:
            assert other.batch(1_150, ("read",)) == [seen(7)]
            assert other.batch(1_349, ("read",)) == [seen(7)]


def test_event_time_needs_an_input_that_has_it() -> None:
    with pytest.raises(
        StateDeclarationError, match=r"operator 'operator', state 'value'.*no input has an event time"
    ):
        OperatorHarness(Probe(StateTtl(TTL_US, "event")), INPUT, ["key"])


@pytest.mark.parametrize(
    "duration", ["10 minutes", timedelta(minutes=10), 600_000_000, "5 minutes 300 seconds"], ids=str
)
def test_durations(duration: Any) -> None:
    ttl = StateTtl(duration)
    assert ttl.duration_us == 600_000_000
    assert (str(ttl.time), str(ttl.update), str(ttl.visibility)) == (
        "processing",
        "create-and-write",
        "never-return-expired",
    )
    assert ttl == StateTtl("10 minutes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("soon",), "duration is 'soon'.*write it like"),
        ((0,), "duration is 0; give at least one microsecond"),
        (("-1 hour",), "duration is '-1 hour'"),
        ((2**63,), "duration is 9223.*at most"),
        ((True,), "duration is True"),
        ((1, "wall"), "time is 'wall'; give one of: 'processing', 'event'"),
        ((1, "event", "read"), "update is 'read'; give one of: 'create-and-write', 'read-and-write'"),
        ((1, "event", "read-and-write", "show"), "visibility is 'show'; give one of"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(StateDeclarationError, match=f"StateTtl: {message}"):
        StateTtl(*arguments)


@pytest.mark.parametrize("ttl", ["10 minutes", timedelta(minutes=10), 600_000_000])
def test_a_duration_alone_is_a_ttl_with_the_usual_options(ttl: Any) -> None:
    assert ValueStateDescriptor("v", int, ttl=ttl) == ValueStateDescriptor("v", int, ttl=StateTtl(ttl))
    assert ValueStateDescriptor("v", int, ttl=ttl).ttl == StateTtl("10 minutes")


@pytest.mark.parametrize("ttl", ["10 mins", "", True, 1.5, 0, -1])
def test_what_is_no_duration_is_no_ttl(ttl: Any) -> None:
    with pytest.raises(StateDeclarationError, match=f"state 'v': ttl={ttl!r} is not a time to live"):
        ValueStateDescriptor("v", int, ttl=ttl)
