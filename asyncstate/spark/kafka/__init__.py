"""Topics of Kafka as sources: Spark's own connector where it is there, and a Python data source where it is not.

Owns: nothing; re-exports the public names.
Invariant: the offsets are Spark's, in the query's checkpoint; a replayed micro-batch reads the same messages. Nothing
depends on Kafka's consumer groups. No error, log, plan or ``repr`` shows a secret of the options.
Must not import runtime, storage or execution.
"""

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
