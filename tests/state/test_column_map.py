"""ColumnMapState against dicts, through restarts and rescales, and what may be done with what it has stored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import ColumnMapStateDescriptor, ColumnStateDescriptor, ListColumnStateDescriptor, StateTtl
from asyncstate.codec import KeyBatch, KeyCodec, UserKeyBatch, encode_namespace
from asyncstate.errors import CodecError, SchemaError, StateAccessError, StateDeclarationError
from asyncstate.execution import Pacer
from asyncstate.offline.inspection import Inspection, read_partition
from asyncstate.offline.json_text import plain
from asyncstate.offline.migration import CastField, migrate
from asyncstate.operator import MAX_WATERMARK
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.state import ColumnCache, ColumnState
from asyncstate.testing import OperatorHarness
from tests.state.column_map_probe import INPUT, ROW, USER, DistinctCount, MapProbe, Model, text
from tests.state.fakes import FakeContext, FakeSink
from tests.state.ttl_direct import rows_of

KEYS = KeyCodec([pa.string()], ["k"], 4)
MS = 1_000

# -- every read, in both modes, with tiny caches and spills ---------------------------------------------------

keys = st.sampled_from(["", "a", "a\0", "bb", None])
rows = st.tuples(
    keys,
    st.sampled_from([None, -1, 0, 7]),
    st.sampled_from(["", "\0", "p", None]),
    st.sampled_from(["put", "put", "put", "remove", "clear"]),
    st.integers(0, 99),
)
stories = st.lists(st.lists(rows, max_size=25), min_size=1, max_size=4)


class _AlwaysSlow(Pacer):
    @property
    def waits_for_device(self) -> bool:
        return True


def entries_after(
    story: Sequence[Sequence[Any]], parallelism: Sequence[int], options: dict[str, str], async_enabled: bool
) -> dict[bytes, bytes]:
    """What is stored when ``story`` has run, each micro-batch after a restart with the next parallelism."""
    MapProbe.model = Model()
    harness = OperatorHarness(MapProbe(), INPUT, ["key"], async_enabled=async_enabled, options=options)
    for number, batch in enumerate(story):
        harness.push(batch)
        harness.end_batch()
        assert all(place[0] > MapProbe.due for place in MapProbe.model.windows)
        restarted = harness.restore(harness.snapshot(), parallelism=parallelism[number % len(parallelism)])
        harness.close()
        harness = restarted
    stored = harness.state_entries()
    harness.close()
    assert len(stored) == len(MapProbe.model.entries) + len(MapProbe.model.windows)
    return stored


@pytest.mark.long
@settings(max_examples=settings().max_examples // 2)
@given(
    stories,
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from(["1", "3", "500000"]),
    st.sampled_from(["1", "2", "1000"]),
)
def test_reads_show_what_was_written_when_they_were_asked_for(
    story: list[list[Any]], parallelism: list[int], bundle: str, page: str
) -> None:
    options = {
        "async-state.bundle-size": bundle,
        "async-state.iterate-response-batch-size": page,
        "async-state.cache-size": "0b",
        "async-state.write-cache-size": "1kb",
    }
    stored = entries_after(story, parallelism, options, async_enabled=False)
    assert entries_after(story, parallelism, options, async_enabled=True) == stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_memory(), "pacer", _AlwaysSlow())
        assert entries_after(story, parallelism, options, async_enabled=True) == stored


def test_spilled_writes_are_read(device: str, async_enabled: bool) -> None:
    chance = random.Random(1)
    batch = [
        (
            f"{chance.randrange(30)}",
            chance.randrange(20),
            "p",
            chance.choice(["put"] * 9 + ["remove"]),
            number,
        )
        for number in range(2000)
    ]
    options = {
        "async-state.bundle-size": "100",
        "async-state.write-cache-size": "4kb",
        "async-state.cache-size": "0b",
    }
    MapProbe.model = Model()
    with OperatorHarness(MapProbe(), INPUT, ["key"], async_enabled=async_enabled, options=options) as harness:
        for start in (0, 1000):
            harness.push(batch[start : start + 1000])
            harness.end_batch()
            assert harness.statistics()["spills"] > 0
        assert len(harness.state_entries()) == len(MapProbe.model.entries) + len(MapProbe.model.windows)


# -- COUNT(DISTINCT) --------------------------------------------------------------------------------------------

CHANGES = pa.schema([("key", pa.int64()), ("value", pa.string())])
Histories = list[list[tuple[int, str]]]
histories = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "x", "y", "\0"])), max_size=10), max_size=4
)


def distinct(rows: Sequence[tuple[int, Any]]) -> dict[int, int]:
    return {key: len({value for k, value in rows if k == key}) for key in sorted({k for k, _ in rows})}


def materialised(output: Sequence[tuple[Any, ...]]) -> dict[int, int]:
    """The rows that a changelog leaves; checks that it takes back only what is there."""
    view: dict[int, int] = {}
    for kind, key, values in output:
        if kind in ("-U", "-D"):
            assert view.pop(key) == values
        else:
            assert key not in view
            view[key] = values
    return view


@settings(max_examples=settings().max_examples // 2)
@given(histories, st.sampled_from(["1", "3", "500000"]), st.integers(1, 3), st.randoms(use_true_random=False))
def test_distinct_counts_through_restarts_and_rescales(
    history: Histories, bundle: str, parallelism: int, chance: random.Random
) -> None:
    """Every row is taken back in the end, in another order, and nothing is left."""
    every = [row for batch in history for row in batch]
    backwards = chance.sample(every, len(every))
    found = []
    for async_enabled in (False, True):
        harness = OperatorHarness(
            DistinctCount(),
            CHANGES,
            ["key"],
            async_enabled=async_enabled,
            options={"async-state.bundle-size": bundle},
            changelog=True,
        )
        output, stored = [], []
        for number, batch in enumerate([*history, backwards]):
            harness.push(batch, kind="+I" if number < len(history) else "-D")
            output += harness.end_batch()
            stored.append(harness.state_entries())
            seen = [row for rows in history[: number + 1] for row in rows] if number < len(history) else []
            assert materialised(output) == distinct(seen)
            restarted = harness.restore(harness.snapshot(), parallelism=1 + (number * parallelism) % 3)
            harness.close()
            harness = restarted
        harness.close()
        assert stored[-1] == {}
        found.append((output, stored))
    assert found[0] == found[1]


def test_a_time_to_live_takes_entries_away(async_enabled: bool) -> None:
    operator = DistinctCount(StateTtl("1 second"))
    with OperatorHarness(operator, CHANGES, ["key"], async_enabled=async_enabled, parallelism=2) as harness:
        harness.push([(1, "a"), (1, "b"), (2, "a")])
        assert sorted(harness.end_batch()) == [("+I", 1, 2), ("+I", 2, 1)]
        assert len(harness.state_entries()) == 5
        harness.advance_processing_time(1_500 * MS)
        harness.push([(1, "a")])
        assert harness.end_batch() == [("+I", 1, 1)]
        for _ in range(4):
            harness.advance_processing_time(500 * MS)
            harness.end_batch()
        assert harness.state_entries() == {}


# -- the state itself -------------------------------------------------------------------------------------------


def opened(**options: Any) -> tuple[FakeSink, Any]:
    """A state between two others, which its ranges must not reach into; the page size is 3."""
    sink = FakeSink()
    context = FakeContext(sink, key_schema=pa.schema([("k", pa.string())]), processing_time=10_000 * MS)
    states = [
        context.get_state(ColumnMapStateDescriptor(name, USER, ROW, **options))
        for name in ("before", "map", "behind")
    ]
    for neighbour in (states[0], states[2]):
        for batch in (batch_of(["a", "b"], options), batch_of(["", None], options)):
            write(neighbour, batch, [(index, 1, "n") for index in range(2)])
    return sink, states[1]


def batch_of(names: Sequence[str | None], options: dict[str, Any], time: int = MAX_WATERMARK) -> KeyBatch:
    times = np.full(len(names), time) if options.get("time_first") else None
    return KEYS.group([pa.array(names, pa.string())], times)


def write(state: Any, keys: KeyBatch, entries: Sequence[tuple[int, Any, Any]]) -> UserKeyBatch:
    """``entries``: the index of a key and both parts of the user key; their numbers count from 0."""
    pairs = keys.with_user_keys(
        [
            pa.array([user for _, user, _ in entries], pa.int64()),
            pa.array([p for *_, p in entries], pa.string()),
        ],
        np.array([index for index, *_ in entries], np.int64),
    )
    numbers = pa.array(pairs.last_rows(), pa.int64())
    state.put(pairs, [numbers, pa.array(map(text, numbers.to_pylist()), pa.string())])
    return pairs


def test_is_stored_where_the_entries_of_a_map_are() -> None:
    sink, state = opened()
    before = sink.contents()
    keys = batch_of(["a\0", "b"], {})
    write(state, keys, [(0, 5, "p"), (1, None, None), (0, -5, "p")])
    codec = KeyCodec(USER.types, USER.names, 1)
    mine = [key for key in sink.contents() if key not in before]
    assert sorted(mine) == sorted(
        keys.store_keys(9)[index] + codec.encode_one(user)
        for index, user in [(0, (5, "p")), (1, (None, None)), (0, (-5, "p"))]
    )


def test_is_stored_behind_the_namespace_if_time_first() -> None:
    sink, state = opened(time_first=True)
    before = sink.contents()
    keys = batch_of(["a"], {"time_first": True}, time=-3)
    write(state, keys, [(0, 5, "p")])
    (mine,) = [key for key in sink.contents() if key not in before]
    group = int(keys.groups[0]).to_bytes(2, "big")
    user = KeyCodec(USER.types, USER.names, 1).encode_one((5, "p"))
    assert mine == group + b"\x09" + encode_namespace(-3) + KEYS.encode_one(("a",)) + user


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("options", [{}, {"time_first": True}, {"ttl": StateTtl("1 hour")}])
def test_pages_have_all_entries_and_removing_leaves_the_neighbours(
    number: int, options: dict[str, Any]
) -> None:
    sink, state = opened(**options)
    neighbours = sink.contents()
    keys = batch_of(["", "a", "b", None], options)
    entries = [(index, user, "p") for index in (0, 2, 3) for user in range(number)]
    write(state, keys, entries)
    whole = state.async_entries(keys).get()
    pages = list(state.entries(keys))
    assert [len(page.store_keys) < 6 for page in pages] == [True] * len(pages)
    for found in (
        [(whole.key_index, whole.user_columns[0], whole.columns[0])],
        [(page.key_index, page.user_columns[0], page.columns[0]) for page in pages],
    ):
        listed = [
            row
            for index, user, value in found
            for row in zip(index.tolist(), user.to_pylist(), value.to_pylist(), strict=True)
        ]
        assert listed == [(index, user, at) for at, (index, user, _) in enumerate(entries)]
    state.remove_all(keys.select(np.array([False, True, True, False])))
    assert state.async_entries(keys).get().key_index.tolist() == [0] * number + [3] * number
    state.remove_entries(state.async_entries(keys).get().store_keys)
    assert sink.contents() == neighbours


def test_ranges_of_time_come_with_keys_and_user_keys() -> None:
    sink, state = opened(time_first=True)
    options = {"time_first": True}
    neighbours = sink.contents()
    for time in (-7, 0, 5, MAX_WATERMARK):
        write(state, batch_of(["a", "bb"], options, time), [(0, 1, "p"), (1, None, "q"), (1, 2, None)])
    found = [
        row
        for page in state.up_to(0)
        for row in zip(
            page.namespaces.tolist(),
            *(column.to_pylist() for column in (*page.key_columns, *page.user_columns)),
            strict=True,
        )
    ]
    keys = batch_of(["a", "bb"], options).columns[0].to_pylist()  # in order of their key groups
    users: list[list[tuple[Any, Any]]] = [[(1, "p")], [(None, "q"), (2, None)]]
    assert sorted(found, key=repr) == sorted(
        ((time, keys[index], *user) for time in (-7, 0) for index in (0, 1) for user in users[index]),
        key=repr,
    )
    state.remove_up_to(MAX_WATERMARK - 1, 0)
    assert sum(page.num_rows for page in state.up_to(MAX_WATERMARK - 1)) == 3
    state.remove_up_to(MAX_WATERMARK)
    assert sink.contents() == {key: value for key, value in neighbours.items() if key[2] != 9}


def test_a_set_has_user_keys_alone() -> None:
    sink = FakeSink()
    context = FakeContext(sink, key_schema=pa.schema([("k", pa.string())]))
    descriptor = ColumnMapStateDescriptor("set", USER, pa.schema([]))
    state = context.get_state(descriptor)
    keys = batch_of(["a", "b"], {})
    pairs = keys.with_user_keys([pa.array([1, 1]), pa.array(["x", "y"])])
    state.put(pairs.select(np.array([0])), [])
    assert state.get(pairs).present.tolist() == [True, False]
    assert state.async_entries(keys).get().key_index.tolist() == [0]
    spec = SimpleNamespace(id=8, name="set", kind=descriptor.kind, types=descriptor.type_texts())
    assert len(rows_of(sink.contents(), spec, context.key_schema)) == 1
    number = pa.schema([("number", pa.int64())])
    newer = ColumnMapStateDescriptor("set", USER, number).bind(sink, 8, context, descriptor.type_texts())  # type: ignore[arg-type]
    newer.put(pairs.select(np.array([1])), [pa.array([5])])
    assert newer.get(pairs).columns[0].to_pylist() == [None, 5]


def reopened(sink: FakeSink, ttl: StateTtl, now: int) -> Any:
    """The state in a later micro-batch, at ``now`` milliseconds."""
    context = FakeContext(sink, key_schema=pa.schema([("k", pa.string())]), processing_time=now * MS)
    context._next_id = 9
    return context.get_state(ColumnMapStateDescriptor("map", USER, ROW, ttl=ttl))


def test_what_has_expired_is_not_in_ranges() -> None:
    sink, state = opened(ttl=StateTtl("1 second"))
    keys = batch_of(["a", "b"], {})
    pairs = write(state, keys, [(0, 1, "p"), (1, 1, "p"), (1, 2, "p")])
    state = reopened(sink, StateTtl("1 second"), 11_500)
    state.put(pairs.select(np.array([2])), [pa.array([7]), pa.array(["x"])])
    assert state.get(pairs).present.tolist() == [False, False, True]
    found = state.async_entries(keys).get()
    assert (found.key_index.tolist(), found.columns[0].to_pylist()) == ([1], [7])
    assert sum(state.sweep(group.to_bytes(2, "big")) for group in range(4)) == 2


# -- pairs ------------------------------------------------------------------------------------------------------

parts = {
    pa.int64(): st.sampled_from([None, -1, 0, 3]),
    pa.float64(): st.sampled_from([None, -1.5, -0.0, 0.0, float("nan"), float("inf")]),
    pa.string(): st.sampled_from([None, "", "\0", "a", "a\0b", "b"]),
    pa.bool_(): st.sampled_from([None, True, False]),
}


@given(st.data(), st.lists(st.sampled_from(list(parts)), min_size=1, max_size=3), st.booleans())
def test_pairs_are_sorted_and_know_their_rows(
    data: st.DataObject, types: list[pa.DataType], namespaced: bool
) -> None:
    given_rows = data.draw(
        st.lists(st.tuples(st.sampled_from(["a", "a\0", "", None]), *(parts[t] for t in types)))
    )
    columns = [pa.array([row[i] for row in given_rows], kind) for i, kind in enumerate([pa.string(), *types])]
    times = np.arange(len(given_rows)) % 3 if namespaced else None
    keys = KEYS.group(columns[:1], times)
    pairs = keys.with_user_keys(columns[1:])
    store_keys = pairs.store_keys(9)
    assert store_keys == sorted(set(store_keys))
    users = KeyCodec(types, [str(i) for i in range(len(types))], 1).encode(columns[1:])
    in_rows = [keys.store_keys(9)[index] + user for index, user in zip(keys.inverse, users, strict=True)]
    assert [store_keys[index] for index in pairs.inverse] == in_rows
    assert [in_rows[row] for row in pairs.last_rows()] == store_keys
    assert sorted(set(in_rows)) == store_keys
    some = pairs.select(np.arange(0, len(pairs), 2))
    assert some.store_keys(9) == store_keys[::2]
    assert some.key_index.tolist() == pairs.key_index[::2].tolist()
    again = pairs.base.with_user_keys(pairs.user_columns, pairs.key_index)
    assert again.store_keys(9) == store_keys


@pytest.mark.parametrize("user", [pa.array([2, 1, 2]), pa.array(["b", "a", "b"]), pa.array([2, None, 2])])
def test_the_one_key_of_no_columns_has_user_keys(user: pa.Array) -> None:
    keys = KeyCodec([], [], 4).group([], num_rows=3)
    pairs = keys.with_user_keys([user])
    users = KeyCodec([user.type], ["user"], 1).encode([user])
    assert pairs.store_keys(9) == [b"\0\0\x09" + users[1], b"\0\0\x09" + users[0]]
    assert (pairs.inverse.tolist(), pairs.key_index.tolist()) == ([1, 0, 1], [0, 0])


def test_user_keys_that_cannot_be_are_refused() -> None:
    keys = batch_of(["a", "b"], {})
    with pytest.raises(CodecError, match="user key: no columns"):
        keys.with_user_keys([])
    with pytest.raises(CodecError, match="user key: columns of 1 rows are given for 2 rows"):
        keys.with_user_keys([pa.array([1])])
    with pytest.raises(SchemaError, match="'user key 0' of type list"):
        keys.with_user_keys([pa.array([[1], [2]])])


# -- what is refused --------------------------------------------------------------------------------------------


def test_declarations_that_cannot_be_are_refused() -> None:
    with pytest.raises(StateDeclarationError, match="state 'm' is declared with a user key without columns"):
        ColumnMapStateDescriptor("m", pa.schema([]), ROW)
    with pytest.raises(SchemaError, match="'m.u' of type list"):
        ColumnMapStateDescriptor("m", pa.schema([("u", pa.list_(pa.int64()))]), ROW)
    with pytest.raises(StateDeclarationError, match="state 'm': ttl='soon' is not a time to live"):
        ColumnMapStateDescriptor("m", USER, ROW, ttl="soon")


def test_keys_that_do_not_fit_are_refused() -> None:
    _, state = opened()
    _, by_time = opened(time_first=True)
    keys, timed = batch_of(["a"], {}), batch_of(["a"], {"time_first": True})
    user = [pa.array([1]), pa.array(["p"])]
    said = "state 'map' of operator 'op' "
    with pytest.raises(StateAccessError, match=said + "was used without user keys"):
        state.get(keys)
    with pytest.raises(StateAccessError, match=said + r"was used with user keys of type \(int64\)"):
        state.prefetch(keys.with_user_keys(user[:1]))
    with pytest.raises(StateAccessError, match=said + "was read for all entries of keys, but with user keys"):
        state.async_entries(keys.with_user_keys(user))
    with pytest.raises(StateAccessError, match=said + "was used with keys in namespaces"):
        state.remove_all(timed)
    with pytest.raises(StateAccessError, match=said + "is time-first"):
        by_time.remove(keys.with_user_keys(user))
    with pytest.raises(StateAccessError, match=said + "was read by a range of namespaces"):
        state.up_to(5)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("descriptor", [ColumnStateDescriptor, ListColumnStateDescriptor])
def test_rows_and_lists_refuse_keys_that_do_not_fit(descriptor: Any, cached: bool) -> None:
    """A row in a namespace of a state without them would be read as the row of another key."""
    context = FakeContext(FakeSink(), key_schema=pa.schema([("k", pa.string())]))
    state = context.get_state(descriptor("rows", ROW))
    by_time = context.get_state(descriptor("by_time", ROW, time_first=True))
    if cached and isinstance(state, ColumnState):
        cache = ColumnCache()
        cache.begin(1 << 20)
        state.use_cache(cache, is_new=True)
    keys = KEYS.group([pa.array(["a"])])
    timed = keys.in_namespaces(np.array([5]))
    said = "state 'rows' of operator 'op' was used with "
    for refused in (state.get, state.async_get, state.prefetch, state.remove):
        with pytest.raises(StateAccessError, match=said + "keys in namespaces; declare it with time_first"):
            refused(timed)
        with pytest.raises(StateAccessError, match=said + "user keys; .* use a ColumnMapState"):
            refused(keys.with_user_keys([pa.array([1])]))
    with pytest.raises(StateAccessError, match=said + "keys in namespaces"):
        state.put(timed, *written(descriptor))
    with pytest.raises(StateAccessError, match="state 'by_time' of operator 'op' is time-first"):
        by_time.put(keys, *written(descriptor))
    for by_range in (state.up_to, state.remove_up_to):
        with pytest.raises(StateAccessError, match="'rows' of operator 'op' was read by a range of name"):
            by_range(5)


def written(descriptor: Any) -> list[Any]:
    """The arguments of ``put`` for one row."""
    columns = [pa.nulls(1, kind) for kind in ROW.types]
    return [columns] if descriptor is ColumnStateDescriptor else [columns, np.zeros(1, np.int64)]


# -- inspection, evolution, migration ---------------------------------------------------------------------------


def decoded(place: Path, state: str) -> list[dict[str, Any]]:
    inspection = Inspection(str(place))
    pieces = inspection.partitions(inspection.manifest(), None, state)
    return [row for piece in pieces for _, rows in read_partition(piece) for row in plain(rows)]


def test_what_is_stored_is_shown(tmp_path: Path, async_enabled: bool) -> None:
    MapProbe.model = Model()
    batch = [(f"k{i % 4}", i % 3 or None, f"p{i % 5}", "put", i) for i in range(40)]
    with OperatorHarness(
        MapProbe(), INPUT, ["key"], parallelism=2, folder=tmp_path, async_enabled=async_enabled
    ) as harness:
        harness.push(batch)
        harness.end_batch()
    for name, model in (("map", MapProbe.model.entries), ("windows", MapProbe.model.windows)):
        shown = {
            (
                *(() if row["namespace"] is None else (row["namespace"],)),
                row["key"]["key"],
                row["user_key"]["user"],
                row["user_key"]["part"],
            ): row["value"]
            for row in decoded(tmp_path / "checkpoint", name)
        }
        assert shown == {place: {"number": number, "text": text(number)} for place, number in model.items()}


class Typed(DistinctCount):
    """Also a map whose rows have the fields that it is told."""

    def __init__(self, user: pa.DataType, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema
        self.user = pa.schema([("user", user)])

    def open(self, context: Any) -> None:
        super().open(context)
        self.map = context.get_state(ColumnMapStateDescriptor("map", self.user, self.schema))

    def process_bundle(self, bundle: Any, ctx: Any) -> Any:
        pairs = bundle.keys.with_user_keys([bundle.batch.column("value").cast(self.user.types[0])])
        if self.schema.names == ["n"]:
            self.map.put(pairs, [pa.array(np.arange(len(pairs)), self.schema.types[0])])
        else:
            found = self.map.get(pairs)
            assert (found.columns[0].to_pylist(), found.columns[1].to_pylist()) == ([0, 1], [None, None])
        return super().process_bundle(bundle, ctx)


OLD = pa.schema([("n", pa.int32())])
NEW = pa.schema([("n", pa.int64()), ("added", pa.string())])
VALUES = [(1, "5"), (1, "6")]


def run(operator: Any, folder: Path) -> SimpleNamespace:
    with OperatorHarness(operator, CHANGES, ["key"], folder=folder) as harness:
        harness.push(VALUES)
        harness.end_batch()
        return SimpleNamespace(stored=harness.state_entries(), states=harness.states())


def test_rows_of_older_schemas_are_read(tmp_path: Path) -> None:
    run(Typed(pa.string(), OLD), tmp_path)
    run(Typed(pa.string(), NEW), tmp_path)
    assert [row["value"] for row in decoded(tmp_path / "checkpoint", "map")] == [
        {"n": 0, "added": None},
        {"n": 1, "added": None},
    ]


def test_another_user_key_is_refused(tmp_path: Path) -> None:
    run(Typed(pa.string(), OLD), tmp_path)
    with pytest.raises(
        StateDeclarationError, match=r"state 'map': .* key is .*int64.* but the checkpoint has"
    ):
        run(Typed(pa.int64(), OLD), tmp_path)


def test_fields_are_migrated(tmp_path: Path) -> None:
    wide = pa.schema([("n", pa.int64())])
    expected = run(Typed(pa.string(), wide), tmp_path / "new")
    run(Typed(pa.string(), OLD), tmp_path / "old")
    migrate(str(tmp_path / "old" / "checkpoint"), "operator", "map", CastField("n", "int64"))
    with OperatorHarness(Typed(pa.string(), wide), CHANGES, ["key"], folder=tmp_path / "old") as harness:
        assert harness.state_entries() == expected.stored
        assert harness.states() == expected.states
