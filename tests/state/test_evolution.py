"""Types of states change between runs: what was stored stays readable, or the change is refused by field."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import ListStateDescriptor, MapStateDescriptor, RecordOperator, StateTtl, ValueStateDescriptor
from asyncstate.driver.operator_manifests import check_fingerprint, fingerprint
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import InputSpec, OperatorContext, OutputSpec, RecordContext, Row
from asyncstate.testing import OperatorHarness
from operators import Deduplicate, GroupAggregate, Join, Limit, WindowAggregate, count, max_, sum_, tumble
from tests.state.evolving import (
    INPUTS,
    KEYS,
    READ,
    Columns,
    Kinds,
    Model,
    evolved_type,
    random_type,
    random_value,
)

BOTH_MODES = pytest.mark.parametrize("async_enabled", [False, True], ids=["sync", "async"])


def kinds(operator: Kinds, **given_: Any) -> OperatorHarness:
    return OperatorHarness(operator, INPUTS, KEYS, max_parallelism=8, **given_)


def run_chain(
    types: list[pa.DataType], seed: int, async_enabled: bool, parallelism: list[int]
) -> tuple[list[str], list[str], list[dict[bytes, bytes]]]:
    """A run for each version of the type, each a restart: what is shown, what should be, what is stored."""
    rng, model = random.Random(seed), Model()
    shown: list[str] = []
    expected: list[str] = []
    stored: list[dict[bytes, bytes]] = []
    snapshot = None
    last: OperatorHarness | None = None
    index = 0
    for number, kind in enumerate(types):
        values: list[Any] = [None] * index + [random_value(rng, kind) for _ in range(4)]
        operator = Kinds(kind, values)
        changes = {"parallelism": parallelism[number % len(parallelism)]}
        harness = (
            kinds(operator, async_enabled=async_enabled, **changes)
            if last is None
            else last.restore(snapshot, operator=operator, **changes)  # type: ignore[arg-type]
        )
        if last is not None:
            last.close()
        rows = [(rng.randint(0, 3), at) for at in range(index, len(values) - 1)]
        for key, at in rows:
            model.put(key, at, values[at])
        model.rule(f"r{number}", values[-1])
        harness.push([(f"r{number}", len(values) - 1)], input=1)
        harness.push([*rows, *((key, READ) for key in range(4))])
        found = dict((row[1], row[2]) for row in harness.end_batch())
        shown += [found[key] for key in range(4)]
        expected += [model.shown(key, kind) for key in range(4)]
        stored.append(harness.state_entries())
        snapshot, last, index = harness.snapshot(), harness, len(values)
    assert last is not None
    last.close()
    return shown, expected, stored


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=6, deadline=None)
def test_chains_of_evolutions_of_every_kind(seed: int, versions: int) -> None:
    rng = random.Random(seed)
    types = [random_type(rng)]
    for number in range(versions):
        types.append(evolved_type(rng, types[-1], f"n{number}"))
    shown, expected, stored = run_chain(types, seed, False, [1, 2])
    assert shown == expected
    assert run_chain(types, seed, True, [1, 2]) == (shown, expected, stored)


def test_a_chain_that_begins_with_two_partitions() -> None:
    types = [pa.struct([("f0", pa.int8()), ("f1", pa.struct([("x", pa.float32())]))])]
    rng = random.Random(7)
    for number in range(3):
        types.append(evolved_type(rng, types[-1], f"n{number}"))
    shown, expected, stored = run_chain(types, 7, False, [2, 1])
    assert shown == expected
    assert run_chain(types, 7, True, [2, 1]) == (shown, expected, stored)


@BOTH_MODES
def test_plain_numbers_become_wider(async_enabled: bool) -> None:
    types = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    shown, expected, _ = run_chain(types, 3, async_enabled, [1])
    assert shown == expected


@BOTH_MODES
def test_long_lists_hold_elements_of_several_versions(async_enabled: bool) -> None:
    def version(kind: pa.DataType, harness: OperatorHarness | None, first: int) -> OperatorHarness:
        new = {"new": None} if "new" in {field.name for field in kind} else {}
        operator = Kinds(kind, [{"a": at, **new, "b": "t" * 40} for at in range(first + 300)])
        made = (
            kinds(operator, async_enabled=async_enabled)
            if harness is None
            else harness.restore(harness.snapshot(), operator=operator)
        )
        made.push([(1, at) for at in range(first, first + 300)])
        made.end_batch()
        return made

    narrow = pa.struct([("a", pa.int32()), ("b", pa.string())])
    wide = pa.struct([("a", pa.int64()), ("new", pa.bool_()), ("b", pa.string())])
    with version(narrow, None, 0) as first, version(wide, first, 300) as second:
        second.push([(1, READ)])
        (row,) = second.end_batch()
        elements = [{"a": at, "new": None, "b": "t" * 40} for at in range(600)]
        assert f"'items': {elements!r}" in row[2]
        assert f"'aging_items': {elements!r}" in row[2]


def test_the_history_is_in_the_manifest_in_order() -> None:
    types = [pa.int8(), pa.int16(), pa.int64()]
    with kinds(Kinds(types[0], [1, 2, 3])) as first:
        first.push([(1, 0)])
        first.end_batch()
        with first.restore(first.snapshot(), operator=Kinds(types[1], [1, 2, 3])) as second:
            second.push([(2, 1)])
            second.end_batch()
            second.end_batch()  # nothing new: no version more
            with second.restore(second.snapshot(), operator=Kinds(types[2], [1, 2, 3])) as third:
                third.end_batch()
                spec = next(spec for spec in third.states() if spec.name == "single")
    assert spec.types == {
        "value": "int64",
        "namespaced": "no",
        "value version 0": "int8",
        "value version 1": "int16",
    }


def test_an_older_program_goes_on_after_a_rollback_and_is_refused_before() -> None:
    old, new = Kinds(pa.int32(), [1, 2]), Kinds(pa.int64(), [1, 2**40])
    with kinds(old) as first:
        first.push([(1, 0)])
        first.end_batch()
        before = first.snapshot()
        with first.restore(before, operator=new) as second:
            second.push([(1, 1)])
            second.end_batch()
            with pytest.raises(
                StateDeclarationError,
                match=(
                    "'operator', state 'single': .*'value' changed from int64 to int32.*version 0 of the state; a "
                    "newer program has written version 1: run that, or roll the checkpoint back"
                ),
            ):
                second.restore(second.snapshot(), operator=old)
        with first.restore(before, operator=old) as again:
            again.push([(1, 1), (1, READ)])
            assert "'single': 2" in again.end_batch()[0][2]


# -- column states -------------------------------------------------------------------------------------------

NARROW = pa.schema(
    [("k", pa.int64()), ("n", pa.int32()), ("x", pa.float32()), ("s", pa.struct([("a", pa.int8())]))]
)
WIDE = pa.schema(
    [
        ("k", pa.int64()),
        ("new", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)


def reopened(operator: Any, schemas: Any, key: Any, folder: Any, **more: Any) -> OperatorHarness:
    return OperatorHarness(operator, schemas, key, folder=folder, **more)


@BOTH_MODES
@pytest.mark.parametrize("ttl", [None, StateTtl("1 day")], ids=["for ever", "with a ttl"])
def test_columns_of_several_versions(tmp_path: Any, async_enabled: bool, ttl: StateTtl | None) -> None:
    old = [(key % 5, key, key / 2, {"a": key % 100}) for key in range(400)]
    harness = reopened(Columns(ttl=ttl), NARROW, ["k"], tmp_path, async_enabled=async_enabled)
    harness.push(old)
    harness.end_batch()
    harness = reopened(Columns(ttl=ttl), WIDE, ["k"], tmp_path, async_enabled=async_enabled, parallelism=2)
    harness.push([(3, "text", 2**40, 0.1, {"a": 2**20, "b": "c"})])
    expected = [(3, 3, None, n, x, {"a": s["a"], "b": None}, 81) for k, n, x, s in old if k == 3]
    expected.append((3, 3, "text", 2**40, 0.1, {"a": 2**20, "b": "c"}, 81))
    assert [row[1:] for row in harness.end_batch()] == expected


def test_fields_that_must_stay_are_named(tmp_path: Any) -> None:
    harness = reopened(Columns(fixed_fields=True), NARROW, ["k"], tmp_path)
    harness.push([(1, 1, 1.0, None)])
    harness.end_batch()
    with pytest.raises(
        StateDeclarationError, match="state 'one': .*field 'new' .*was added, but stored values do not"
    ):
        reopened(Columns(fixed_fields=True), WIDE, ["k"], tmp_path)


# -- what is refused ------------------------------------------------------------------------------------------


class Declares(RecordOperator):
    """Declares one state."""

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor

    def bind(self, inputs: Any) -> pa.Schema:
        return inputs[0].schema

    def open(self, context: OperatorContext) -> None:
        context.get_state(self.descriptor)

    def process(self, row: Row, ctx: RecordContext) -> None:
        pass


STRUCT = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.int64()), ("d", pa.string())]))])
DROP = "migrate drop-state CHECKPOINT operator s"
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "map key": (
        MapStateDescriptor("s", pa.int32(), int),
        MapStateDescriptor("s", pa.int64(), int),
        f"key is int64 but the checkpoint has int32.*{DROP}",
    ),
    "kind": (
        ListStateDescriptor("s", int),
        MapStateDescriptor("s", int, int),
        f"kind is map but the checkpoint has list.*{DROP}",
    ),
    "namespaced": (
        ValueStateDescriptor("s", int),
        ValueStateDescriptor("s", int, namespaced=True),
        f"namespaced is yes but the checkpoint has no.*{DROP}",
    ),
    "ttl on": (
        ValueStateDescriptor("s", int),
        ValueStateDescriptor("s", int, ttl=StateTtl(1)),
        f"with a ttl in processing time but the checkpoint has no ttl.*{DROP}",
    ),
    "ttl off": (
        ValueStateDescriptor("s", int, ttl=StateTtl(1)),
        ValueStateDescriptor("s", int),
        f"with no ttl but the checkpoint has a ttl in processing time.*{DROP}",
    ),
    "pickled": (
        ValueStateDescriptor("s", int),
        ValueStateDescriptor("s", pickled=True),
        f"value is pickled but the checkpoint has int64.*{DROP}",
    ),
    "typed": (
        ValueStateDescriptor("s", pickled=True),
        ValueStateDescriptor("s", int),
        f"value is int64 but the checkpoint has pickled.*{DROP}",
    ),
    "narrower": (
        ValueStateDescriptor("s", int),
        ValueStateDescriptor("s", pa.int32()),
        "'value' changed from int64 to int32.*migrate cast-field CHECKPOINT operator s value int32",
    ),
    "field gone": (
        ValueStateDescriptor("s", STRUCT),
        ValueStateDescriptor("s", pa.struct([STRUCT.field("b")])),
        "field 'a' was removed.*migrate drop-field CHECKPOINT operator s a",
    ),
    "field inside gone": (
        ValueStateDescriptor("s", STRUCT),
        ValueStateDescriptor("s", pa.struct([STRUCT.field("a"), ("b", pa.struct([("d", pa.string())]))])),
        r"field 'b\.c' was removed.*migrate drop-field CHECKPOINT operator s b\.c",
    ),
    "another type": (
        ListStateDescriptor("s", STRUCT),
        ListStateDescriptor("s", pa.struct([("a", pa.string()), STRUCT.field("b")])),
        "field 'a' changed from int64 to string.*migrate cast-field CHECKPOINT operator s a string",
    ),
    "not null": (
        MapStateDescriptor("s", int, STRUCT),
        MapStateDescriptor("s", int, pa.struct([STRUCT.field("a").with_nullable(False), STRUCT.field("b")])),
        "field 'a' is no longer nullable.*migrate cast-field CHECKPOINT operator s a 'int64 not null'",
    ),
    "added not null": (
        ValueStateDescriptor("s", STRUCT),
        ValueStateDescriptor("s", pa.struct([*STRUCT, pa.field("z", pa.int8(), nullable=False)])),
        "added field 'z' is not nullable; declare it nullable",
    ),
    "moved": (
        ValueStateDescriptor("s", STRUCT),
        ValueStateDescriptor("s", pa.struct([STRUCT.field("b"), STRUCT.field("a")])),
        "field 'b' has moved to the place of 'a'; keep the old order",
    ),
    "inside a list": (
        ValueStateDescriptor("s", pa.list_(STRUCT)),
        ValueStateDescriptor("s", pa.list_(pa.struct([STRUCT.field("b")]))),
        rf"field 'item\.a' was removed.*{DROP}",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_field_and_the_command(case: str) -> None:
    before, after, message = REFUSED[case]
    schema = pa.schema([("k", pa.int64())])
    with OperatorHarness(Declares(before), schema, ["k"]) as harness:
        harness.end_batch()
        with pytest.raises(StateDeclarationError, match=f"(?s)operator 'operator', state 's': .*{message}"):
            harness.restore(harness.snapshot(), operator=Declares(after))


# -- operators ------------------------------------------------------------------------------------------------

SALES = pa.schema([("shop", pa.string()), ("amount", pa.int32()), ("at", pa.timestamp("us"))])
WIDE_SALES = pa.schema(
    [("shop", pa.string()), ("note", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us"))]
)
BIG = 2**40


@pytest.fixture(params=["sync", "async"])
def sales(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Opens a harness over the same checkpoint."""

    def reopen(operator: Any, schema: Any, key: Any = ("shop",), **more: Any) -> OperatorHarness:
        return OperatorHarness(
            operator, schema, key, folder=tmp_path, async_enabled=request.param == "async", **more
        )

    return reopen


def test_aggregates_of_a_wider_column(sales: Any) -> None:
    operator = GroupAggregate([sum_("amount"), max_("amount")])
    harness = sales(operator, SALES, changelog=False)
    harness.push([("ann", 5, 0), ("bob", 9, 0)])
    harness.end_batch()
    harness = sales(operator, WIDE_SALES, changelog=False)
    harness.push([("ann", "x", BIG, 0)])
    assert harness.end_batch() == [("-U", "ann", 5, 5), ("+U", "ann", BIG + 5, BIG)]


@pytest.mark.parametrize("function", [max_("amount").alias("top"), sum_("amount").alias("all")])
def test_an_aggregate_more_is_refused_by_name(sales: Any, function: Any) -> None:
    harness = sales(GroupAggregate([count().alias("n")]), SALES, changelog=False)
    harness.push([("ann", 5, 0)])
    harness.end_batch()
    with pytest.raises(StateDeclarationError, match=r"aggregate (max|sum)\('amount'\) is new: of all rows"):
        sales(GroupAggregate([count().alias("n"), function]), SALES, changelog=False)


def test_retracted_extremes_of_a_wider_column(sales: Any) -> None:
    operator = GroupAggregate([max_("amount")])
    harness = sales(operator, SALES)
    harness.push([("ann", 5, 0), ("ann", 7, 0)])
    harness.end_batch()
    harness = sales(operator, WIDE_SALES)
    harness.push([("ann", None, BIG, 0)])
    assert harness.end_batch()[-1] == ("+U", "ann", BIG)
    harness.push([("ann", None, BIG, 0), ("ann", None, 7, 0)], kind="-D")
    assert harness.end_batch()[-1] == ("+U", "ann", 5)


def test_deduplicated_rows_of_a_wider_input(sales: Any) -> None:
    operator = Deduplicate(keep="last")
    harness = sales(operator, SALES, event_time="at", changelog=False)
    harness.push([("ann", 5, 1)])
    harness.end_batch()
    harness = sales(operator, WIDE_SALES, event_time="at", changelog=False)
    harness.push([("ann", "x", BIG, 2)])
    assert harness.end_batch() == [("-U", "ann", None, 5, 1), ("+U", "ann", "x", BIG, 2)]
    with pytest.raises(StateDeclarationError, match="state 'rows': .*field 'note' was removed.*drop-field"):
        sales(operator, SALES, event_time="at", changelog=False)


def test_joined_rows_of_a_wider_input(sales: Any) -> None:
    def opened(left: pa.Schema) -> Any:
        return sales(Join("inner"), [left, SALES], (["shop"], ["shop"]), changelog=False)

    harness = opened(SALES)
    harness.push([("ann", 5, 1)])
    harness.end_batch()
    harness = opened(WIDE_SALES)
    harness.push([("ann", "x", BIG, 2)])
    harness.push([("ann", 1, 3)], input=1)
    found = [row[1:5] for row in harness.end_batch()]
    assert sorted(found, key=str) == [("ann", "x", BIG, 2), ("ann", None, 5, 1)]


def test_windows_of_a_wider_column(sales: Any) -> None:
    operator = WindowAggregate(tumble("1 second"), [max_("amount"), count().alias("n")])
    settings_ = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    harness = sales(operator, SALES, **settings_)
    harness.push([("ann", 5, 1)])
    harness.end_batch()
    harness = sales(operator, WIDE_SALES, **settings_)
    harness.push([("ann", "x", BIG, 2)])
    (row,) = harness.finish()
    assert row[-2:] == (BIG, 2)


def test_key_columns_do_not_change() -> None:
    def texts(schema: pa.Schema, *key: str) -> Mapping[str, str]:
        return fingerprint(Limit(1), [InputSpec(schema, key)], OutputSpec(pa.schema([]))).schemas

    check_fingerprint("op", texts(SALES, "shop"), texts(WIDE_SALES, "shop"))
    check_fingerprint("op", texts(WIDE_SALES, "shop"), texts(WIDE_SALES.remove(1), "shop"))
    with pytest.raises(
        SchemaError, match=r"the key \(key0\) was \(amount: int32\) and is now \(amount: int64\)"
    ):
        check_fingerprint("op", texts(SALES, "amount"), texts(WIDE_SALES, "amount"))
    with pytest.raises(
        SchemaError, match="'op', input0: column 'amount' was int64 and is int32; cast it back"
    ):
        check_fingerprint("op", texts(WIDE_SALES, "shop"), texts(SALES, "shop"))
