"""Decoding stored entries without the operator: every kind of state, against what the program wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastStateDescriptor,
    Bundle,
    BundleContext,
    BundleOperator,
    ColumnStateDescriptor,
    InputSpec,
    ListColumnStateDescriptor,
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
from asyncstate.codec import KeyCodec, PickleCodec
from asyncstate.errors import CodecError, StateDeclarationError
from asyncstate.offline import StateDecoder
from asyncstate.offline.inspection import Inspection, partition_sizes, read_partition
from asyncstate.offline.json_text import plain
from asyncstate.operator import SortKey
from asyncstate.storage import StateSpec
from asyncstate.testing import OperatorHarness
from tests.memory_store import MemoryStore

ROWS = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64()), ("t", pa.timestamp("us"))])
KEY = ["k", "n"]
SECOND = 1_000_000


class Sum(AggregateFunction[int, int, int]):
    """Adds up."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class EveryKind(RecordOperator):
    """Writes each row into a state of every keyed kind."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        ttl = StateTtl("1 hour")
        self.last = context.get_state(
            ValueStateDescriptor("last", pa.struct([("v", pa.int64()), ("k", pa.string())]))
        )
        self.aging = context.get_state(ValueStateDescriptor("aging", pa.int64(), ttl=ttl))
        self.windows = context.get_state(ValueStateDescriptor("windows", pa.int64(), namespaced=True))
        self.log = context.get_state(ListStateDescriptor("log", pa.string()))
        self.aging_log = context.get_state(ListStateDescriptor("aging_log", pa.int64(), ttl=ttl))
        self.counts = context.get_state(MapStateDescriptor("counts", pa.int64(), pa.float64()))
        self.top = context.get_state(ReducingStateDescriptor("top", max, pa.int64()))
        self.total = context.get_state(AggregatingStateDescriptor("total", Sum(), pa.int64()))
        self.anything = context.get_state(ValueStateDescriptor("anything", pickled=True))

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        """Timers are only looked at."""

    def process(self, row: Row, ctx: RecordContext) -> Any:
        value = row["v"]
        self.last.update({"v": value, "k": row["k"]})
        self.aging.update(value)
        self.windows.at(value % 3 - 1).update(value)
        self.log.add(f"{value}-" + "x" * 100)
        self.aging_log.add(value)
        self.counts.put(value, value / 2)
        self.top.add(value)
        self.total.add(value)
        self.anything.update({value})
        ctx.timers.register_event_time(value * SECOND, namespace=value)
        ctx.timers.register_processing_time(value * SECOND, "named")


def decoded(place: Path | str, state: str, **options: Any) -> list[dict[str, Any]]:
    inspection = Inspection(str(place))
    pieces = inspection.partitions(inspection.manifest(options.pop("version", None)), None, state, **options)
    return [row for piece in pieces for _, rows in read_partition(piece) for row in plain(rows)]


def by_key(rows: list[dict[str, Any]], *names: str) -> dict[Any, Any]:
    """Each key's values of ``names``, in order."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        picked = tuple(row[name] for name in names)
        found[tuple(row["key"].values())].append(picked[0] if len(picked) == 1 else picked)
    return dict(found)


@pytest.fixture(params=[1, 3], ids=["one partition", "three partitions"])
def harness(request: pytest.FixtureRequest, tmp_path: Path, async_enabled: bool) -> OperatorHarness:
    """After two micro-batches; the key with null and an empty text among the others."""
    made = OperatorHarness(
        EveryKind(), ROWS, KEY, parallelism=request.param, async_enabled=async_enabled, folder=tmp_path
    )
    made.push([row for row in PUSHED if row[2] < 150])
    made.end_batch()
    made.push([row for row in PUSHED if row[2] >= 150])
    made.end_batch()
    return made


PUSHED = [(["", "a", None, "b"][v % 4], [1, None][v % 2], v, None) for v in range(1, 250)]
VALUES: dict[Any, list[int]] = defaultdict(list)
for _row in PUSHED:
    VALUES[_row[:2]].append(_row[2])


def test_every_keyed_kind_gives_what_was_written(harness: OperatorHarness, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    last = {key: [{"v": values[-1], "k": key[0]}] for key, values in VALUES.items()}
    assert by_key(decoded(place, "last"), "value") == last
    stamp = harness.clock.now_us()
    assert by_key(decoded(place, "aging"), "value", "ttl_stamp") == {
        key: [(values[-1], stamp)] for key, values in VALUES.items()
    }
    windows = {
        key: [(n, max(v for v in values if v % 3 - 1 == n)) for n in (-1, 0, 1)]
        for key, values in VALUES.items()
    }
    assert by_key(decoded(place, "windows"), "namespace", "value") == windows
    log = {key: [(i, f"{v}-" + "x" * 100) for i, v in enumerate(values)] for key, values in VALUES.items()}
    assert by_key(decoded(place, "log"), "position", "value") == log
    aging = {key: [(i, v, stamp) for i, v in enumerate(values)] for key, values in VALUES.items()}
    assert by_key(decoded(place, "aging_log"), "position", "value", "ttl_stamp") == aging
    counts = {key: [(v, v / 2) for v in values] for key, values in VALUES.items()}
    assert by_key(decoded(place, "counts"), "user_key", "value") == counts
    assert by_key(decoded(place, "top"), "value") == {key: [max(values)] for key, values in VALUES.items()}
    assert by_key(decoded(place, "total"), "value") == {key: [sum(values)] for key, values in VALUES.items()}


def test_timers_of_both_domains_without_those_that_were_replaced(
    harness: OperatorHarness, tmp_path: Path
) -> None:
    rows = decoded(tmp_path / "checkpoint", "@timers")
    event = [row for row in rows if row["value"]["domain"] == "event_time"]
    named = [row for row in rows if row["value"]["domain"] == "processing_time"]
    assert len(event) + len(named) == len(rows)
    times = {
        key: [(v, {"time": v * SECOND, "domain": "event_time", "name": None}) for v in values]
        for key, values in VALUES.items()
    }
    assert by_key(event, "namespace", "value") == times
    last = {
        key: [{"time": values[-1] * SECOND, "domain": "processing_time", "name": "named"}]
        for key, values in VALUES.items()
    }
    assert by_key(named, "value") == last


def test_an_older_version_is_read_as_it_was(harness: OperatorHarness, tmp_path: Path) -> None:
    rows = decoded(tmp_path / "checkpoint", "top", version=0)
    first = {key: [max(v for v in values if v < 150)] for key, values in VALUES.items()}
    assert by_key(rows, "value") == first


def test_pickled_values_are_loaded_only_when_asked_for(harness: OperatorHarness, tmp_path: Path) -> None:
    raw = decoded(tmp_path / "checkpoint", "anything")
    assert all(isinstance(row["value"], bytes) for row in raw)
    loaded = by_key(decoded(tmp_path / "checkpoint", "anything", unpickle=True), "value")
    assert loaded == {key: [repr({values[-1]})] for key, values in VALUES.items()}


class Shown:
    """Its repr is ``text``; it raises without one."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __repr__(self) -> str:
        if self.text is None:
            raise RuntimeError("no text")
        return self.text


def test_loaded_values_are_shown_whatever_their_repr_is() -> None:
    spec = StateSpec(8, "s", "value", {"value": "pickled", "namespaced": "no"})
    decoder = StateDecoder("o", spec, [KEYED], unpickle=True)

    def shown(value: Shown) -> list[Any]:
        key = b"\0\0\x08" + KeyCodec([pa.int64()], ["k"], 1).encode_one((1,))
        store = MemoryStore([(key, PickleCodec().encode_one(value))], 0)
        return [row["value"] for rows in decoder.read(store, range(1)) for row in plain(rows)]

    assert shown(Shown("a\ud800b")) == ["a\\ud800b"]
    with pytest.raises(
        CodecError, match=r"state 's': a loaded Shown cannot be shown: its repr raises Runtime"
    ):
        shown(Shown(None))


def test_sizes_count_keys_and_timers(harness: OperatorHarness, tmp_path: Path) -> None:
    inspection = Inspection(str(tmp_path / "checkpoint"))
    sizes: dict[str, list[Any]] = defaultdict(list)
    for piece in inspection.partitions(inspection.manifest()):
        for decoder, size in partition_sizes(piece):
            sizes[decoder.state.name].append(size)
    keys = {name: sum(size.keys for size in parts) for name, parts in sizes.items()}
    assert keys == dict.fromkeys(sizes, len(VALUES))
    entries = {name: sum(size.entries for size in parts) for name, parts in sizes.items()}
    assert (entries["last"], entries["counts"]) == (len(VALUES), len(PUSHED))
    assert entries["@timers"] == len(decoded(tmp_path / "checkpoint", "@timers"))
    stored = harness.state_entries()
    of_map = [
        key + value
        for key, value in stored.items()
        if key[2] == next(s.id for s in harness.states() if s.name == "counts")
    ]
    assert sum(size.size_bytes for size in sizes["counts"]) == sum(map(len, of_map))


# bundle grain


class Blocks(BundleOperator):
    """Column and list column states, with and without namespaces."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        schema = pa.schema([("v", pa.int64()), ("text", pa.string())])
        self.codec = KeyCodec(
            [f.type for f in context.key_schema], context.key_schema.names, context.max_parallelism
        )
        self.row = context.get_state(ColumnStateDescriptor("row", schema))
        self.slices = context.get_state(ColumnStateDescriptor("slices", schema, time_first=True))
        self.rows = context.get_state(ListColumnStateDescriptor("rows", schema))
        self.sliced_rows = context.get_state(
            ListColumnStateDescriptor("sliced_rows", schema, time_first=True)
        )

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        values = bundle.batch.column("v")
        sliced = self.codec.group(
            [bundle.batch.column(name) for name in KEY], np.asarray(values.to_numpy() % 3 - 1, np.int64)
        )
        for keys, one, many in ((bundle.keys, self.row, self.rows), (sliced, self.slices, self.sliced_rows)):
            picked = values.take(pa.array(keys.last_rows()))
            one.put(keys, [picked, _texts(picked)])
            order, _ = keys.rows_sorted()
            ordered = values.take(pa.array(order))
            many.append(keys, [ordered, _texts(ordered)], keys.inverse[order])


def _texts(values: pa.Array) -> pa.Array:
    return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: int) -> str:
    return "y" * (value % 7)


def test_column_states_with_and_without_namespaces(tmp_path: Path, async_enabled: bool) -> None:
    harness = OperatorHarness(
        Blocks(), ROWS, KEY, parallelism=2, async_enabled=async_enabled, folder=tmp_path
    )
    pushed = [row for row in PUSHED for _ in range(8)]  # lists long enough for sealed chunks
    harness.push(pushed[:1000])
    harness.end_batch()
    harness.push(pushed[1000:])
    harness.end_batch()
    place = tmp_path / "checkpoint"
    assert by_key(decoded(place, "row"), "value") == {
        key: [_stored(values[-1])] for key, values in VALUES.items()
    }
    every = {key: [v for v in values for _ in range(8)] for key, values in VALUES.items()}
    assert by_key(decoded(place, "rows"), "position", "value") == {
        key: [(i, _stored(v)) for i, v in enumerate(values)] for key, values in every.items()
    }
    slices = {
        key: [(n, _stored([v for v in values if v % 3 - 1 == n][-1])) for n in (-1, 0, 1)]
        for key, values in VALUES.items()
    }
    assert by_key(decoded(place, "slices"), "namespace", "value") == slices
    sliced = {
        key: [
            (n, i, _stored(v)) for n in (-1, 0, 1) for i, v in enumerate(v for v in values if v % 3 - 1 == n)
        ]
        for key, values in every.items()
    }
    assert by_key(decoded(place, "sliced_rows"), "namespace", "position", "value") == sliced


def _stored(value: int) -> dict[str, Any]:
    return {"v": value, "text": _text(value)}


# inputs of other kinds


class Rules(RecordOperator):
    """Keeps the rows of its broadcast input."""

    num_inputs = 2
    broadcast_input = 1

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.rules = context.get_state(BroadcastStateDescriptor("rules", pa.string(), pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> None:
        pass

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        self.rules.put(row["rule"], row["limit"])


def test_broadcast_state_comes_once(tmp_path: Path) -> None:
    rules = pa.schema([("rule", pa.string()), ("limit", pa.int64())])
    harness = OperatorHarness(Rules(), [ROWS, rules], [KEY, None], parallelism=3, folder=tmp_path)
    harness.push([("fast", 1), ("cheap", 2)], input=1)
    harness.end_batch()
    rows = decoded(tmp_path / "checkpoint", "rules")
    assert [(row["key"], row["user_key"], row["value"]) for row in rows] == [
        (None, "cheap", 2),
        (None, "fast", 1),
    ]


class Ignores(RecordOperator):
    """Takes rows in order and does nothing."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        pass


def test_rows_that_wait_in_order(tmp_path: Path) -> None:
    harness = OperatorHarness(
        Ignores(),
        ROWS,
        KEY,
        event_time="t",
        watermark_delay=0,
        order_by=["t", SortKey("v", descending=True)],
        folder=tmp_path,
        parallelism=2,
    )
    rows = [("a", 1, 5, 20), ("a", 1, 6, 10), ("b", 2, 7, 20), ("a", 1, 9, 20)]
    harness.push([(k, n, v, t * SECOND) for k, n, v, t in rows], kind="-U")
    harness.end_batch()
    found = decoded(tmp_path / "checkpoint", "ordered rows of input 0")
    waiting = {
        key: [(r["time"], r["row_kind"], r["batch_id"], r["row"]["v"]) for r in values]
        for key, values in by_key(found, "value").items()
    }
    assert waiting == {
        ("a", 1): [(10 * SECOND, "-U", 0, 6), (20 * SECOND, "-U", 0, 9), (20 * SECOND, "-U", 0, 5)],
        ("b", 2): [(20 * SECOND, "-U", 0, 7)],
    }


def test_without_a_key_the_key_is_an_empty_struct(tmp_path: Path) -> None:
    harness = OperatorHarness(EveryKind(), ROWS, [], folder=tmp_path)
    harness.push([("a", 1, 5, None), ("b", 2, 7, None)])
    harness.end_batch()
    assert [(row["key"], row["value"]) for row in decoded(tmp_path / "checkpoint", "total")] == [({}, 12)]
    assert [row["value"] for row in decoded(tmp_path / "checkpoint", "log")] == [
        f"{v}-" + "x" * 100 for v in (5, 7)
    ]


class Widening(RecordOperator):
    """Keeps the last value as ``value_type``."""

    def __init__(self, value_type: pa.DataType, entry: Any) -> None:
        self.value_type = value_type
        self.entry = entry

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", self.value_type))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.last.update(self.entry(row["v"]))


def _narrow(value: int) -> dict[str, Any]:
    return {"v": value}


def _wide(value: int) -> dict[str, Any]:
    return {"v": value * 10**12, "note": "new"}


def test_values_of_older_types_are_read_as_the_newest(tmp_path: Path) -> None:
    narrow = Widening(pa.struct([("v", pa.int32())]), _narrow)
    wide = Widening(pa.struct([("v", pa.int64()), ("note", pa.string())]), _wide)
    first = OperatorHarness(narrow, ROWS, KEY, folder=tmp_path)
    first.push([("a", 1, 5, None), ("b", 1, 6, None)])
    first.end_batch()
    second = OperatorHarness(wide, ROWS, KEY, folder=tmp_path)
    second.push([("b", 1, 7, None)])
    second.end_batch()
    assert by_key(decoded(tmp_path / "checkpoint", "last"), "value") == {
        ("a", 1): [{"v": 5, "note": None}],
        ("b", 1): [{"v": 7 * 10**12, "note": "new"}],
    }
    assert by_key(decoded(tmp_path / "checkpoint", "last", version=0), "value")["b", 1] == [{"v": 6}]


def test_a_version_given_up_while_it_is_verified_is_no_problem(
    harness: OperatorHarness, tmp_path: Path
) -> None:
    inspection = Inspection(str(tmp_path / "checkpoint"))
    harness._checkpoint.retain(1)
    assert inspection.versions == [0, 1]
    assert list(inspection.problems()) == []


# what is refused


def test_what_is_not_there_is_said_with_what_is(harness: OperatorHarness, tmp_path: Path) -> None:
    with pytest.raises(StateDeclarationError, match=r"no operator has a state 'lost'.*'last'.*@timers"):
        decoded(tmp_path / "checkpoint", "lost")
    inspection = Inspection(str(tmp_path / "checkpoint"))
    with pytest.raises(StateDeclarationError, match="no operator 'x'; its operators are 'operator'"):
        inspection.partitions(inspection.manifest(), "x")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StateDeclarationError, match=r"operator 'o', state 's' is of kind 'graph'"):
        StateDecoder("o", StateSpec(8, "s", "graph"), [])


KEYED = pa.schema([("k", pa.int64())])


def _list_store(drop: int) -> MemoryStore:
    """A list of three entries, head and two chunks, without entry ``drop``."""
    key = b"\0\0\x08" + KeyCodec([pa.int64()], ["k"], 1).encode_one((1,))
    entries = [(key, b"\0\0\0\x02"), *((key + i.to_bytes(8, "big"), b"") for i in range(2))]
    return MemoryStore([entry for i, entry in enumerate(entries) if i != drop], 0)


@pytest.mark.parametrize("missing", [0, 1, 2], ids=["head", "first chunk", "last chunk"])
def test_a_list_with_a_missing_part_is_an_error(missing: int) -> None:
    spec = StateSpec(8, "s", "list", {"value": "int64", "namespaced": "no"})
    what = "a chunk of a list is missing" if missing else "the store key .* does not end where"
    with pytest.raises(CodecError, match=f"operator 'o', state 's': {what}"):
        list(StateDecoder("o", spec, [KEYED]).read(_list_store(missing), range(1)))


@given(key=st.binary(min_size=0, max_size=12), value=st.binary(max_size=12))
def test_damaged_entries_are_an_error_that_names_the_state_or_decode(key: bytes, value: bytes) -> None:
    spec = StateSpec(8, "s", "map", {"key": "int64", "value": "string", "namespaced": "no"})
    store = MemoryStore([(b"\0\0\x08" + key, value)], 0)
    decoder = StateDecoder("o", spec, [KEYED])
    try:
        rows = list(decoder.read(store, range(1)))
    except CodecError as error:
        said = str(error)
        assert decoder.owner in said
    else:
        assert sum(batch.num_rows for batch in rows) == 1
