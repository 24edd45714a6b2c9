"""The bound in bytes of Arrow batches is lifted where it cannot matter, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import asyncstate.spark.stages as stages_module
from asyncstate.changelog import RETRACT
from asyncstate.operator import InputSpec
from asyncstate.spark.settings import BYTES, ROWS, UNBOUNDED, ArrowBatches, row_bytes, size_of
from operators import GroupAggregate, count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.spark import MicroBatch, StreamingJob
    from asyncstate.spark.exchange import Tasks

Change = Callable[["DataFrame"], "DataFrame"]
HAS_BOUND = pytest.mark.since_spark("4.0", "a bound in bytes")
NUMBERS = pa.schema([("key", pa.int64()), ("value", pa.int64())])


def same(rows: DataFrame) -> DataFrame:
    return rows


def with_text(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("cast(key as string) as key", "value")


def with_pandas(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import pandas_udf

    @pandas_udf("long")  # type: ignore[call-overload]
    def doubled(values: pd.Series) -> pd.Series:
        return values * 2

    return rows.select("key", doubled("value").alias("value"))


def with_arrow(rows: DataFrame) -> DataFrame:
    def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return rows.mapInArrow(unchanged, "key long, value long").repartition(2)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The session's bound in bytes while each stage runs."""
    found: list[str] = []
    run_stage = stages_module.run_stage

    def noting(tasks: Tasks, *others: Any) -> Any:
        found.append(str(tasks.exchanged.sparkSession.conf.get(BYTES)))
        return run_stage(tasks, *others)

    monkeypatch.setattr(stages_module, "run_stage", noting)
    return found


def run_query(
    spark: SparkSession,
    job: StreamingJob,
    folder: Path,
    upstream: Change = same,
    inside: Change = same,
) -> tuple[dict[Any, int], list[str]]:
    """Counts by key of one micro-batch; and the session's bound after it."""
    counts: dict[Any, int] = {}
    after: list[str] = []

    @job.micro_batch
    def process(rows: DataFrame, batch: MicroBatch) -> None:
        changed = batch.apply(GroupAggregate([count().alias("n")]), inside(rows), key="key", uid="counts")
        after.append(str(rows.sparkSession.conf.get(BYTES)))
        for row in changed.where("row_kind in ('+I', '+U')").collect():
            counts[row["key"]] = row["n"]

    spark.range(100).selectExpr("id % 7 as key", "id as value").write.parquet(str(folder / "input"))
    stream = spark.readStream.schema("key long, value long").parquet(str(folder / "input"))
    query = upstream(stream).writeStream.foreachBatch(process)
    query = query.option("checkpointLocation", str(folder / "query")).trigger(availableNow=True)
    job.await_termination(query.start())
    return counts, after


EXPECTED = {key: len(range(key, 100, 7)) for key in range(7)}


@pytest.mark.spark
@pytest.mark.executors
@HAS_BOUND
@pytest.mark.parametrize(
    ("upstream", "inside", "lifted"),
    [
        (same, same, True),
        (same, with_text, False),
        (same, with_pandas, False),
        (same, with_arrow, False),
        (with_pandas, same, False),
        (with_arrow, same, False),
    ],
)
def test_lifted_only_where_it_changes_no_batch(
    upstream: Change,
    inside: Change,
    lifted: bool,
    spark: SparkSession,
    make_job: Callable[..., StreamingJob],
    seen: list[str],
    tmp_path: Path,
) -> None:
    bound = str(spark.conf.get(BYTES))
    assert bound != UNBOUNDED
    counts, after = run_query(spark, make_job(), tmp_path, upstream, inside)
    assert {int(key): n for key, n in counts.items()} == EXPECTED
    assert seen == [UNBOUNDED if lifted else bound]
    assert after == [bound]


@pytest.mark.spark
@pytest.mark.executors
@HAS_BOUND
def test_not_lifted_for_a_dataframe_of_unknown_origin(
    spark: SparkSession, make_job: Callable[..., StreamingJob], seen: list[str]
) -> None:
    """A call by hand: there is no query to ask what its rows come from."""
    job = make_job()

    @job.micro_batch
    def process(rows: DataFrame, batch: MicroBatch) -> None:
        batch.apply(GroupAggregate([count().alias("n")]), rows, key="key", uid="counts")

    process(spark.range(10).selectExpr("id as key"), 0)
    assert seen == [spark.conf.get(BYTES)]


class FakeConf(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value


class FakeRows:
    """As much of a DataFrame as is asked for; of a plan without Python."""

    def __init__(self, conf: FakeConf) -> None:
        self.sparkSession: Any = type("Session", (), {"conf": conf, "sparkContext": self})
        self._jdf: Any = self

    def __getattr__(self, name: str) -> Any:
        if name in ("containsAnyPattern", "getLocalProperty"):
            return lambda *_: name == "getLocalProperty"
        return self

    def __call__(self, *_: object) -> Any:
        return self


@pytest.mark.parametrize(
    ("rows", "allowed", "lifted"),
    [
        ("1000", "1000000b", True),  # 23 bytes a row, twice that with Arrow's growing buffers
        ("100000", "1000000", False),
        ("0", "1000000", False),
        ("10", "1m", False),
    ],
)
def test_the_bound_in_rows_has_to_keep_the_other(rows: str, allowed: str, lifted: bool) -> None:
    conf = FakeConf({BYTES: allowed, ROWS: rows})
    given: Any = FakeRows(conf)
    with ArrowBatches(given).stage([given], [("uid", [InputSpec(NUMBERS, ("key",))])]):
        assert conf[BYTES] == (UNBOUNDED if lifted else allowed)
    assert conf[BYTES] == allowed


@pytest.mark.parametrize(
    ("seen_bytes", "lifted"), [(0.0, False), (20.0, True), (125.0, True), (125.1, False), (1e6, False)]
)
def test_texts_go_by_the_widest_batch_of_the_micro_batch_before(seen_bytes: float, lifted: bool) -> None:
    """Rows may become four times as wide: 1,000 rows x 125 bytes x 4 x 2 is what is allowed."""
    conf = FakeConf({BYTES: "1000000", ROWS: "1000"})
    given: Any = FakeRows(conf)
    texts = InputSpec(pa.schema([("key", pa.string())]), ("key",))
    batches = ArrowBatches(given)
    batches.saw("other", 1.0)
    batches.saw("uid", seen_bytes)
    batches.saw("uid", 0.0)  # a micro-batch of a few rows tells nothing
    with batches.stage([given], [("uid", [texts])]):
        assert conf[BYTES] == (UNBOUNDED if lifted else "1000000")


@pytest.mark.spark
@pytest.mark.executors
@HAS_BOUND
def test_of_texts_the_second_micro_batch_is_not_measured(
    spark: SparkSession, make_job: Callable[..., StreamingJob], seen: list[str], tmp_path: Path
) -> None:
    job = make_job(options={"async-state.parallelism": 1})

    @job.micro_batch
    def process(rows: DataFrame, batch: MicroBatch) -> None:
        batch.apply(GroupAggregate([count().alias("n")]), with_text(rows), key="key", uid="counts")

    for number in range(4):
        wide = "repeat('x', 50000)" if number == 2 else "id"
        rows = spark.range(0, 300, 1, 1).selectExpr(f"{wide} as key", "id as value")
        rows.selectExpr("cast(key as string) as key", "value").write.mode("append").parquet(
            str(tmp_path / "in")
        )
    stream = spark.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1)
    query = stream.parquet(str(tmp_path / "in")).writeStream.foreachBatch(process).trigger(availableNow=True)
    job.await_termination(query.option("checkpointLocation", str(tmp_path / "query")).start())
    bound = str(spark.conf.get(BYTES))
    assert seen == [bound, UNBOUNDED, UNBOUNDED, bound]  # after the wide rows it is as the session has it


def test_a_second_stage_puts_the_bound_back() -> None:
    conf = FakeConf({BYTES: "67108864b", ROWS: "1000"})
    rows: Any = FakeRows(conf)
    session: Any = FakeRows(conf)
    batches, inputs = ArrowBatches(session), [InputSpec(NUMBERS, ("key",))]
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with batches.stage([rows], [("uid", inputs)]):
            begun.set()
            assert over.wait(10)

    with batches.stage([rows], [("uid", inputs)]):
        assert conf[BYTES] == UNBOUNDED
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(10)
        assert conf[BYTES] == "67108864b"
    assert conf[BYTES] == "67108864b"
    with batches.stage([rows], [("uid", inputs)]):
        assert conf[BYTES] == "67108864b", "the other one still runs"
    over.set()
    thread.join()
    with batches.stage([rows], [("uid", inputs)]):
        assert conf[BYTES] == UNBOUNDED
    assert conf[BYTES] == "67108864b"


def test_the_bound_is_put_back_after_a_failure() -> None:
    conf = FakeConf({BYTES: "67108864b", ROWS: "1000"})
    rows: Any = FakeRows(conf)
    with (
        pytest.raises(ValueError, match="broken"),
        ArrowBatches(rows).stage([rows], [("uid", [InputSpec(NUMBERS, ("key",))])]),
    ):
        raise ValueError("broken")
    assert conf[BYTES] == "67108864b"


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([pa.int64(), pa.int32()], 5 + 9 + 5),
        ([pa.bool_()], 5 + 2),
        ([pa.timestamp("us", "UTC"), pa.date32(), pa.float64()], 5 + 9 + 5 + 9),
        ([pa.decimal128(20, 2)], 5 + 17),
        ([pa.struct([("a", pa.int64()), ("b", pa.int8())])], 5 + 1 + 9 + 2),
        ([pa.null()], 5 + 1),
        ([pa.int64(), pa.string()], None),
        ([pa.binary()], None),
        ([pa.list_(pa.int64())], None),
        ([pa.map_(pa.int64(), pa.int64())], None),
        ([pa.struct([("a", pa.string())])], None),
    ],
)
def test_widths(types: Sequence[pa.DataType], expected: int | None) -> None:
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(types)])
    assert row_bytes([InputSpec(schema, ("c0",))]) == expected


def test_widths_of_several_inputs_and_of_changelogs() -> None:
    one, texts = InputSpec(NUMBERS, ("key",)), pa.schema([("text", pa.string())])
    assert row_bytes([one, one]) == 5 + 4 * 9
    assert row_bytes([one, InputSpec(texts, (), broadcast=True)]) == 5 + 2 * 9
    assert row_bytes([one, InputSpec(NUMBERS, ("key",), changes=RETRACT)]) == 5 + 4 * 9 + 4 + 1 + len("+U")


def test_stages_of_one_job_are_lifted_together_or_not_at_all() -> None:
    conf = FakeConf({BYTES: "1000000", ROWS: "1000"})
    given: Any = FakeRows(conf)
    numbers, texts = InputSpec(NUMBERS, ("key",)), InputSpec(pa.schema([("key", pa.string())]), ("key",))
    batches = ArrowBatches(given)
    for seen_bytes, lifted in ((0.0, False), (20.0, True), (126.0, False)):
        batches.saw("texts", seen_bytes)
        with batches.stage([given], [("numbers", [numbers]), ("texts", [texts])]):
            assert conf[BYTES] == (UNBOUNDED if lifted else "1000000")


@pytest.mark.parametrize(
    ("text", "expected"), [("67108864b", 67108864), ("12", 12), ("3m", None), ("64MB", None)]
)
def test_sizes(text: str, expected: int | None) -> None:
    assert size_of(text) == expected
