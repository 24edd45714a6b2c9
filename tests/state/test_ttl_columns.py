"""Column states with a time to live: their bytes, the clean-up, restarts and what may be declared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncstate import ColumnStateDescriptor, ListColumnStateDescriptor, StateTtl
from asyncstate.codec import KeyCodec, encode_namespace
from asyncstate.errors import CodecError, StateDeclarationError
from asyncstate.offline.inspection import Inspection, partition_sizes, read_partition
from asyncstate.offline.json_text import plain
from asyncstate.state.columnar import list_blocks
from asyncstate.testing import OperatorHarness
from tests.state.fakes import FakeContext, FakeRecord, FakeSink
from tests.state.ttl_column_probe import NUMBER, ColumnBench, ColumnProbe, text
from tests.state.ttl_probe import INPUT, MS

TTL_MS = 100
TTL_US = TTL_MS * MS
KEYS = KeyCodec([pa.int64()], ["k"], 4)


@pytest.fixture(params=["processing", "event"])
def domain(request: pytest.FixtureRequest) -> str:
    """Runs the test once in each time domain."""
    return str(request.param)


@pytest.fixture
def bench(domain: str, async_enabled: bool) -> Iterator[Callable[..., ColumnBench]]:
    """Makes benches with a ColumnProbe of the declared ttl."""
    made: list[ColumnBench] = []

    def make(operator: ColumnProbe | None = None) -> ColumnBench:
        operator = ColumnProbe(StateTtl(TTL_US, domain)) if operator is None else operator
        one = ColumnBench(operator, domain, async_enabled=async_enabled)
        made.append(one)
        return one

    yield make
    for one in made:
        one.harness.close()


def put(*numbers: int, key: int = 1) -> list[tuple[int, int, int]]:
    return [(key, number, 0) for number in numbers]


ASK = put(0)
NOTHING = ("+I", 1, None, [], [])


def seen(*numbers: int) -> tuple[Any, ...]:
    return ("+I", 1, numbers[-1], list(numbers), list(numbers))


# -- what reads show, in both modes -----------------------------------------------------------------------


def test_rows_expire_each_by_itself(bench: Callable[..., ColumnBench]) -> None:
    one = bench()
    one.run(1_000, "put", put(7))
    one.run(1_040, "put", put(8))
    assert one.run(1_099, "read", ASK) == [seen(7, 8)]
    assert one.run(1_100, "read", ASK) == [seen(8)]
    assert one.run(1_140, "read", ASK) == [NOTHING]


def test_rows_that_are_moved_keep_their_time(bench: Callable[..., ColumnBench]) -> None:
    one = bench()
    one.run(1_000, "put", put(1, 2))
    one.run(1_050, "put", put(3))
    one.run(1_090, "drop", ASK)
    assert one.run(1_099, "read", ASK)[0][3] == [2, 3]
    assert one.run(1_100, "read", ASK)[0][3] == [3]


def test_event_time_counts_from_the_row_or_the_watermark(async_enabled: bool) -> None:
    with ColumnBench(ColumnProbe(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        one.run(1_000, "put", [(1, 7, 80), (1, 8, -500)])
        assert one.run(1_099, "peek", ASK) == [("+I", 1, 8, [7, 8], [])]
        assert one.run(1_100, "peek", ASK) == [("+I", 1, None, [7], [])]
        assert one.run(1_180, "peek", ASK) == [("+I", 1, None, [], [])]


def test_nothing_expires_before_there_is_a_watermark_and_the_first_one_is_the_time(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_blocks, "TAIL_ROWS", 2)
    ttl = StateTtl(TTL_US, "event")
    with OperatorHarness(
        Untimed(ttl),
        [INPUT, INPUT],
        [["key"], ["key"]],
        event_time=[None, "time"],
        async_enabled=async_enabled,
    ) as harness:
        harness.push([(1, 0, "put", number) for number in range(5)])
        harness.end_batch()

        def read(watermark: int) -> Any:
            harness.advance_watermark(watermark * MS)
            harness.push([(1, watermark * MS, "peek", 0)], input=1)
            return harness.end_batch()

        assert read(1_000) == [("+I", 1, 4, [0, 1, 2, 3, 4], [])]
        assert read(1_099) == [("+I", 1, 4, [0, 1, 2, 3, 4], [])]
        assert read(1_100) == [("+I", 1, None, [], [])]
        read(1_151)
        assert harness.state_entries() == {}


class Untimed(ColumnProbe):
    """Only the second input has an event time; what the first one writes has none."""

    num_inputs = 2

    def open(self, context: Any) -> None:
        super().open(context)
        for state in (self.value, self.elements, self.windows):
            stamps_at = state.stamps_at
            state.stamps_at = lambda times, count, given=stamps_at: given(None, count)  # type: ignore[method-assign,misc]

    def process_bundle(self, bundle: Any, ctx: Any) -> Any:
        if bundle.times is None:
            object.__setattr__(bundle, "times", np.zeros(bundle.num_rows, np.int64))
        return super().process_bundle(bundle, ctx)


def test_the_last_micro_batch_sweeps_nothing_in_event_time(async_enabled: bool) -> None:
    with ColumnBench(ColumnProbe(StateTtl(TTL_US, "event")), "event", async_enabled=async_enabled) as one:
        one.run(1_000, "put", put(7))
        stored = one.entries
        one.harness.finish()
        assert one.entries == stored


# -- bytes ----------------------------------------------------------------------------------------------------


def test_what_is_stored_is_a_stamp_and_the_same_bytes(bench: Callable[..., ColumnBench]) -> None:
    """For rows and, in blocks, for each row behind the header and the table of lengths."""
    with_ttl, without = bench(), bench(ColumnProbe(None))
    for one in (with_ttl, without):
        one.run(1_000, "put", put(7, 8, 9))
    stamp = encode_namespace(1_000 * MS)
    assert with_ttl.entries.keys() == without.entries.keys()
    for key, raw in with_ttl.entries.items():
        plain_bytes = without.entries[key]
        if key[2] != 9:
            assert raw == stamp + plain_bytes
            continue
        lengths = np.frombuffer(plain_bytes, "<u4", 3, 16)
        assert raw[:16] == plain_bytes[:16]
        assert np.frombuffer(raw, "<u4", 3, 16).tolist() == (lengths + 8).tolist()
        rows = np.split(np.frombuffer(plain_bytes, np.uint8, offset=28), np.cumsum(lengths)[:-1])
        assert raw[28:] == b"".join(stamp + row.tobytes() for row in rows)


def test_a_row_that_is_too_short_for_its_stamp_is_named() -> None:
    sink, keys = FakeSink(), KEYS.group([pa.array([1], pa.int64())])
    sink.current = FakeRecord(b"", b"")
    state = opened(sink, StateTtl("1 hour"))[0]
    sink.base[keys.store_keys(8)[0]] = b"1234567"
    with pytest.raises(CodecError, match="state 'one' of operator 'op': a stored row has no time stamp"):
        state.get(keys)


def opened(sink: FakeSink, ttl: StateTtl, time: int = 0) -> tuple[Any, Any]:
    context = FakeContext(sink, page_size=2, processing_time=time * MS)
    return (
        context.get_state(ColumnStateDescriptor("one", NUMBER, ttl=ttl)),
        context.get_state(ListColumnStateDescriptor("many", NUMBER, ttl=ttl)),
    )


def test_a_range_of_lists_has_the_rows_that_are_not_expired() -> None:
    sink = FakeSink()
    descriptor = ListColumnStateDescriptor("lists", NUMBER, time_first=True, ttl=StateTtl(TTL_US))

    def at(time: int) -> Any:
        return FakeContext(sink, processing_time=time * MS).get_state(descriptor)

    keys = KEYS.group([pa.array([1, 2], pa.int64())], np.array([5, 6]))
    at(0).append(keys, [pa.array([10, 20]), pa.array(["a", "b"])], np.arange(2))
    at(60).append(
        keys.select(np.array([True, False])), [pa.array([11]), pa.array(["c"])], np.zeros(1, np.int64)
    )
    for time, numbers in ((99, [10, 11, 20]), (100, [11]), (160, [])):
        ranges = list(at(time).up_to(9))
        assert [number for found in ranges for number in found.columns[0].to_pylist()] == numbers
        assert sum(found.num_rows for found in ranges) == len(numbers)


# -- the clean-up -------------------------------------------------------------------------------------------


def test_what_has_expired_leaves_the_store_in_bounded_time(bench: Callable[..., ColumnBench]) -> None:
    """Half the ttl and one micro-batch after it has expired, for short and long lists."""
    one = bench()
    numbers = range(1_000, 1_150)
    one.run(1_000, "put", [row for key in range(30) for row in put(key, 100 + key, key=key)])
    one.run(1_001, "put", [row for key in range(3) for row in put(*numbers, key=key)])
    assert any(len(key) == 3 + 9 + 4 for key in one.entries)  # there are chunks
    one.run(1_099, "nothing", [])
    assert one.expired == 0
    removed = 0.0
    for time in range(1_101, 1_152, 10):
        one.run(time, "nothing", [])
        removed += one.expired
    assert one.entries == {}
    # the value, the rows of the list and those of the windows
    assert removed == 30 * (1 + 2 + 2) + 3 * (len(numbers) + len(numbers))


def test_the_clean_up_is_spread_and_leaves_what_lives(
    bench: Callable[..., ColumnBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a list is stored as if written at once."""
    monkeypatch.setattr(list_blocks, "TAIL_ROWS", 2)
    monkeypatch.setattr(list_blocks, "CHUNK_ROWS", 3)
    one, other = bench(), bench()
    keys = range(60)
    for key_rows in ([row for key in keys for row in put(*range(5), key=key)],):
        one.run(1_000, "put", key_rows)
    live = [row for key in keys for row in put(*range(5, 12), key=key)]
    for each in (one, other):
        each.run(1_070, "put", live)
    one.run(1_099, "nothing", [])
    swept = []
    for time in range(1_100, 1_151, 10):
        one.run(time, "nothing", [])
        swept.append(one.expired)
    other.run(1_150, "nothing", [])
    assert sum(swept) == 60 * (5 + 5)
    assert max(swept) < sum(swept) / 2
    assert one.entries == other.entries
    assert one.run(1_160, "read", ASK) == [("+I", 1, 11, [*range(5, 12)], [*range(5, 12)])]


def test_a_pause_is_made_up_for_at_once(bench: Callable[..., ColumnBench]) -> None:
    one = bench()
    one.run(1_000, "put", [row for key in range(20) for row in put(1, 2, key=key)])
    one.run(1_000_000, "nothing", [])
    assert one.entries == {}


# -- restarts -----------------------------------------------------------------------------------------------


def story(one: ColumnBench) -> Iterator[list[tuple[Any, ...]]]:
    for step in range(10):
        rows = [(key, 10 * step + key, key - 3) for key in range(12) if (key + step) % 3 == 0]
        yield one.run(1_000 + 30 * step, "read" if step % 3 == 1 else "put", rows)


@pytest.mark.parametrize("device", ["slow"], indirect=True)
def test_both_modes_both_stores_and_any_parallelism_agree(
    domain: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_blocks, "TAIL_ROWS", 2)
    uncached = {"async-state.cache-size": "0b"}
    outcomes = []
    for options in (
        {},
        {"async_enabled": True, "options": uncached},
        {"async_enabled": True, "parallelism": 3},
    ):
        ttl = StateTtl(TTL_US, domain)
        with ColumnBench(ColumnProbe(ttl), domain, **options) as one:  # type: ignore[arg-type]
            outcomes.append(([sorted(map(repr, rows)) for rows in story(one)], one.entries))
    assert outcomes[0][1]
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])


def test_restarts_and_replays_change_nothing(bench: Callable[..., ColumnBench], async_enabled: bool) -> None:
    one = bench()
    for _, found in zip(range(5), story(one), strict=False):
        assert found is not None
    again, other = one.restored(), one.restored(parallelism=3, async_enabled=not async_enabled)
    outcomes = []
    for each in (one, again, other):
        outputs = [
            sorted(each.run(1_135, "read", [(key, 0, 0) for key in range(12)])),
            sorted(each.run(1_215, "put", [(4, 100, 0)])),
        ]
        outcomes.append((outputs, each.entries, each.expired))
        each.harness.close()
    assert outcomes[0][2] > 0
    assert outcomes[0] == outcomes[1] == outcomes[2]


# -- inspection -----------------------------------------------------------------------------------------------


def test_stored_rows_are_shown_with_their_stamps(tmp_path: Path, async_enabled: bool) -> None:
    with ColumnBench(
        ColumnProbe(StateTtl("1 hour")), "processing", folder=tmp_path, async_enabled=async_enabled
    ) as one:
        one.run(1_000, "put", put(*range(70)))
        one.run(1_500, "put", put(70))
        inspection = Inspection(str(tmp_path / "checkpoint"))
        manifest = inspection.manifest(None)

        def rows(state: str) -> list[tuple[Any, ...]]:
            pieces = inspection.partitions(manifest, None, state)
            found = [row for piece in pieces for _, batch in read_partition(piece) for row in plain(batch)]
            return [(row["key"], row["value"], row["ttl_stamp"]) for row in found]

        stamps = [1_000 * MS] * 70 + [1_500 * MS]
        expected = [({"key": 1}, {"number": n, "text": text(n)}, stamps[n]) for n in range(71)]
        assert rows("value") == expected[-1:]
        assert rows("elements") == expected
        assert rows("windows") == expected
        sizes = {
            decoder.state.name: size
            for piece in inspection.partitions(manifest, None, None)
            for decoder, size in partition_sizes(piece)
        }
        assert (sizes["value"].keys, sizes["value"].entries, sizes["elements"].entries) == (1, 1, 2)
        command = [sys.executable, "-m", "asyncstate", "state", "show", "--format", "json"]
        shown = subprocess.run(
            [*command, str(tmp_path / "checkpoint"), "value"], capture_output=True, text=True, check=True
        )
        assert json.loads(shown.stdout)["ttl_stamp"] == 1_500 * MS


# -- declarations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "then", "difference"),
    [
        (None, "processing", "declared with no ttl but the checkpoint has a ttl in processing time"),
        ("processing", None, "declared with a ttl in processing time but the checkpoint has no ttl"),
        ("event", "processing", "a ttl in event time but the checkpoint has a ttl in processing time"),
    ],
)
@pytest.mark.parametrize("state", ["value", "elements"])
def test_switching_the_ttl_of_a_stored_state_is_refused(
    now: str | None, then: str | None, difference: str, state: str
) -> None:
    def probe(domain: str | None) -> ColumnProbe:
        return Only(None if domain is None else StateTtl(TTL_US, domain), state)

    with ColumnBench(probe(then), "processing") as one:
        one.run(1_000, "put", put(7))
        with pytest.raises(StateDeclarationError, match=f"state '{state}'.*{difference}.*a new name"):
            one.restored(operator=probe(now))


class Only(ColumnProbe):
    """Has the ttl on one state alone."""

    def __init__(self, ttl: StateTtl | None, name: str) -> None:
        super().__init__(ttl)
        self.name = name

    def open(self, context: Any) -> None:
        own = {self.name: self.ttl}
        self.value = context.get_state(ColumnStateDescriptor("value", NUMBER, ttl=own.get("value")))
        many = ListColumnStateDescriptor("elements", NUMBER, ttl=own.get("elements"))
        self.elements = context.get_state(many)
        self.windows = context.get_state(ColumnStateDescriptor("windows", NUMBER, time_first=True))


def test_the_duration_may_change(async_enabled: bool) -> None:
    with ColumnBench(ColumnProbe(StateTtl(TTL_US)), "processing", async_enabled=async_enabled) as one:
        one.run(1_000, "put", put(7))
        with one.restored(operator=ColumnProbe(StateTtl(2 * TTL_US))) as other:
            assert other.run(1_150, "read", ASK) == [seen(7)]
            assert other.run(1_199, "read", ASK) == [seen(7)]
            assert other.run(1_200, "read", ASK) == [NOTHING]


def test_event_time_needs_an_input_that_has_it() -> None:
    with pytest.raises(StateDeclarationError, match=r"state 'value'.*no input has an event time"):
        OperatorHarness(ColumnProbe(StateTtl(TTL_US, "event")), INPUT, ["key"])


@pytest.mark.parametrize("descriptor", [ColumnStateDescriptor, ListColumnStateDescriptor])
def test_a_ttl_may_be_a_duration_alone(descriptor: Any) -> None:
    assert descriptor("v", NUMBER, ttl="1 hour") == descriptor("v", NUMBER, ttl=StateTtl("1 hour"))
    with pytest.raises(StateDeclarationError, match="state 'v': ttl='an hour' is not a time to live"):
        descriptor("v", NUMBER, ttl="an hour")
    with pytest.raises(
        StateDeclarationError, match="state 'v': ttl has update='read-and-write', .* leave update out"
    ):
        descriptor("v", NUMBER, ttl=StateTtl("1 hour", update="read-and-write"))
