"""Operators whose states have the type they are told, and a model of what is read after the type has evolved.

Owns: ``Kinds`` (every kind of record grain, with broadcast state), ``Columns`` (both kinds of bundle grain),
``random_type``, ``evolved_type``, ``random_value``, ``seen_as``.
Invariant: the model is Python values by field name; it knows no bytes and no versions.
"""

from __future__ import annotations

import decimal
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

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
    ValueStateDescriptor,
    to_iterable,
)

ROWS = pa.schema([("k", pa.int64()), ("index", pa.int64())])
RULES = pa.schema([("name", pa.string()), ("index", pa.int64())])
INPUTS = [ROWS, RULES]
KEYS = [["k"], None]
READ = -1
"""An index that asks for all that is stored under the key."""
KINDS = (
    "single", "spaced", "aging", "items", "aging_items", "entries", "aging_entries", "newest", "folded", "rules"
)  # fmt: skip
_LISTS = ("items", "aging_items")
_MAPS = ("entries", "aging_entries", "rules")


def newest(old: Any, new: Any) -> Any:
    return new


class Newest(AggregateFunction[Any, Any, Any]):
    """The last value."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return b


class Kinds(RecordOperator):
    """Puts ``values[index]`` into every state of the key; index READ shows them all."""

    num_inputs = 2
    broadcast_input = 1

    def __init__(self, value_type: pa.DataType, values: Sequence[Any] = ()) -> None:
        self.value_type = value_type
        self.values = list(values)

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("shown", pa.string())])

    def open(self, context: OperatorContext) -> None:
        get, kind, ttl = context.get_state, self.value_type, StateTtl("1 day")
        self.single: Any = get(ValueStateDescriptor("single", kind))
        self.spaced: Any = get(ValueStateDescriptor("spaced", kind, namespaced=True))
        self.aging: Any = get(ValueStateDescriptor("aging", kind, ttl=ttl))
        self.items: Any = get(ListStateDescriptor("items", kind))
        self.aging_items: Any = get(ListStateDescriptor("aging_items", kind, ttl=ttl))
        self.entries: Any = get(MapStateDescriptor("entries", int, kind))
        self.aging_entries: Any = get(MapStateDescriptor("aging_entries", int, kind, ttl=ttl))
        self.newest: Any = get(ReducingStateDescriptor("newest", newest, kind))
        self.folded: Any = get(AggregatingStateDescriptor("folded", Newest(), kind))
        self.rules: Any = get(BroadcastStateDescriptor("rules", str, kind))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        self.rules.put(row.name, self.values[row["index"]])

    async def process(self, row: Row, ctx: RecordContext) -> None:
        index = row["index"]
        if index != READ:
            self._write(index)
            return
        shown = {
            "single": await self.single.async_value(),
            "spaced": [await self.spaced.at(space).async_value() for space in (0, 1)],
            "aging": await self.aging.async_value(),
            "items": await to_iterable(self.items.async_get()),
            "aging_items": await to_iterable(self.aging_items.async_get()),
            "entries": dict(await to_iterable(self.entries.async_entries())),
            "aging_entries": dict(await to_iterable(self.aging_entries.async_entries())),
            "newest": await self.newest.async_get(),
            "folded": await self.folded.async_get(),
            "rules": dict(self.rules.entries()),
        }
        ctx.emit(row.k, repr(shown))

    def _write(self, index: int) -> None:
        value = self.values[index]
        self.single.async_update(value)
        self.spaced.at(index % 2).async_update(value)
        self.aging.async_update(value)
        self.items.async_add(value)
        self.aging_items.async_add(value)
        self.entries.async_put(index, value)
        self.aging_entries.async_put(index, value)
        self.newest.async_add(value)
        self.folded.async_add(value)


class Model:
    """What ``Kinds`` should show: per key the values that were put, and the type of each when it was."""

    def __init__(self) -> None:
        self._put: dict[int, list[tuple[int, Any]]] = {}
        self._rules: dict[str, Any] = {}

    def put(self, key: int, index: int, value: Any) -> None:
        self._put.setdefault(key, []).append((index, value))

    def rule(self, name: str, value: Any) -> None:
        self._rules[name] = value

    def shown(self, key: int, kind: pa.DataType) -> str:
        put = [(index, seen_as(value, kind)) for index, value in self._put.get(key, [])]
        values = [value for _, value in put]
        last = values[-1] if values else None
        by_index = dict(sorted(put))
        spaces = [[value for index, value in put if index % 2 == space] for space in (0, 1)]
        return repr(
            {
                "single": last,
                "spaced": [found[-1] if found else None for found in spaces],
                "aging": last,
                "items": values,
                "aging_items": values,
                "entries": by_index,
                "aging_entries": by_index,
                "newest": last,
                "folded": last,
                "rules": {name: seen_as(value, kind) for name, value in sorted(self._rules.items())},
            }
        )


class Columns(BundleOperator):
    """One row a key and a list of rows a key, of the input's columns; puts out both as they are after each bundle."""

    def __init__(self, fixed_fields: bool = False, ttl: StateTtl | None = None) -> None:
        self.options: Any = {"fixed_fields": fixed_fields, "ttl": ttl}

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        fields = [field.with_name(f"one_{field.name}") for field in inputs[0].schema]
        return pa.schema([("k", pa.int64()), *fields, ("many", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        schema = context.inputs[0].schema
        self.one = context.get_state(ColumnStateDescriptor("one", schema, **self.options))
        self.many = context.get_state(ListColumnStateDescriptor("many", schema, **self.options))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        if not bundle.num_rows:
            return None
        order = np.argsort(bundle.keys.inverse, kind="stable")
        rows = [column.take(pa.array(order)) for column in bundle.batch.columns]
        owners = bundle.keys.inverse[order]
        last = np.searchsorted(owners, np.arange(len(bundle.keys)), side="right") - 1

        def show(found: Any) -> None:
            keys = bundle.keys.columns[0].take(pa.array(found.key_index))
            ctx.emit([keys, *found.columns, pa.array(found.counts[found.key_index])])

        self.many.append(bundle.keys, rows, owners)
        self.one.put(bundle.keys, [column.take(pa.array(last)) for column in rows])
        return self.many.async_get(bundle.keys).then_accept(show)


# -- types and values ---------------------------------------------------------------------------------------

_LEAVES = (pa.int8(), pa.int32(), pa.float32(), pa.string(), pa.decimal128(9, 2), pa.timestamp("us"))


def random_type(rng: random.Random, depth: int = 2) -> pa.DataType:
    """A struct of one to three fields."""
    return pa.struct([(f"f{number}", _part(rng, depth)) for number in range(rng.randint(1, 3))])


def _part(rng: random.Random, depth: int) -> pa.DataType:
    form = rng.choice(["leaf", "leaf", "struct", "list", "map"]) if depth else "leaf"
    if form == "struct":
        return random_type(rng, depth - 1)
    if form == "list":
        return pa.list_(_part(rng, depth - 1))
    return pa.map_(pa.string(), _part(rng, depth - 1)) if form == "map" else rng.choice(_LEAVES)


def evolved_type(rng: random.Random, kind: pa.DataType, name: str) -> pa.DataType:
    """``kind`` with changes that stored values survive; fields that are added are called ``name`` and more."""
    if pa.types.is_struct(kind):
        fields = [field.with_type(evolved_type(rng, field.type, name)) for field in kind]
        if rng.random() < 0.6:
            fields.insert(rng.randint(0, len(fields)), pa.field(name, _part(rng, 1)))
        return pa.struct(fields)
    if pa.types.is_list(kind):
        return pa.list_(evolved_type(rng, kind.value_type, name))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, evolved_type(rng, kind.item_type, name))
    wider = {pa.int8(): pa.int32(), pa.int32(): pa.int64(), pa.float32(): pa.float64()}
    wider[pa.decimal128(9, 2)] = pa.decimal128(20, 2)
    return wider.get(kind, kind) if rng.random() < 0.5 else kind


def random_value(rng: random.Random, kind: pa.DataType) -> Any:
    """A value of ``kind`` with all its fields, and nulls here and there below the top."""
    return _value(rng, kind, False)


def _value(rng: random.Random, kind: pa.DataType, may_be_null: bool = True) -> Any:
    if may_be_null and rng.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(rng, field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.randint(0, 3))]
    if pa.types.is_map(kind):
        return {str(number): _value(rng, kind.item_type) for number in range(rng.randint(0, 2))}
    if pa.types.is_string(kind):
        return "x" * rng.randint(0, 5)
    if pa.types.is_floating(kind):
        return rng.randint(-1000, 1000) / 2
    if pa.types.is_decimal(kind):
        return decimal.Decimal(rng.randint(-10_000, 10_000)).scaleb(-2)
    bits = kind.bit_width
    return rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def seen_as(value: Any, kind: pa.DataType) -> Any:
    """What a value shows when its type has become ``kind``."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: seen_as(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [seen_as(one, kind.value_type) for one in value]
    if pa.types.is_map(kind):
        return {key: seen_as(one, kind.item_type) for key, one in value.items()}
    return value
