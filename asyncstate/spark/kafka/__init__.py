"""Topics of Kafka as sources: Spark's own connector where it is there, and a Python data source where it is not.

Owns: nothing; re-exports the public names.
Invariant: the offsets are Spark's, in the query's checkpoint; a replayed micro-batch reads the same messages. Nothing
depends on Kafka's consumer groups. No error, log, plan or ``repr`` shows a secret of the options.
Importing this package imports none of its modules: each query's reader, in a process of its own, needs one of them.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncstate.spark.kafka.data_source import KafkaSource
    from asyncstate.spark.kafka.formats import Debezium, Json, MessageFormat
    from asyncstate.spark.kafka.job_source import KafkaStream
    from asyncstate.spark.kafka.reading import read_kafka
    from asyncstate.spark.kafka.registry import SchemaRegistry, decoded

__all__ = [
    "Debezium",
    "Json",
    "KafkaSource",
    "KafkaStream",
    "MessageFormat",
    "SchemaRegistry",
    "decoded",
    "read_kafka",
]

_HOMES = {
    "Debezium": "formats",
    "Json": "formats",
    "KafkaSource": "data_source",
    "KafkaStream": "job_source",
    "MessageFormat": "formats",
    "SchemaRegistry": "registry",
    "decoded": "registry",
    "read_kafka": "reading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise
        raise ImportError(
            "KafkaSource is a Python data source, which Spark has from 4.0 on; on Spark 3.5 use read_kafka, which "
            "reads with Spark's own connector"
        ) from None
