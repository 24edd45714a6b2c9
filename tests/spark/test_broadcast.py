"""Broadcast inputs through Spark: collected on the driver, the same in every partition, stored and restored."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import JobError, SchemaError
from asyncstate.runtime import keys_of_inputs
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.testing import Tuning
from tests.spark.broadcast_parts import BadWords, ControllableDedup, ThreeInputs
from tests.spark.modes import ASYNC, SYNC
from tests.spark.stored import stored_state

MakeJob = Callable[..., StreamingJob]
Use = Callable[[MicroBatch, DataFrame], DataFrame]


def options(async_enabled: bool, parallelism: int) -> dict[str, Any]:
    return {"async-state.enabled": async_enabled, "async-state.parallelism": parallelism}


def run_batch(job: StreamingJob, use: Use, df: DataFrame, batch_id: int) -> list[tuple[Any, ...]]:
    """What ``use`` puts out in one micro-batch, sorted; ``job`` is as newly started."""
    results: list[tuple[Any, ...]] = []
    job.micro_batch(lambda rows, batch: results.extend(map(tuple, use(batch, rows).collect())))(df, batch_id)
    return sorted(results)


def events(spark: SparkSession, *rows: tuple[str, str, float | None]) -> DataFrame:
    return spark.createDataFrame(rows, "what string, text string, score double")


def filter_words(batch: MicroBatch, df: DataFrame) -> DataFrame:
    """One stream with both: sentences, and words that from now on are good or bad."""
    words = df.where("what <> 'sentence'").selectExpr(
        "text as word", "score", "if(what = 'good', '-D', '+I') as row_kind"
    )
    sentences = df.where("what = 'sentence'").selectExpr("text as sentence", "hash(text) as id")
    return batch.apply(BadWords(), sentences, words, key="id", uid="words").drop("row_kind")


SENTENCES = [
    ("sentence", text, None) for text in ("A darn shame", "all good", "heck no", "what the heck", "fine")
]


@pytest.mark.spark
@ASYNC
def test_a_dynamic_list_of_words_over_restarts_and_rescaling(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    first = make_job(options=options(async_enabled, 3))
    out = run_batch(first, filter_words, events(spark, *SENTENCES, ("bad", "heck", 1.0)), 0)
    assert out == [("A darn shame",), ("all good",), ("fine",)]

    second = make_job(options=options(not async_enabled, 2))
    out = run_batch(second, filter_words, events(spark, *SENTENCES), 1)
    assert out == [("A darn shame",), ("all good",), ("fine",)]

    third = make_job(options=options(async_enabled, 3))
    changes = [("bad", "darn", 0.5), ("good", "heck", None)]
    out = run_batch(third, filter_words, events(spark, *SENTENCES, *changes), 2)
    assert out == [("all good",), ("fine",), ("heck no",), ("what the heck",)]
    assert third.history[-1]["operators"]["words"]["rows_in"] == len(SENTENCES) + len(changes)
    (entry,) = stored_state(tmp_path / "checkpoint")["words"]
    assert entry[:2] == BROADCAST_GROUP

    third.finish()


def deduplicate(batch: MicroBatch, df: DataFrame) -> DataFrame:
    resets = df.where("what = 'reset'").selectExpr("cast(score as int) as parity")
    rows = df.where("what = 'row'").selectExpr("cast(score as long) as k", "text as payload")
    return batch.apply(ControllableDedup(), resets, rows, key=(None, "k"), uid="dedup").drop("row_kind")


@pytest.mark.spark
@SYNC
def test_a_reset_reaches_every_key_with_state(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    keys = range(20)

    def rows(text: str) -> list[tuple[str, str, float | None]]:
        return [("row", text, float(key)) for key in keys]

    job = make_job(options=options(async_enabled, 3))
    assert run_batch(job, deduplicate, events(spark, *rows("a"), *rows("b")), 0) == [
        (key, "a") for key in keys
    ]
    again = make_job(options=options(async_enabled, 2))
    out = run_batch(again, deduplicate, events(spark, *rows("c"), ("reset", "", 1.0)), 1)
    assert out == sorted((key, text) for key in keys if key % 2 for text in ("c", "reset"))
    once_more = make_job(options=options(not async_enabled, 2))
    out = run_batch(once_more, deduplicate, events(spark, ("reset", "", None)), 2)
    assert out == [(key, "reset") for key in keys]
    assert once_more.history[-1]["operators"]["dedup"]["counters"]["keys_notified"] == len(keys)


@pytest.mark.spark
@ASYNC
def test_two_regular_inputs_beside_rows_in_the_order_of_their_dataframe(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool
) -> None:
    def use(batch: MicroBatch, df: DataFrame) -> DataFrame:
        rules = df.sparkSession.range(0, 300, 1, 7).selectExpr(
            "concat('r', id) as name", "timestamp_seconds(if(id % 10 = 3, null, id)) as at"
        )
        left = df.selectExpr("id as k")
        right = df.selectExpr("id as other", "'text' as text").where("other < 5")
        out = batch.apply(
            ThreeInputs(),
            left,
            rules,
            right,
            key=("k", None, "other"),
            event_time=(None, "at", None),
            watermark_delay=(None, "9 seconds", None),
            uid="three",
        )
        return out.drop("row_kind")

    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    job = make_job(session, options=options(async_enabled, 3))
    out = run_batch(job, use, session.range(0, 40, 1, 4), 0)
    assert [row[:3] for row in out] == [
        (index, key, "r299 of 270") for index, count in ((0, 40), (2, 5)) for key in range(count)
    ]
    assert {row[3].astimezone(datetime.UTC).timestamp() for row in out} == {299.0}
    figures = job.history[-1]["operators"]["three"]
    assert (figures["rows_in"], figures["counters"]["null_event_times"]) == (345, 30)
    run_batch(job2 := make_job(session, options=options(async_enabled, 2)), use, session.range(0), 1)
    assert job2.history[-1]["watermark_us"] == 290_000_000


# refusals


@pytest.mark.spark
def test_what_is_refused_before_a_row_is_read(spark: SparkSession, make_job: MakeJob) -> None:
    rows = events(spark, ("bad", "x", 1.0))
    sentences, words = rows.selectExpr("text as sentence"), rows.selectExpr("text as word", "score")

    def apply(**changes: Any) -> Use:
        arguments = {"key": "sentence", "uid": "words", **changes}
        return lambda batch, _: batch.apply(
            BadWords(), *arguments.pop("inputs", (sentences, words)), **arguments
        )

    def refused(error: type[Exception], message: str, use: Use, **settings: Any) -> None:
        with pytest.raises(error, match=message):
            run_batch(make_job(**settings), use, rows, 0)

    refused(JobError, "input 1 is broadcast and has no key", apply(key=("sentence", "word")))
    refused(
        SchemaError,
        "the broadcast input of operator 'words' has no column 'word'",
        apply(inputs=(sentences, rows)),
    )
    refused(
        JobError,
        r"the broadcast input of operator 'words' have \d+ bytes, more than the 2048 that async-state.memory leaves",
        apply(inputs=(sentences, spark.range(500).selectExpr("string(id) as word", "1d as score"))),
        tuning=Tuning(broadcast_bytes=2 << 10),
    )
    run_batch(make_job(), apply(), rows, 0)
    with pytest.raises(SchemaError, match=r"input1: column 'score' was float64 and is string"):
        run_batch(
            make_job(), apply(inputs=(sentences, rows.selectExpr("text as word", "'' as score"))), rows, 1
        )


@pytest.mark.parametrize(
    ("key", "inputs", "broadcast", "keys"),
    [
        ("k", 2, 1, [("k",), ()]),
        ("k", 2, 0, [(), ("k",)]),
        (("k", None), 2, 1, [("k",), ()]),
        ((None, ["a", "b"]), 2, 0, [(), ("a", "b")]),
        ((["a", "b"],), 2, 1, [("a", "b"), ()]),
        (None, 2, 1, [(), ()]),
        ((None, None), 2, 1, [(), ()]),
        (("a", "b"), 3, 2, [("a",), ("b",), ()]),
        (("a", None, "b"), 3, 1, [("a",), (), ("b",)]),
        ((["a", "b"], ["c", "d"]), 3, 0, [(), ("a", "b"), ("c", "d")]),
    ],
)
def test_keys_beside_a_broadcast_input(key: Any, inputs: int, broadcast: int, keys: list[Any]) -> None:
    assert keys_of_inputs("op", key, inputs, broadcast) == keys


@pytest.mark.parametrize(
    ("key", "inputs", "example"),
    [
        (("a", "b"), 2, r"\('id', None\)"),
        (["a", "b", "c"], 2, r"\('id', None\)"),
        ("a", 3, r"\('id', None, 'id'\)"),
        (("a", "b", "c"), 3, r"\('id', None, 'id'\)"),
    ],
)
def test_a_key_for_the_broadcast_input_is_refused(key: Any, inputs: int, example: str) -> None:
    with pytest.raises(JobError, match=rf"input 1 is broadcast and has no key.*write None for it.*{example}"):
        keys_of_inputs("op", key, inputs, 1)


def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(JobError, match="key 5 is neither a column name"):
        keys_of_inputs("op", 5, 2, 1)  # type: ignore[arg-type]
