"""Runs a Join bundle by bundle over a dict, without a runtime: quick enough for many random cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate import operator as op
from asyncstate.changelog import INSERT_ONLY, RETRACT, ROW_KIND_TEXTS, RowKind
from asyncstate.codec import KeyCodec
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import Bundle, InputSpec, OutputSpec
from asyncstate.operator import Counter as StatCounter
from operators.join.join_operator import Join
from operators.join.long_lists import LONG
from operators.join.sides import ListSide
from tests.operators.direct import CountedRows

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
        long: int = LONG,
    ) -> None:
        """``long``: above how many rows a key that loses some has an entry a row."""
        self.data: dict[bytes, bytes] = {}
        self.inputs = tuple(
            InputSpec(schema, ("k",), changes=RETRACT if flag else INSERT_ONLY, name=f"input {i}")
            for i, (schema, flag) in enumerate(zip(schemas, changelog, strict=True))
        )
        self.output_schema = OutputSpec.of(join.bind(self.inputs)).schema
        self.uid, self.page_size, self.max_parallelism, self.key_groups = "join", 100, 128, range(128)
        self.key_schema = self.inputs[0].key_schema
        self.key_codec = self.inputs[0].key_codec(self.max_parallelism)
        self.dropped = StatCounter("retractions_without_state")
        self.reads = 0
        self.watermark = self.previous_watermark = op.MIN_WATERMARK
        self.processing_time = 0
        self._ids = iter(range(8, 20))
        self._out: list[Change] = []
        self.join = join
        join.open(self)
        for state in join._states:
            if isinstance(state, ListSide) and state._long is not None:
                state._long.more_than = long

    def get_state(self, descriptor: Any) -> Any:
        return descriptor.bind(self, next(self._ids), self, None)

    def counter(self, name: str) -> StatCounter:
        assert name == "retractions_of_expired_rows"
        return StatCounter(name)

    def missing_rows(self) -> CountedRows:
        return CountedRows(self.dropped)

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

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self.data.items() if start <= key < end)[:limit]

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
