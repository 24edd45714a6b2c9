"""asyncstate with a service next to it: ``python -m bench kafka-read``, ``lookup`` and ``sinks``.

Invariant: both sides of a comparison get the same from the same service, in turns. Of a topic, all columns of every
message are read, and only the time of the micro-batch counts, not that of the query's start. The service of lookups is
a process of its own and answers each request after the same time, however many there are; both modes ask for the same
keys, which they have not asked for before. The tables of sinks have the same rows and are compared in the end.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession

from asyncstate.lookups import HttpLookup
from asyncstate.spark.kafka import read_kafka
from asyncstate.spark.sinks import PostgresTarget, write_upserts
from asyncstate.testing import OperatorHarness
from bench.frame import ROOT, CaseError, Report, Row, Side, WrongResult, costs, serving, sides, turns
from bench.frame.report import Cores, Rounds, Seed, benchmark
from bench.processor_time import Clocks, Spent, TreeClocks
from bench.session import session
from operators import LookupJoin

if TYPE_CHECKING:
    import psycopg

_CONNECTORS = {"Spark's connector": "spark", "Python data source": "python"}


def _new_topic(servers: str, messages: int) -> str:
    """A new topic with one partition and so many messages of about 100 bytes. Returns its name."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in __all__

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(60)
    config = {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": messages + 1}
    producer = Producer(config)
    note = "x" * 30
    for number in range(messages):
        value = f'{{"id":{number},"customer":"customer {number % 1000}","amount":{number % 977}.25,"note":"{note}"}}'
        producer.produce(topic, value, str(number % 1000))
    producer.flush(120)
    return topic


def _read(spark: SparkSession, servers: str, topic: str, messages: int, connector: Any, _: object) -> Spent:
    """The time of the micro-batches of one query over the whole topic."""
    df = read_kafka(spark, servers, topic, starting="earliest", connector=connector)
    took: list[tuple[int, float]] = []

    def read(rows: Any, batch_id: int) -> None:
        began = time.perf_counter()
        found = rows.selectExpr("count(*) as n", "sum(length(value) + length(key) + offset) as s").first()
        took.append((int(found["n"]), time.perf_counter() - began))

    with tempfile.TemporaryDirectory() as folder:
        writer = df.writeStream.foreachBatch(read).option("checkpointLocation", str(Path(folder, "q")))
        writer.trigger(availableNow=True).start().awaitTermination()
    if sum(number for number, _ in took) != messages:
        raise WrongResult(f"{connector}: read {took}, and there are {messages} messages")
    return Spent(sum(spent for _, spent in took), None)


def _reads(spark: SparkSession, servers: str, messages: int, rounds: int, names: list[str]) -> list[Row]:
    given = spark, servers, _new_topic(servers, messages), messages
    spent = turns({name: partial(_read, *given, _CONNECTORS[name]) for name in names}, rounds)
    return sides(spent, messages, names[0], speed=True)


@benchmark(messages=2_000, rounds=1)
def kafka_read(
    report: Report,
    servers: Annotated[str, typer.Option(help="Bootstrap servers of a Kafka to make a topic in.")],
    messages: Annotated[int, typer.Option(min=1, help="Messages in the topic.")] = 500_000,
    rounds: Rounds = 5,
) -> None:
    """Read a topic of one partition by Spark's connector and by the Python data source; the ratio is the speed by that
    of Spark's connector, or of the only reader, if its jars are not in build/servers/spark-kafka."""
    found = ",".join(map(str, sorted((ROOT / "build" / "servers" / "spark-kafka").glob("*.jar"))))
    connectors = list(_CONNECTORS)[0 if found else 1 :]
    with session("bench kafka-read", report.folder, 1, {"spark.jars": found} if found else {}) as spark:
        title = f"{messages:,} messages of some 100 bytes in one partition, medians of {rounds}"
        report.section(title, costs("us", "a message"))
        report.case("kafka-read", _reads, spark, servers, messages, rounds, connectors)


_ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
_FOUND = pa.schema([("name", pa.string())])
_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n[{"name":"x"}]'


def _serve(line: Connection, latency: float) -> None:
    """Say the port, then answer each request ``latency`` seconds after its head, until the process is killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # at the end of the connection
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(latency)
                writer.write(_ANSWER)

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
        line.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def _lookups(line: Connection, keys: int, rounds: int) -> list[Row]:
    address = f"http://127.0.0.1:{line.recv()}"
    with ExitStack() as open_:

        def side(enabled: bool) -> Side:
            join = LookupJoin(HttpLookup(address + "/{0}"), _FOUND)
            harness = OperatorHarness(join, _ROWS, ["k"], async_enabled=enabled, changelog=False)
            open_.enter_context(harness)

            def ask(number: int) -> Spent:
                harness.push([(number * keys + key, key) for key in range(keys)])
                clocks = Clocks()
                if len(harness.end_batch()) != keys:
                    raise CaseError("rows are missing")
                return clocks.spent()

            return ask

        spent = turns({"sync": side(False), "async": side(True)}, rounds, count())
    return sides(spent, 1, "sync", speed=True, scale=1e3)


@benchmark(keys=5, latency=1.0, rounds=1)
def lookup(
    report: Report,
    keys: Annotated[int, typer.Option(min=1, help="Distinct keys of a micro-batch.")] = 500,
    latency: Annotated[float, typer.Option(min=0, help="Latency of the service in milliseconds.")] = 10.0,
    rounds: Rounds = 7,
) -> None:
    """Query an HTTP service for each key of a micro-batch, sync and async; the ratio is the speed by that of sync."""
    with serving(_serve, latency / 1000) as line:
        title = f"{keys:,} distinct keys a micro-batch, {latency:g} ms an answer, medians of {rounds}"
        report.section(title, costs("ms", ""))
        report.case("lookup", _lookups, line, keys, rounds)


_COLUMNS = "id bigint PRIMARY KEY, customer text, amount bigint, total double precision"
_BY_HAND = "COPY and merge by hand"


def _changes_of(number: int, keys: int, seed: int) -> pa.Table:
    """A micro-batch: one change for each of ``keys`` keys, of which one in ten goes; half of them were there before."""
    random = np.random.default_rng([seed, number])
    ids = random.permutation(2 * keys)[:keys]
    columns = {
        "id": ids,
        "customer": pc.binary_join_element_wise("customer ", pa.array(ids % 1000).cast(pa.string()), ""),
        "amount": random.integers(0, 10**6, keys),
        "total": random.random(keys),
        "row_kind": np.where(random.random(keys) < 0.1, "-D", "+U"),
    }
    return pa.table(columns)


def _by_hand(database: psycopg.Connection, table: str, given: tuple[int, DataFrame]) -> None:
    rows = given[1].toArrow()
    written = rows.append_column("gone", pc.equal(rows["row_kind"], "-D")).drop_columns(["row_kind"])
    buffer = io.BytesIO()
    csv.write_csv(written, buffer, csv.WriteOptions(include_header=False))
    with database.cursor() as cursor:
        staged = f"SELECT *, true AS gone FROM {table} LIMIT 0"
        cursor.execute(f"CREATE TEMPORARY TABLE staged ON COMMIT DROP AS {staged}")
        with cursor.copy("COPY staged FROM STDIN (FORMAT csv)") as copy:
            copy.write(buffer.getbuffer())
        cursor.execute(f"DELETE FROM {table} USING staged WHERE {table}.id = staged.id AND staged.gone")
        cursor.execute(f"""INSERT INTO {table} SELECT id, customer, amount, total FROM staged WHERE NOT gone
            ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, amount = excluded.amount,
            total = excluded.total""")
    database.commit()


def _writes(conninfo: str, keys: int, rounds: int, seed: int, of: Callable[..., DataFrame]) -> list[Row]:
    """Rows as Spark has them, brought over and written, in turns."""
    import psycopg

    drawn = ((number, of(_changes_of(number, keys, seed))) for number in count())
    with psycopg.connect(conninfo) as database:
        database.execute("DROP TABLE IF EXISTS by_us, by_hand, asyncstate_batches")
        for table in ("by_us", "by_hand"):
            database.execute(f"CREATE TABLE {table} ({_COLUMNS})")
        database.commit()
        target = PostgresTarget(conninfo, "by_us")
        ways: dict[str, Side] = {"write_upserts": lambda each: write_upserts(each[0], each[1], "id", target)}
        ways[_BY_HAND] = partial(_by_hand, database, "by_hand")
        spent = turns(ways, rounds, drawn, clocks=TreeClocks)
        differing = "(TABLE by_us EXCEPT TABLE by_hand) UNION (TABLE by_hand EXCEPT TABLE by_us)"
        if database.execute(differing).fetchone() is not None:
            raise WrongResult("the two tables differ")
    return sides(spent, 1, _BY_HAND, speed=True, scale=1e3)


@benchmark(keys=500, rounds=1)
def sinks(
    report: Report,
    conninfo: Annotated[str, typer.Option(help="Of PostgreSQL: 'host=/tmp user=me dbname=bench'.")],
    keys: Annotated[int, typer.Option(min=1, help="Changed keys of a micro-batch.")] = 100_000,
    rounds: Rounds = 7,
    cores: Cores = 2,
    seed: Seed = 1,
) -> None:
    """Upsert micro-batches into PostgreSQL, and do the same by hand. Makes the tables by_us and by_hand there."""
    with session("bench sinks", report.folder, cores) as spark:

        def of(rows: pa.Table) -> DataFrame:
            kept = spark.createDataFrame(rows).cache()
            kept.count()
            return kept

        report.section(f"{keys:,} changed keys a micro-batch, medians of {rounds}", costs("ms", ""))
        report.case("sinks", _writes, conninfo, keys, rounds, seed, of)
