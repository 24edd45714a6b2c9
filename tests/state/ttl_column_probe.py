"""A bundle operator over both column states, all with the same time to live, and a harness that keeps its time.

Owns: ``ColumnProbe`` and ``ColumnBench``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    ColumnStateDescriptor,
    InputSpec,
    ListColumnStateDescriptor,
    OperatorContext,
    StateTtl,
)
from asyncstate.state import Columns, ListColumns
from tests.state.ttl_probe import MS, Bench

NUMBER = pa.schema([("number", pa.int64()), ("text", pa.string())])


class ColumnProbe(BundleOperator):
    """What a micro-batch does with the keys of its rows, as the ``op`` of the first one says.

    ``put``: the number of a key's last row as its value, all its rows behind its list, each in a window of its own.
    ``read``: emits what is there; ``peek``: the same without windows. ``drop``: writes
    the list without its first row. ``remove``: value and list.
    """

    def __init__(self, ttl: StateTtl | None) -> None:
        self.ttl = ttl

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        numbers = pa.list_(pa.int64())
        fields = [("key", pa.int64()), ("value", pa.int64()), ("elements", numbers), ("windows", numbers)]
        return pa.schema(fields)

    def open(self, context: OperatorContext) -> None:
        self.value = context.get_state(ColumnStateDescriptor("value", NUMBER, ttl=self.ttl))
        self.elements = context.get_state(ListColumnStateDescriptor("elements", NUMBER, ttl=self.ttl))
        self.windows = context.get_state(
            ColumnStateDescriptor("windows", NUMBER, time_first=True, ttl=self.ttl)
        )

    def prefetch(self, bundle: Bundle) -> None:
        self.value.prefetch(bundle.keys)
        self.elements.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        op = bundle.batch.column("op")[0].as_py()
        keys = bundle.keys
        if op == "put":
            return self._put(bundle)
        if op == "remove":
            self.value.remove(keys)
            return self.elements.remove(keys)
        if op == "drop":
            return self.elements.async_heads(keys).then_compose(
                lambda heads: self.elements.async_rows(heads).then_accept(
                    lambda found: self._drop(keys, heads, found)
                )
            )
        if op == "nothing":
            return None
        return self.value.async_get(keys).then_combine(
            self.elements.async_get(keys),
            lambda one, many: self._emit(bundle, one, many, ctx, op == "read"),
        )

    def _put(self, bundle: Bundle) -> None:
        assert bundle.times is not None
        keys, order = bundle.keys, bundle.keys.rows_sorted()[0]
        numbers = bundle.batch.column("number")
        columns = [numbers, pa.array([text(number.as_py()) for number in numbers], pa.string())]
        last = keys.last_rows()
        stamps = self.value.stamps_at(bundle.times[last], len(last))
        self.value.put(keys, [column.take(pa.array(last)) for column in columns], stamps)
        self.elements.append(
            keys,
            [column.take(pa.array(order)) for column in columns],
            keys.inverse[order],
            stamps=self.elements.stamps_at(bundle.times[order], len(order)),
        )
        windows = keys.in_namespaces(numbers.to_numpy())
        last = windows.last_rows()
        stamps = self.windows.stamps_at(bundle.times[last], len(last))
        self.windows.put(windows, [column.take(pa.array(last)) for column in columns], stamps)

    def _drop(self, keys: Any, heads: Any, found: ListColumns) -> None:
        stay = np.ones(found.num_rows, np.bool_)
        stay[found.starts[found.counts > 0]] = False
        stamps = None if found.stamps is None else found.stamps[stay]
        columns = [column.filter(pa.array(stay)) for column in found.columns]
        self.elements.put(keys, columns, found.key_index[stay], heads, stamps)

    def _emit(
        self, bundle: Bundle, one: Columns, many: ListColumns, ctx: BundleContext, ranges: bool
    ) -> None:
        assert one.columns[1].to_pylist() == [
            None if number is None else text(number) for number in one.columns[0].to_pylist()
        ]
        elements = [numbers.tolist() for numbers in np.split(many.columns[0].to_numpy(), many.starts[1:])]
        windows: dict[int, list[int]] = {key: [] for key in bundle.keys.columns[0].to_pylist()}
        for page in self.windows.up_to(2**62) if ranges else ():
            for key, number, namespace in zip(
                page.key_columns[0].to_pylist(), page.columns[0].to_pylist(), page.namespaces, strict=True
            ):
                assert number == namespace
                windows.get(key, []).append(number)
        numbers = pa.list_(pa.int64())
        lists = [pa.array(elements, numbers), pa.array(list(windows.values()), numbers)]
        ctx.emit([bundle.keys.columns[0], one.columns[0], *lists])


def text(number: int) -> str:
    """The second column of a row: rows of several lengths."""
    return "x" * (number % 5)


class ColumnBench(Bench):
    """``Bench`` with one op a micro-batch over many keys, and rows ``ahead`` of its time."""

    def run(self, time: int, op: str, rows: Sequence[tuple[int, int, int]]) -> list[tuple[Any, ...]]:
        """Rows (key, number, milliseconds of event time behind or ahead of ``time``)."""
        self.go_to(time)
        self.harness.push([(key, (time + ahead) * MS, op, number) for key, number, ahead in rows])
        return self.harness.end_batch()
