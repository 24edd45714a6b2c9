"""Sinks: the changes of a micro-batch written once, into a table that has a primary key or at the end of a log.

Owns: nothing; re-exports the public names.
Invariant: a target writes a micro-batch's changes and the record that it has them together, or not at all.
Must not import runtime, storage or execution.
"""

from asyncstate.driver.write_marks import Mark, Origin, is_written
from asyncstate.spark.sinks.appends import AppendSink
from asyncstate.spark.sinks.delta import DeltaTarget
from asyncstate.spark.sinks.iceberg import IcebergTarget
from asyncstate.spark.sinks.kafka import KafkaAppendTarget, KafkaTarget
from asyncstate.spark.sinks.kafka_messages import (
    AvroMessages,
    JsonMessages,
    MessageEncoding,
    ProtobufMessages,
)
from asyncstate.spark.sinks.mysql import MySqlTarget
from asyncstate.spark.sinks.parquet import ParquetTarget
from asyncstate.spark.sinks.postgres import PostgresTarget
from asyncstate.spark.sinks.sqlite import SqliteTarget
from asyncstate.spark.sinks.target import AppendTarget, Target, TargetChanges
from asyncstate.spark.sinks.upserts import UpsertSink, write_upserts

__all__ = [
    "AppendSink",
    "AppendTarget",
    "AvroMessages",
    "DeltaTarget",
    "IcebergTarget",
    "JsonMessages",
    "KafkaAppendTarget",
    "KafkaTarget",
    "Mark",
    "MessageEncoding",
    "MySqlTarget",
    "Origin",
    "ParquetTarget",
    "PostgresTarget",
    "ProtobufMessages",
    "SqliteTarget",
    "Target",
    "TargetChanges",
    "UpsertSink",
    "is_written",
    "write_upserts",
]
