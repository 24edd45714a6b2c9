"""The state cache as a job sees it: what reaches the store, in the first micro-batch and in those after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import OperatorError
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from asyncstate.testing import OperatorHarness, Tuning
from operators import Deduplicate

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
HOT = [[key, 1] for key in (1, 2, 3, 4)]
BAD = -1


class Sum(RecordOperator):
    """A sum a key, through futures; fails on a value of BAD."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.sum = context.get_state(ValueStateDescriptor("sum", int))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if row.value == BAD:
            raise ValueError("a bad value")

        def add(total: int | None) -> Any:
            ctx.emit(row.key, (total or 0) + row.value)
            return self.sum.async_update((total or 0) + row.value)

        return self.sum.async_value().then_compose(add)


class Known(RecordOperator):
    """Reads without ever writing: whether a key has a sum. It has none."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.sum = context.get_state(ValueStateDescriptor("sum", int))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.sum.async_value().then_accept(lambda total: ctx.emit(row.key, total))


class Scan(RecordOperator):
    """Puts the row under its value, then gives the number of entries while rewriting each."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.entries = context.get_state(MapStateDescriptor("entries", int, int))

    async def process(self, row: Row, ctx: RecordContext) -> Any:
        await self.entries.async_put(row.value, row.value)
        total = 0
        async for value, count in await self.entries.async_entries():
            assert await self.entries.async_get(value) == count
            await self.entries.async_put(value, count + 1)
            await self.entries.async_put(value + 1_000, count)
            await self.entries.async_remove(value + 1_000)
            total += count
        ctx.emit(row.key, total)


def _harness(operator: Any, enabled: bool, tuning: Tuning | None = None, **options: Any) -> OperatorHarness:
    settings = {f"async-state.{name.replace('_', '-')}": value for name, value in options.items()}
    return OperatorHarness(operator, SCHEMA, ["key"], async_enabled=enabled, options=settings, tuning=tuning)


def _batch(harness: OperatorHarness, rows: list[list[int]]) -> list[tuple[Any, ...]]:
    harness.push(rows)
    return harness.end_batch()


def test_hot_keys_reach_the_store_once_and_then_never(async_enabled: bool) -> None:
    with _harness(Sum(), async_enabled) as harness:
        _batch(harness, HOT * 50)
        first = harness.statistics()
        assert (first["reads"], first["store_reads"], first["cache_carried"]) == (200, 4, 0)
        for number in (2, 3, 4):
            assert _batch(harness, HOT * 50)[-1] == ("+I", 4, 50 * number)
            following = harness.statistics()
            assert (following["store_reads"], following["cache_hits"]) == (0, 200)
            assert following["cache_carried"] == 4


def test_values_that_are_not_kept_decoded_are_kept_as_bytes(async_enabled: bool) -> None:
    for option in ({"read_cache_size": "0b"}, {}):
        with _harness(Sum(), async_enabled, **option) as harness:
            for known in (0, 4):
                _batch(harness, HOT * 50)
                found = harness.statistics()
                assert found["reads"] == found["cache_hits"] + found["cache_misses"] == 200
                assert (found["store_reads"], found["cache_carried"]) == (4 - known, known)
                assert found["changes"] == 4


def test_nothing_is_kept_if_reads_are_to_wait(async_enabled: bool) -> None:
    with _harness(Sum(), async_enabled, Tuning(batch_hot_reads=True)) as harness:
        for number in (1, 2):
            assert _batch(harness, HOT * 50)[-1] == ("+I", 4, 50 * number)
            assert harness.statistics()["cache_carried"] == 0


class Two(Sum):
    """A sum a key, and each value that the key has had, in a state of lists."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.values = context.get_state(ListStateDescriptor("values", int))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        self.values.add(row.value)
        return super().process(row, ctx)


@pytest.mark.parametrize("operator", [Sum, Two])
@pytest.mark.parametrize(
    ("cache_size", "read_cache_size"), [("64kb", "auto"), ("64kb", "8kb"), ("1mb", "16kb")]
)
def test_all_that_is_kept_is_within_the_bound(
    async_enabled: bool, operator: type[Sum], cache_size: str, read_cache_size: str
) -> None:
    limit = 1 << 20 if cache_size == "1mb" else 64 << 10
    with _harness(
        operator(), async_enabled, cache_size=cache_size, read_cache_size=read_cache_size
    ) as harness:
        for number in (1, 2, 3):
            rows = [[key, 1] for key in range(1_000)]
            assert _batch(harness, rows)[-1] == ("+I", 999, number)
            found = harness.statistics()
            assert 0 < found["cache_bytes_peak"] <= limit + 1_000
            assert found["cache_bytes_limit"] <= limit
            assert found["cache_evictions"] > 0
            assert found["store_reads"] > 0


def test_absent_keys_reach_the_store_once_and_then_never(async_enabled: bool) -> None:
    with _harness(Known(), async_enabled) as harness:
        for expected in (4, 0, 0):
            assert _batch(harness, HOT * 50) == [("+I", key, None) for key in (1, 2, 3, 4)] * 50
            assert harness.statistics()["store_reads"] == expected


@pytest.mark.parametrize("bundle_size", [1, 3, 100_000])
@pytest.mark.parametrize(("column_cache", "first"), [(0, 20), (1 << 20, 0)])
def test_bundles_reach_the_store_once_a_key(
    async_enabled: bool, bundle_size: int, column_cache: int, first: int
) -> None:
    operator = Deduplicate(keep="first", time="processing")
    tuning = Tuning(columns_bytes=column_cache)
    with _harness(operator, async_enabled, tuning, bundle_size=bundle_size) as harness:
        rows = [[key, 1] for key in range(20)]
        for expected in (first, 0, 0):  # of a new state the column cache knows that nothing is there
            _batch(harness, rows)
            assert harness.statistics()["store_reads"] == expected
        _batch(harness, [*rows, [77, 1]])
        assert harness.statistics()["store_reads"] == (1 if first else 0)


def test_without_a_cache_every_micro_batch_reads_anew(async_enabled: bool) -> None:
    with _harness(Sum(), async_enabled, cache_size="0b") as harness:
        for number in (1, 2, 3):
            assert _batch(harness, HOT)[0] == ("+I", 1, number)
            found = harness.statistics()
            assert (found["store_reads"], found["cache_carried"], found["cache_bytes_limit"]) == (4, 0, 0)


def test_a_micro_batch_that_fails_leaves_nothing_behind(async_enabled: bool) -> None:
    with _harness(Sum(), async_enabled) as harness:
        _batch(harness, HOT)
        harness.push([[1, 100], [2, BAD]])
        with pytest.raises(OperatorError, match="a bad value"):
            harness.end_batch()
        harness._pending.clear()  # the query starts again, with other input
        assert _batch(harness, HOT) == [("+I", key, 2) for key in (1, 2, 3, 4)]
        assert harness.statistics()["store_reads"] == 4


def test_the_cache_of_an_attempt_that_was_not_committed_is_not_used(async_enabled: bool) -> None:
    with _harness(Sum(), async_enabled) as harness:
        _batch(harness, HOT)
        committed = harness._manifest
        _batch(harness, [[1, 100]])
        harness._manifest = committed  # as if another attempt at the second micro-batch were to come
        assert _batch(harness, [[1, 10]]) == [("+I", 1, 11)]
        assert harness.statistics()["cache_carried"] == 0
        assert _batch(harness, [[1, 10]]) == [("+I", 1, 21)]
        assert harness.statistics()["store_reads"] == 0


def test_two_jobs_in_one_process_do_not_mix(async_enabled: bool) -> None:
    with _harness(Sum(), async_enabled) as one, _harness(Sum(), async_enabled) as two:
        for number in (1, 2, 3):
            assert _batch(one, [[1, 1]]) == [("+I", 1, number)]
            assert _batch(two, [[1, 10]]) == [("+I", 1, 10 * number)]
        assert one.statistics()["store_reads"] == two.statistics()["store_reads"] == 0


def test_another_parallelism_starts_with_an_empty_cache(async_enabled: bool) -> None:
    rows = [[key, 1] for key in range(30)]
    with _harness(Sum(), async_enabled) as harness:
        _batch(harness, rows)
        snapshot = harness.snapshot()
        with harness.restore(snapshot, parallelism=3) as wider:
            assert sorted(_batch(wider, rows)) == [("+I", key, 2) for key in range(30)]
            found = wider.statistics()
            assert (found["store_reads"], found["cache_carried"]) == (30, 0)
            assert sorted(_batch(wider, rows)) == [("+I", key, 3) for key in range(30)]
            assert wider.statistics()["store_reads"] == 0


@pytest.mark.parametrize("cache_size", ["0b", "1kb", "1mb"])
@pytest.mark.parametrize("page", ["1", "7", "1000"])
def test_what_an_iteration_has_yet_to_show_is_never_dropped(
    async_enabled: bool, cache_size: str, page: str
) -> None:
    options = {"cache_size": cache_size, "iterate_response_batch_size": page}
    with _harness(Scan(), async_enabled, **options) as harness:
        rows = [[1, value] for value in range(40)]
        for number in range(3):
            found = [total for _, _, total in _batch(harness, rows)]
            assert found == _expected_totals(number + 1)[-40:]


def _expected_totals(batches: int) -> list[int]:
    entries: dict[int, int] = {}
    totals = []
    for _ in range(batches):
        for value in range(40):
            entries[value] = value
            totals.append(sum(entries.values()))
            entries = {key: count + 1 for key, count in entries.items()}
    return totals


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=25)


@given(
    batches=st.lists(st.tuples(ROWS, st.sampled_from(["commit", "fail", "lose"])), max_size=6),
    cache_size=st.sampled_from(["0b", "1kb", "128mb"]),
    read_cache_size=st.sampled_from(["0b", "1kb", "4mb"]),
    enabled=st.booleans(),
)
def test_any_history_gives_the_sums_of_what_was_committed(
    batches: list[tuple[list[tuple[int, int]], str]],
    cache_size: str,
    read_cache_size: str,
    enabled: bool,
) -> None:
    sums: dict[int, int] = {}
    with _harness(Sum(), enabled, cache_size=cache_size, read_cache_size=read_cache_size) as harness:
        for rows, fate in batches:
            before = harness._manifest
            if fate == "fail":
                harness.push([list(row) for row in rows] + [[0, BAD]])
                with pytest.raises(OperatorError):
                    harness.end_batch()
                harness._pending.clear()
                continue
            seen = dict(sums)
            expected = []
            for key, value in rows:
                seen[key] = seen.get(key, 0) + value
                expected.append(("+I", key, seen[key]))
            assert _batch(harness, [list(row) for row in rows]) == expected
            if fate == "lose":
                harness._manifest = before
            else:
                sums = seen
