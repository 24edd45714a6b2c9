"""Join against tables kept in plain Python, for all join types, layouts and kinds of input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import operator as op
from asyncstate.changelog import ROW_KIND_TEXTS, RowKind
from asyncstate.codec import KeyCodec
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import Bundle, InputSpec
from asyncstate.operator import Counter as StatCounter
from operators import join_core
from operators.join import Join

LEFT = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("w", pa.int64())])
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")
UNIQUES = (None, ("id",), "join_key")

Row = tuple[Any, ...]
Change = tuple[str, Row]


class Runner:
    """Calls a Join bundle by bundle over a dict as its store."""

    def __init__(
        self,
        join: Join,
        schemas: Sequence[pa.Schema] = (LEFT, RIGHT),
        changelog: Sequence[bool] = (True, True),
    ) -> None:
        self.data: dict[bytes, bytes] = {}
        self.inputs = tuple(
            InputSpec(schema, ("k",), changelog=flag, name=f"input {i}")
            for i, (schema, flag) in enumerate(zip(schemas, changelog, strict=True))
        )
        self.output_schema = join.bind(self.inputs)
        self.uid, self.page_size, self.max_parallelism, self.key_groups = "join", 100, 128, range(128)
        self.key_schema = self.inputs[0].key_schema
        self.dropped = StatCounter("retractions_without_state")
        self.reads = 0
        self.watermark = self.previous_watermark = op.MIN_WATERMARK
        self.processing_time = 0
        self._ids = iter(range(8, 20))
        self._out: list[Change] = []
        self.join = join
        join.open(self)

    def get_state(self, descriptor: Any) -> Any:
        return descriptor.bind(self, next(self._ids), self, None)

    def counter(self, name: str) -> StatCounter:
        assert name == self.dropped.name
        return self.dropped

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        assert keys
        assert keys == sorted(set(keys))
        self.reads += 1
        return [self.data.get(key) for key in keys]

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        return completed_future(self.get_many(keys))

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.data.update(zip(keys, values, strict=True))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.data.pop(key, None)

    def prefetch(self, keys: list[bytes]) -> None:
        assert keys == sorted(set(keys))

    def emit(self, columns: Sequence[pa.Array], kinds: Any = RowKind.INSERT) -> None:
        assert [column.type for column in columns] == self.output_schema.types
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        self._out += [(ROW_KIND_TEXTS[kind], row) for kind, row in zip(kinds.tolist(), rows, strict=True)]

    def run(self, side: int, changes: Sequence[Change]) -> list[Change]:
        """One bundle of one input; its output."""
        spec = self.inputs[side]
        columns = [
            pa.array([row[i] for _, row in changes], field.type) for i, field in enumerate(spec.schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=spec.schema)
        keys = KeyCodec([pa.int64()], ["k"], 128).group([batch.column("k")])
        kinds = np.array([ROW_KIND_TEXTS.index(kind) for kind, _ in changes], np.int8)
        bundle = Bundle(batch, keys, kinds, None, side)
        self.join.prefetch(bundle)
        self._out = []
        self.join.process_bundle(bundle, self).get()
        return self._out


class Table:
    """One input's table, changed row by row."""

    def __init__(self, unique: Any, null_safe: bool) -> None:
        self.unique = unique
        self.null_safe = null_safe
        self.rows: list[Row] = []
        self.dropped = 0

    def _same(self, one: Row, other: Row) -> bool:
        if self.unique is None:
            return one == other
        return one[: 1 if self.unique == "join_key" else 2] == other[: 1 if self.unique == "join_key" else 2]

    def find(self, row: Row) -> Row | None:
        return next((stored for stored in self.rows if self._same(stored, row)), None)

    def apply(self, kind: str, row: Row) -> None:
        stored = self.find(row)
        if kind in ("+I", "+U"):
            if self.unique is not None and stored is not None and (row[0] is not None or self.null_safe):
                self.rows.remove(stored)
            self.rows.append(row)
        elif stored is not None:
            self.rows.remove(stored)
        else:
            self.dropped += 1


def expected_join(kind: str, left: list[Row], right: list[Row], matches: Any) -> Counter[Row]:
    pairs = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if matches(a, b)]
    with_left, with_right = {i for i, _ in pairs}, {j for _, j in pairs}
    if kind == "semi":
        return Counter(left[i] for i in with_left)
    if kind == "anti":
        return Counter(row for i, row in enumerate(left) if i not in with_left)
    out = Counter(left[i] + right[j] for i, j in pairs)
    if kind in ("left", "full"):
        out.update(row + (None,) * 3 for i, row in enumerate(left) if i not in with_left)
    if kind in ("right", "full"):
        out.update((None,) * 3 + row for j, row in enumerate(right) if j not in with_right)
    return out


def apply_output(table: Counter[Row], out: Sequence[Change]) -> None:
    """Apply a changelog; taking back what is not there is an error at any point of it."""
    for kind, row in out:
        table[row] += 1 if kind in ("+I", "+U") else -1
        assert table[row] >= 0, (kind, row, out)
        if not table[row]:
            del table[row]


steps = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(
            st.tuples(
                st.sampled_from(["insert", "insert", "upsert", "delete", "update", "wrong", "touch"]),
                st.sampled_from([None, 0, 0, 0, 1, 2]),
                st.integers(0, 3),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=8,
        ),
    ),
    max_size=8,
)


def changes_of(table: Table, actions: Sequence[Any], insert_only: bool, side: int) -> list[Change]:
    """A changelog out of random actions, applied to ``table``; wrong retractions have a key."""
    changes: list[Change] = []

    def put(kind: str, row: Row) -> None:
        changes.append((kind, row))
        table.apply(kind, row)

    for action, key, number, value in actions:
        row = (key, number, f"v{value}" if side == 0 else value)
        known = [stored for stored in table.rows if stored[0] == key]
        old = known[number % len(known)] if known else None
        if action == "insert" or insert_only:
            if table.unique is None or table.find(row) is None:
                put("+I", row)
        elif action == "upsert" and key is not None:
            put("+U", row)
        elif action == "wrong" and key is not None:
            put("-D", row)
        elif action == "delete" and old is not None:
            put("-D", old)
        elif action == "touch" and old is not None:
            put("-U", old)
            put("+U", old)
        elif action == "update" and old is not None:
            put("-U", old)
            put("+U", (key, old[1], row[2]))
    return changes


def check_against_tables(
    join: Join, steps: Any, changelog: Sequence[bool], matches: Any, null_safe: bool = False
) -> Runner:
    runner = Runner(join, changelog=changelog)
    tables = [Table(unique, null_safe) for unique in join.unique]
    output: Counter[Row] = Counter()
    for side, actions in steps:
        changes = changes_of(tables[side], actions, not changelog[side], side)
        if not changes:
            continue
        out = runner.run(side, changes)
        apply_output(output, out)
        assert output == expected_join(join.kind, tables[0].rows, tables[1].rows, matches)
        assert runner.dropped.value == tables[0].dropped + tables[1].dropped
        if join.kind not in ("inner", "semi", "anti"):
            assert {kind for kind, _ in out} <= {"+I", "-D"}
    return runner


def on_key(left: Row, right: Row) -> bool:
    return left[0] is not None and left[0] == right[0]


def on_key_and_size(left: Row, right: Row) -> bool:
    return on_key(left, right) and left[1] <= right[2]


@pytest.mark.parametrize("conditional", [False, True], ids=["equi", "condition"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    steps=steps,
    unique=st.tuples(st.sampled_from(UNIQUES), st.sampled_from(UNIQUES)),
    changelog=st.tuples(st.booleans(), st.booleans()),
)
def test_net_output_is_the_join_of_both_tables(
    kind: Any, conditional: bool, steps: Any, unique: Any, changelog: Any
) -> None:
    condition = pc.field("id") <= pc.field("w") if conditional else None
    join = Join(kind, condition, left_unique=unique[0], right_unique=unique[1])
    check_against_tables(join, steps, changelog, on_key_and_size if conditional else on_key)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(steps=steps)
def test_null_safe_keys_match_null(kind: Any, steps: Any) -> None:
    join = Join(kind, null_safe=True)
    check_against_tables(join, steps, (True, True), lambda a, b: a[0] == b[0], null_safe=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(steps=steps)
def test_pairs_in_small_chunks_give_the_same(kind: Any, steps: Any) -> None:
    outs = []
    for pairs in (1 << 18, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(join_core, "PAIRS", pairs)
            runner = Runner(Join(kind, pc.field("id") <= pc.field("w")))
            tables = [Table(None, False), Table(None, False)]
            changes = [(side, changes_of(tables[side], actions, False, side)) for side, actions in steps]
            outs.append([runner.run(side, rows) for side, rows in changes if rows])
    assert outs[0] == outs[1]


# -- examples: what is put out, row by row --


def test_inner_keeps_the_kind_and_the_order_of_arrival() -> None:
    runner = Runner(Join("inner"))
    assert runner.run(0, [("+I", (2, 1, "b")), ("+I", (1, 1, "a")), ("+I", (2, 2, "c"))]) == []
    assert runner.run(1, [("+U", (1, 9, 5)), ("+I", (2, 9, 6)), ("+I", (3, 9, 7))]) == [
        ("+U", (1, 1, "a", 1, 9, 5)),
        ("+I", (2, 1, "b", 2, 9, 6)),
        ("+I", (2, 2, "c", 2, 9, 6)),
    ]
    assert runner.run(0, [("-U", (1, 1, "a")), ("+U", (1, 1, "z")), ("-D", (2, 1, "b"))]) == [
        ("-U", (1, 1, "a", 1, 9, 5)),
        ("+U", (1, 1, "z", 1, 9, 5)),
        ("-D", (2, 1, "b", 2, 9, 6)),
    ]


def test_left_join_pads_and_takes_the_pad_back() -> None:
    runner = Runner(Join("left"))
    pad = (1, 1, "a", None, None, None)
    assert runner.run(0, [("+I", (1, 1, "a"))]) == [("+I", pad)]
    both = [("-D", pad), ("+I", (1, 1, "a", 1, 9, 5)), ("+I", (1, 1, "a", 1, 8, 6))]
    assert runner.run(1, [("+I", (1, 9, 5)), ("+I", (1, 8, 6))]) == both
    assert runner.run(1, [("-D", (1, 9, 5))]) == [("-D", (1, 1, "a", 1, 9, 5))]
    assert runner.run(1, [("-D", (1, 8, 6))]) == [("-D", (1, 1, "a", 1, 8, 6)), ("+I", pad)]


def test_an_update_of_the_only_partner_does_not_bring_the_pad_back() -> None:
    runner = Runner(Join("left"))
    runner.run(0, [("+I", (1, 1, "a"))])
    runner.run(1, [("+I", (1, 9, 5))])
    assert runner.run(1, [("-U", (1, 9, 5)), ("+U", (1, 9, 6))]) == [
        ("-D", (1, 1, "a", 1, 9, 5)),
        ("+I", (1, 1, "a", 1, 9, 6)),
    ]
    # one partner only, however often it was updated
    assert runner.run(1, [("-D", (1, 9, 6))])[-1] == ("+I", (1, 1, "a", None, None, None))


def test_a_partner_that_comes_and_goes_in_one_bundle_is_no_change() -> None:
    for kind in KINDS:
        runner = Runner(Join(kind))
        runner.run(0, [("+I", (1, 1, "a"))])
        assert runner.run(1, [("+I", (1, 9, 5)), ("-D", (1, 9, 5))]) == []


def test_rows_with_null_keys_are_padded_but_not_stored() -> None:
    runner = Runner(Join("left"))
    row = (None, 1, "a")
    assert runner.run(0, [("+I", row)]) == [("+I", (*row, None, None, None))]
    assert runner.run(1, [("+I", (None, 9, 5))]) == []
    assert runner.data == {}
    assert runner.run(0, [("-U", row), ("+U", (1, 1, "b"))]) == [
        ("-D", (*row, None, None, None)),
        ("+I", (1, 1, "b", None, None, None)),
    ]


def test_semi_and_anti_follow_the_right_side() -> None:
    kind: Any
    for kind, first, last in (("semi", "+I", "-D"), ("anti", "-D", "+I")):
        runner = Runner(Join(kind))
        out = runner.run(0, [("+U", (1, 1, "a"))])
        assert out == ([] if kind == "semi" else [("+U", (1, 1, "a"))])
        assert runner.run(1, [("+I", (1, 9, 5)), ("+I", (1, 9, 6))]) == [(first, (1, 1, "a"))]
        assert runner.run(1, [("-D", (1, 9, 5))]) == []
        assert runner.run(1, [("-D", (1, 9, 6))]) == [(last, (1, 1, "a"))]
        assert runner.run(0, [("-D", (1, 1, "a"))]) == ([] if kind == "semi" else [("-D", (1, 1, "a"))])


def test_a_replaced_row_is_taken_back_although_no_retraction_came() -> None:
    runner = Runner(Join("inner", right_unique="join_key"))
    runner.run(0, [("+I", (1, 1, "a"))])
    runner.run(1, [("+I", (1, 9, 5))])
    assert runner.run(1, [("+U", (1, 9, 6))]) == [("-U", (1, 1, "a", 1, 9, 5)), ("+U", (1, 1, "a", 1, 9, 6))]
    assert runner.run(1, [("+U", (1, 9, 6))]) == []


def test_insert_only_inputs_read_each_side_once_a_bundle() -> None:
    runner = Runner(Join("inner", right_unique="join_key"), changelog=(False, False))
    for number in range(3):
        runner.reads = 0
        runner.run(0, [("+I", (k, number, "a")) for k in range(5)])
        assert runner.reads == 2  # the right rows; the heads of its own lists
        runner.reads = 0
        runner.run(1, [("+I", (number, 9, 5))])
        assert runner.reads == 1  # the left rows; its own row is written blindly


def test_a_skewed_key_is_joined_in_full() -> None:
    runner = Runner(Join("full"))
    left = [("+I", (1, number, "a")) for number in range(1500)]
    assert len(runner.run(0, left)) == 1500
    out = runner.run(1, [("+I", (1, number, 5)) for number in range(20)])
    assert Counter(kind for kind, _ in out) == {"-D": 1500, "+I": 30000}
    assert len(runner.run(1, [("-D", (1, number, 5)) for number in range(20)])) == 31500
    runner.run(0, [("-D", row) for _, row in left])
    assert runner.data == {}


def test_rows_that_change_with_the_other_side_come_in_the_order_of_what_changed_them() -> None:
    runner = Runner(Join("semi"))
    runner.run(0, [("+I", (1, 1, "a")), ("+I", (2, 1, "b")), ("+I", (1, 2, "c"))])
    assert runner.run(1, [("+I", (2, 9, 5)), ("+I", (1, 9, 5))]) == [
        ("+I", (2, 1, "b")),
        ("+I", (1, 1, "a")),
        ("+I", (1, 2, "c")),
    ]


def test_rows_with_nested_columns_are_found_again() -> None:
    nested = pa.schema([("k", pa.int64()), ("tags", pa.list_(pa.string()))])
    runner = Runner(Join("anti"), (nested, RIGHT))
    rows = [(1, ["a", "b"]), (1, ["a"]), (1, None), (1, [])]
    runner.run(0, [("+I", row) for row in rows])
    assert runner.run(0, [("-D", (1, [])), ("-D", (1, ["b"])), ("-D", (1, ["a", "b"]))]) == [
        ("-D", (1, [])),
        ("-D", (1, ["a", "b"])),
    ]
    assert runner.dropped.value == 1
    assert runner.run(1, [("+I", (1, 1, 1))]) == [("-D", (1, ["a"])), ("-D", (1, None))]


def test_condition_may_be_a_function() -> None:
    runner = Runner(Join("left", lambda batch: pc.equal(batch.column("id"), batch.column("id_right"))))
    runner.run(0, [("+I", (1, 1, "a")), ("+I", (1, 2, "b"))])
    assert runner.run(1, [("+I", (1, 2, 5))]) == [
        ("-D", (1, 2, "b", None, None, None)),
        ("+I", (1, 2, "b", 1, 2, 5)),
    ]


# -- refusals --


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(SchemaError, match="kind is 'outer'"):
        Join("outer")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="right_unique is 'id'"):
        Join(right_unique="id")
    with pytest.raises(SchemaError, match="condition is 'k > 1'"):
        Join(condition="k > 1")


def test_bad_inputs_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"'id_right' would occur twice.*suffixes"):
        Runner(Join(), (LEFT, pa.schema([("k", pa.int64()), ("id", pa.int64()), ("id_right", pa.int64())])))
    with pytest.raises(SchemaError, match="'k' would occur twice"):
        Runner(Join(suffixes=("", "")))
    with pytest.raises(SchemaError, match="key column 'k' of input 0 is int64 but 'k' of input 1 is string"):
        Runner(Join(), (LEFT, pa.schema([("k", pa.string())])))
    with pytest.raises(SchemaError, match="input 0 has no column 'number'"):
        Runner(Join(left_unique=["number"]))
    with pytest.raises(SchemaError, match="does not fit the joined columns"):
        Runner(Join(condition=pc.field("nothing") > 1))
    with pytest.raises(SchemaError, match="return one boolean a row"):
        Runner(Join(condition=pc.field("w") + 1))


def test_a_condition_that_gives_no_booleans_is_refused() -> None:
    runner = Runner(Join(condition=lambda batch: batch.column("w")))
    runner.run(0, [("+I", (1, 1, "a"))])
    with pytest.raises(OperatorError, match="return one boolean a row"):
        runner.run(1, [("+I", (1, 9, 5))])


def test_output_columns() -> None:
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("x", pa.int64(), nullable=False)])
    schema = Runner(Join("left", suffixes=("_l", "_r")), (strict, strict)).output_schema
    assert schema.names == ["k_l", "x_l", "k_r", "x_r"]
    assert [field.nullable for field in schema] == [False, False, True, True]
    assert Runner(Join("anti")).output_schema == LEFT
