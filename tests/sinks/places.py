"""Every kind of target, with the way to look at what it has.

A place is made of a text, so that another process can make the same one.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncstate.spark.sinks import (
    DeltaTarget,
    IcebergTarget,
    KafkaAppendTarget,
    KafkaTarget,
    MySqlTarget,
    ParquetTarget,
    PostgresTarget,
    SqliteTarget,
    TargetChanges,
)

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("total", pa.decimal128(10, 2))])
TABLE = "CREATE TABLE totals (id bigint{key}, name {text}, total {decimal})"
TYPES = {
    "sqlite": {"text": "text", "decimal": "text"},
    "postgres": {"text": "text", "decimal": "numeric(10, 2)"},
    "mysql": {"text": "varchar(40)", "decimal": "numeric(10, 2)"},
}
SQL = ("sqlite", "postgres", "mysql")
KINDS = (*SQL, "delta", "iceberg", "parquet", "kafka")


def changes(upserts: list[tuple[Any, ...]], deletes: list[int] | None = None) -> TargetChanges:
    """Rows of ``SCHEMA``, and ids that go."""
    gone = pa.table({"id": pa.array(deletes or [], pa.int64())})
    return TargetChanges(rows(*upserts), gone, ("id",))


def rows(*given: tuple[Any, ...]) -> pa.Table:
    """Rows of ``SCHEMA``."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)


class Place:
    """``place``: a file, folder or what to connect with."""

    def __init__(self, kind: str, place: Any) -> None:
        self.kind, self.place = kind, place

    def target(self, table: str = "totals") -> Any:
        match self.kind:
            case "sqlite":
                return SqliteTarget(self.place, table)
            case "postgres":
                return PostgresTarget(self.place, table)
            case "mysql":
                return MySqlTarget(self.place, table)
            case "delta":
                return DeltaTarget(f"{self.place}/{table}")
            case "iceberg":
                return IcebergTarget(f"shop.{table}", "tests", self._catalog)
            case "parquet":
                return ParquetTarget(f"{self.place}/{table}")
        servers, topic = self.place
        return KafkaTarget(servers, topic if table == "totals" else table)

    def append_target(self, table: str = "totals") -> Any:
        """The target to which rows are appended."""
        if self.kind == "kafka":
            servers, topic = self.place
            return KafkaAppendTarget(servers, topic if table == "totals" else table, keys="id")
        return self.target(table)

    def create(self, *, key: str = " PRIMARY KEY") -> None:
        """An empty table of totals."""
        if self.kind in SQL:
            self.run("DROP TABLE IF EXISTS totals")
            self.run("DROP TABLE IF EXISTS asyncstate_batches")
            self.run(TABLE.format(key=key, **TYPES[self.kind]))
        elif self.kind == "delta":
            from deltalake import write_deltalake

            write_deltalake(f"{self.place}/totals", SCHEMA.empty_table())
        elif self.kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("tests", **self._catalog)
            catalog.create_namespace("shop")
            catalog.create_table("shop.totals", SCHEMA)
        elif self.kind == "kafka":
            from confluent_kafka.admin import AdminClient, NewTopic

            servers, topic = self.place
            admin = AdminClient({"bootstrap.servers": servers})
            config = {"cleanup.policy": "compact"}
            for made in admin.create_topics([NewTopic(topic, 2, 1, config=config)]).values():
                made.result(30)

    @property
    def _catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.place}/catalog.db",
            "warehouse": f"file://{self.place}",
        }

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """SQL, in databases."""
        if self.kind == "sqlite":
            with sqlite3.connect(self.place) as database:
                return list(database.execute(statement))
        if self.kind == "mysql":
            import pymysql

            with pymysql.connect(**self.place) as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                connection.commit()
                return list(cursor.fetchall())
        import psycopg

        with psycopg.connect(self.place) as connected:
            done = connected.execute(statement)
            return done.fetchall() if done.description else []

    def table(self) -> dict[int, tuple[Any, ...]]:
        """Names and totals by id."""
        if self.kind == "parquet":
            return self._replayed()
        if self.kind == "kafka":
            table: dict[int, tuple[Any, ...]] = {}
            for key, value in self._messages():
                table.pop(key["id"], None)
                if value is not None:
                    table[key["id"]] = _shown(value)
            return table
        return {row["id"]: _shown(row) for row in self._found()}

    def appended(self) -> list[tuple[Any, ...]]:
        """All rows of ``SCHEMA`` in order of their ids and names, as often as they are there."""
        if self.kind == "kafka":
            found = [value for _, value in self._messages() if value is not None]
        elif self.kind == "parquet":
            found = pq.read_table(f"{self.place}/totals").to_pylist() if self._has_files else []
        else:
            found = self._found()
        return sorted(((row["id"], *_shown(row)) for row in found), key=repr)

    @property
    def _has_files(self) -> bool:
        return any(Path(self.place).glob("totals/*.parquet"))

    def _found(self) -> list[dict[str, Any]]:
        """The rows of a table."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            return list(pa.table(DeltaTable(f"{self.place}/totals").to_pyarrow_table()).to_pylist())
        if self.kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            table = load_catalog("tests", **self._catalog).load_table("shop.totals")
            return list(table.scan().to_arrow().to_pylist())
        found = self.run("SELECT id, name, total FROM totals")
        return [dict(zip(SCHEMA.names, row, strict=True)) for row in found]

    def rows(self) -> dict[int, str | None]:
        """Names by id."""
        return {key: name for key, (name, _) in self.table().items()}

    def _replayed(self) -> dict[int, tuple[Any, ...]]:
        table: dict[int, tuple[Any, ...]] = {}
        files = Path(self.place).glob("totals/*/*/[!_]*")
        for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
            for row in pq.ParquetFile(file).read().to_pylist():
                table.pop(row["id"], None)
                if row["row_kind"] == "+U":
                    table[row["id"]] = _shown(row)
        return table

    def _messages(self) -> list[tuple[Any, Any]]:
        """Keys and values of what is committed; None for a tombstone."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        servers, topic = self.place
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "reader",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in parts])
        found: list[tuple[Any, Any]] = []
        ended = 0
        while ended < len(parts):
            message = consumer.poll(20)
            assert message is not None
            error = message.error()
            if error:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            value = message.value()
            found.append((json.loads(message.key() or b"{}"), None if value is None else json.loads(value)))
        consumer.close()
        return found


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["name"], None if row["total"] is None else float(row["total"])
