"""Rows that are appended: each once, in every kind of place, whatever happens between writing and committing."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncstate.driver.write_marks import Origin
from asyncstate.errors import JobError, OperatorError, SchemaError, StoreError
from asyncstate.spark.sinks import AppendSink, DeltaTarget, IcebergTarget, ParquetTarget, PostgresTarget
from tests.sinks.conftest import NUMBERS, made
from tests.sinks.killed import APPENDED
from tests.sinks.places import KINDS, SCHEMA, SQL, Place, changes, rows

OTHERS = [kind for kind in KINDS if kind != "kafka"]
FEW = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def log(place: Place) -> Place:
    """A place whose table has no primary key."""
    if place.kind in SQL:
        place.create(key="")
    return place


def test_rows_are_appended_once(log: Place) -> None:
    target = log.append_target()
    target.check_append(SCHEMA)
    twice = (1, 'a, "b"\nc', Decimal("1.50"))
    assert target.append("w", 4, rows(twice, twice, (2, "", None)))
    assert not target.append("w", 4, rows((9, "other", None)))
    assert target.append("w", 5, rows((3, None, Decimal("-0.01"))))
    assert target.append("another", 2, rows((2, "theirs", None)))
    with pytest.raises(JobError, match="has micro-batch 5 of writer 'w', and the next is 3: the job was rol"):
        target.append("w", 3, rows((9, "old", None)))
    assert log.appended() == [
        (1, 'a, "b"\nc', 1.5),
        (1, 'a, "b"\nc', 1.5),
        (2, "", None),
        (2, "theirs", None),
        (3, None, -0.01),
    ]


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.text("ab,\"'\\\n", max_size=3)), max_size=4),
    max_size=5,
)


@pytest.mark.parametrize("place", OTHERS, indirect=True)
@settings(max_examples=10, suppress_health_check=FEW)
@given(BATCHES)
def test_as_a_list_would(log: Place, batches: list[list[tuple[int, str | None]]]) -> None:
    """Each micro-batch comes twice."""
    before = Counter(log.appended())
    writer = f"writer {next(NUMBERS)}~%/ü"
    for number, batch in enumerate(batches):
        appended = rows(*((*row, None) for row in batch))
        assert log.append_target().append(writer, number, appended)
        if batch or log.kind not in ("delta", "parquet"):  # without rows these keep nothing
            assert not log.append_target().append(writer, number, appended)
    expected = Counter((*row, None) for batch in batches for row in batch)
    assert Counter(log.appended()) - before == expected


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_before_or_after_the_commit(log: Place, moment: str) -> None:
    target = log.append_target()
    target.append("w", 0, rows((1, "one", None)))
    command = [sys.executable, "-m", "tests.sinks.killed", log.kind, json.dumps(log.place), "append", moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    everything = [(1, "one", None), *APPENDED]
    is_there = log.appended() == everything
    if moment == "after":
        assert is_there
    elif log.kind != "delta":  # the native code may have committed first
        assert log.appended() == everything[:1]
    assert target.append("w", 1, rows(*APPENDED)) is not is_there
    assert log.appended() == everything


@pytest.mark.parametrize("point", ["kafka_sent", "kafka_committed"])
def test_kafka_killed_around_its_transaction(point: str, request: Any, tmp_path: Path) -> None:
    place = made("kafka", request, tmp_path)
    command = [sys.executable, "-m", "tests.sinks.killed", point, json.dumps(place.place), "append"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.append_target().append("w", 1, rows(*APPENDED)) is (point == "kafka_sent")
    assert place.appended() == APPENDED


FIRST = Origin("shop", "c1", "d1", {}, is_first=True)
LATER = FIRST._replace(driver="d2", earlier={"d1": 1}, is_first=False)


def test_marks_know_jobs_checkpoints_and_drivers(log: Place) -> None:
    target = log.append_target()
    assert target.append("w", 0, rows((1, "first", None)), FIRST)
    assert not target.append("w", 0, rows((1, "again", None)), FIRST)
    assert target.append("w", 1, rows((2, "next driver", None)), LATER)
    with pytest.raises(JobError, match="a driver that this checkpoint does not know"):
        target.append("w", 2, rows((3, "fenced", None)), FIRST._replace(is_first=False))
    assert target.append("w", 0, rows((4, "other job", None)), Origin("bar", "c2", "d3", {}, True))
    assert [row[1] for row in log.appended()] == ["first", "next driver", "other job"]


def test_changes_are_appended_with_their_kinds(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    AppendSink(ParquetTarget(folder), changes=True).check(SCHEMA)
    changed = rows((1, "a", None), (2, "b", None)).append_column("row_kind", pa.array(["-U", "+U"]))
    assert ParquetTarget(folder).append("w", 0, changed)
    assert pq.read_table(folder).column("row_kind").to_pylist() == ["-U", "+U"]
    with pytest.raises(
        SchemaError, match="a row has the kind '-U', and without their kinds all rows would be"
    ):
        AppendSink(ParquetTarget(folder)).write(changed, 1)  # type: ignore[arg-type]  # a table of a LocalFrame
    unknown = changed.set_column(changed.num_columns - 1, "row_kind", pa.array(["+I", None]))
    with pytest.raises(SchemaError, match="a row has the kind None"):
        AppendSink(ParquetTarget(folder)).write(unknown, 1)  # type: ignore[arg-type]
    assert pq.read_table(folder).num_rows == 2


# -- databases ---------------------------------------------------------------------------------------------------


def test_a_database_refuses_by_name(database: Place) -> None:
    target = database.append_target()
    with pytest.raises(SchemaError, match="no column 'more'; its columns are id, name, total"):
        target.check_append(SCHEMA.append(pa.field("more", pa.int64())))
    with pytest.raises(SchemaError, match="does not exist; create it with the columns of the rows"):
        database.target("missing").check_append(SCHEMA)
    with pytest.raises(SchemaError, match=r"column 'name' of type list<item: binary> does not fit"):
        target.check_append(SCHEMA.set(1, pa.field("name", pa.list_(pa.binary()))))
    database.run("DROP TABLE totals")
    database.run("CREATE TABLE totals (id bigint NOT NULL, name varchar(9), total bigint NOT NULL)")
    with pytest.raises(SchemaError, match="column 'total' is NOT NULL without a default"):
        target.check_append(SCHEMA.remove(2))
    with pytest.raises(OperatorError, match="column 'total' is NOT NULL, but null in 1 rows"):
        target.append("w", 0, rows((1, "a", None)).set_column(2, "total", pa.array([None], pa.int64())))
    assert database.run("SELECT * FROM totals") == []


def test_a_unique_key_of_a_database_fails_the_micro_batch(database: Place) -> None:
    """The table has a primary key; MySQL may have a second one, since nothing is replaced."""
    database.run("CREATE UNIQUE INDEX other ON totals (total)")
    target = database.append_target()
    target.check_append(SCHEMA)
    assert target.append("w", 0, rows((1, "a", Decimal(1))))
    with pytest.raises(StoreError, match="nothing was written"):
        target.append("w", 1, rows((2, "b", Decimal(2)), (1, "again", Decimal(3))))
    assert database.appended() == [(1, "a", 1.0)]
    assert target.append("w", 1, rows((2, "b", Decimal(2))))


def test_appending_to_postgres_needs_no_more_than_insert(postgres_place: Place) -> None:
    postgres_place.run("DROP ROLE IF EXISTS writer")
    postgres_place.run("CREATE ROLE writer LOGIN")
    postgres_place.run("GRANT CREATE ON SCHEMA public TO writer")
    target = PostgresTarget(postgres_place.place.replace("user=tests", "user=writer"), "totals")
    postgres_place.run("GRANT SELECT ON totals TO writer")
    with pytest.raises(StoreError, match="the user lacks the privilege to INSERT; grant it"):
        target.check_append(SCHEMA)
    postgres_place.run("GRANT INSERT ON totals TO writer")
    target.check_append(SCHEMA)
    assert target.append("w", 0, rows((1, "a", None)))
    with pytest.raises(StoreError, match="the user lacks the privilege to UPDATE, DELETE"):
        target.check(SCHEMA, ("id",))
    postgres_place.run("DROP OWNED BY writer")
    postgres_place.run("DROP ROLE writer")


def test_appended_rows_that_a_trigger_drops_are_noticed(sqlite_place: Place, postgres_place: Place) -> None:
    sqlite_place.run(
        "CREATE TRIGGER drops BEFORE INSERT ON totals WHEN new.id = 0 BEGIN SELECT RAISE(IGNORE); END"
    )
    body = "BEGIN IF new.id = 0 THEN RETURN NULL; END IF; RETURN new; END"
    postgres_place.run(f"CREATE OR REPLACE FUNCTION drops_one() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
    postgres_place.run("CREATE TRIGGER d BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION drops_one()")
    for place in (sqlite_place, postgres_place):
        with pytest.raises(StoreError, match="wrote 1 of 2 rows: a trigger, a rule or a conflict clause"):
            place.append_target().append("w", 0, rows((0, "a", None), (1, "b", None)))
        assert place.appended() == []


# -- Parquet -----------------------------------------------------------------------------------------------------


def test_readers_of_the_folder_see_whole_micro_batches(tmp_path: Path) -> None:
    """DuckDB's pattern and pyarrow's folder, which skips names as Spark does: also while a file is written."""
    folder = tmp_path / "totals"
    target = ParquetTarget(f"{folder}/")
    assert target.append("_w", 0, rows((1, "a", None), (2, "b", None)), FIRST)
    seen: list[tuple[int, int]] = []

    def counts() -> tuple[int, int]:
        with duckdb.connect() as database:
            found: Any = database.execute(f"SELECT count(*) FROM '{folder}/*.parquet'").fetchone()
        return found[0], pq.read_table(folder).num_rows

    write = pq.write_table

    def looks(*given: Any, **named: Any) -> None:
        write(*given, **named)
        seen.append(counts())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq, "write_table", looks)
        assert target.append("_w", 1, rows((3, "c", None)), FIRST)
    assert seen == [(2, 2)]
    assert counts() == (3, 3)
    assert pq.read_table(folder).column_names == SCHEMA.names
    assert sorted(os.listdir(folder)) == [
        "part-shop~2F_w-000000000000.parquet",
        "part-shop~2F_w-000000000001.parquet",
    ]


def test_what_a_folder_refuses(tmp_path: Path) -> None:
    target = ParquetTarget(str(tmp_path / "totals"))
    with pytest.raises(SchemaError, match="column 'length'.*Parquet has no durations"):
        target.check_append(pa.schema([("length", pa.duration("us"))]))
    assert target.append("w", 0, rows((1, "one", None)), FIRST)
    with pytest.raises(SchemaError, match="column 'id' is of type string, but was int64"):
        target.append("w", 1, pa.table({"id": ["a"]}), FIRST)
    with pytest.raises(JobError, match="Write into another place"):
        target.append("w", 0, rows((1, "one", None)), Origin("shop", "c9", "d9", {}, is_first=True))
    file = next((tmp_path / "totals").iterdir())
    with pytest.raises(SchemaError, match="is a file; name a folder"):
        ParquetTarget(str(file)).check_append(SCHEMA)


def test_another_time_zone_of_the_session_is_the_same_type(tmp_path: Path) -> None:
    target = ParquetTarget(str(tmp_path / "log"))
    moment = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    for number, zone in enumerate(("Europe/Zurich", "Asia/Tokyo")):
        assert target.append("w", number, pa.table({"t": pa.array([moment], pa.timestamp("us", zone))}))
    assert pq.read_table(tmp_path / "log").column("t").to_pylist() == [moment, moment]


# -- Delta -------------------------------------------------------------------------------------------------------


def delta_table(
    folder: Path,
    features: tuple[str, ...] = (),
    configuration: dict[str, str] | None = None,
    field: dict[str, Any] | None = None,
    writer_version: int = 7,
) -> DeltaTarget:
    """A table of ``id`` and ``name``, with the given protocol; ``field``: the metadata of ``name``."""
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"}
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": mapped if configuration else {}},
        {"name": "name", "type": "string", "nullable": True, "metadata": field or {}},
    ]
    protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": writer_version}
    if writer_version == 7:
        protocol = {**protocol, "minReaderVersion": 1, "writerFeatures": list(features)}
    meta = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": configuration or {},
        "createdTime": 0,
    }
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(
        "\n".join(map(json.dumps, [{"protocol": protocol}, {"metaData": meta}]))
    )
    return DeltaTarget(str(folder))


TWO = pa.schema([("id", pa.int64()), ("name", pa.string())])
MAPPED = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "c2"}


def test_features_of_delta_tables_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    """For upserts, too: deltalake refuses them at the commit, and writes mapped columns so that they read as null."""
    pytest.importorskip("deltalake")
    cases = [
        (delta_table(tmp_path / "a", ("rowTracking", "appendOnly")), "the table features rowTracking, with"),
        (
            delta_table(tmp_path / "b", ("clustering", "domainMetadata")),
            "features clustering, domainMetadata",
        ),
        (delta_table(tmp_path / "c", writer_version=6), "the table features identityColumns"),
        (
            delta_table(tmp_path / "d", (), {"delta.columnMapping.mode": "name"}, MAPPED, 5),
            r"maps its columns to other names in files \(delta.columnMapping.mode = name\)",
        ),
    ]
    for target, message in cases:
        for refused in (
            lambda to: to.check_append(TWO),
            lambda to: to.check(TWO, ("id",)),
            lambda to: to.append("w", 0, pa.table({"id": [1], "name": ["a"]})),
        ):
            with pytest.raises(SchemaError, match=message):
                refused(target)
    for version in (2, 4, 5):
        delta_table(tmp_path / f"v{version}", writer_version=version).check_append(TWO)


def test_append_only_and_generated_columns_of_delta(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    only = delta_table(tmp_path / "only", ("appendOnly",))
    only.check(TWO, ("id",))
    generated = delta_table(
        tmp_path / "generated", ("generatedColumns",), None, {"delta.generationExpression": "'x'"}
    )
    with pytest.raises(SchemaError, match="column 'name' is computed from other columns"):
        generated.check_append(TWO.remove(1))
    generated.check_append(TWO)
    from deltalake import write_deltalake

    place = str(tmp_path / "props")
    write_deltalake(place, TWO.empty_table(), configuration={"delta.appendOnly": "true"})
    target = DeltaTarget(place)
    with pytest.raises(SchemaError, match=r"append-only \(delta.appendOnly\).*with AppendSink"):
        target.check(TWO, ("id",))
    target.check_append(TWO)
    assert target.append("w", 0, pa.table({"id": [1], "name": ["a"]}))


def test_partitions_and_required_columns_of_delta(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from deltalake import DeltaTable, write_deltalake

    day = pa.field("day", pa.date32(), nullable=False)
    schema = pa.schema([day, *TWO, pa.field("more", pa.float64())])
    place = str(tmp_path / "t")
    write_deltalake(place, schema.empty_table(), partition_by=["day"])
    target = DeltaTarget(place)
    with pytest.raises(SchemaError, match="column 'day' is required, and the rows do not have it"):
        target.check_append(TWO)
    given = pa.schema([*TWO, pa.field("day", pa.date32())])
    target.check_append(given)
    when = dt.date(2026, 3, 1)
    with pytest.raises(OperatorError, match="column 'day' is required, but null in 1 rows"):
        target.append("w", 0, pa.table([[1], ["a"], [None]], given))
    assert target.append("w", 0, pa.table([[1, 2], ["a", None], [when, when]], given))
    found = DeltaTable(place).to_pyarrow_table(filters=[("day", "=", when)]).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        {"day": when, "id": 1, "name": "a", "more": None},
        {"day": when, "id": 2, "name": None, "more": None},
    ]


def meanwhile(target: Any, method: str, other: Any, patch: pytest.MonkeyPatch) -> None:
    """Before ``target`` writes, ``other`` has written the same micro-batch."""
    own = getattr(type(target), method)

    def first(self: Any, *given: Any) -> Any:
        patch.setattr(type(target), method, own)
        assert other.append("w", 0, rows((1, "of the other", None)))
        return own(self, *given)

    patch.setattr(type(target), method, first)


def test_of_two_drivers_at_once_one_appends(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, method in (("delta", "_append"), ("iceberg", "_append")):
        folder = tmp_path / kind
        folder.mkdir()
        place = made(kind, request, folder)
        target = place.append_target()
        meanwhile(target, method, place.append_target(), monkeypatch)
        with pytest.raises(StoreError, match="nothing was written"):
            target.append("w", 0, rows((1, "mine", None)))
        assert place.appended() == [(1, "of the other", None)]
        assert not target.append("w", 0, rows((1, "mine", None)))


def test_other_writers_of_a_delta_table_do_not_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake")
    from deltalake import write_deltalake

    place = Place("delta", str(tmp_path))
    place.create()
    own = DeltaTarget._append

    def second(self: Any, *given: Any) -> None:
        write_deltalake(f"{tmp_path}/totals", rows((7, "not of a job", None)), mode="append")
        own(self, *given)

    monkeypatch.setattr(DeltaTarget, "_append", second)
    assert place.append_target().append("w", 0, rows((1, "mine", None)))
    assert place.appended() == [(1, "mine", None), (7, "not of a job", None)]


# -- Iceberg -----------------------------------------------------------------------------------------------------


def iceberg_catalog(tmp_path: Path) -> tuple[Any, dict[str, str]]:
    from pyiceberg.catalog import load_catalog

    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog("tests", **given)
    catalog.create_namespace("db")
    return catalog, given


def test_partitions_and_required_fields_of_iceberg(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg_core")
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import BucketTransform, DayTransform
    from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

    catalog, properties = iceberg_catalog(tmp_path)
    fields = (
        NestedField(1, "at", TimestamptzType(), required=True),
        NestedField(2, "id", LongType(), required=False),
        NestedField(3, "name", StringType(), required=False),
        NestedField(4, "more", DoubleType(), required=False),
    )
    parts = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=DayTransform(), name="day"),
        PartitionField(source_id=2, field_id=1001, transform=BucketTransform(4), name="bucket"),
    )
    catalog.create_table("db.t", Schema(*fields), partition_spec=parts)
    target = IcebergTarget("db.t", "tests", properties)
    with pytest.raises(SchemaError, match="column 'at' is required, and the rows do not have it"):
        target.check_append(TWO)
    given = pa.schema([*TWO, pa.field("at", pa.timestamp("us", "Europe/Zurich"))])
    target.check_append(given)
    moment = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    with pytest.raises(OperatorError, match="column 'at' is required, but null in 1 rows"):
        target.append("w", 0, pa.table([[1], ["a"], [None]], given))
    assert target.append("w", 0, pa.table([[1, 2], ["a", None], [moment, moment]], given))
    assert not target.append("w", 0, pa.table([[1, 2], ["a", None], [moment, moment]], given))
    found = catalog.load_table("db.t").scan("id > 1").to_arrow().to_pylist()
    assert found == [{"at": moment, "id": 2, "name": None, "more": None}]


def test_iceberg_tables_that_cannot_be_appended_to_are_named(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import UnknownTransform
    from pyiceberg.types import LongType, NestedField, StringType

    catalog, properties = iceberg_catalog(tmp_path)
    fields = NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType())
    catalog.create_table("db.keyed", Schema(*fields, identifier_field_ids=[1]))
    with pytest.raises(
        SchemaError, match=r"identifier fields id, which appended .*UpsertSink\(\[id\], \.\.\.\)"
    ):
        IcebergTarget("db.keyed", "tests", properties).check_append(TWO)
    catalog.create_table("db.orc", Schema(*fields), properties={"write.format.default": "orc"})
    unknown = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=UnknownTransform("zorder"), name="part")
    )
    catalog.create_table("db.unknown", Schema(*fields), partition_spec=unknown)
    for table, message in (
        ("db.orc", "write.format.default = orc, but pyiceberg writes Parquet"),
        ("db.unknown", r"a transform that pyiceberg does not know \(part\)"),
    ):
        target = IcebergTarget(table, "tests", properties)
        with pytest.raises(SchemaError, match=message):
            target.check_append(TWO)
        with pytest.raises(SchemaError, match=message):
            target.check(TWO, ("id",))


def test_parquet_files_of_a_local_disk_are_synced_as_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commit follows them: after a power cut a file is whole, and has its name."""
    synced, fsync = list[str](), os.fsync

    def watched(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        names = f": {', '.join(sorted(os.listdir(place)))}" if place.is_dir() else ""
        synced.append(f"{place.relative_to(tmp_path)}{names}")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    target = ParquetTarget(str(tmp_path / "log"))
    assert target.append("w", 0, rows((1, "one", None)))
    name = "part-w-000000000000.parquet"
    assert synced == [".: log", f"log/_{name}.unfinished", f"log: {name}"]
    synced.clear()
    assert target.write("w", 0, changes([(1, "one", None)]))
    folder = "log/writer=w/batch=0"
    assert synced == [
        f"log: {name}, writer=w",
        "log/writer=w: batch=0",
        f"{folder}/_changes.parquet.unfinished",
        f"{folder}: changes.parquet",
    ]
