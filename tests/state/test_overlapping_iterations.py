"""Iterations of maps whose pages come late, on RocksDB: programs against dicts, in both modes, over restarts.

Reads are made to wait in two ways: the store is taken for a slow device, so that blocks which are not in memory are
loaded on threads; or every page waits, whatever is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    to_iterable,
)
from asyncstate.errors import OperatorError, StoreError
from asyncstate.execution.range_prefetch import next_positions
from asyncstate.runtime import worker_memory
from asyncstate.testing import OperatorHarness, Tuning
from asyncstate.testing.faults import FaultyStore
from tests.execution.rig import Rig
from tests.memory_store import MemoryStore
from tests.pacers import AlwaysSlow

PAGES_OF_3 = {"async-state.iterate-response-batch-size": "3", "async-state.in-flight-limit": "4"}
SPILLING = {"async-state.write-cache-size": "1kb"}
MODES: dict[str, dict[str, Any]] = {
    "sync": {"async_enabled": False},
    "slow": {"async_enabled": True, "tuning": Tuning(blocks_bytes=1 << 20)},
    "slow, small pages, spilled": {"async_enabled": True, "options": PAGES_OF_3 | SPILLING},
    "all wait, small pages": {
        "async_enabled": True,
        "tuning": Tuning(batch_hot_reads=True),
        "options": PAGES_OF_3,
    },
}


@contextmanager
def slow_reads(slow: bool) -> Iterator[None]:
    memory = worker_memory()
    before = memory.pacer
    memory.pacer = AlwaysSlow() if slow else before
    try:
        yield
    finally:
        memory.pacer = before


class Step(NamedTuple):
    """A record: of which key, what it does, to which user key."""

    key: int
    what: str
    user_key: int


class Steps(RecordOperator):
    """Carries out the steps and puts out what it has seen."""

    def bind(self, inputs: Sequence[Any]) -> str:
        return "key long, seen string"

    def open(self, context: OperatorContext) -> None:
        self.map = context.get_state(MapStateDescriptor("map", int, str))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return getattr(self, row.what)(row.user_key, lambda seen: ctx.emit(ctx.key[0], str(seen)))

    def put(self, user_key: int, emit: Any) -> None:
        self.map.put(user_key, "x" * 40 + str(user_key))

    def remove(self, user_key: int, emit: Any) -> None:
        self.map.remove(user_key)

    def clear(self, user_key: int, emit: Any) -> None:
        self.map.clear()

    def entries(self, user_key: int, emit: Any) -> Any:
        return to_iterable(self.map.async_entries()).then_accept(emit)

    def is_empty(self, user_key: int, emit: Any) -> Any:
        empty = self.map.async_is_empty()
        self.map.put(user_key, "put behind the question")
        return empty.then_accept(emit)

    def written_behind(self, user_key: int, emit: Any) -> Any:
        """What is written after the iteration has been asked for is not seen by it."""
        seen = to_iterable(self.map.async_keys())
        self.map.put(user_key, "put behind the question")
        self.map.remove(user_key + 1)
        return seen.then_accept(emit)

    def updates(self, user_key: int, emit: Any) -> Any:
        """Paradigm 9: every second entry goes, and what is put meanwhile is not visited."""
        visited: list[int] = []

        def visit(entry: tuple[int, str]) -> None:
            visited.append(entry[0])
            self.map.async_put(entry[0] + 100, "put on the way")
            if entry[0] % 2 == 0:
                self.map.async_remove(entry[0])

        entries = self.map.async_entries()
        return entries.then_compose(lambda found: found.on_next(visit)).then_accept(lambda _: emit(visited))


def model(batches: list[list[Step]]) -> dict[int, list[str]]:
    """What is put out for each key, with dicts."""
    maps: dict[int, dict[int, str]] = {}
    seen: dict[int, list[str]] = {}
    for step in (step for steps in batches for step in steps):
        entries, user_key = maps.setdefault(step.key, {}), step.user_key
        before = dict(sorted(entries.items()))
        shown: Any = None
        if step.what == "put":
            entries[user_key] = "x" * 40 + str(user_key)
        elif step.what == "remove":
            entries.pop(user_key, None)
        elif step.what == "clear":
            entries.clear()
        elif step.what == "entries":
            shown = list(before.items())
        elif step.what == "is_empty":
            shown = not before
            entries[user_key] = "put behind the question"
        elif step.what == "written_behind":
            shown = list(before)
            entries[user_key] = "put behind the question"
            entries.pop(user_key + 1, None)
        else:
            shown = list(before)
            for visited in shown:
                entries[visited + 100] = "put on the way"
                if visited % 2 == 0:
                    entries.pop(visited, None)
        if shown is not None:
            seen.setdefault(step.key, []).append(str(shown))
    return seen


WHATS = ["put", "put", "remove", "clear", "entries", "is_empty", "written_behind", "updates"]
steps = st.lists(
    st.builds(Step, st.integers(0, 5), st.sampled_from(WHATS), st.integers(-20, 20)), max_size=40
)


def run(
    batches: list[list[Step]], mode: str, parallelisms: list[int]
) -> tuple[dict[int, list[str]], Any, float]:
    """What is put out a key, what is stored, and the positions warmed; a restart between any two micro-batches."""
    seen: dict[int, list[str]] = {}
    warmed = 0.0

    def made(parallelism: int) -> OperatorHarness:
        return OperatorHarness(
            Steps(), "key long, what string, user_key long", "key", parallelism=parallelism, **MODES[mode]
        )

    with slow_reads(mode.startswith("slow")):
        snapshot = None
        for batch, parallelism in zip(batches, parallelisms, strict=True):
            harness = made(parallelism)
            with (
                harness if snapshot is None else harness.restore(snapshot, parallelism=parallelism) as running
            ):
                running.push([tuple(step) for step in batch])
                for _, key, shown in running.end_batch():
                    seen.setdefault(key, []).append(shown)
                warmed += running.statistics().get("warmed_positions", 0)
                snapshot = running.snapshot()
                if batch is batches[-1]:  # not before: it would leave everything in memory
                    stored = running.state_entries()
    return seen, stored, warmed


@given(batches=st.lists(steps, min_size=1, max_size=3), data=st.data())
@settings(max_examples=max(1, settings().max_examples // 3))
def test_pages_that_come_late_show_what_was_there_when_they_were_asked_for(
    batches: list[list[Step]], data: st.DataObject
) -> None:
    parallelisms = [data.draw(st.integers(1, 3)) for _ in batches]
    wanted, stored = model(batches), None
    for mode in MODES:
        seen, entries, _ = run(batches, mode, parallelisms)
        assert seen == wanted, mode
        assert stored is None or entries == stored, mode
        stored = entries


@pytest.mark.long
@pytest.mark.parametrize("mode", list(MODES))
def test_maps_of_many_blocks_and_many_maps(mode: str) -> None:
    """Of which nothing is in memory, because the worker starts anew."""
    large = [Step(key, "put", 7 * user_key) for key in (1, 2) for user_key in range(1_500)]
    small = [Step(key, "put", user_key) for key in range(3, 1_000) for user_key in range(3)]
    every = [Step(key, what, 5_000) for what in ("entries", "updates", "entries") for key in range(1_000)]
    batches = [large + small, every]
    seen, _, warmed = run(batches, mode, [1, 1])
    assert seen == model(batches)
    assert (warmed > 0) == (mode != "sync")


def test_a_block_that_cannot_be_loaded_ends_the_micro_batch_and_is_named() -> None:
    store = FaultyStore(MemoryStore())
    with Rig("batched", store=store) as rig:
        state = rig.state(MapStateDescriptor("map", int, int))
        store.fail_read(1, StoreError("the disk is gone"))
        with pytest.raises(StoreError) as failure:
            rig.run([1], lambda item, ctx: to_iterable(state.async_entries()).then_accept(lambda found: None))
    assert "the disk is gone" in str(failure.value)
    assert "state 'map'" in str(failure.value)


@given(
    keys=st.sets(st.integers(0, 2**40), min_size=2, max_size=16),
    limit=st.integers(17, 5_000),
    step=st.integers(1, 500),
)
def test_positions_behind_a_head_ascend_within_the_range(keys: set[int], limit: int, step: int) -> None:
    entries = [(b"map" + number.to_bytes(8, "big"), b"") for number in sorted(keys)]
    found = next_positions(entries, b"map", b"maq", limit, step)
    assert found == sorted(set(found))
    assert all(entries[-1][0] < position < b"maq" for position in found)
    assert len(found) <= 64


class Again(RecordOperator):
    """Goes through the entries of a map, or the elements of a list, twice."""

    def bind(self, inputs: Any) -> Any:
        return "seen int, again int"

    def open(self, context: OperatorContext) -> None:
        self.map = context.get_state(MapStateDescriptor("map", int, int))
        self.list = context.get_state(ListStateDescriptor("list", str))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        self.map.put_all({number: number for number in range(row.count)})
        self.list.update(["x" * 2_000] * row.count)
        found = await (self.map.async_keys() if row.of == "map" else self.list.async_get())
        seen = [entry async for entry in found]
        ctx.emit(len(seen), len(await found.to_list()))


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("of", ["map", "list"])
def test_an_iterator_of_several_pages_is_not_used_twice(mode: str, of: str) -> None:
    options = {**MODES[mode].get("options", {}), "async-state.iterate-response-batch-size": "3"}
    given = {**MODES[mode], "options": options}
    with (
        slow_reads(mode.startswith("slow")),
        OperatorHarness(Again(), "of string, count int", [], **given) as harness,
    ):
        harness.push([(of, 2)])
        assert harness.end_batch() == [("+I", 2, 2)]
        harness.push([(of, 10)])
        with pytest.raises(OperatorError, match=r"several pages .* used a second time"):
            harness.end_batch()
