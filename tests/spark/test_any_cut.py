"""A log of changes in 24 files, read in one micro-batch, in 6 and in 24: the same sums, those of a batch computation.

In one micro-batch Spark reads the files in an order of its own, and its exchanges keep none.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.testing import net
from operators import GroupAggregate, Join, count, sum_

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
FILES = 24
CHANGES_A_FILE = 12
CUSTOMERS = 8
SCHEMA = pa.schema(
    [
        ("is_payment", pa.bool_()),
        ("id", pa.int64()),
        ("customer", pa.int64()),
        ("amount", pa.int64()),
        ("country", pa.string()),
        ("lsn", pa.int64()),
        ("row_kind", pa.string()),
    ]
)


class Payment(NamedTuple):
    """Those of an even id keep their customer."""

    id: int
    customer: int
    amount: int


class Customer(NamedTuple):
    id: int
    country: str


Entity = Payment | Customer
Logged = tuple[Entity, int, str]


def changes(random: Random) -> Iterator[tuple[str, Entity | None, Entity]]:
    """Kind, what there was and what there is then: payments and customers that come, change and go."""
    there: dict[tuple[bool, int], Entity] = {}
    while True:
        is_payment = random.random() < 0.75
        number = random.randrange(40 if is_payment else CUSTOMERS)
        old = there.get((is_payment, number))
        if old is not None and random.random() < 0.3:
            yield "-D", old, there.pop((is_payment, number))
            continue
        if is_payment:
            stays = isinstance(old, Payment) and number % 2 == 0
            customer = old.customer if stays else random.randrange(CUSTOMERS)  # type: ignore[union-attr]
            if number % 2 == 0:
                customer = number % CUSTOMERS
            new: Entity = Payment(number, customer, random.randrange(1, 100))
        else:
            new = Customer(number, random.choice(["no", "se", "dk"]))
        there[is_payment, number] = new
        yield ("+I" if old is None else "+U"), old, new


def log(seed: int) -> Iterator[list[Logged]]:
    """The rows of each file: an update is two of them; all rows of a change have its number."""
    found = changes(Random(seed))
    for number in range(FILES):
        rows: list[Logged] = []
        for lsn in range(number * CHANGES_A_FILE, (number + 1) * CHANGES_A_FILE):
            kind, old, new = next(found)
            if kind == "+U" and old is not None:
                rows.append((old, lsn, "-U"))
            rows.append((new, lsn, kind))
        yield rows


def write_log(folder: Path, files: Sequence[Sequence[Logged]]) -> None:
    """A file each, older ones first."""
    folder.mkdir()
    for number, rows in enumerate(files):
        columns = [
            [isinstance(entity, Payment) for entity, _, _ in rows],
            [entity.id for entity, _, _ in rows],
            [getattr(entity, "customer", None) for entity, _, _ in rows],
            [getattr(entity, "amount", None) for entity, _, _ in rows],
            [getattr(entity, "country", None) for entity, _, _ in rows],
            [lsn for _, lsn, _ in rows],
            [kind for _, _, kind in rows],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        path = folder / f"{number:02}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)
        os.utime(path, (1_000 + number, 1_000 + number))


def sums(files: Sequence[Sequence[Logged]], payments_chosen: Callable[[Payment], bool]) -> Counter[Any]:
    """The number and sum of payments by country, by batch computation: the last state of every entity."""
    payments: dict[int, Payment] = {}
    homes: dict[int, str] = {}
    for entity, _, kind in (row for rows in files for row in rows):
        if isinstance(entity, Customer):
            homes.pop(entity.id, None)
            if kind in ("+I", "+U"):
                homes[entity.id] = entity.country
        elif payments_chosen(entity):
            payments.pop(entity.id, None)
            if kind in ("+I", "+U"):
                payments[entity.id] = entity
    amounts: dict[str, list[int]] = defaultdict(list)
    for payment in payments.values():
        if payment.customer in homes:
            amounts[homes[payment.customer]].append(payment.amount)
    return Counter((country, len(found), sum(found)) for country, found in amounts.items())


def by_country(
    batch: MicroBatch, name: str, join: Join, inputs: Sequence[DataFrame], **settings: Any
) -> DataFrame:
    """Payments with their customers, summed by country."""
    joined = batch.apply(join, *inputs, key=("customer", "id"), uid=f"{name}-joined", **settings)
    figures = [count().alias("payments"), sum_("amount").alias("amount")]
    return batch.apply(
        GroupAggregate(figures), joined.select("country", "amount", "row_kind"), key="country", uid=name
    )


def three_ways(df: DataFrame, batch: MicroBatch) -> dict[str, DataFrame]:
    """Full changes with rows known by keys and by content; upserts in order of their numbers."""
    payments, customers = df.where("is_payment"), df.where("not is_payment")
    payments = payments.selectExpr("id as payment", "customer", "amount", "lsn", "row_kind")
    customers = customers.select("id", "country", "lsn", "row_kind")
    full = [payments.drop("lsn"), customers.drop("lsn")]
    upserts = [payments.where("payment % 2 = 0 and row_kind <> '-U'"), customers.where("row_kind <> '-U'")]
    unique = {"left_unique": ["payment"], "right_unique": "join_key"}
    return {
        "unique": by_country(batch, "unique", Join("inner", **unique), full),
        "content": by_country(batch, "content", Join("inner"), full),
        "upserts": by_country(
            batch,
            "upserts",
            Join("inner", **unique, suffixes=("", "_of_customer")),
            upserts,
            sequence=("lsn", "lsn"),
        ),
    }


def read_in(
    spark: SparkSession, make_job: MakeJob, folder: Path, files_a_batch: int, async_enabled: bool
) -> tuple[dict[str, Counter[Any]], int, float]:
    """The netted sums of each way, how many micro-batches there were, and the retractions that found nothing."""
    place = folder.parent / f"{files_a_batch} files"
    job = make_job(checkpoint_dir=str(place / "state"), options={"async-state.enabled": async_enabled})
    found: dict[str, list[Any]] = defaultdict(list)
    missing: list[float] = []

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        for name, out in three_ways(df, batch).items():
            found[name] += out.collect()

    def run_and_look(df: DataFrame, batch_id: int) -> None:
        run(df, batch_id)
        assert job.statistics is not None
        missing.append(
            sum(
                one.sums.get("counter.retractions_without_state", 0)
                for one in job.statistics.operators.values()
            )
        )

    stream = spark.readStream.schema(SCHEMA_TEXT).option("maxFilesPerTrigger", files_a_batch)
    query = stream.parquet(str(folder)).writeStream.foreachBatch(run_and_look).trigger(availableNow=True)
    job.await_termination(query.option("checkpointLocation", str(place / "query")).start())
    return {name: net(rows) for name, rows in found.items()}, len(missing), sum(missing)


SCHEMA_TEXT = (
    "is_payment boolean, id long, customer long, amount long, country string, lsn long, row_kind string"
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("files_a_batch", [FILES, 4, pytest.param(1, marks=pytest.mark.slow)])
def test_one_micro_batch_or_many(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, files_a_batch: int
) -> None:
    files = list(log(seed=11))
    write_log(tmp_path / "log", files)
    everything, even = sums(files, lambda payment: True), sums(files, lambda payment: payment.id % 2 == 0)
    expected = {"unique": everything, "content": everything, "upserts": even}
    found = read_in(spark, make_job, tmp_path / "log", files_a_batch, async_enabled=files_a_batch == 4)
    assert found == (expected, FILES // files_a_batch, 0)
