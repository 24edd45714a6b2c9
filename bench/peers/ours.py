"""What asyncstate runs for each piece of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import operators as ops
from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.functions import AggregateFunction, BundledAggregateFunction
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, Operator, OperatorContext
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.state import ValueState, ValueStateDescriptor
from bench.aggregates import SUMS, WeightedMean, WeightedMeans
from bench.peers.works import BOUND, DELAY, FLOOR_SHARE, HOP, TUMBLE, Peer

Plan = Callable[[MicroBatch, DataFrame], DataFrame]
SIDE = "side"  # of the join's rows: which of the two tables, 0 or 1; in a stream that has the columns of both


class CountRecords(RecordOperator):
    """Each row with how many of its key there have been."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("n", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self._count: ValueState[Any] = context.get_state(ValueStateDescriptor("n", pa.int64(), default=0))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        key, state = row[0], self._count

        def counted(before: Any) -> Any:
            ctx.emit(key, before + 1)
            return state.async_update(before + 1)

        return state.async_value().then_compose(counted)


class KeepSome(BundleOperator):
    """No state: the rows that the floor emits."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("value", pa.int64())])

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        value = bundle.batch.column("value").to_numpy()
        ctx.emit(bundle.batch.filter(pa.array(value % FLOOR_SHARE == 0)).columns)


def _keyed(uid: str, make: Callable[[], Operator]) -> Plan:
    return lambda batch, rows: batch.apply(make(), rows, key="key", uid=uid)


def _aggregate(*aggregates: ops.Aggregate) -> Callable[[], Operator]:
    return lambda: ops.GroupAggregate(aggregates, emit_update_before=False)


def _join(batch: MicroBatch, rows: DataFrame) -> DataFrame:
    left, right = (
        rows.where(f"{SIDE} = {number}").select(*(f"{name}_{column}" for column in ("key", "id", "time")))
        for number, name in enumerate(("left", "right"))
    )
    joined = batch.apply(
        ops.IntervalJoin(lower="0 seconds", upper=BOUND),
        left,
        right,
        key=("left_key", "right_key"),
        event_time=("left_time", "right_time"),
        watermark_delay=DELAY,
        uid="join",
    )
    return joined.selectExpr("left_key AS key", "left_id", "right_id", "row_kind")


def _means(function: AggregateFunction | BundledAggregateFunction) -> Plan:
    mean = ops.udaf(function, result_type=pa.float64(), accumulator_type=SUMS)
    plan = _keyed("mean", _aggregate(mean("value", "weight").alias("mean")))
    return lambda batch, rows: plan(batch, rows.selectExpr("*", "value % 7 + 1 AS weight"))


def _windowed(window: Callable[[], Any]) -> Plan:
    def plan(batch: MicroBatch, rows: DataFrame) -> DataFrame:
        operator = ops.WindowAggregate(window(), [ops.count().alias("n"), ops.sum_("value").alias("total")])
        times: Any = {"event_time": "time", "watermark_delay": DELAY}
        counts = batch.apply(operator, rows, key="key", uid="windows", **times)
        return counts.select("key", "window_end", "n", "total", "row_kind")

    return plan


def _three(batch: MicroBatch, rows: DataFrame) -> DataFrame:
    """The aggregates of ``a`` over the distinct rows, and how many keys have which count."""
    first = ops.Deduplicate(keep="first", time="processing")
    distinct = batch.apply(first, rows, key=["key", "value"], uid="distinct")
    counted = batch.apply(ops.GroupAggregate(_SUMS), distinct, key="key", uid="aggregate")
    return batch.apply(ops.GroupAggregate([ops.count().alias("keys")]), counted, key="n", uid="histogram")


_COUNT = ops.count().alias("n")
_SUMS = _COUNT, ops.sum_("value").alias("total"), ops.max_("value").alias("highest")
_FLOOR = _keyed("floor", KeepSome)
OURS: Mapping[tuple[str, str], Plan] = {
    ("a", ""): _keyed("aggregate", _aggregate(*_SUMS)),
    ("a-three", ""): _three,
    ("b", ""): _keyed("first", lambda: ops.Deduplicate(keep="first", time="processing")),
    ("c", ""): _join,
    ("d", ""): _keyed("records", CountRecords),
    ("d", "bundle"): _keyed("counts", _aggregate(_COUNT)),
    ("g", ""): _means(WeightedMean()),
    ("g", "bundle"): _means(WeightedMeans()),
    ("e-tumble", ""): _windowed(lambda: ops.tumble(*TUMBLE)),
    ("e-hop", ""): _windowed(lambda: ops.hop(*HOP)),
    **{(work, "floor"): _FLOOR for work in "abdg"},
}


def micro_batches(
    spark: SparkSession, peer: Peer, work: str, folder: Path, sink: Callable[[DataFrame, int], None]
) -> tuple[StreamingJob, Callable[[DataFrame, int], None]]:
    """The job of a peer of ours, and the function of its micro-batches, whose output goes to ``sink``."""
    plan = OURS[work, peer.result]
    job = _job(spark, peer, folder)
    return job, job.micro_batch(lambda rows, batch: sink(plan(batch, rows), batch.batch_id))


class _Graph:
    """Applies the operators of a plan in a graph."""

    def apply(self, operator: Operator, rows: Any, **settings: Any) -> Any:
        return rows.apply(operator, **settings)


def graph(
    spark: SparkSession, peer: Peer, work: str, place: Path, rows: DataFrame, sink: Any
) -> StreamingJob:
    """The job of a peer of ours as a graph from ``rows`` to ``sink``."""
    plan: Any = OURS[work, peer.result]
    job = _job(spark, peer, place)
    plan(_Graph(), job.source("rows", rows)).to(sink)
    return job


def _job(spark: SparkSession, peer: Peer, folder: Path) -> StreamingJob:
    options = {"async-state.enabled": peer.async_enabled, "async-state.local-dir": str(folder / "local")}
    return StreamingJob(spark, str(folder / "state"), options, name="peers")
