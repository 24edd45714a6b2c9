"""What messages are: rows, or the changes of a table.

Owns: ``Json`` and ``Debezium``, which say how a source of Kafka reads its messages.
Invariant: each is one of the readers of ``asyncstate.spark.sources``, with its arguments.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from asyncstate.spark.sources import debezium_json, json_rows
from asyncstate.spark.sources.special import Infinity, ZeroDates
from asyncstate.spark.sources.typed import Decimals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class MessageFormat(Protocol):
    """From Kafka's messages to rows."""

    def rows(self, df: DataFrame, malformed: Any) -> DataFrame:
        """The rows of the messages in the column ``value``."""


@dataclass(frozen=True)
class Json:
    """One row in each message, as a JSON object; see ``json_rows``. With a schema registry also Avro and Protobuf."""

    schema: str | StructType
    timestamps: str | Mapping[str, str] = "iso"
    keep: str | Sequence[str] | None = None

    def rows(self, df: DataFrame, malformed: Any = "fail") -> DataFrame:
        """The rows of the objects; see ``json_rows``."""
        return json_rows(df, self.schema, timestamps=self.timestamps, keep=self.keep, malformed=malformed)


@dataclass(frozen=True)
class Debezium:
    """The events of Debezium, in JSON or, with a schema registry, in Avro or Protobuf; see ``debezium_json``.

    In Avro, decimals in ``decimal.handling.mode=precise`` are "text", since the registry's schema says their scale.
    """

    schema: str | StructType
    upsert_key: str | Sequence[str] | None = None
    connector: str | None = None
    decimals: Decimals | None = None
    timestamps: str | Mapping[str, str] = "iso"
    infinity: Infinity | None = None
    zero_dates: ZeroDates | None = None
    keep: str | Sequence[str] | None = None
    skip: str | Sequence[str] | None = None

    def rows(self, df: DataFrame, malformed: Any = "fail") -> DataFrame:
        """The changes in the events; see ``debezium_json``."""
        return debezium_json(
            df,
            self.schema,
            upsert_key=self.upsert_key,
            connector=self.connector,
            decimals=self.decimals,
            timestamps=self.timestamps,
            infinity=self.infinity,
            zero_dates=self.zero_dates,
            keep=self.keep,
            skip=self.skip,
            malformed=malformed,
        )
