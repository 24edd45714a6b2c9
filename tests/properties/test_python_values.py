"""Every place where a Python value becomes a column or a stored value: what is taken comes back equal, whatever the
place, and what is not is refused by all of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction as FoldingFunction,
)
from asyncstate import (
    AggregatingStateDescriptor,
    BroadcastStateDescriptor,
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    ListStateDescriptor,
    ListView,
    MapStateDescriptor,
    MapView,
    OperatorContext,
    OutputSpec,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    ValueStateDescriptor,
    ValueView,
)
from asyncstate.codec.arrow_types import is_key_type
from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.errors import AsyncStateError
from asyncstate.functions import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegmentApplied,
    KeySegments,
    MutableRow,
    ProcessTableFunction,
    SetTable,
    list_view,
    map_view,
    value_view,
)
from asyncstate.testing import FakeContext, OperatorHarness, PipelineHarness, PipelineSource
from operators import GroupAggregate, KeyedFlatMap, KeyedMap, LookupJoin, TableFunction, udaf
from tests.codec.any_values import any_values_of, is_same
from tests.codec.strategies import flat_types, nested_types
from tests.examples import at_most

ROWS: Final = pa.schema([("k", pa.string()), ("write", pa.bool_())])
WRITE, READ = ("key", True), ("key", False)
GIVEN: Final[list[Any]] = []
"""The value at hand: operators are pickled, and not all values can be."""


def value() -> Any:
    return GIVEN[-1]


def emit_results(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("place", pa.string()), ("v", kind)])


# -- places that emit ---------------------------------------------------------------------------------------


class Emits(RecordOperator):
    def __init__(self, kind: pa.DataType, output: str | None = None) -> None:
        self.kind, self.output = kind, output

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(emit_results(self.kind), {"aside": emit_results(self.kind)})

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit("emit", value(), output=self.output)


class EmitsColumns(BundleOperator):
    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return emit_results(self.kind)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        ctx.emit([["bundle"] * len(bundle.kinds), [value()] * len(bundle.kinds)])


class Evaluates(ProcessTableFunction):
    def eval(self, rows: SetTable) -> Iterator[tuple[str, Any]]:
        yield "table function", value()


async def found(keys: Any) -> list[Any]:
    return [[("lookup", value())] for _ in keys]


# -- places of aggregates -------------------------------------------------------------------------------------


class Returns(AggregateFunction):
    """A result that is the value."""

    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, write: Any) -> None:
        pass

    def get_value(self, accumulator: Any) -> Any:
        return value()


class Accumulates(AggregateFunction):
    """A field that is the value, which is the result once it has been read from the store."""

    def create_accumulator(self) -> Any:
        return MutableRow(kept=None, read=False)

    def accumulate(self, accumulator: Any, write: Any) -> None:
        if write:
            accumulator["kept"] = value()
        else:
            accumulator["read"] = True

    def get_value(self, accumulator: Any) -> Any:
        return accumulator["kept"] if accumulator["read"] else None


class Views(AggregateFunction):
    """A view that holds the value, which is the result, too."""

    def __init__(self, place: str) -> None:
        self.place = place

    def create_accumulator(self) -> Any:
        return MutableRow(view={"list": ListView, "value": ValueView}.get(self.place, MapView)())

    def accumulate(self, accumulator: Any, write: Any) -> None:
        view = accumulator["view"]
        if not write:
            return
        if self.place == "list":
            view.add(value())
        elif self.place == "value":
            view.update(value())
        elif self.place == "map":
            view.put("a", value())
        else:
            view.put(value(), "a")

    def get_value(self, accumulator: Any) -> Any:
        view = accumulator["view"]
        if self.place == "list":
            return next(iter(view), None)
        if self.place == "value":
            return view.value()
        return view.get("a") if self.place == "map" else next(iter(view.keys()), None)


class Bundles(BundledAggregateFunction):
    def bundled_accumulate_retract(self, segments: KeySegments) -> list[KeySegmentApplied]:
        return [self.applied(one.accumulators) for one in segments]

    def applied(self, before: Sequence[Any]) -> KeySegmentApplied:
        kept = before[0]["kept"] if before else value()
        return KeySegmentApplied({"kept": kept}, kept if before else None, kept)


def aggregate(function: Any, kind: pa.DataType, *fields: pa.Field) -> GroupAggregate:
    accumulator = pa.schema(fields or [pa.field("n", pa.int64())])
    made = udaf(function, result_type=kind, accumulator_type=accumulator, name="v")
    return GroupAggregate([made("write")])


VIEWS: Final[dict[str, Callable[[pa.DataType], pa.Field]]] = {
    "list": lambda kind: list_view("view", kind),
    "value": lambda kind: value_view("view", kind),
    "map": lambda kind: map_view("view", pa.string(), kind),
    "map_key": lambda kind: map_view("view", kind, pa.string()),
}


# -- states -----------------------------------------------------------------------------------------------


class Last(FoldingFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return value()

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return b


class Keeps(RecordOperator):
    """A state of one kind; what it has is emitted in this and the next micro-batch."""

    def __init__(self, kind: pa.DataType, place: str) -> None:
        self.kind, self.place = kind, place

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return emit_results(self.kind)

    def open(self, context: OperatorContext) -> None:
        kind = self.kind
        declared: dict[str, Callable[[], Any]] = {
            "value": lambda: ValueStateDescriptor("value", kind),
            "list": lambda: ListStateDescriptor("list", kind),
            "map": lambda: MapStateDescriptor("map", pa.string(), kind),
            "map_key": lambda: MapStateDescriptor("map_key", kind, pa.string()),
            "reducing": lambda: ReducingStateDescriptor("reducing", _second, kind),
            "aggregating": lambda: AggregatingStateDescriptor("aggregating", Last(), kind),
        }
        self.state = context.get_state(declared[self.place]())

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if row.write:
            await self.put(self.place, self.state)
        kept = await self.kept(self.place, self.state)
        if kept is not None:
            ctx.emit(self.place, kept)

    async def put(self, place: str, state: Any) -> None:
        if place == "value":
            await state.async_update(value())
        elif place == "map":
            await state.async_put("a", value())
        elif place == "map_key":
            await state.async_put(value(), "a")
        else:
            await state.async_add(value())

    async def kept(self, place: str, state: Any) -> Any:
        if place == "value":
            return await state.async_value()
        if place == "map":
            return await state.async_get("a")
        if place in ("list", "map_key"):
            found = await (state.async_get() if place == "list" else state.async_keys())
            return next(iter([one async for one in found]), None)
        return await state.async_get()


def _second(_: Any, second: Any) -> Any:
    return second


STATES: Final = ("value", "list", "map", "map_key", "reducing", "aggregating")


class Broadcasts(RecordOperator):
    num_inputs = 2
    broadcast_input = 1

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return emit_results(self.kind)

    def open(self, context: OperatorContext) -> None:
        self.state = context.get_state(BroadcastStateDescriptor("rules", pa.string(), self.kind))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        self.state.put("a", value())

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit("broadcast", self.state.get("a"))


# -- all places -------------------------------------------------------------------------------------------


def run(operator: Any, mode: bool, batches: Any = ((WRITE,), (READ,)), **more: Any) -> list[Any]:
    with OperatorHarness(operator, ROWS, ["k"], async_enabled=mode, uid="op", **more) as harness:
        out = []
        for rows in batches:
            harness.push(list(rows))
            out += harness.end_batch()
        out += harness.side_output("aside") if "aside" in harness.outputs.side_outputs else []
    return [row[-1] for row in out]


def pushed(kind: pa.DataType, mode: bool) -> list[Any]:
    schema = pa.schema([("k", pa.string()), ("v", kind)])
    forward = KeyedMap(lambda row: (row.k, row.v), schema)
    with OperatorHarness(forward, schema, ["k"], async_enabled=mode) as harness:
        harness.push([("key", value())])
        return [row[-1] for row in harness.end_batch()]


def piped(kind: pa.DataType, mode: bool) -> list[Any]:
    schema = pa.schema([("k", pa.string()), ("v", kind)])

    def flow(rows: Any) -> None:
        rows.apply(KeyedMap(lambda row: (row.k, row.v), schema), key="k", uid="op").to(print, name="out")

    with PipelineHarness(flow, {"rows": PipelineSource(schema)}, async_enabled=mode) as harness:
        harness.push("rows", [("key", value())])
        return [row[-1] for row in harness.end_batch()["out"]]


def faked(kind: pa.DataType, mode: bool) -> list[Any]:
    schema = pa.schema([("k", pa.string()), ("v", kind)])
    with FakeContext(Emits(kind), schema, "k") as ctx:
        ctx.row("key", None)
        ctx.emit("emitted", value())
        return [row[-1] for row in ctx.emitted]


def fake_row(kind: pa.DataType, mode: bool) -> list[Any]:
    schema = pa.schema([("k", pa.string()), ("v", kind)])
    with FakeContext(Emits(kind), schema, "k") as ctx:
        row = ctx.row("key", value())
        ctx.emit("given", row.v)
        return [row[-1] for row in ctx.emitted]


def broadcast(kind: pa.DataType, mode: bool) -> list[Any]:
    keys = [["k"], None]
    with OperatorHarness(Broadcasts(kind), [ROWS, ROWS], keys, async_enabled=mode, uid="op") as harness:
        harness.push([WRITE], input=1)
        harness.push([READ])
        out = harness.end_batch()
        harness.push([READ])
        return [row[-1] for row in [*out, *harness.end_batch()]]


def initial(kind: pa.DataType, mode: bool) -> list[Any]:
    given = {"value": [("key", value())]}
    return run(Keeps(kind, "value"), mode, [[READ]], initial_state=given)


def defaulted(kind: pa.DataType, mode: bool) -> list[Any]:
    class Default(Keeps):
        def open(self, context: OperatorContext) -> None:
            self.state = context.get_state(ValueStateDescriptor("value", kind, value()))

    return run(Default(kind, "value"), mode, [[READ]])


def states(place: str) -> Callable[[pa.DataType, bool], list[Any]]:
    return lambda kind, mode: run(Keeps(kind, place), mode)


def views(place: str) -> Callable[[pa.DataType, bool], list[Any]]:
    return lambda kind, mode: run(aggregate(Views(place), kind, VIEWS[place](kind)), mode, changelog=False)


PLACES: Final[dict[str, Callable[[pa.DataType, bool], list[Any]]]] = {
    "emit": lambda kind, mode: run(Emits(kind), mode),
    "side output": lambda kind, mode: run(Emits(kind, "aside"), mode),
    "bundle": lambda kind, mode: run(EmitsColumns(kind), mode),
    "map": lambda kind, mode: run(KeyedMap(lambda row: ("map", value()), emit_results(kind)), mode),
    "flat map": lambda kind, mode: run(KeyedFlatMap(lambda row: [("f", value())], emit_results(kind)), mode),
    "table function": lambda kind, mode: run(TableFunction(Evaluates(), emit_results(kind)), mode),
    "lookup": lambda kind, mode: run(LookupJoin(found, emit_results(kind)), mode, changelog=False),
    "result": lambda kind, mode: run(aggregate(Returns(), kind), mode, [[WRITE]], changelog=False),
    "accumulator": lambda kind, mode: run(
        aggregate(Accumulates(), kind, pa.field("kept", kind), pa.field("read", pa.bool_())),
        mode,
        changelog=False,
    ),
    "bundled": lambda kind, mode: run(
        aggregate(Bundles(), kind, pa.field("kept", kind)), mode, changelog=False
    ),
    **{f"{place} view": views(place) for place in VIEWS},
    **{f"{place} state": states(place) for place in STATES},
    "broadcast state": broadcast,
    "initial state": initial,
    "default": defaulted,
    "push": pushed,
    "pipeline": piped,
    "fake context": faked,
    "fake row": fake_row,
}


def plain(found: Any, kind: pa.DataType) -> Any:
    """What a state or row shows, with pairs for maps."""
    if found is None:
        return None
    if pa.types.is_list(kind):
        return [plain(one, kind.value_type) for one in found]
    if pa.types.is_struct(kind):
        return {field.name: plain(found[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = found.items() if isinstance(found, dict) else found
        return [(plain(one, kind.key_type), plain(other, kind.item_type)) for one, other in pairs]
    return found


def storable(place: str, kind: pa.DataType) -> bool:
    return is_key_type(kind) or "map_key" not in place


MICROSECONDS: Final = st.one_of(flat_types, nested_types()).filter(
    lambda kind: all(f"timestamp[{unit}" not in str(kind) for unit in ("s", "ms", "ns"))
)
"""Integers for times of other units mean microseconds where they are emitted, and their own unit in a state."""


@pytest.mark.long
@settings(max_examples=at_most(25))
@given(st.data())
def test_all_places_take_the_same_values_and_give_them_back(data: st.DataObject) -> None:
    kind = data.draw(MICROSECONDS)
    drawn = data.draw(any_values_of(kind))
    mode = data.draw(st.booleans(), "async")
    fits = column_takes(drawn, kind)
    assume(fits is not None)
    GIVEN.append(drawn)
    try:
        for place, taken in PLACES.items():
            if storable(place, kind):
                found = outcome(taken, kind, mode)
                assert isinstance(found, list) == fits, f"{place}: {drawn!r} for {kind}: {found}"
                if isinstance(found, list):
                    assert found, f"{place} loses {drawn!r} for {kind}"
                    same = [is_same(drawn, one, kind) for one in found]
                    assert all(same), f"{place} makes {found} of {drawn!r} for {kind}"
    finally:
        GIVEN.clear()


def column_takes(drawn: Any, kind: pa.DataType) -> bool | None:
    """Whether a column holds it; None for a null, and for a date that Python does not have."""
    try:
        column = arrow_values([drawn], kind)
        column.to_pylist()
    except UnfitValueError:
        return False
    except (OverflowError, ValueError):
        return None
    return None if column.null_count else True


def outcome(taken: Callable[[pa.DataType, bool], list[Any]], kind: pa.DataType, mode: bool) -> Any:
    """What is emitted, or the error."""
    try:
        return [plain(one, kind) for one in taken(kind, mode) if one is not None]
    except AsyncStateError as error:
        return error


# -- what a refusal says ------------------------------------------------------------------------------------

SAYS_KEY: Final = {*PLACES} - {
    *("bundle", "push", "pipeline", "fake row", "default", "broadcast state", "initial state")
}
"""All but rows of harnesses, which have no key yet, and what is not of a key."""


@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("given_value", "kind"),
    [
        (3.7, pa.int64()),
        ("\ud800", pa.string()),
        (pd.NaT, pa.timestamp("us")),
        (dt.datetime(2020, 1, 1, 12), pa.date32()),
    ],
    ids=["fraction", "surrogate", "NaT", "time of day"],
)
def test_a_refusal_names_the_place_the_value_and_the_key(
    place: str, given_value: Any, kind: pa.DataType, async_enabled: bool
) -> None:
    GIVEN.append(given_value)
    try:
        with pytest.raises(AsyncStateError) as refused:
            PLACES[place](kind, async_enabled)
    finally:
        GIVEN.clear()
    text = str(refused.value)
    shown = ascii(given_value) if isinstance(given_value, str) else repr(given_value)
    assert shown in text
    assert "which does not fit its type" in text or f"of type {kind} cannot hold" in text
    assert ("('key',)" in text) == (place in SAYS_KEY), text
    assert COLUMN.get(place, "'v'") in text, text


COLUMN: Final = {
    "result": "Returns",
    "accumulator": "'kept'",
    "bundled": "accumulators",
    **{f"{place} view": "GroupAggregate, Views" for place in VIEWS},
    **{f"{place} state": f"'{place}'" for place in STATES},
    "broadcast state": "'rules'",
    "initial state": "'value'",
    "default": "'value'",
}
