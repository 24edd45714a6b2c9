"""A process that dies when everything of a micro-batch is written and nothing is committed; Kafka's also elsewhere.

Run with a kind and a place as JSON; with "append" rows are appended instead, and with "after" the process dies when
they are committed. Delta commits in native code, so there a second thread kills as soon as the new
data file is seen, which is before the commit or after it.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sinks.places import Place, changes, rows

WRITTEN = ([(2, "two", None), (3, "three", None)], [1])
APPENDED = [(2, "two", None), (2, "two", None), (3, "three", None)]


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def in_sqlite(_: Place) -> None:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> Any:
            return die() if sql == "COMMIT" else super().execute(sql, *more)

    connect = sqlite3.connect
    sqlite3.connect = lambda *given, **named: connect(*given, factory=Connection, **named)  # type: ignore[assignment]


def in_postgres(_: Place) -> None:
    import psycopg

    execute = psycopg.Cursor.execute

    def dying(self: Any, sql: Any, *more: Any, **named: Any) -> Any:
        done = execute(self, sql, *more, **named)
        return die() if str(sql).startswith("UPDATE asyncstate_batches") else done

    psycopg.Cursor.execute = dying  # type: ignore[assignment, method-assign]


def in_mysql(_: Place) -> None:
    import pymysql

    pymysql.connections.Connection.commit = die  # type: ignore[method-assign]


def in_delta(place: Place) -> None:
    folder = Path(place.place) / "totals"
    before = set(folder.glob("*.parquet"))

    def watch() -> None:
        while set(folder.glob("*.parquet")) == before:
            pass
        die()

    threading.Thread(target=watch, daemon=True).start()


def in_iceberg(_: Place) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    SqlCatalog.commit_table = die  # type: ignore[method-assign]


def in_parquet(_: Place) -> None:
    import pyarrow.parquet as pq

    write = pq.write_table
    pq.write_table = lambda *given, **named: die(write(*given, **named))


def in_kafka(_: Place) -> None:
    _dies_in_kafka("commit_transaction", before=True)


def in_kafka_sent(_: Place) -> None:
    _dies_in_kafka("send_offsets_to_transaction", before=True)


def in_kafka_committed(_: Place) -> None:
    _dies_in_kafka("commit_transaction", before=False)


def _dies_in_kafka(call: str, *, before: bool) -> None:
    import confluent_kafka

    own = confluent_kafka.Producer

    class Producer(own):  # type: ignore[misc, valid-type]
        def _dying(self, *given: Any) -> None:
            if before:
                self.flush(30)
            else:
                getattr(own, call)(self, *given)
            die()

    setattr(Producer, call, Producer._dying)
    confluent_kafka.Producer = Producer  # type: ignore[misc]


KILLERS: dict[str, Callable[[Place], None]] = {
    name.removeprefix("in_"): function for name, function in list(globals().items()) if name.startswith("in_")
}

if __name__ == "__main__":
    where = json.loads(sys.argv[2])
    place = Place(sys.argv[1].partition("_")[0], where)
    how = sys.argv[3:]
    target = place.append_target() if "append" in how else place.target()
    if "after" not in how:
        KILLERS[sys.argv[1]](place)
    if "append" in how:
        target.append("w", 1, rows(*APPENDED))
    else:
        target.write("w", 1, changes(*WRITTEN))
    die()  # Delta's commit may have been the quicker one
