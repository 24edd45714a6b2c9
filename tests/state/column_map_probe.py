"""Two bundle operators over column maps: one that checks every read against dicts, and COUNT(DISTINCT).

Owns: ``MapProbe``, ``Model`` and ``DistinctCount``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    ColumnMapStateDescriptor,
    ColumnStateDescriptor,
    InputSpec,
    OperatorContext,
    RowKind,
    StateTtl,
)
from asyncstate.changelog import Changelog
from asyncstate.codec import KeyBatch, UserKeyBatch
from asyncstate.operator import OutputSpec
from asyncstate.state import Columns, MapEntries

INPUT = pa.schema(
    [
        ("key", pa.string()),
        ("user", pa.int64()),
        ("part", pa.string()),
        ("op", pa.string()),
        ("number", pa.int64()),
    ]
)
USER = pa.schema([("user", pa.int64()), ("part", pa.string())])
ROW = pa.schema([("number", pa.int64()), ("text", pa.string())])

Pair = tuple[Any, Any, Any]
Map = dict[Pair, int]


@dataclass
class Model:
    """What must be stored: by key and both parts of the user key, and of the windows with their number in front."""

    entries: Map = field(default_factory=dict)
    windows: dict[tuple[int, *Pair], int] = field(default_factory=dict)


def order(part: Any) -> tuple[bool, Any]:
    """Null first."""
    return part is not None, part


def text(number: int) -> str:
    """The second column of a row: rows of several lengths, many of them long."""
    return "x" * (number % 70)


class MapProbe(BundleOperator):
    """Writes what its rows' ops say, and compares every read with ``model`` as of when it was asked for.

    ``put`` (the last one of a pair counts), ``remove``, ``clear`` (all of the key). Windows come of the rows' numbers.
    """

    model = Model()  # of the whole test: an operator is copied for every micro-batch
    due = 2
    """Windows up to this one are read and removed when the watermark passes."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("checked", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.map = context.get_state(ColumnMapStateDescriptor("map", USER, ROW))
        self.windows = context.get_state(ColumnMapStateDescriptor("windows", USER, ROW, time_first=True))
        self.groups = context.key_groups

    def prefetch(self, bundle: Bundle) -> None:
        self.map.prefetch(self._pairs(bundle))

    @staticmethod
    def _pairs(bundle: Bundle) -> UserKeyBatch:
        return bundle.keys.with_user_keys([bundle.batch.column(1), bundle.batch.column(2)])

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        pairs, model = self._pairs(bundle), MapProbe.model
        checks = [self._point_read(pairs, model.entries), self._range_read(bundle.keys)]
        self._write(bundle, pairs)
        checks += [self._point_read(pairs, model.entries), self._range_read(bundle.keys)]
        self._clear(bundle)
        paged = [entry for page in self.map.entries(bundle.keys) for entry in shown(bundle.keys, page)]
        assert paged == expected(bundle.keys, model.entries)
        self._open_windows(bundle)
        for check in checks[1:]:
            checks[0] = checks[0].then_combine(check, lambda one, two: one + two)
        return checks[0].then_accept(lambda count: ctx.emit([pa.array([count])]))

    def on_watermark(self, watermark: int, ctx: BundleContext) -> None:
        found = {}
        for page in self.windows.up_to(self.due):
            keys = zip(*(c.to_pylist() for c in (*page.key_columns, *page.user_columns)), strict=True)
            places = list(zip(page.namespaces.tolist(), keys, strict=True))
            found.update(
                {(n, *pair): v for (n, pair), v in zip(places, page.columns[0].to_pylist(), strict=True)}
            )
        assert found.items() <= MapProbe.model.windows.items()
        self.windows.remove_up_to(self.due)
        assert list(self.windows.up_to(self.due)) == []
        for place in found:
            del MapProbe.model.windows[place]

    def _write(self, bundle: Bundle, pairs: UserKeyBatch) -> None:
        last = pairs.last_rows()
        ops = bundle.batch.column("op").take(pa.array(last)).to_pylist()
        numbers = bundle.batch.column("number").take(pa.array(last))
        columns = [numbers, pa.array(map(text, numbers.to_pylist()), pa.string())]
        keep = np.array([op != "remove" for op in ops])
        self.map.write(pairs, columns, keep)
        for pair, number, op in zip(rows_of(pairs), numbers.to_pylist(), ops, strict=True):
            if op == "remove":
                MapProbe.model.entries.pop(pair, None)
            else:
                MapProbe.model.entries[pair] = number

    def _clear(self, bundle: Bundle) -> None:
        cleared = bundle.batch.column("op").to_numpy(zero_copy_only=False) == "clear"
        keys = bundle.keys.select(np.unique(bundle.keys.inverse[cleared]))
        self.map.remove_all(keys)
        gone = set(keys.columns[0].to_pylist())
        MapProbe.model.entries = {
            pair: number for pair, number in MapProbe.model.entries.items() if pair[0] not in gone
        }

    def _open_windows(self, bundle: Bundle) -> None:
        columns = bundle.batch.columns
        keys = bundle.keys.in_namespaces(columns[4].to_numpy() % 5)
        pairs = keys.with_user_keys([columns[1], columns[2]])
        numbers = columns[4].take(pa.array(pairs.last_rows()))
        self.windows.put(pairs, [numbers, pa.array(map(text, numbers.to_pylist()), pa.string())])
        assert pairs.namespaces is not None
        places = zip(pairs.namespaces.tolist(), rows_of(pairs), numbers.to_pylist(), strict=True)
        MapProbe.model.windows.update({(n, *pair): number for n, pair, number in places})

    def _point_read(self, pairs: UserKeyBatch, model: Map) -> Any:
        wanted = [model.get(pair) for pair in rows_of(pairs)]

        def check(found: Columns) -> int:
            assert found.columns[0].to_pylist() == wanted
            assert found.columns[1].to_pylist() == [None if n is None else text(n) for n in wanted]
            assert found.present.tolist() == [n is not None for n in wanted]
            return len(wanted)

        return self.map.async_get(pairs).then_apply(check)

    def _range_read(self, keys: KeyBatch) -> Any:
        wanted = expected(keys, MapProbe.model.entries)

        def check(found: MapEntries) -> int:
            assert shown(keys, found) == wanted
            return len(wanted)

        return self.map.async_entries(keys).then_apply(check)


def rows_of(pairs: KeyBatch) -> list[Any]:
    return list(zip(*(column.to_pylist() for column in pairs.columns), strict=True))


def expected(keys: KeyBatch, model: Map) -> list[tuple[Pair, int]]:
    place = {key: index for index, key in enumerate(keys.columns[0].to_pylist())}
    mine = [(pair, number) for pair, number in model.items() if pair[0] in place]
    return sorted(mine, key=lambda entry: (place[entry[0][0]], order(entry[0][1]), order(entry[0][2])))


def shown(keys: KeyBatch, found: MapEntries) -> list[tuple[Pair, int]]:
    names = keys.columns[0].take(pa.array(found.key_index)).to_pylist()
    numbers, texts = (column.to_pylist() for column in found.columns)
    assert texts == list(map(text, numbers))
    users = (column.to_pylist() for column in found.user_columns)
    return list(zip(zip(names, *users, strict=True), numbers, strict=True))


class DistinctCount(BundleOperator):
    """COUNT(DISTINCT value) of each key of a changelog: a map of how often each value is there, and their number."""

    def __init__(self, ttl: StateTtl | None = None) -> None:
        self.ttl = ttl

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        schema = pa.schema([inputs[0].key_schema.field(0), ("values", pa.int64())])
        return OutputSpec(schema, changes=Changelog.retract())

    def open(self, context: OperatorContext) -> None:
        value, rows = pa.schema([context.inputs[0].column("value")]), pa.schema([("rows", pa.int64())])
        self.times = context.get_state(ColumnMapStateDescriptor("times", value, rows, ttl=self.ttl))
        self.number = context.get_state(ColumnStateDescriptor("number", rows, ttl=self.ttl))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        pairs = bundle.keys.with_user_keys([bundle.batch.column("value")])
        times = self.times.async_get(pairs)
        return times.then_combine(
            self.number.async_get(bundle.keys),
            lambda times, number: self._merge(bundle, pairs, times, number, ctx),
        )

    def _merge(
        self, bundle: Bundle, pairs: UserKeyBatch, times: Columns, number: Columns, ctx: BundleContext
    ) -> None:
        sign = np.where(bundle.accumulate, 1, -1)
        before = times.numpy(0).astype(np.int64)
        after = before + np.bincount(pairs.inverse, sign, len(pairs)).astype(np.int64)
        self.times.write(pairs, [pa.array(after)], after > 0)
        change = (after > 0).astype(np.int64) - (before > 0)
        old = number.numpy(0).astype(np.int64)
        new = old + np.bincount(pairs.key_index, change, len(bundle.keys)).astype(np.int64)
        self.number.write(bundle.keys, [pa.array(new)], new > 0)
        for values, chosen, kind in _changes(old, new):
            mask = pa.array(chosen)
            ctx.emit([bundle.keys.columns[0].filter(mask), pa.array(values[chosen])], kind)


def _changes(old: Any, new: Any) -> Iterator[tuple[Any, Any, RowKind]]:
    differ = old != new
    yield old, differ & (old > 0) & (new > 0), RowKind.UPDATE_BEFORE
    yield old, differ & (new == 0), RowKind.DELETE
    yield new, differ & (old == 0), RowKind.INSERT
    yield new, differ & (old > 0) & (new > 0), RowKind.UPDATE_AFTER
