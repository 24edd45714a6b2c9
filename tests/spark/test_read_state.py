"""State as a DataFrame: typed columns, JSON texts, older versions, beside a running job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate import (
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.errors import (
    AsyncStateError,
    CheckpointCorruptionError,
    CheckpointError,
    StateDeclarationError,
)
from asyncstate.spark import MicroBatch, StreamingJob, read_state
from asyncstate.spark.task_errors import restore
from asyncstate.testing import OperatorHarness
from tests.spark.parts import RunningTotal

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("select id, id % 3 as k, timestamp_seconds(100 + id) as at from range(30)")


def start(spark: SparkSession, place: str, local: Path) -> Callable[[DataFrame, int], None]:
    job = StreamingJob(
        spark, place, {"async-state.parallelism": 2, "async-state.local-dir": str(local)}, name="job"
    )

    @job.micro_batch
    def apply(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(RunningTotal(timers=True), df, uid="totals", key="k", event_time="at").collect()
        batch.apply(RunningTotal(), df, uid="global").collect()

    return apply


@pytest.fixture(scope="module")
def place(spark: SparkSession, rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint after two micro-batches of the same rows; only to be read."""
    folder = tmp_path_factory.mktemp("read")
    on_batch = start(spark, str(folder / "checkpoint"), folder / "local")
    on_batch(rows, 0)
    on_batch(rows, 1)
    return str(folder / "checkpoint")


def totals(times: int) -> list[tuple[Any, ...]]:
    return [(k, (k, 10 * times, times * sum(range(k, 30, 3)))) for k in range(3)]


@pytest.mark.smoke
def test_one_state_has_typed_columns(spark: SparkSession, place: str) -> None:
    found = read_state(spark, place, "totals", "total")
    assert found.dtypes == [
        ("operator", "string"),
        ("state", "string"),
        ("kind", "string"),
        ("version", "bigint"),
        ("partition", "int"),
        ("key", "struct<k:bigint>"),
        ("namespace", "bigint"),
        ("value", "struct<k:bigint,rows:bigint,total:bigint>"),
        ("ttl_stamp", "bigint"),
    ]
    read = sorted((row["key"]["k"], tuple(row["value"])) for row in found.collect())
    assert read == totals(2)
    assert {(row["operator"], row["state"], row["kind"], row["version"]) for row in found.collect()} == {
        ("totals", "total", "value", 1)
    }
    assert found.where("value.total > 270 and key.k > 0").count() == 2


def test_an_older_version(spark: SparkSession, place: str) -> None:
    found = read_state(spark, place, "totals", "total", version=0)
    assert sorted((row["key"]["k"], tuple(row["value"])) for row in found.collect()) == totals(1)


def test_a_global_key_is_an_empty_struct(spark: SparkSession, place: str) -> None:
    (row,) = read_state(spark, place, "global", "total").collect()
    assert (row["key"].asDict(), row["value"]["rows"]) == ({}, 60)


def test_timers(spark: SparkSession, place: str) -> None:
    found = read_state(spark, place, "totals", "@timers").collect()
    assert sorted((row["key"]["k"], row["value"]["time"]) for row in found) == sorted(
        (id % 3, (100 + id) * 1_000_000) for id in range(30)
    )


def test_several_states_come_as_json_texts(spark: SparkSession, place: str) -> None:
    found = read_state(spark, place)
    assert dict(found.dtypes)["key"] == "string"
    assert {
        (row["operator"], row["state"]) for row in found.select("operator", "state").distinct().collect()
    } == {
        ("totals", "total"),
        ("totals", "@timers"),
        ("global", "total"),
    }
    values = {
        (row["operator"], json.loads(row["key"]).get("k")): json.loads(row["value"])
        for row in found.where("state = 'total'").collect()
    }
    assert values["totals", 2] == {"k": 2, "rows": 20, "total": 2 * sum(range(2, 30, 3))}
    assert values["global", None]["rows"] == 60


ELABORATE = pa.struct(
    [
        pa.field("list", pa.list_(pa.int32())),
        pa.field("map", pa.map_(pa.large_string(), pa.float32())),
        pa.field("price", pa.decimal128(12, 2), nullable=False),
        pa.field("at", pa.timestamp("ns", "UTC")),
        pa.field("local", pa.timestamp("ms")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.large_binary()),
    ]
)


class Elaborate(RecordOperator):
    """A map of values of many types, and a list in namespaces."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.map = context.get_state(MapStateDescriptor("map", pa.decimal128(5, 1), ELABORATE))
        self.list = context.get_state(ListStateDescriptor("list", pa.large_string(), namespaced=True))

    def process(self, row: Row, ctx: RecordContext) -> None:
        value = {
            "list": [1, None],
            "map": [("x", 0.5)],
            "price": Decimal("12.30"),
            "at": 1_700_000_000_123_456_000,
            "local": 86_400_000,
            "day": date(1970, 1, 2),
            "raw": b"\x00",
        }
        self.map.put(Decimal("7.5"), value)
        self.list.at(row["n"]).add_all(["p", "q"])


def test_types_of_the_state_become_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32()), ("n", pa.int64())])
    with OperatorHarness(Elaborate(), schema, ["day", "n"], folder=tmp_path) as harness:
        harness.push([(None, 5)])
        harness.end_batch()
        place = str(tmp_path / "checkpoint")
        (row,) = read_state(spark, place, "operator", "map").collect()
        assert (tuple(row["key"]), row["user_key"]) == ((None, 5), Decimal("7.5"))
        assert row["value"].asDict() == {
            "list": [1, None],
            "map": {"x": 0.5},
            "price": Decimal("12.30"),
            "at": datetime(2023, 11, 14, 22, 13, 20, 123456),
            "local": datetime(1970, 1, 2),
            "day": date(1970, 1, 2),
            "raw": b"\x00",
        }
        rows = read_state(spark, place, "operator", "list").collect()
        assert [(r["namespace"], r["position"], r["value"]) for r in rows] == [(5, 0, "p"), (5, 1, "q")]
        texts = {r["state"]: json.loads(r["value"]) for r in read_state(spark, place, "operator").collect()}
        assert (texts["map"]["price"], texts["map"]["raw"]) == ("12.30", "AA==")


def test_reading_leaves_job_and_checkpoint_as_they_are(
    spark: SparkSession, place: str, rows: DataFrame, tmp_path: Path
) -> None:
    own = tmp_path / "checkpoint"
    shutil.copytree(place, own)
    on_batch = start(spark, str(own), tmp_path / "local")
    on_batch(rows, 2)

    def files() -> dict[str, tuple[int, int]]:
        paths = [path for folder in (own, tmp_path / "local") for path in folder.rglob("*") if path.is_file()]
        stats = {str(path): path.stat() for path in paths if path.name != "LOG"}  # RocksDB's threads write it
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}

    before = files()
    assert read_state(spark, str(own), "totals", "total").count() == 3
    assert files() == before
    on_batch(rows, 3)
    found = read_state(spark, str(own), "totals", "total").collect()
    assert sorted((row["version"], row["value"]["rows"]) for row in found) == [(3, 40)] * 3


def test_what_is_not_there_is_refused_at_once(spark: SparkSession, place: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no version 7; its versions are \[0, 1\]"):
        read_state(spark, place, version=7)
    with pytest.raises(StateDeclarationError, match=r"operator 'totals' does not have a state 'x'"):
        read_state(spark, place, "totals", "x")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint folder"):
        read_state(spark, str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.executors  # in the driver, small deltas are one file
def test_a_damaged_file_is_named(spark: SparkSession, place: str, tmp_path: Path) -> None:
    own = tmp_path / "checkpoint"
    shutil.copytree(place, own)
    victim = max(Path(own, "state", "totals").rglob("*.sst"), key=lambda path: path.name)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(bytes(data))
    with pytest.raises(Exception, match=victim.name) as caught:
        read_state(spark, str(own), "totals", "total").collect()
    restored = restore(str(caught.value))
    assert isinstance(restored, AsyncStateError)
    assert isinstance(restored, CheckpointCorruptionError)
