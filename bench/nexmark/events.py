"""The wide event rows as the plans of queries take them: narrowed, and by kind.

Owns: the steps from wide rows to columns, and from rows to a changelog of inserts.
Invariant: all of it is stateless and left to Spark.
Must not import the plans.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.changelog import RowKind
from asyncstate.dataflow import Stream
from bench.nexmark.generator import AUCTION, BID, PERSON
from bench.nexmark.oracle import EVENT_KINDS, QuerySpec


def narrow(events: DataFrame, spec: QuerySpec) -> DataFrame:
    """The kinds of events and the fields that a query needs, still as wide rows; for a stream or a batch.

    Applied before ``foreachBatch``, because after it Spark no longer prunes columns in the file reader.
    """
    kinds = [EVENT_KINDS.index(kind) for kind in spec.needs]
    structs = [
        F.when(
            F.col("event_type") == EVENT_KINDS.index(kind), F.struct(*[f"{kind}.{field}" for field in fields])
        )
        for kind, fields in spec.needs.items()
    ]
    named = [struct.alias(kind) for kind, struct in zip(spec.needs, structs, strict=True)]
    return events.where(F.col("event_type").isin(kinds)).select("event_type", *named)


def people(events: Stream) -> Stream:
    """The person events, a column a field."""
    return events.where(f"event_type = {PERSON}").select("person.*")


def auctions(events: Stream) -> Stream:
    """The auction events, a column a field."""
    return events.where(f"event_type = {AUCTION}").select("auction.*")


def bids(events: Stream) -> Stream:
    """The bid events, a column a field."""
    return events.where(f"event_type = {BID}").select("bid.*")


def inserts(rows: Stream) -> Stream:
    """Rows that only ever are added, as a changelog."""
    return rows.with_columns(row_kind=f"'{RowKind.INSERT.text}'")
