"""The DataFrames of one ``apply``: from inputs to partitions, from partitions to tasks, from tasks to rows.

Owns: the input schemas in Arrow, the exchange by key group, and the materialized stage.
Invariant: a stage runs in the one action made here; afterwards its rows are only read. Spark cannot run it again even
if it loses them: the plan that made them is cut off, and the micro-batch fails instead. Rows of an attempt other than
the one that reported are never returned.
Must not import runtime's tasks or storage.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, Self

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from asyncstate.changelog import RETRACT, ROW_KIND_COLUMN, Changelog, Key
from asyncstate.driver.sent_columns import sent_schema
from asyncstate.errors import JobError, SchemaError
from asyncstate.metrics import Observed
from asyncstate.operator import InputSpec, OutputSpec
from asyncstate.spark.column_types import (
    ATTEMPT_BYTES,
    COMMIT,
    MARKER_TAG,
    OUTPUT,
    REPORTS,
    ROUTE,
    SIDE,
    TAG_BITS,
    quoted,
    slots_of,
)
from asyncstate.spark.compatibility import (
    arrow_schema,
    by_partition,
    collation_of,
    context_of,
    free_checkpoint,
    local_checkpoint,
    observed_metrics,
    replace_plan,
    spark_type,
)
from asyncstate.spark.facts import both, known_changes, mark_of
from asyncstate.spark.python_task import PartitionTask, regular_inputs
from asyncstate.spark.report_accumulator import ReportAccumulator
from asyncstate.spark.reports import ShuffleWriter
from asyncstate.spark.sql_partial_aggregation import first_rows, partial_aggregate
from asyncstate.spark.task_errors import marked

if TYPE_CHECKING:
    from asyncstate.runtime import TaskSpec

_OPAQUE: Final = ("variant", "geography", "geometry")
"""Types whose Arrow form is a struct that only Spark can read; state would compare and store its bytes."""


def input_spec(
    df: DataFrame,
    key: tuple[str, ...],
    event_time: str | None,
    name: str,
    broadcast: bool = False,
    changes: Changelog | None = None,
) -> InputSpec:
    """The input description that an operator gets for ``df``. Raises SchemaError for missing, duplicate or unsupported
    columns."""
    columns = df.schema  # one call into the JVM; df.columns would be another
    names = columns.fieldNames()
    double = sorted({column for column in names if names.count(column) > 1})
    if double:
        raise SchemaError(f"{name} has more than one column named '{double[0]}'; rename or drop all but one")
    lower = [column.lower() for column in names]
    alike = [column for column in names if lower.count(column.lower()) > 1]
    if alike and str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() != "true":
        raise SchemaError(
            f"{name}: columns {' and '.join(map(repr, alike))} differ only in case, which Spark cannot distinguish "
            "while spark.sql.caseSensitive is false; rename all but one"
        )
    for field in columns:
        collation = _collation(field.dataType)
        if collation is not None and field.name != ROW_KIND_COLUMN:
            raise _collated(name, field.name, collation, field.name in key)
    kinds = [field for field in columns if field.name == ROW_KIND_COLUMN]
    if kinds and not isinstance(kinds[0].dataType, StringType):
        raise SchemaError(
            f"{name}: column '{ROW_KIND_COLUMN}' is of type {kinds[0].dataType.simpleString()}; a changelog needs "
            "strings (+I, -U, +U, -D) there; cast or rename it"
        )
    if changes is None:
        changes = known_changes(df, name)
    return InputSpec(_arrow_schema(columns, name), key, event_time, changes, name, broadcast)


def _collation(kind: DataType) -> str | None:
    """The first collation other than UTF8_BINARY in ``kind``, at any depth."""
    strings = (one for one in _types_in(kind) if isinstance(one, StringType))
    return next(filter(None, map(collation_of, strings)), None)


def _types_in(kind: DataType) -> Iterator[DataType]:
    """``kind`` and the types of its fields, elements, keys and values, at any depth."""
    yield kind
    parts = [field.dataType for field in kind] if isinstance(kind, StructType) else []
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    if isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    for part in parts:
        yield from _types_in(part)


def _collated(name: str, column: str, collation: str, is_key: bool) -> SchemaError:
    if is_key:
        return SchemaError(
            f"{name}: key column '{column}' has the collation {collation}, under which Spark treats different strings "
            "as equal, but state compares keys by their bytes; use a normalized column as the key, such as "
            f"lower({column}) COLLATE UTF8_BINARY, or cast it to STRING COLLATE UTF8_BINARY to distinguish them"
        )
    return SchemaError(
        f"{name}: column '{column}' has the collation {collation}, which operators do not support: they compare "
        "strings by their bytes, in min_ and max_, DISTINCT, orders and conditions, and their output has no "
        "collation. Cast the column to STRING COLLATE UTF8_BINARY, within arrays, maps and structs too, or use a "
        f"normalized column, such as lower({column}) COLLATE UTF8_BINARY"
    )


def arrow_schema_of(rows: DataFrame | StructType) -> pa.Schema:
    """The columns of ``rows`` except ``row_kind``."""
    return _arrow_schema(rows if isinstance(rows, StructType) else rows.schema, "the rows")


def _arrow_schema(schema: StructType, name: str) -> pa.Schema:
    """``schema`` without ``row_kind`` in Arrow, all nullable, timestamps in UTC: it must not vary with plan or
    session."""
    fields = []
    for field in schema:
        if field.name == ROW_KIND_COLUMN:
            continue
        nullable = StructField(field.name, nullable_type(field.dataType), True)
        refused = SchemaError(
            f"{name}: column '{field.name}' of type {field.dataType.simpleString()} cannot be sent to Python as Arrow; "
            "cast or drop it"
        )
        if any(one.typeName() in _OPAQUE for one in _types_in(field.dataType)):
            raise refused
        try:
            fields.append(arrow_schema(StructType([nullable])).field(0))
        except PySparkTypeError as error:
            raise refused from error
    return pa.schema(fields)


def spark_schema(schema: pa.Schema) -> StructType:
    """``schema`` in Spark, all nullable."""
    return StructType(
        [StructField(field.name, nullable_type(spark_type(field.type)), True) for field in schema]
    )


def nullable_type(kind: DataType) -> DataType:
    """``kind`` with every field, element and value nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, nullable_type(f.dataType), True) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable_type(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable_type(kind.keyType), nullable_type(kind.valueType), True)
    return kind


def stage_schema(uid: str, bound: pa.Schema | OutputSpec, changes: Changelog | None = None) -> StructType:
    """The schema that a task sends back: lists of the operator's output rows with ``row_kind``, the commit column, and
    such lists for each side output. ``changes``: the changelog mode of the main output, if other than ``bound``
    says."""
    output = OutputSpec.of(bound)
    rows = output_rows(uid, output.schema, output.changes if changes is None else changes)
    fields = [(OUTPUT, ArrayType(rows)), (COMMIT, BinaryType())]
    sides = [
        (SIDE + name, ArrayType(output_rows(uid, schema, output.changes_of(name))))
        for name, schema in output.side_outputs.items()
    ]
    return StructType([StructField(name, kind) for name, kind in [*fields, *sides]])


def output_rows(uid: str, output: pa.Schema, changes: Changelog = RETRACT) -> StructType:
    """The operator's output rows with ``row_kind``, with changelog mode ``changes``. Raises SchemaError for types and
    names that are not allowed."""
    try:
        columns = spark_schema(output)
    except Exception as error:
        raise SchemaError(
            f"operator '{uid}': its output ({', '.join(map(str, output))}) has a type that Spark does not support: "
            f"{error}; return another type from bind()"
        ) from error
    taken = {ROW_KIND_COLUMN, COMMIT} & set(output.names)
    if taken:
        raise SchemaError(
            f"operator '{uid}': its output has a column '{taken.pop()}', a reserved name; rename it"
        )
    kind = StructField(ROW_KIND_COLUMN, StringType(), metadata=mark_of(changes))
    return StructType([*columns.fields, kind])


def wire_schema(sent: StructType) -> pa.Schema:
    """``sent`` as the Arrow schema that Spark reads from a task."""
    return arrow_schema(sent)


@dataclass(frozen=True)
class Tasks:
    """A planned stage: ``task`` over the rows of ``exchanged``, which include ``reports`` if they come from tasks of
    the same Spark job. ``read``: the DataFrames at the start of both, without a broadcast input."""

    exchanged: DataFrame
    task: PartitionTask
    reports: bool
    read: Sequence[DataFrame]


def exchange(
    inputs: Sequence[DataFrame | Tasks],
    specs: Sequence[InputSpec],
    parallelism: int,
    max_parallelism: int,
    done: bool = False,
) -> DataFrame:
    """All rows with their route, one marker row per partition, each partition's rows together.

    A broadcast input is left out: its rows travel with the task. ``done``: the rows come from a task that has already
    aggregated them. Rows of ``Tasks`` come with their routes, and with reports in place of the markers.

    Written as SQL texts: building the same plan from Column objects costs several JVM calls per column, which was
    a third of an empty micro-batch.
    """
    regular = regular_inputs(specs)
    reports = [f"cast(null as binary) as {REPORTS}"] if has_reports(inputs) else []
    selected = []
    for index, payload in zip(regular, _payloads(inputs, specs, regular), strict=True):
        given, spec = inputs[index], specs[index]
        if isinstance(given, Tasks):
            onward = ShuffleWriter(spec, index, wire_schema(_sent(spec)), parallelism, max_parallelism)
            rows = _through(given, replace(given.task, onward=onward), _sent(spec))
            selected.append(rows if len(regular) == 1 else rows.selectExpr(ROUTE, *payload, REPORTS))
        else:
            rows = given if done else _rows(given, spec, parallelism)
            route = _route(index, spec, parallelism, max_parallelism)
            selected.append(rows.selectExpr(route, *payload, *reports))
    if not reports:
        markers = selected[0].sparkSession.range(0, parallelism, 1, 1)
        selected.append(markers.selectExpr(*_marker(specs)))
    rows = functools.reduce(DataFrame.union, selected)
    return by_partition(rows, parallelism, f"shiftright({ROUTE}, {TAG_BITS})")


def has_reports(inputs: Sequence[DataFrame | Tasks]) -> bool:
    """Whether rows come from tasks of the same Spark job."""
    return any(isinstance(given, Tasks) for given in inputs)


def _marker(specs: Sequence[InputSpec]) -> tuple[str, ...]:
    """The columns of a row without payload, one per partition: every task runs and knows its partition, even without
    data."""
    marker = f"cast(id * {1 << TAG_BITS} + {MARKER_TAG} as int) as {ROUTE}"
    return marker, *(f"null as {name}" for name in _exchanged_columns(specs)[1:])


def _sent(spec: InputSpec) -> StructType:
    """What an upstream task sends into the exchange: the route, the columns of ``spec`` by number, the reports."""
    payload = pa.schema([pa.field(f"c{at}", kind) for at, kind in enumerate(sent_schema(spec).types)])
    columns = spark_schema(payload)
    return StructType(
        [StructField(ROUTE, IntegerType()), *columns.fields, StructField(REPORTS, BinaryType())]
    )


def _rows(df: DataFrame, spec: InputSpec, parallelism: int) -> DataFrame:
    if spec.limit is not None:
        return first_rows(df, spec.limit)
    return df if spec.local is None else partial_aggregate(df, spec, parallelism)


def _route(index: int, spec: InputSpec, parallelism: int, max_parallelism: int) -> str:
    key = ", ".join(map(quoted, spec.route))
    group = f"pmod(xxhash64({key}), {max_parallelism})" if spec.key else "0"
    partition = f"({group} * {parallelism}) div {max_parallelism}"
    return f"cast({partition} * {1 << TAG_BITS} + {index} as int) as {ROUTE}"


def _payloads(
    inputs: Sequence[DataFrame | Tasks], specs: Sequence[InputSpec], regular: Sequence[int]
) -> list[list[str]]:
    """The columns that each regular input sends: its own in their slots, null in the slots of the others."""
    payloads = []
    for index, own in zip(regular, slots_of([specs[index] for index in regular]), strict=True):
        columns = ["null"] * (len(_exchanged_columns(specs)) - 1)
        given = list(map(quoted, sent_schema(specs[index]).names))
        if isinstance(inputs[index], Tasks):
            given = [f"c{number}" for number in range(len(given))]
        for slot, column in zip(own, given, strict=True):
            columns[slot] = column
        payloads.append([f"{column} as c{slot}" for slot, column in enumerate(columns)])
    return payloads


def _exchanged_columns(specs: Sequence[InputSpec]) -> list[str]:
    """The columns that go to the tasks: the route, and the payload by number."""
    slots = slots_of([specs[index] for index in regular_inputs(specs)])
    number = 1 + max((slot for own in slots for slot in own), default=-1)
    return [ROUTE, *(f"c{slot}" for slot in range(number))]


def plain_columns(spec: InputSpec) -> list[str]:
    """What a single input sends. By number: mapInArrow looks columns up by names, in which a dot would have another
    meaning."""
    return [f"{quoted(name)} as c{number}" for number, name in enumerate(sent_schema(spec).names)]


@dataclass(frozen=True, kw_only=True)
class StageRows:
    """The rows of a stage that has run; ``owner`` is how errors call them.

    ``sides``: the rows of the side outputs, by name. ``observed``: the metrics that Spark has observed in its plan, by
    name.
    """

    rows: DataFrame
    owner: str
    sides: Mapping[str, DataFrame]
    observed: Mapping[str, Observed]

    def side(self, name: str) -> DataFrame:
        """The rows of a side output. Raises JobError that lists the names for an unknown one."""
        if name not in self.sides:
            known = f"has {', '.join(map(repr, self.sides))}" if self.sides else "has none"
            raise JobError(
                f"there is no side output {name!r}: {self.owner.removeprefix('the output of ')} {known}; bind() "
                "declares side outputs, and late_output names the one for late rows"
            )
        return self.sides[name]

    def preceded_by(self, first: StageRows, key: Key | None = None) -> Self:
        """This stage after the rows of ``first``, which is released separately; ``key``: as of ``both``."""
        sides = {name: first.sides[name].union(rows) for name, rows in self.sides.items()}
        return replace(self, rows=both(first.rows, self.rows, key), sides=sides)

    def release(self) -> None:
        """Free the rows' memory; afterwards they cannot be read, and ``rows`` says so."""
        self.withdraw(over(self.owner))

    def withdraw(self, reason: str) -> None:
        """From now on any access to the rows of any output raises a JobError with ``reason``."""
        for rows in (self.rows, *self.sides.values()):
            withdraw(rows, reason)


@dataclass(frozen=True, kw_only=True)
class SparkStage(StageRows):
    """A stage that has run in tasks of the cluster, with the reports of its tasks. ``kept``: the local checkpoint that
    the rows are read from."""

    reports: list[bytes]
    kept: DataFrame
    in_driver: ClassVar[bool] = False

    def release(self) -> None:
        """Free the rows' memory; afterwards they cannot be read, and ``rows`` says so."""
        super().release()
        free_checkpoint(self.kept)


def over(owner: str) -> str:
    """The error message for rows, called ``owner``, that are read too late."""
    return (
        f"{owner} is read after the micro_batch function has returned, when its rows have been released; read or "
        "write it inside the micro_batch function"
    )


def withdraw(rows: DataFrame, reason: str) -> None:
    """From now on any access to ``rows`` raises a JobError with ``reason``."""
    replace_plan(rows, _Released(reason))


class _Released:
    """Replaces a DataFrame's plan: any access raises JobError."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise JobError(self._reason)


def run_stage(tasks: Tasks, schema: StructType, watched: Collection[str] = ()) -> SparkStage:
    """Run the tasks on every partition, once, keeping the rows and collecting the reports, and the metrics that Spark
    observes under the names ``watched``.

    A local checkpoint keeps the rows on the executors and then drops the lineage; the reports come by an accumulator in
    the same action, or over Spark Connect, which has none, by a look at the rows. Output is sent and kept in lists:
    some hundred objects for Spark to create, copy and keep instead of some hundred thousand. They are kept as Spark's
    rows, its default: Python's MEMORY_AND_DISK would make Java serialize and read each of them twice. Cached rows would
    be recomputed when an executor is lost, in another order of arrival and so perhaps with other results than those
    committed; checkpointed rows make the micro-batch fail and be replayed.
    """
    spec = tasks.task.spec
    with ReportAccumulator(context_of(tasks.exchanged.sparkSession), spec.parallelism) as accumulator:
        planned = _through(tasks, replace(tasks.task, reports=accumulator.reports), schema)
        stage = local_checkpoint(planned)
        found = accumulator.found()
    try:
        found = _reports_in(stage) if found is None else found
    except BaseException:
        free_checkpoint(stage)
        raise
    rows = {
        name: stage.selectExpr(f"inline({_reported(name, spec, found)})")
        for name in schema.fieldNames()
        if name != COMMIT
    }
    sides = {name.removeprefix(SIDE): df for name, df in rows.items() if name != OUTPUT}
    owner = f"the output of operator '{spec.uid}' in batch {spec.batch_id}"
    reports = [record[ATTEMPT_BYTES:] for record in found]
    return SparkStage(
        rows=rows[OUTPUT],
        owner=owner,
        sides=sides,
        observed=observed_metrics(planned, watched),
        reports=reports,
        kept=stage,
    )


def _reports_in(stage: DataFrame) -> list[bytes]:
    """The reports among the materialized rows."""
    reported = stage.where(f"length({COMMIT}) > {ATTEMPT_BYTES}").select(COMMIT).collect()
    return [bytes(row[0]) for row in reported]


def _through(stage: Tasks, task: PartitionTask, schema: StructType) -> DataFrame:
    """The rows that ``task`` sends for the rows of ``stage``."""
    reports = [REPORTS] if stage.reports else []
    columns = [*_exchanged_columns(task.spec.inputs), *reports]
    return stage.exchanged.selectExpr(*columns).mapInArrow(task, schema)


def _reported(column: str, spec: TaskSpec, found: Sequence[bytes]) -> str:
    """``column`` of rows with output; a partition's first row makes it fail if its attempt is not one of ``found``.

    In two cases Spark may keep rows of another attempt than the one whose report arrived: partitions lost with an
    executor before the action's end are computed once more, and of two speculative attempts both may be kept. The rows
    may differ, in order of arrival at least, so they must not meet the other attempt's state.
    """
    attempts = ", ".join(f"X'{record[:ATTEMPT_BYTES].hex()}'" for record in found)
    error = marked(
        JobError(
            f"operator '{spec.uid}', batch {spec.batch_id}: an executor was lost or tasks ran twice, and Spark kept "
            "output rows of a different attempt than the one whose state would be committed; nothing was committed, "
            "restart the query to replay the batch"
        )
    )
    # It is inside ``inline``: Spark moves no filter of the user's function before it.
    return (
        f"case when {COMMIT} is null then {quoted(column)} "
        f"when substring({COMMIT}, 1, {ATTEMPT_BYTES}) in ({attempts}) then null "
        f"else raise_error(cast(X'{error.encode().hex()}' as string)) end"
    )
