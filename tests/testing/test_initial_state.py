"""What an operator starts from in the harnesses: rows and values, once, before all rows that are pushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate import (
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    ValueStateDescriptor,
)
from asyncstate.dataflow import Stream
from asyncstate.errors import AsyncStateError, JobError, OperatorError
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource, Tuning, net
from operators import ChangelogNormalize, GroupAggregate, Join, count, sum_
from tests.local_aggregation import in_phases

ROWS = "k long, v long, ts timestamp"


@pytest.fixture
def mode(async_enabled: bool) -> dict[str, Any]:
    """Arguments of a harness; in async mode every read waits for a list get."""
    return {"async_enabled": async_enabled, "tuning": Tuning(batch_hot_reads=async_enabled)}


class Numbered(RecordOperator):
    """Each row with its number among those of its key: it tells in what order they came."""

    def bind(self, inputs: Sequence[InputSpec]) -> str:
        return "k long, v long, number long"

    def open(self, context: OperatorContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        number = await self.count.async_value()
        await self.count.async_update(number + 1)
        ctx.emit(row.k, row.v, number)


class Same(RecordOperator):
    """Keeps nothing."""

    stateless = True

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return inputs[0].schema

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(*row)


class Holder(RecordOperator):
    """Shows what its states hold when a row comes."""

    def bind(self, inputs: Sequence[InputSpec]) -> str:
        return "k string, one timestamp, many string, names string, best long"

    def open(self, context: OperatorContext) -> None:
        self.one = context.get_state(ValueStateDescriptor("one", "timestamp"))
        self.many = context.get_state(ListStateDescriptor("many", "long"))
        self.names = context.get_state(MapStateDescriptor("names", "string", "map<string, int>"))
        self.best = context.get_state(ReducingStateDescriptor("best", max, "long"))
        self.any = context.get_state(ValueStateDescriptor("any", pickled=True))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.best.add(row.v)
        names = {name: dict(value) for name, value in sorted(self.names.items())}
        many = f"{list(self.many)} {self.any.value()}"
        ctx.emit(row.k, self.one.value(), many, str(names), self.best.get())


@pytest.mark.parametrize("ordered", [False, True])
def test_initial_rows_come_before_all_others_and_once(mode: dict[str, Any], ordered: bool) -> None:
    """Also after a restart, and again if the first micro-batch was not committed."""
    order: dict[str, Any] = {"event_time": "ts", "watermark_delay": 0} | (
        {"order_by": "ts"} if ordered else {}
    )
    table = [{"k": v % 3, "v": v, "ts": 1_000_000} for v in range(50)]
    harness = OperatorHarness(Numbered(), ROWS, "k", **order, initial_state=table, parallelism=2, **mode)
    before = harness.snapshot()
    for one in (harness, harness.restore(before)):
        one.push([(v % 3, v, 1_000_000) for v in range(100, 110)])
        out = one.end_batch()
        one = one.restore(one.snapshot(), parallelism=1)
        one.push([(0, 1000, 1_000_000)])
        out += one.finish()
        for key in range(3):
            values = [[*range(50), *range(100, 110)], [1000]]
            expected = [v for v in values[0] if v % 3 == key] + (values[1] if key == 0 else [])
            assert [row[2:] for row in out if row[1] == key] == [(v, n) for n, v in enumerate(expected)]


def test_what_comes_of_both_is_one_set_in_both_modes() -> None:
    table = [
        {"k": 1, "v": 5, "row_kind": "+I"},
        {"k": 1, "v": 5, "row_kind": "-D"},
        {"k": 2, "v": 7, "row_kind": "+I"},
    ]
    entries = []
    for async_enabled in (False, True):
        aggregate = GroupAggregate([count(), sum_("v")])
        with OperatorHarness(
            aggregate, "k long, v long", "k", initial_state=table, async_enabled=async_enabled
        ) as harness:
            harness.push([(1, 3), (2, 1)])
            assert net(harness.end_batch()) == {(1, 1, 3): 1, (2, 2, 8): 1}
            assert harness.statistics()["rows_in"] == 5
            entries.append(harness.state_entries())
    assert entries[0] == entries[1]


def test_of_several_inputs_each_has_rows_or_none(mode: dict[str, Any]) -> None:
    schemas = ["id long, a string", "id long, b string"]
    right = pa.RecordBatch.from_pydict(
        {"b": ["x"], "id": [1]}, pa.schema([("b", pa.string()), ("id", pa.int64())])
    )
    initial = (None, right)
    with OperatorHarness(Join(), schemas, ["id", "id"], initial_state=initial, **mode) as harness:
        harness.push([(1, "y")], input=0)
        assert [row[1:] for row in harness.end_batch()] == [(1, "y", 1, "x")]


def test_states_start_from_values(mode: dict[str, Any]) -> None:
    values: dict[str, Any] = {
        "one": [("a", 15), {"k": "b", "value": 25}],
        "many": [("a", [3, 1, 2])],
        "names": [("a", "x", {"m": 1}), {"k": "a", "value": {"n": 3}, "user_key": "y"}],
        "best": pa.RecordBatch.from_pydict({"k": ["a"], "value": [7]}),
        "any": [("a", True)],
    }
    with OperatorHarness(Holder(), "k string, v long", "k", initial_state=values, **mode) as harness:
        harness.push([("a", 5), ("b", 5), ("c", 5)])
        a = ("a", 15, "[3, 1, 2] True", str({"x": {"m": 1}, "y": {"n": 3}}), 7)
        assert harness.end_batch() == [
            ("+I", *a), ("+I", "b", 25, "[] None", "{}", 5), ("+I", "c", None, "[] None", "{}", 5)
        ]  # fmt: skip
        harness.push([("a", 9)])
        assert harness.end_batch() == [("+I", *a[:-1], 9)]


def billed(orders: Stream, payments: Stream) -> None:
    paid = orders.where(lambda rows: pc.not_equal(rows["customer"], "nobody"))
    paid.to(print, name="orders")
    paid = paid.apply(Same(), uid="same").apply(Same(), uid="again")
    joined = paid.join(payments, Join(), key=("id", "order_id"), uid="paid")
    joined.apply(GroupAggregate([count()]), key="customer", uid="totals").to(print, name="totals")


def test_a_pipeline_starts_from_a_table_once(mode: dict[str, Any]) -> None:
    """Through filters, stateless operators and sinks, the first micro-batch failing once behind its operators."""
    table = [(0, "ann"), (1, "bob"), (7, "nobody")]
    sources = {
        "orders": PipelineSource("id long, customer string", initial=table),
        "payments": PipelineSource("order_id long"),
    }
    with PipelineHarness(billed, sources, parallelism=2, **mode) as harness:
        harness.push("orders", [(2, "ann")])
        harness.push("payments", [(0,), (1,), (7,)])
        harness.end_batch(crash_before="totals")
        assert sorted(harness.end_batch()["orders"]) == [("+I", 0, "ann"), ("+I", 1, "bob"), ("+I", 2, "ann")]
        assert net(harness.rows("totals")) == {("ann", 1): 1, ("bob", 1): 1}
        harness.restart()
        harness.push("payments", [(2,)])
        assert harness.end_batch()["orders"] == []
        assert net(harness.rows("totals")) == {("ann", 2): 1, ("bob", 1): 1}


def test_an_operator_of_a_pipeline_starts_from_what_it_was_given(mode: dict[str, Any]) -> None:
    def pipeline(orders: Stream, given: Any = [(1, 5)]) -> None:  # noqa: B006
        orders.apply(GroupAggregate([sum_("v")]), key="k", uid="sums", initial_state=given).to(print, "sums")

    with PipelineHarness(pipeline, {"orders": PipelineSource("k long, v long")}, **mode) as harness:
        harness.push("orders", [(1, 2)])
        harness.end_batch()
        assert net(harness.rows("sums")) == {(1, 7): 1}


class FailsOnce(Numbered):
    """Fails at its first row of value 7, after others have changed the state."""

    failed: ClassVar[list[int]] = []

    async def process(self, row: Row, ctx: RecordContext) -> None:
        await super().process(row, ctx)
        if row.v == 7 and not self.failed:
            self.failed.append(7)
            raise ValueError("the first time")


@pytest.mark.parametrize("local", ["false", "true"])
def test_a_first_micro_batch_that_failed_runs_again_with_the_initial_rows(
    mode: dict[str, Any], local: str
) -> None:
    FailsOnce.failed.clear()
    with OperatorHarness(FailsOnce(), ROWS, "k", initial_state=[(1, 5, 0)], **mode) as harness:
        harness.push([(1, 6, 0), (1, 7, 0)])
        with pytest.raises(OperatorError, match="the first time"):
            harness.end_batch()
        assert harness.end_batch() == [("+I", 1, 5, 0), ("+I", 1, 6, 1), ("+I", 1, 7, 2)]
    sums = in_phases(GroupAggregate([sum_("v")]), local)
    with OperatorHarness(sums, ROWS, "k", initial_state=[(1, 5, 0), (1, 6, 0)], **mode) as harness:
        harness.push([(1, 7, 0), (1, 8, 0)])
        assert net(harness.end_batch()) == {(1, 26): 1}
        assert harness.statistics()["rows_in"] == (2 if local == "true" else 4)


@pytest.mark.parametrize(
    ("operator", "given", "message"),
    [
        (Numbered(), [("a", 1, 1)], "initial_state: row 0 of operator 'operator' has, in column 'k', 'a'"),
        (Numbered(), pa.RecordBatch.from_pydict({"k": ["a"]}), "its initial rows differ from its input in k, ts, v"),
        (Numbered(), 7, "would start from 7; a harness needs"),
        (Holder(), {"any": 7}, "values of state 'any' would start from 7; a harness needs"),
        (Holder(), {"any": [7]}, "row 0 of operator 'operator', values of state 'any' is 7; give a tuple"),
        (Holder(), {"any": [(1, object())]}, "values of state 'any' are not Arrow values"),
        (Numbered(), {"none": [(1, 1)]}, "names a state 'none' that it does not declare; it has 'count'"),
        (Numbered(), {"count": [(1, "x")]}, "values of state 'count' has, in column 'value', 'x'"),
        (Numbered(), {"count": pa.RecordBatch.from_pydict({"k": [1]})}, "and the value: k, value"),
        (Numbered(), {"count": pa.RecordBatch.from_pydict({"k": ["a"], "value": [1]})}, "but it is int64; cast it"),
        (GroupAggregate([count()]), {"accumulators": [(1, 1)]}, "does not accept initial values"),
        (Same(), [], "is stateless, so it has no initial_state"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_from_is_refused(operator: Any, given: Any, message: str) -> None:
    key = None if operator.stateless else "k"
    with pytest.raises(AsyncStateError, match=message):
        OperatorHarness(operator, ROWS, key, initial_state=given)


def test_several_inputs_need_an_entry_each() -> None:
    with pytest.raises(
        JobError, match="has 2 inputs, and initial_state is .* give for each of them rows or None"
    ):
        OperatorHarness(Join(), ["id long", "id long"], ["id", "id"], initial_state=[None])


def test_a_pipeline_refuses_what_a_job_refuses() -> None:
    def pipeline(rows: Stream, text: Stream) -> None:
        rows.where(lambda batch: pc.greater(batch["k"], 1)).apply(
            Numbered(), key="k", uid="twice", initial_state=[(1, 1, 1)]
        )
        text.apply(Numbered(), key="k", uid="frame", initial_state=object())

    sources = {
        "rows": PipelineSource(ROWS, initial=[]),
        "text": PipelineSource(ROWS),
        "wrong": PipelineSource(ROWS, initial=[("a", 1, 1)]),
    }
    with pytest.raises(JobError) as found:
        PipelineHarness(lambda rows, text, wrong: pipeline(rows, text), sources)
    (_, *messages) = str(found.value).splitlines()
    texts = {
        "source 'wrong' has, in column 'k', 'a'",
        "its source 'rows' has initial rows; give one of them",
        "would start from <object object",
    }
    assert len(messages) == len(texts)
    assert {text for text in texts if any(text in message for message in messages)} == texts


def replacing(rows: Stream) -> None:
    totals = GroupAggregate([sum_("v").alias("total")], emit_update_before=False)
    upserts = rows.apply(totals, key="k", uid="sums")
    upserts.to(print, name="upserts")
    upserts.apply(ChangelogNormalize(), key="k", uid="again").to(print, name="again")


def test_upserts_of_initial_rows_are_replaced_in_the_first_micro_batch(mode: dict[str, Any]) -> None:
    """A micro-batch has one change of each key, though the operator has run twice."""
    source = PipelineSource("k long, v long", initial=[(1, 5), (2, 6)])
    with PipelineHarness(replacing, {"rows": source}, parallelism=2, **mode) as harness:
        harness.push("rows", [(1, 7)])
        out = harness.end_batch()
    assert sorted(row[1:] for row in out["upserts"]) == [(1, 12), (2, 6)]
    assert sorted(out["again"]) == [("+I", 1, 12), ("+I", 2, 6)]


def test_initial_upserts_of_a_source_are_replaced_where_all_come_as_one(mode: dict[str, Any]) -> None:
    source = PipelineSource("k long, v long", mode="upsert", primary_key="k", initial=[(1, 5), (2, 6)])
    with PipelineHarness(lambda rows: rows.to(print, name="out"), {"rows": source}, **mode) as harness:
        harness.push("rows", [(1, 7)])
        assert sorted(harness.end_batch()["out"]) == [("+I", 1, 7), ("+I", 2, 6)]
