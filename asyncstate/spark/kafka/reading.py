"""``read_kafka``: a topic as a streaming DataFrame, by Spark's own connector or the Python data source.

Owns: the choice between the two, and their options.
Invariant: the rows and their columns are the same with both.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncstate.errors import ConfigurationError
from asyncstate.spark.kafka.client_options import Redaction, is_secret, to_java
from asyncstate.spark.kafka.source_options import NAME
from asyncstate.spark.task_errors import own_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Starting = str | dt.datetime | Mapping[str, Mapping[int, int]]
Connector = Literal["auto", "spark", "python"]

_SPARK: Final = "kafka"
_MISSING: Final = re.compile(
    r"find (the )?data source: kafka|DATA_SOURCE_NOT_FOUND|STREAMING_CONNECTOR|AVRO_NOT", re.I
)


def read_kafka(
    spark: SparkSession,
    servers: str,
    topics: str | Sequence[str] | re.Pattern[str],
    *,
    starting: Starting = "latest",
    max_rows: int | None = None,
    fail_on_data_loss: bool = True,
    headers: bool = False,
    options: Mapping[str, str] | None = None,
    connector: Connector = "auto",
) -> DataFrame:
    """The messages of ``topics`` as a streaming DataFrame with the columns of Spark's own connector: ``key``, ``value``
    (binary), ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``, and ``headers`` if asked for.

    ``topics``: one name, several, or a compiled pattern that matches whole names. ``starting``: where a query without a
    checkpoint begins: "earliest", "latest", a datetime with a time zone (a partition without messages since then is
    read from its end), or ``{"orders": {0: 42}}`` with an offset for each partition (-2 earliest, -1 latest).
    ``max_rows``: of one micro-batch. ``fail_on_data_loss``: fail where offsets that were to be read are gone.
    ``options``: of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``; those for SASL and TLS are translated for
    Spark's own connector. Only committed messages are read, unless ``isolation.level`` says otherwise.

    ``connector``: "auto" takes Spark's own connector where its jar is there, otherwise the Python data source, which
    needs Spark 4.0 and ``asyncstate[kafka]``. Raises ConfigurationError for invalid arguments, and where neither is
    there. Source: Spark's Structured Streaming + Kafka Integration Guide.
    """
    client = {"isolation.level": "read_committed", **_texts(options), "bootstrap.servers": _servers(servers)}
    own = {
        **_subscription(topics),
        **_starting(starting),
        "failOnDataLoss": str(bool(fail_on_data_loss)).lower(),
    }
    if max_rows is not None:
        if type(max_rows) is not int or max_rows < 1:
            raise ConfigurationError(f"read_kafka: max_rows is {max_rows!r}; give a whole number from 1")
        own["maxOffsetsPerTrigger"] = str(max_rows)
    if headers:
        own["includeHeaders"] = "true"
    if connector not in ("auto", "spark", "python"):
        raise ConfigurationError(f"read_kafka: connector is {connector!r}; give 'auto', 'spark' or 'python'")
    if connector != "python":
        found = _by_spark(spark, {**own, **_prefixed(to_java("read_kafka", client))})
        if found is not None:
            return found
        if connector == "spark":
            raise ConfigurationError(
                "read_kafka: Spark's own connector is not there; add its jar to spark.jars.packages, such as "
                "org.apache.spark:spark-sql-kafka-0-10_2.13 in the version of your Spark (docs/sources.md), or leave "
                "connector out"
            )
    return _by_python(spark, {**own, **_prefixed(client)})


def _by_spark(spark: SparkSession, options: Mapping[str, str]) -> DataFrame | None:
    """None without the connector's jar."""
    from pyspark.errors import PySparkException

    redacted = Redaction(options)
    try:
        df = spark.readStream.format(_SPARK).options(**options).load()
        _ = df.schema  # over Spark Connect, this asks the server
    except PySparkException as error:
        if _MISSING.search(str(error)):
            return None
        raise ConfigurationError(redacted(f"read_kafka: {error}")) from None
    return df


def _by_python(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    if not hasattr(spark, "dataSource"):
        raise ConfigurationError(
            f"read_kafka: Spark {spark.version} has no Python data sources, which are new in 4.0; add the jar of "
            "Spark's own connector to spark.jars.packages (docs/sources.md)"
        )
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "read_kafka needs Spark's own connector, in spark.jars.packages, or packages that are not there "
            f"({error}): pip install 'asyncstate[kafka]'"
        ) from error
    from asyncstate.spark.kafka.data_source import KafkaSource, checked_options

    checked_options(options)
    spark.dataSource.register(KafkaSource)
    # Plans show options; Spark hides the values of those with "secret" in their name.
    hidden = {name: value for name, value in options.items() if is_secret(name)}
    shown = {name: value for name, value in options.items() if name not in hidden}
    more = {"asyncstate.mark": own_mark(), "asyncstate.secrets": json.dumps(hidden)}
    return spark.readStream.format(NAME).options(**shown, **more).load()


def _servers(servers: object) -> str:
    if not isinstance(servers, str) or not servers.strip():
        raise ConfigurationError(
            f"read_kafka: servers is {servers!r}; give host:port of brokers, separated by commas"
        )
    return servers


def _texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    found = {}
    for name, value in (options or {}).items():
        if str(name).lower().startswith("kafka."):
            raise ConfigurationError(
                f"read_kafka: options has {name!r}; give the names of librdkafka, without 'kafka.'"
            )
        if str(name).lower() == "bootstrap.servers":
            raise ConfigurationError("read_kafka: options has bootstrap.servers; give them with servers")
        if value is None:
            raise ConfigurationError(f"read_kafka: option {name} is None; give a value, or leave it out")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _prefixed(client: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in client.items()}


def _subscription(topics: object) -> dict[str, str]:
    if isinstance(topics, re.Pattern):
        return {"subscribePattern": _pattern(topics)}
    names = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, list | tuple) else []
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigurationError(
            f"read_kafka: topics is {topics!r}; give the name of a topic, a list of names or a compiled pattern"
        )
    return {"subscribe": ",".join(names)}


def _pattern(topics: re.Pattern[Any]) -> str:
    """The pattern's text, which says itself whether case counts. Raises ConfigurationError for other flags."""
    text = topics.pattern
    flags = topics.flags & ~re.compile(text).flags
    if not isinstance(text, str) or flags & ~re.IGNORECASE:
        raise ConfigurationError(
            f"read_kafka: topics is {topics!r}; give a pattern of text, without flags other than re.IGNORECASE"
        )
    return f"(?i:{text})" if flags else text


def _starting(starting: object) -> dict[str, str]:
    if isinstance(starting, dt.datetime) and starting.tzinfo is not None:
        if starting > dt.datetime.now(dt.UTC):
            raise ConfigurationError(f"read_kafka: starting is {starting!r}, which is still to come")
        return {
            "startingTimestamp": str(int(starting.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if isinstance(starting, Mapping) and all(isinstance(parts, Mapping) for parts in starting.values()):
        return {
            "startingOffsets": json.dumps(
                {t: {str(p): o for p, o in parts.items()} for t, parts in starting.items()}
            )
        }
    if starting in ("earliest", "latest"):
        return {"startingOffsets": str(starting)}
    raise ConfigurationError(
        f"read_kafka: starting is {starting!r}; give 'earliest', 'latest', a datetime with a time zone, or "
        "{topic: {partition: offset}}"
    )
