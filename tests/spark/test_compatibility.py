"""Which sessions a job takes, and what older Sparks need in place of what newer ones have."""

from __future__ import annotations

import datetime as dt
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from asyncstate.errors import ConfigurationError, SchemaError

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncstate.spark import StreamingJob, read_state
from asyncstate.spark.compatibility import (
    _hash_of,
    aggregated,
    arrow_schema,
    arrow_table,
    by_hash,
    by_partition,
    check_session,
    default_parallelism,
    session_settings,
    spark_type,
    without_error_log,
)
from asyncstate.spark.sinks import AppendSink
from asyncstate.spark.sources.events import columns_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Session:
    """As much of a session as a job looks at before it refuses it."""

    readStream = None  # noqa: N815 - pyspark's name

    def __init__(self, version: str, module: str = "pyspark.sql.session") -> None:
        self.version = version
        self.__class__ = type("SparkSession", (Session,), {"__module__": module})


@pytest.mark.parametrize("version", ["3.4.3", "4.4.0", "5.0.0-preview1", "unknown"])
def test_another_spark_is_refused_when_the_job_is_made(version: str, tmp_path: Any) -> None:
    session: Any = Session(version)
    with pytest.raises(
        ConfigurationError, match=r"job 'sums' runs on Spark 3\.5 to 4\.3.*use one of these"
    ) as refused:
        StreamingJob(session, str(tmp_path), name="sums")
    assert version in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"read_state runs on Spark 3\.5 to 4\.3"):
        read_state(session, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [None, "local[2]", object()])
def test_what_is_no_session_is_refused(given: Any, tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="which is not a SparkSession; give what"):
        StreamingJob(given, str(tmp_path))


def test_a_connect_server_that_keeps_no_rows_is_refused() -> None:
    connect = "pyspark.sql.connect.session"
    with pytest.raises(
        ConfigurationError, match=r"over Spark Connect from Spark 4\.0 on.*is of Spark 3\.5\.9"
    ):
        check_session(Session("3.5.9", connect), "job 'sums'")
    check_session(Session("4.0.0", connect), "job 'sums'")
    check_session(Session("3.5.0"), "job 'sums'")


def test_hashes_are_those_of_spark(spark: SparkSession) -> None:
    numbers = [0, 1, 2, 127, 128, 65_535, 1_000_003, 2**31 - 1]
    row = spark.range(1).selectExpr(*(f"hash({number})" for number in numbers)).collect()[0]
    assert [_hash_of(number) for number in numbers] == list(row)


@pytest.mark.parametrize("exchange", [by_partition, by_hash])
@pytest.mark.parametrize("partitions", [1, 3, 16, 130])
def test_each_row_goes_where_its_number_says(spark: SparkSession, exchange: Any, partitions: int) -> None:
    rows = spark.range(0, 1_000, 1, 4).selectExpr("id", f"cast(pmod(id * 7, {partitions}) as int) as number")
    sent = exchange(rows, partitions, "number")
    assert sent.rdd.getNumPartitions() == partitions
    found = sent.selectExpr("id", "number", "spark_partition_id() as place").collect()
    assert sorted(row["id"] for row in found) == list(range(1_000))
    assert all(row["number"] == row["place"] for row in found)


def test_settings_have_those_that_spark_does_not_know(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set("spark.async-state.local-dir", "/somewhere?secret=word")
    settings = session_settings(own)
    assert settings["spark.async-state.local-dir"] == "/somewhere?secret=word"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert default_parallelism(own) == 2


def test_times_keep_their_zone_and_their_lack_of_one(spark: SparkSession) -> None:
    schema = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")), ("n", pa.list_(pa.int32()))]
    )
    frame = spark.createDataFrame([], "at timestamp, wall timestamp_ntz, n array<int>")
    assert [spark_type(field.type) for field in schema] == [field.dataType for field in frame.schema]
    assert arrow_schema(frame.schema).types[:2] == schema.types[:2]
    assert arrow_table(frame).num_rows == 0
    assert arrow_table(frame).schema.names == ["at", "wall", "n"]


def without(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    """Take a method away that older Sparks do not have."""
    for one in kind.__mro__:
        if name in vars(one):
            monkeypatch.delattr(one, name)


def test_rows_are_appended_where_frames_have_no_arrow_of_their_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    rows = session.sql("select timestamp'2026-01-01 03:00:00Z' as at, map('a', now()) as m, '+I' as row_kind")
    without(monkeypatch, type(rows), "toArrow")
    log = Log()
    AppendSink(log, changes=True).write(rows, 0)
    (table,) = log.tables
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table.column("at").to_pylist() == [dt.datetime(2026, 1, 1, 3, tzinfo=dt.UTC)]
    assert arrow_table(rows.where("false")).schema.types == table.schema.types


class Log:
    """A target of appended rows in this process."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def check_append(self, schema: pa.Schema) -> None:
        pass

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Any = None) -> bool:
        self.tables.append(rows)
        return True


def test_types_are_read_from_ddl_where_structs_do_not_read_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, StructType, "fromDDL")
    wanted = spark.sql("select 1L as id, array('a') as names where false").schema
    assert columns_of("read", "id bigint, names array<string>").simpleString() == wanted.simpleString()
    with pytest.raises(SchemaError, match="read: the schema 'id bigint,' cannot be read"):
        columns_of("read", "id bigint,")


def test_rows_arrive_in_the_order_of_their_partitions(spark: SparkSession) -> None:
    rows = arrow_table(spark.range(0, 100, 1, 4))
    assert rows.column("id").to_pylist() == list(range(100))


@pytest.mark.parametrize("is_older", [False, True])
def test_rows_are_grouped_by_several_sets(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    rows = spark.sql("select * from values ('a', 1), ('a', 2), (null, 2) as t(`k{0}`, v)")
    if is_older:
        without(monkeypatch, type(rows), "groupingSets")
    tables = spark.catalog.listTables()
    keys, totals = ["`k{0}`", "v"], ["count(1) as n", "grouping(v) as every", "max('}') as brace"]
    found = aggregated(rows, keys, [["`k{0}`"], ["`k{0}`", "v"]], totals)
    assert found.columns == ["k{0}", "v", "n", "every", "brace"]
    each = [("a", 1, 1, 0, "}"), ("a", 2, 1, 0, "}"), (None, 2, 1, 0, "}")]
    assert {tuple(row) for row in found.collect()} == {
        *each,
        ("a", None, 2, 1, "}"),
        (None, None, 1, 1, "}"),
    }
    assert spark.catalog.listTables() == tables


def test_columns_may_have_the_names_of_methods(spark: SparkSession) -> None:
    rows = spark.sql("select 1 as toArrow, 2 as repartitionById, 3 as groupingSets")
    assert arrow_table(rows).to_pylist() == rows.toPandas().to_dict("records")
    assert by_partition(rows, 2, "1").rdd.glom().map(len).collect() == [0, 1]
    found = aggregated(rows, ["toArrow", "groupingSets"], [["toArrow"], ["groupingSets"]], ["count(1) as n"])
    assert sorted(row.n for row in found.collect()) == [1, 1]


@pytest.mark.since_spark("4.0", "pyspark's log of errors")
def test_errors_of_other_threads_are_logged_meanwhile_and_afterwards() -> None:
    from pyspark.logger import PySparkLogger

    with ThreadPoolExecutor(1) as other:
        log, logged = PySparkLogger.getLogger("SQLQueryContextLogger"), list[str]()
        handler = logging.Handler()
        handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        try:
            first, second = without_error_log(), without_error_log()
            with first:
                log.error("caught here")
                other.submit(log.error, "of another thread").result()
                other.submit(second.__enter__).result()
            other.submit(second.__exit__, None, None, None).result()
            log.error("afterwards")
        finally:
            log.removeHandler(handler)
    assert logged == ["of another thread", "afterwards"]
