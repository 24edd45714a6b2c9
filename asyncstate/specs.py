"""The inputs and outputs of an operator.

Owns: ``InputSpec``, with the orders in which rows come, and ``OutputSpec``; the columns of rows that could not be
processed.
Invariant: a spec is consistent: columns that it names exist, with suitable types.
Must not import anything that runs: operators, state, engine or Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from asyncstate.changelog import (
    INSERT_ONLY,
    ROW_KIND_COLUMN,
    Changelog,
    ChangelogMode,
    has_kinds,
    late_changes,
)
from asyncstate.codec import KeyCodec, SchemaLike, read_schema, read_schemas
from asyncstate.errors import SchemaError
from asyncstate.partial_aggregation import PartialAggregation, PartialLimit

RESERVED_PREFIX = "__asyncstate_"
"""Columns whose names begin so are the framework's own."""


ERRORS_OUTPUT: Final = "errors"
"""The side output of rows that could not be processed."""
ERROR_COLUMNS: Final = pa.schema([("error_type", pa.string()), ("error_message", pa.string())])
"""The columns that it has after those of the row."""
ERROR_CHARACTERS_MAX: Final = 2000


class SortKey(NamedTuple):
    """One column of an input's order. By default (``nulls_first`` None) nulls come first ascending, last descending."""

    column: str
    descending: bool = False
    nulls_first: bool | None = None


OrderTime = Literal["event", "processing", "end"]
"""When ordered rows are delivered: when the watermark has passed their event time, at the end of their micro-batch, or
at the end of the input."""


@dataclass(frozen=True)
class InputOrder:
    """The order in which an operator gets the rows of an input: by ``time``, then ``then``, then arrival.

    ``time``: "event" rows come when the watermark has passed them; "processing": all rows of a micro-batch at its end;
    "end": all rows at the end of the input. ``late``, for "event": rows that the watermark had passed before their
    micro-batch cannot be ordered any more; "drop" counts them as ``late_rows_dropped``, "deliver" delivers them with,
    and before, the rows that are due.
    """

    time: OrderTime
    then: tuple[SortKey, ...] = ()
    late: Literal["drop", "deliver"] = "drop"


@dataclass(frozen=True)
class InputSpec:
    """One input of an operator, as the job or the harness declares it.

    ``schema`` has the payload columns without ``row_kind``; it may be a Spark DDL text. ``key`` names the key columns
    (empty: one global key). ``event_time`` names a timestamp column. ``changes``: whether rows other than ``+I`` can
    come, how these change the table that the rows describe, and what identifies a row of it.
    ``broadcast``: every partition gets all rows of the input, which then has no key. ``order_by``: rows are buffered
    until the watermark has passed them and come in this order; its first column is the event time, ascending.
    ``sequence``: columns that order the changes of a key within a micro-batch; with ``drop_stale``, rows of a key whose
    sequence is not higher than all of earlier micro-batches are dropped.
    ``order``: the order that the operator itself requested (``BundleOperator.ordered_inputs``).
    ``filters``: the filters applied to its rows since a source or another operator, as a text; None: not known.
    ``route_by``: the key columns that decide in which key group a row is; empty: all of them.
    ``local``: the partial aggregation applied to the rows before (None: none); they then are of ``row_schema``, all +I,
    and ``changes`` describes the rows from which they were made. ``limit``: only rows within it came; they are
    unchanged.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    event_time: str | None = None
    changes: Changelog = INSERT_ONLY
    name: str = "input"
    broadcast: bool = False
    order_by: tuple[SortKey, ...] = ()
    sequence: tuple[str, ...] = ()
    drop_stale: bool = False
    local: PartialAggregation | None = None
    limit: PartialLimit | None = None
    order: InputOrder | None = None
    route_by: tuple[str, ...] = ()
    filters: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, self.name))
        self._check_names()
        then = self.order.then if self.order is not None else ()
        sorted_by = [*(sort.column for sort in (*self.order_by, *then)), *self.sequence]
        for column in (*self.key, *([self.event_time] if self.event_time else []), *sorted_by):
            self.column(column)
        self._check_order()
        if self.event_time is not None and not pa.types.is_timestamp(self.schema.field(self.event_time).type):
            raise SchemaError(
                f"{self.name}: event time column '{self.event_time}' is of type "
                f"{self.schema.field(self.event_time).type}; cast it to a timestamp"
            )

    def _check_names(self) -> None:
        if not isinstance(self.schema, pa.Schema):
            raise SchemaError(
                f"{self.name}: {self.schema!r} is not a pyarrow schema; give pa.schema([...]) or a string "
                "such as 'id long'"
            )
        names = self.schema.names
        if len(set(names)) < len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"{self.name} has column '{double}' twice; rename or drop all but one")
        if has_kinds(names, self.name):
            raise SchemaError(
                f"{self.name}: '{ROW_KIND_COLUMN}' is the changelog's own column; drop or rename it"
            )
        reserved = next((name for name in names if name.lower().startswith(RESERVED_PREFIX)), None)
        if reserved is not None:
            raise SchemaError(f"{self.name}: the column name '{reserved}' is used by asyncstate; rename it")

    def _check_order(self) -> None:
        if not self.order_by or self.order_by[0] == SortKey(self.event_time or ""):
            return
        first = self.order_by[0]
        if self.event_time is None:
            advice = (
                f"but the input has no event time; declare event_time='{first.column}' with a watermark_delay"
            )
        elif first.column == self.event_time:
            advice = (
                "descending, but rows can only be in ascending order of time; sort other columns descending"
            )
        else:
            advice = (
                f"but must begin with the event time column '{self.event_time}', ascending; put that first"
            )
        raise SchemaError(f"{self.name}: order_by begins with column '{first.column}', {advice}")

    def column(self, name: str) -> pa.Field:
        """The field called ``name``; SchemaError with the columns there are if it is missing."""
        index = self.schema.get_field_index(name)
        if index < 0:
            raise SchemaError(
                f"{self.name} has no column '{name}'; its columns are: {', '.join(self.schema.names)}"
            )
        return self.schema.field(index)

    @property
    def mode(self) -> ChangelogMode:
        """How the rows change the table that they describe."""
        return self.changes.mode

    @property
    def changelog(self) -> bool:
        """Whether rows other than ``+I`` can come."""
        return not self.changes.is_insert_only

    @property
    def ordering(self) -> InputOrder | None:
        """The order in which the rows come, whatever requested it; None: as they arrive."""
        if self.order is None and self.order_by:
            return InputOrder("event", self.order_by[1:])
        return self.order

    @property
    def waits_for_watermark(self) -> bool:
        """Whether rows are kept until the watermark has passed them."""
        return self.ordering is not None and self.ordering.time == "event"

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns, in key order."""
        return pa.schema([self.column(name) for name in self.key])

    @property
    def route(self) -> tuple[str, ...]:
        """The key columns that decide a row's key group, in order of hashing."""
        return self.route_by or self.key

    def key_codec(self, max_parallelism: int) -> KeyCodec:
        """The codec of the input's keys."""
        key = self.key_schema
        route = tuple(self.key.index(name) for name in self.route)
        return _key_codec(tuple(key.types), tuple(key.names), max_parallelism, route)

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the rows that reach the operator: ``schema``, or the result of the partial aggregation."""
        if self.local is None:
            return self.schema
        return self.local.row_schema(self.schema, self.key, self.event_time)


@dataclass(frozen=True)
class OutputSpec:
    """The outputs of an operator: rows of ``schema``, and in addition those of its side outputs, by name.

    Each schema is without ``row_kind``, which every output has; it may be a Spark DDL text ("id long, name string"). A
    side output's rows are read by its name; reading them is optional. ``changes``: which rows other than insertions are
    emitted, ``Changelog.retract()`` or ``Changelog.upsert("id")``, and what identifies a row; ``side_changes``: the
    same of side outputs, by name. Rows of other kinds than declared are an error when they are emitted.

    Raises SchemaError for keys that are not columns.
    """

    schema: pa.Schema
    side_outputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    changes: Changelog = INSERT_ONLY
    side_changes: Mapping[str, Changelog] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, "the output"))
        object.__setattr__(self, "side_outputs", read_schemas(self.side_outputs, "side output"))
        for output in (None, *self.side_outputs):
            _check_changes(output, self)

    def changes_of(self, output: str | None) -> Changelog:
        """The changelog facts of the rows of a side output, or of the main one (None)."""
        return self.changes if output is None else self.side_changes.get(output, INSERT_ONLY)

    @staticmethod
    def of(bound: SchemaLike | OutputSpec) -> OutputSpec:
        """The OutputSpec of what ``bind`` returned."""
        return bound if isinstance(bound, OutputSpec) else OutputSpec(bound)

    def side(self, name: str) -> pa.Schema:
        """The schema of the side output ``name``; SchemaError with the declared names if there is none."""
        if name not in self.side_outputs:
            raise unknown_output(name, self.side_outputs)
        return self.side_outputs[name]

    def with_late_rows(self, late_output: str | None, spec: InputSpec) -> OutputSpec:
        """This, and a side output ``late_output`` (None: nothing more) for rows of the input ``spec``. SchemaError if
        that name is used for rows of other columns."""
        if late_output is None:
            return self
        if not self.side_outputs.get(late_output, spec.schema).equals(spec.schema):
            raise SchemaError(
                f"side output '{late_output}' should get the late rows of {spec.name}, but is declared with other "
                "columns; use another output for the late rows"
            )
        existing = [self.side_changes[late_output]] if late_output in self.side_changes else []
        return replace(
            self,
            side_outputs={**self.side_outputs, late_output: spec.schema},
            side_changes={**self.side_changes, late_output: late_changes([*existing, spec.changes])},
        )


@functools.lru_cache(maxsize=256)
def _key_codec(
    types: tuple[pa.DataType, ...], names: tuple[str, ...], max_parallelism: int, route: tuple[int, ...]
) -> KeyCodec:
    # It has no state, and making one takes a twentieth of the time of a small micro-batch.
    return KeyCodec(types, names, max_parallelism, route)


def _check_changes(output: str | None, spec: OutputSpec) -> None:
    schema, changes = spec.schema if output is None else spec.side_outputs[output], spec.changes_of(output)
    what = "the output" if output is None else f"side output '{output}'"
    if not isinstance(changes, Changelog):
        raise SchemaError(
            f"{what}: changes is {changes!r}; give Changelog.insert_only(), Changelog.retract() or "
            "Changelog.upsert('key column')"
        )
    if not isinstance(schema, pa.Schema):
        return  # ``bind`` raises the error for it
    for name in (name for key in changes.unique_keys for name in key):
        if name not in schema.names:
            raise SchemaError(
                f"{what}: its changes have the key column '{name}', but its columns are: {', '.join(schema.names)}"
            )


def unknown_output(name: object, declared: Collection[str]) -> SchemaError:
    """The error for a side output that does not exist, among those ``declared``."""
    known = f"it has {', '.join(map(repr, declared))}" if declared else "it has none"
    return SchemaError(
        f"there is no side output {name!r}: {known}; bind() declares them by returning "
        "OutputSpec(schema, {name: schema}). Only the framework emits to the output of an input's late rows"
    )


class RowError(NamedTuple):
    """The values of ``ERROR_COLUMNS``."""

    error_type: str
    error_message: str

    @staticmethod
    def of(error: BaseException) -> RowError:
        """The name of the class of ``error``, and its text up to ``ERROR_CHARACTERS_MAX``."""
        # Lone surrogates are no text for Arrow.
        text = str(error)[:ERROR_CHARACTERS_MAX].encode(errors="replace").decode()
        return RowError(type(error).__name__, text)


def with_error_columns(owner: str, schema: pa.Schema) -> pa.Schema:
    """The columns of a side output for rows of ``schema`` that failed. SchemaError if it has such columns itself."""
    for name in ERROR_COLUMNS.names:
        if name in schema.names:
            raise SchemaError(
                f"{owner}: the input has a column '{name}', which the side output '{ERRORS_OUTPUT}' adds; rename it"
            )
    return pa.schema([*schema, *ERROR_COLUMNS])
