"""A whole dataflow in one process: its watermark, restarts, crashes and SQL text, beside loops over the rows."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import RecordOperator
from asyncstate.dataflow import Dataflow, Stream
from asyncstate.dataflow.nodes import Times
from asyncstate.errors import JobError, OperatorError, SchemaError
from asyncstate.operator import Operator
from asyncstate.testing import PipelineHarness, PipelineSource, net
from operators import (
    GroupAggregate,
    GroupWindowAggregate,
    Join,
    Rank,
    TemporalSort,
    WindowAggregate,
    WindowApply,
    WindowDeduplicate,
    WindowJoin,
    WindowRank,
    count,
    count_tumble,
    desc,
    session,
    sum_,
    triggers,
    tumble,
)

SECOND = 1_000_000
ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64()), ("ts", pa.timestamp("us"))]
)
PAYMENTS = pa.schema([("order_id", pa.int64()), ("paid", pa.int64())])
SOURCES = {
    "orders": PipelineSource(ORDERS, event_time="ts", watermark_delay="1 second"),
    "payments": PipelineSource(PAYMENTS, changelog=True),
}

SINGLE = {"orders": PipelineSource(ORDERS, event_time="ts")}


def pipeline(orders: Stream, payments: Stream) -> None:
    paid = orders.join(payments, Join("left"), key=("id", "order_id"), uid="paid")
    large = paid.where("amount > 2 AND customer LIKE 'c%'")
    large.select("id", "upper(customer) AS who", half="amount / 2").to(print, name="large")
    paid.apply(GroupAggregate([count(), sum_("paid")]), key="customer", uid="totals").to(print, name="totals")
    orders.apply(
        WindowAggregate(tumble("10 seconds"), [count()]), key="customer", uid="windows"
    ).to(print, name="windows")  # fmt: skip


def test_rows_go_from_sources_to_sinks(async_enabled: bool) -> None:
    with PipelineHarness(pipeline, SOURCES, async_enabled=async_enabled) as harness:
        harness.push("orders", [(1, "c1", 4, 0), (2, "c2", 1, SECOND), (3, "d", 9, 2 * SECOND)])
        harness.push("payments", [(1, 40)])
        found = harness.end_batch()
        assert net(found["large"]) == {(1, "C1", 2.0): 1}
        assert net(found["totals"]) == {("c1", 1, 40): 1, ("c2", 1, None): 1, ("d", 1, None): 1}
        assert found["windows"] == []
        harness.push("payments", [(1, 40)], kind="-D")
        harness.push("orders", [(4, "c1", 5, 15 * SECOND)])
        found = harness.end_batch()
        assert net(harness.rows("totals")) == {("c1", 2, None): 1, ("c2", 1, None): 1, ("d", 1, None): 1}
        # The watermark comes from the micro-batches before.
        assert harness.watermark == 14 * SECOND
        assert found["windows"] == []
        assert sorted(row[:3] for row in harness.end_batch()["windows"]) == [
            ("+I", "c1", 0), ("+I", "c2", 0), ("+I", "d", 0)
        ]  # fmt: skip
        assert [row[:3] for row in harness.finish()["windows"]] == [("+I", "c1", 10 * SECOND)]
        assert harness.operator("windows").state_entries() == {}


ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["c1", "c2"]), st.integers(0, 5), st.just(0)), max_size=6
)


@pytest.mark.long
@settings(max_examples=8)
@given(
    batches=st.lists(ROWS, min_size=1, max_size=4),
    crash=st.sampled_from(["paid", "large", "totals", "windows", None]),
    parallelism=st.integers(1, 3),
)
def test_crashes_and_restarts_change_nothing(
    batches: Any, crash: str | None, parallelism: int, async_enabled: bool
) -> None:
    with PipelineHarness(pipeline, SOURCES, async_enabled=async_enabled) as harness:
        rows = []
        for number, batch in enumerate(batches):
            harness.push("orders", batch)
            rows += batch
            if crash is not None:
                failed = harness.end_batch(crash_before=crash)
                assert set(failed) == {"paid": set(), "large": set(), "totals": {"large"}, "windows": {"large", "totals"}}[crash]  # fmt: skip # noqa: E501
                for name, had in failed.items():  # a sink that had its rows gets them once more
                    del harness.outputs[name][-len(had) or len(harness.outputs[name]) :]
            harness.end_batch()
            harness.restart(parallelism=parallelism, async_enabled=bool(number % 2) != async_enabled)
        counts = Counter(row[1] for row in rows)
        assert net(harness.rows("totals")) == {(name, n, None): 1 for name, n in counts.items()}
        assert net(harness.rows("large")) == Counter(
            (row[0], row[1].upper(), row[2] / 2) for row in rows if row[2] > 2
        )


def test_functions_of_arrow_columns_and_unions() -> None:
    def both(one: Stream, other: Stream) -> None:
        second = (
            other.with_columns(k=lambda rows: pc.add(rows.column("k"), 100)).drop("v").with_columns(v="'x'")
        )
        kept = one.union(second.select("v", "k")).where(lambda rows: pc.not_equal(rows.column("k"), 2))
        kept.to(print, name="out")

    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    sources = {"one": PipelineSource(schema), "other": PipelineSource(schema)}
    with PipelineHarness(both, sources) as harness:
        harness.push("one", [(1, "a"), (2, "b"), (3, None)])
        harness.push("other", [(1, "c")])
        assert harness.end_batch() == {"out": [("+I", 1, "a"), ("+I", 3, None), ("+I", 101, "x")]}
        assert "union" in harness.explain()


def test_side_outputs(async_enabled: bool) -> None:
    def late(orders: Stream, payments: Stream) -> None:
        counts = WindowAggregate(tumble("10 seconds"), [count()], late_output="late")
        windows = orders.apply(counts, key="customer", uid="windows")
        windows.to(print, name="windows")
        windows.output("late").select("id").to(print, name="late")

    with PipelineHarness(late, SOURCES, async_enabled=async_enabled) as harness:
        harness.push("orders", [(1, "a", 1, 30 * SECOND)])
        assert harness.end_batch() == {"windows": [], "late": []}
        harness.push("orders", [(2, "a", 1, 2 * SECOND), (3, "a", 1, 31 * SECOND)])
        harness.end_batch()
        harness.push("orders", [(4, "a", 1, 3 * SECOND)])
        found = harness.end_batch()
        assert sorted(harness.rows("late")) in ([("+I", 2), ("+I", 4)], [("+I", 4)])
        assert found["late"] == [("+I", 4)]
        assert "side output 'late'" in harness.explain()
    with pytest.raises(JobError, match="other"):
        PipelineHarness(lambda orders, payments: _asking_for(orders, "other"), SOURCES)
    with pytest.raises(JobError, match="is not an operator"):
        PipelineHarness(lambda orders, payments: orders.output("late"), SOURCES)


def _asking_for(orders: Stream, name: str) -> None:
    orders.apply(GroupAggregate([count()]), key="customer", uid="counts").output(name)


def test_all_problems_at_once() -> None:
    def wrong(orders: Stream, payments: Stream) -> None:
        orders.where("nothing > 2").apply(GroupAggregate([count()]), key="id", uid="behind")
        orders.apply(GroupAggregate([sum_("customer")]), key="id", uid="texts")
        orders.select("sum(amount) OVER (PARTITION BY id) AS s")
        payments.apply(TemporalSort(), key="order_id", uid="sorted")
        orders.union(payments)
        orders.where("explode(")

    with pytest.raises(JobError) as raised:
        PipelineHarness(wrong, SOURCES)
    _, *problems = str(raised.value).split("\n  ")
    assert len(problems) == 6
    assert all(problem.startswith("test_pipeline.py:") for problem in problems)
    for problem, words in zip(
        problems,
        [
            "where nothing > 2",
            "'texts'",
            "not computed from one row",
            "'sorted'",
            "not the same",
            "not Spark SQL",
        ],
        strict=True,
    ):
        assert words in problem


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: h.push("nobody", []), "there is no source 'nobody'; there are orders, payments"),
        (lambda h: h.push("orders", [(1,)]), "row 0 of source 'orders'"),
        (
            lambda h: h.push("orders", [(1, "a", 2, 3)], kind="-D"),
            "only a source with changelog=True accepts",
        ),
        (lambda h: h.push("orders", None), "the rows of source 'orders' are None; give a list"),
        (lambda h: h.push("orders", "text"), "the rows of source 'orders' are 'text'; give a list"),
        (lambda h: h.push("payments", [(1, 2)], kinds=7), r"kinds is 7; give one of \+I"),
        (lambda h: h.push("payments", [(1, 2)], kind="+X"), r"row 0 has the kind '\+X'"),
        (lambda h: h.operator("x"), "there is no operator 'x'"),
        (lambda h: h.rows("x"), "there is no sink 'x'"),
        (lambda h: h.end_batch(crash_before="x"), "no operator and no sink 'x'"),
        (lambda h: (h.finish(), h.end_batch()), "is finished"),
    ],
)
def test_what_is_refused(call: Any, message: str) -> None:
    with PipelineHarness(pipeline, SOURCES) as harness, pytest.raises((JobError, SchemaError), match=message):
        call(harness)


def test_a_record_batch_can_be_pushed() -> None:
    with PipelineHarness(
        lambda orders: orders.select("id").to(print), {"orders": SINGLE["orders"]}
    ) as harness:
        batch = pa.RecordBatch.from_pylist([{"id": 1}, {"id": 2}], ORDERS)
        harness.push("orders", batch)
        assert harness.end_batch() == {"print": [("+I", 1), ("+I", 2)]}
        with pytest.raises(SchemaError, match="the RecordBatch has the columns"):
            harness.push("orders", batch.select(["id"]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda orders: orders.where("customer = 'a"), r"where customer = 'a: .* is not Spark SQL"),
        (lambda orders: orders.select("customer || 'a"), "is not Spark SQL"),
        (lambda orders: orders.where("amount + 1"), r"where\('amount \+ 1'\) is of type int64; a condition is"),
        (
            lambda orders: orders.union(orders.with_columns(id="customer")),
            "column 'id' is of type int64 in one input and string in another; cast one of them",
        ),
        (
            lambda orders: orders.apply(Rank("amount DESC", 1), key="id", uid="best"),
            r"no column 'amount DESC'; a direction is not part of a name: write desc\('amount'\)",
        ),
        (lambda orders: orders.apply(_Broadcast(), orders, key="id", uid="b"), "broadcast_input is 5 with num"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_a_row(build: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        PipelineHarness(lambda orders: build(orders).to(print), SINGLE)


class _Broadcast(RecordOperator):
    num_inputs = 2
    broadcast_input = 5

    def bind(self, inputs: Any) -> str:
        return "n bigint"

    def process(self, row: Any, ctx: Any) -> None:
        """Never called."""


def test_an_operator_is_named_once() -> None:
    with pytest.raises(JobError) as raised:
        PipelineHarness(
            lambda orders: orders.apply(GroupAggregate([sum_("customer")]), key="id", uid="totals"), SINGLE
        )
    assert str(raised.value).count("'totals'") == 1


@pytest.mark.parametrize("name", ["", "  ", 7])
def test_a_source_needs_a_name(name: Any) -> None:
    with pytest.raises(JobError, match=r"test_pipeline\.py:\d+: a source has the name .*; give it a string"):
        Dataflow().add_source(name, Times(), None)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("filter", r"where\("),
        ("withColumn", r"with_columns\("),
        ("groupBy", r"group_by\("),
        ("printSchema", "use columns$"),
        ("nothing", "a stream has no 'nothing'$"),
    ],
)
def test_spark_names_of_streams_are_answered_with_ours(name: str, ours: str) -> None:
    def build(orders: Stream) -> None:
        with pytest.raises(AttributeError, match=ours):
            getattr(orders, name)
        assert not hasattr(orders, name)
        orders.to(print)

    PipelineHarness(build, SINGLE).close()


class _FailsAt(RecordOperator):
    """Emits the count it gets, and raises at a 2 while ``armed``."""

    armed: ClassVar[list[bool]] = []

    def bind(self, inputs: Any) -> str:
        return "n bigint"

    def process(self, row: Any, ctx: Any) -> None:
        if self.armed and row.count == 2:
            raise ValueError("on purpose")
        ctx.emit(row.count)


def test_a_micro_batch_that_fails_leaves_nothing_committed(async_enabled: bool) -> None:
    """Neither of the operators before the one that fails nor of those behind it; its rows are still to come."""

    def build(orders: Stream) -> None:
        counts = orders.apply(GroupAggregate([count()]), key="customer", uid="counts")
        counts.apply(_FailsAt(), key="customer", uid="fails").to(print, name="out")
        again = orders.apply(GroupAggregate([count()]), key="customer", uid="again")
        counts.to(print, name="counts")
        again.to(print, name="again")

    with PipelineHarness(build, SINGLE, async_enabled=async_enabled) as harness:
        harness.push("orders", [(1, "a", 0, 0)])
        harness.end_batch()
        stored = [harness.operator(uid).state_entries() for uid in ("counts", "fails", "again")]
        harness.push("orders", [(2, "a", 0, 0)])
        _FailsAt.armed.append(True)
        try:
            with pytest.raises(OperatorError, match="on purpose"):
                harness.end_batch()
        finally:
            _FailsAt.armed.clear()
        assert stored == [harness.operator(uid).state_entries() for uid in ("counts", "fails", "again")]
        expected = [("-U", "a", 1), ("+U", "a", 2)]
        found = harness.end_batch()
        assert found == {"out": [("+I", 1), ("+I", 2)], "counts": expected, "again": expected}
        harness.push("orders", [(3, "a", 0, 0)])
        assert harness.end_batch()["counts"] == [("-U", "a", 2), ("+U", "a", 3)]


def _sorted(orders: Stream) -> None:
    orders.apply(TemporalSort(), key="customer", uid="sorted").to(print, name="sorted")


MINUTE = tumble("1 minute")


@pytest.mark.parametrize(
    "operator",
    [
        WindowAggregate(MINUTE, [count()]),
        WindowAggregate(session("1 minute"), [count()]),
        GroupWindowAggregate(MINUTE, [count()], late="1 second", allowed_lateness="1 minute"),
        WindowRank(desc("amount"), 1, window=MINUTE),
        WindowDeduplicate(window=MINUTE),
        WindowApply(lambda key, window, rows: [], MINUTE, "n long"),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_windows_that_nothing_would_end_are_refused(operator: Operator) -> None:
    def build(orders: Stream) -> None:
        orders.apply(operator, key="customer", uid="windows").to(print, name="windows")

    with pytest.raises(JobError, match=r"'windows': its rows wait for the watermark, but no source"):
        PipelineHarness(build, SINGLE)


def test_a_window_join_that_nothing_would_end_is_refused() -> None:
    def build(orders: Stream, others: Stream) -> None:
        orders.join(others, WindowJoin(window=MINUTE), key="id", uid="both").to(print, name="both")

    with pytest.raises(JobError, match=r"'both': its rows wait for the watermark, but no source"):
        PipelineHarness(build, SINGLE | {"others": PipelineSource(ORDERS, event_time="ts")})


@pytest.mark.parametrize(
    "operator",
    [
        WindowAggregate(MINUTE, [count()], time="processing"),
        GroupWindowAggregate(MINUTE, [count()], early="1 second"),
        GroupWindowAggregate(count_tumble(2), [count()], time="processing"),
        WindowApply(lambda key, window, rows: [], MINUTE, "n long", time="processing"),
        WindowApply(lambda key, window, rows: [], MINUTE, "n long", trigger=triggers.count(1)),
    ],
)
def test_windows_that_need_no_watermark_run_without_one(operator: Operator) -> None:
    def build(orders: Stream) -> None:
        orders.apply(operator, key="customer", uid="windows").to(print, name="windows")

    with PipelineHarness(build, SINGLE) as harness:
        harness.push("orders", [(1, "c1", 4, 0)])
        harness.end_batch()


def test_an_error_names_the_operator_of_the_dataflow() -> None:
    def fail(key: Any, window: Any, rows: Any) -> Any:
        raise ValueError("no")

    def build(orders: Stream) -> None:
        windows = WindowApply(fail, MINUTE, "n long", trigger=triggers.count(1))
        orders.apply(windows, key="customer", uid="windows").to(print, name="windows")

    with PipelineHarness(build, SINGLE) as harness:
        harness.push("orders", [(1, "c1", 4, 0)])
        with pytest.raises(OperatorError, match="operator 'windows'"):
            harness.end_batch()


def test_rows_that_would_wait_for_ever_are_refused_as_in_a_job() -> None:
    with pytest.raises(JobError, match=r"'sorted': its rows wait for the watermark, but no source"):
        PipelineHarness(_sorted, {"orders": PipelineSource(ORDERS, event_time="ts")})
    moved = PipelineSource(ORDERS, event_time="ts", watermark_delay=0)
    with PipelineHarness(_sorted, {"orders": moved}) as harness:
        harness.push("orders", [(1, "c1", 4, 0)])
        assert harness.end_batch() == {"sorted": []}
        assert harness.finish() == {"sorted": [("+I", 1, "c1", 4, 0)]}


def test_sources_alone_are_refused_as_in_a_job() -> None:
    with pytest.raises(JobError, match="has no operator and no sink"):
        PipelineHarness(lambda orders: None, {"orders": PipelineSource(ORDERS)})


def test_a_cast_to_a_whole_number_cuts_the_fraction_as_in_spark() -> None:
    def cut(rows: Stream) -> None:
        texts = (
            "cast(x as int) AS a",
            "cast(x * 3 as bigint) AS b",
            "cast(d as int) AS c",
            "cast(s as int) AS e",
        )
        rows.select(*texts, "cast(n as int) AS f", "cast(2.7 as int) AS g").to(print, name="cut")

    schema = pa.schema(
        [("x", pa.float64()), ("d", pa.decimal128(10, 2)), ("s", pa.string()), ("n", pa.int64())]
    )
    with PipelineHarness(cut, {"rows": PipelineSource(schema)}) as harness:
        harness.push("rows", [(2.7, Decimal("2.50"), "7", 3), (-2.7, Decimal("-2.50"), None, None)])
        assert harness.end_batch()["cut"] == [("+I", 2, 8, 2, 7, 3, 2), ("+I", -2, -8, -2, None, None, 2)]


def test_all_columns_are_selected_by_a_star() -> None:
    """Of rows with kinds, too; the numbers by which rows keep their order are no column."""

    def graph(orders: Stream, payments: Stream) -> None:
        orders.select("*", "amount + 1 AS more").to(print, name="orders")
        payments.select("*", twice="paid * 2").to(print, name="payments")

    with PipelineHarness(graph, SOURCES) as harness:
        harness.push("orders", [(2, "c", 5, 1), (1, "b", None, 0)])
        harness.push("payments", [(1, 50)], kind="-D")
        assert harness.end_batch() == {
            "orders": [("+I", 2, "c", 5, 1, 6), ("+I", 1, "b", None, 0, None)],
            "payments": [("-D", 1, 50, 100)],
        }


class Table:
    """A sink that can say what it takes, and where it writes."""

    def check_changes(self, changes: Any) -> None:
        if changes.is_upsert:
            raise SchemaError(f"the table has no key like that of {changes.text}")

    def destination(self, name: str) -> tuple[str, str]:
        return "table", "writer"

    def write(self, rows: Any, batch_id: int) -> None:
        raise AssertionError("a harness calls no sinks")


@pytest.mark.parametrize("sinks", [1, 2])
def test_sinks_are_asked_what_they_take(sinks: int) -> None:
    def pipeline(events: Stream) -> None:
        for number in range(sinks):
            events.to(Table(), name=f"table {number}")

    schema = pa.schema([("id", pa.int64())])
    told = (
        "no key like that of upsert by .id."
        if sinks == 1
        else "sink 'table 1': it writes where sink 'table 0' does"
    )
    source = PipelineSource(schema, mode="upsert" if sinks == 1 else None, primary_key="id")
    with pytest.raises(JobError, match=told):
        PipelineHarness(pipeline, {"events": source})
    if sinks == 1:
        with PipelineHarness(pipeline, {"events": PipelineSource(schema)}) as harness:
            harness.push("events", [(1,)])
            assert harness.end_batch() == {"table 0": [("+I", 1)]}
