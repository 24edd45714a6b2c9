"""Operators with a broadcast input for the tests of the Spark layer; importable by Python workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from asyncstate import (
    BroadcastState,
    BroadcastStateDescriptor,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    RowKind,
    ValueState,
    ValueStateDescriptor,
)


class BadWords(RecordOperator):
    """Lets sentences through that have no bad word (FLIP's dynamic allow-list)."""

    num_inputs = 2
    broadcast_input = 1

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        inputs[1].column("word")
        return pa.schema([inputs[0].column("sentence")])

    def open(self, context: OperatorContext) -> None:
        self.bad_words: BroadcastState[str, float] = context.get_state(
            BroadcastStateDescriptor("bad_words", str, float)
        )

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        if ctx.row_kind is RowKind.DELETE:
            return self.bad_words.async_remove(row.word)
        return self.bad_words.async_put(row.word, row.score)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if not any(word in self.bad_words for word in row.sentence.lower().split()):
            ctx.emit(row.sentence)


class ControllableDedup(RecordOperator):
    """The first payload of each key, until a broadcast row starts afresh (FLIP's example of notifications)."""

    num_inputs = 2
    broadcast_input = 0
    notify_stateful_sets = True

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("payload", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self.seen: ValueState[str] = context.get_state(ValueStateDescriptor("seen", str))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        pass

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        if row.parity is None or ctx.key[0] % 2 == row.parity:
            ctx.emit(ctx.key[0], "reset")
            return self.seen.async_clear()
        return None

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if await self.seen.async_value() is None:
            await self.seen.async_update(row.payload)
            ctx.emit(row.k, row.payload)


class ThreeInputs(RecordOperator):
    """Two keyed inputs around a broadcast one: puts out each row's input and what the newest broadcast row was."""

    num_inputs = 3
    broadcast_input = 1

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        time = pa.timestamp("us", tz="UTC")
        return pa.schema([("input", pa.int32()), ("k", pa.int64()), ("last", pa.string()), ("at", time)])

    def open(self, context: OperatorContext) -> None:
        kind = pa.struct([("name", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("rows", pa.int64())])
        self.last: BroadcastState[int, Any] = context.get_state(BroadcastStateDescriptor("last", int, kind))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        rows = 0 if self.last.get(0) is None else self.last[0]["rows"]
        assert ctx.timestamp == row.at
        self.last.put(0, {"name": row.name, "at": row.at, "rows": rows + 1})

    def process(self, row: Row, ctx: RecordContext) -> None:
        last = self.last.get(0)
        ctx.emit(ctx.input_index, ctx.key[0], f"{last['name']} of {last['rows']}", last["at"])
