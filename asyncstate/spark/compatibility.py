"""What differs between the Sparks that a job may run on: 3.5 to 4.3, classic sessions and Spark Connect.

Owns: ``check_session``, which refuses others, and one function for each thing that only some of them have.
Invariant: a function returns the same on all of them. What a newer Spark does faster is used where it is there; version
numbers decide only what can be seen before a session exists.
Must not import the rest of this package.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from asyncstate.errors import ConfigurationError
from asyncstate.metrics import Observed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StringType

OLDEST: Final = (3, 5)
NEWEST: Final = (4, 3)
_OLDEST_CONNECT: Final = (4, 0)
"""A server of Spark 3.5 keeps no rows: local checkpoints came with 4.0."""
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_SEED: Final = 42  # of Spark's hash partitioning
_MASK: Final = 0xFFFFFFFF
_ERROR_LOG: Final = "SQLQueryContextLogger"
_errors_are_caught: Final[ContextVar[bool]] = ContextVar("errors_are_caught", default=False)
"""Of each thread: others may run statements of the user meanwhile."""
_TIME_ZONE: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
"""Before Spark 4.2 timestamps are in UTC anyway."""


def check_session(spark: object, owner: str) -> None:
    """Raise ConfigurationError for anything but a session on which a job can run; ``owner`` begins the sentence."""
    version = getattr(spark, "version", None)
    if not isinstance(version, str) or not hasattr(spark, "readStream"):
        raise ConfigurationError(
            f"{owner} was given {spark!r}, which is not a SparkSession; give what SparkSession.builder.getOrCreate() "
            "or build_session() returns"
        )
    number = _version(version)
    if not OLDEST <= number <= NEWEST:
        raise ConfigurationError(
            f"{owner} runs on Spark {_shown(OLDEST)} to {_shown(NEWEST)}, and this session is of Spark {version}; "
            f"use one of these, with its pyspark: pip install 'pyspark=={_shown(NEWEST)}.*'"
        )
    if is_connect(spark) and number < _OLDEST_CONNECT:
        raise ConfigurationError(
            f"{owner} runs over Spark Connect from Spark {_shown(_OLDEST_CONNECT)} on, and this server is of Spark "
            f"{version}; use a newer server, or a classic session"
        )


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


# -- sessions ----------------------------------------------------------------------------------------------


def is_connect(of: object) -> bool:
    """Whether a session or a DataFrame is one of Spark Connect."""
    return any(".connect." in one.__module__ for one in type(of).__mro__)


def context_of(spark: SparkSession) -> SparkContext | None:
    """The SparkContext; None over Spark Connect, which has none."""
    return None if is_connect(spark) else spark.sparkContext


def runs_locally(spark: SparkSession) -> bool:
    """Whether operators can run in the driver's process: rows go there and back as Arrow in classic sessions of Spark
    4.0 and newer."""
    return not is_connect(spark) and _version(spark.version) >= (4, 0)


def is_one_machine(spark: SparkSession) -> bool:
    """Whether driver and executors are on one machine; False where that is not known."""
    context = context_of(spark)
    return context is not None and (context.master or "").startswith("local")


def session_settings(spark: SparkSession) -> dict[str, str]:
    """All settings of a session, including those that Spark does not know."""
    found: Any = getattr(spark.conf, "getAll", None)
    if found is not None:
        return dict(found)
    pairs = spark.conf._jconf.getAll().iterator()  # Spark 3.5
    settings = {}
    while pairs.hasNext():
        pair = pairs.next()
        settings[str(pair._1())] = str(pair._2())
    return settings


def setting_of(spark: SparkSession, name: str) -> str | None:
    """One of Spark's own settings; None if this Spark does not have it."""
    try:
        return spark.conf.get(name)
    except Exception:  # which one depends on the version
        return None


def default_parallelism(spark: SparkSession) -> int:
    """The number of partitions that Spark gives to rows which have none yet: usually one for each core."""
    context = context_of(spark)
    if context is not None:
        return context.defaultParallelism
    # Over Spark Connect the only way to see it is to look at such rows.
    return spark.range(1 << 16).select(sf.spark_partition_id()).distinct().count()


def streaming_class(package: str, name: str) -> str:
    """The full name of a class of Spark's streaming, which Spark 4.1 has moved into packages."""
    moved = _version(pyspark.__version__) >= (4, 1)
    return f"{_STREAMING}.{package}.{name}" if moved else f"{_STREAMING}.{name}"


def query_of_this_thread(spark: SparkSession) -> str | None:
    """The id of the query whose micro-batch this thread runs; None if it runs none, and over Spark Connect."""
    context = context_of(spark)
    found: str | None = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    return found


@contextmanager
def without_error_log() -> Iterator[None]:
    """Keep pyspark from also printing an error of Spark SQL, as a line of JSON with all Java frames, as it does as soon
    as there is one: who catches it says more clearly what is wrong."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # Spark 3.5 prints nothing
        yield
        return
    # Made by pyspark, whose loggers take more arguments.
    PySparkLogger.getLogger(_ERROR_LOG).addFilter(_is_logged)  # which adds it once
    token = _errors_are_caught.set(True)
    try:
        yield
    finally:
        _errors_are_caught.reset(token)


def _is_logged(record: object) -> bool:
    return not _errors_are_caught.get()


# -- types -------------------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """``schema`` in Arrow, timestamps in UTC. Raises PySparkTypeError for types that Arrow does not have."""
    return to_arrow_schema(schema, **_TIME_ZONE)


def spark_type(kind: pa.DataType) -> DataType:
    """``kind`` in Spark; timestamps without a time zone stay so."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def type_of_ddl(text: str) -> DataType:
    """The type that a DDL text such as ``id bigint, name string`` describes. Raises PySparkException."""
    parsed = getattr(StructType, "fromDDL", _parse_datatype_string)  # Spark 3.5 has the latter only
    with without_error_log():
        return parsed(text)


def collation_of(kind: StringType) -> str | None:
    """A collation other than UTF8_BINARY, which is all that Spark 3.5 has."""
    is_binary = getattr(kind, "isUTF8BinaryCollation", None)
    return None if is_binary is None or is_binary() else str(kind.collation)


# -- rows --------------------------------------------------------------------------------------------------


def by_partition(df: DataFrame, partitions: int, number: str) -> DataFrame:
    """Each row of ``df`` in the partition that the SQL text ``number`` says, an int from 0 to ``partitions`` - 1."""
    if hasattr(type(df), "repartitionById"):  # of ``df`` itself, names of columns are attributes too
        return df.repartitionById(partitions, sf.expr(number))
    return by_hash(df, partitions, number)


def by_hash(df: DataFrame, partitions: int, number: str) -> DataFrame:
    """``by_partition`` before Spark 4.1, which puts a row where the hash of its key says: each partition has a key that
    is hashed there."""
    keys = ", ".join(map(str, _keys_of(partitions)))
    return df.repartition(partitions, sf.expr(f"element_at(array({keys}), {number} + 1)"))


def aggregated(
    df: DataFrame, keys: Sequence[str], sets: Sequence[Sequence[str]], aggregates: Sequence[str]
) -> DataFrame:
    """``df`` grouped by each of ``sets`` of ``keys``, with ``aggregates``: columns and aggregates are SQL texts."""
    if len(sets) == 1:
        return df.groupBy(*map(sf.expr, keys)).agg(*map(sf.expr, aggregates))
    if hasattr(type(df), "groupingSets"):
        columns = [[*map(sf.expr, one)] for one in sets]
        return df.groupingSets(columns, *map(sf.expr, keys)).agg(*map(sf.expr, aggregates))
    # Before Spark 4.0 only SQL has them; it takes a brace for the name of a DataFrame.
    of_sets = ", ".join(f"({', '.join(one)})" for one in sets)
    selected, by = (
        text.replace("{", "{{").replace("}", "}}")
        for text in (", ".join([*keys, *aggregates]), f"{', '.join(keys)} grouping sets ({of_sets})")
    )
    return df.sparkSession.sql(f"select {selected} from {{rows}} group by {by}", rows=df)


def arrow_table(df: DataFrame) -> pa.Table:
    """The rows of ``df`` on the driver, partition by partition, timestamps in UTC."""
    if hasattr(type(df), "toArrow"):
        return df.toArrow()
    batches = df._collect_as_arrow()  # type: ignore[operator]  # Spark 3.5, where toPandas begins so
    schema = arrow_schema(df.schema)
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def observed_metrics(df: DataFrame, names: Collection[str]) -> dict[str, Observed]:
    """The metrics that Spark has observed under ``names`` in the action that ran ``df``, without those that it left
    out, as it does in plans that it knows to have no rows, and over Spark Connect always."""
    if not names or is_connect(df):
        return {}
    found = df._jdf.queryExecution().observedMetrics()
    metrics = {name: found.get(name) for name in names}
    rows = {name: metric.get() for name, metric in metrics.items() if metric.isDefined()}
    return {name: Observed(*(row.get(index) for index in range(row.size()))) for name, row in rows.items()}


def leaf_schemas(df: DataFrame) -> list[str]:
    """The schema, as JSON, of each leaf of the plan of ``df``; over Spark Connect it is empty for leaves other than
    rows that the server keeps."""
    if not is_connect(df):
        leaves: Any = df._jdf.queryExecution().analyzed().collectLeaves()
        return [str(leaves.apply(number).schema().json()) for number in range(leaves.size())]
    from pyspark.sql.connect.plan import CachedRemoteRelation

    frame: Any = df
    schemas = []
    for plan, count in _leaves_of(frame._plan, {}).values():
        is_kept = isinstance(plan, CachedRemoteRelation)
        schema = str(type(frame)(plan, frame.sparkSession).schema.json()) if is_kept else ""
        schemas += [schema] * count
    return schemas


def knows_sources_by_name(spark: SparkSession) -> bool:
    """Whether Spark finds the offsets of a source by its name, from Spark 4.2 on if that is asked for, and not by its
    place."""
    asked = spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
    return str(asked).lower() == "true"


def is_deterministic(df: DataFrame) -> bool:
    """Whether no expression in the plan of ``df`` varies with its partitions, its reader or chance. Unknown over Spark
    Connect, and True there."""
    return is_connect(df) or bool(df._jdf.queryExecution().analyzed().deterministic())


def _leaves_of(plan: Any, known: dict[int, dict[int, tuple[Any, int]]]) -> dict[int, tuple[Any, int]]:
    """The leaves of a plan of Spark Connect by their ``id``, and how often each occurs: once, or 2 for more often.
    ``known``: those of the parts that were seen before, since plans share parts."""
    from pyspark.sql.connect.plan import LogicalPlan

    if id(plan) not in known:
        values = vars(plan).values()
        inside = [one for value in values for one in (value if isinstance(value, list | tuple) else [value])]
        found: dict[int, tuple[Any, int]] = {}
        for part in (one for one in inside if isinstance(one, LogicalPlan)):
            for key, (leaf, count) in _leaves_of(part, known).items():
                found[key] = leaf, min(2, count + found.get(key, (leaf, 0))[1])
        known[id(plan)] = found or {id(plan): (plan, 1)}
    return known[id(plan)]


def local_checkpoint(df: DataFrame) -> DataFrame:
    """``df.localCheckpoint()``, in the session of ``df``: pyspark's client of Spark Connect puts the DataFrame into the
    active session, whose server may not have its rows."""
    kept: Any = df.localCheckpoint()
    if is_connect(df) and kept.sparkSession is not df.sparkSession:
        kept._plan._spark_session = df.sparkSession
        kept = type(kept)(kept._plan, df.sparkSession)
    found: DataFrame = kept
    return found


def free_checkpoint(kept: DataFrame) -> None:
    """Free the memory of a local checkpoint's rows. Over Spark Connect the server does that when the DataFrame and all
    that was made of it are gone."""
    if not is_connect(kept):
        kept._jdf.logicalPlan().rdd().unpersist(False)


def replace_plan(df: DataFrame, plan: object) -> None:
    """Give ``df`` another plan, which answers whatever is asked of the DataFrame from now on."""
    setattr(df, "_plan" if is_connect(df) else "_jdf", plan)


@functools.lru_cache(maxsize=64)
def _keys_of(partitions: int) -> tuple[int, ...]:
    """For each partition an int that Spark's hash partitioning puts there."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < partitions:
        found.setdefault(_hash_of(key) % partitions, key)
        key += 1
    return tuple(found[partition] for partition in range(partitions))


def _hash_of(key: int) -> int:
    """Spark's hash of an int: Murmur3, signed."""
    mixed = _rotated(key * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    value = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _MASK
    value ^= 4
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    value ^= value >> 16
    return value - (1 << 32) if value >> 31 else value


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
