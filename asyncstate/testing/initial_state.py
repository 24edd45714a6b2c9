"""The initial state of a new operator in tests: rows of its inputs, or values of its states.

Owns: ``HarnessInitialRows`` and its construction from an ``initial_state``, or from ``initial`` of a source.
Invariant: the checks of a job apply here as well, before a row is read.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec import type_from_text
from asyncstate.errors import JobError, SchemaError
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import InitialValues, InputBatch, check_columns, check_keeps, check_values
from asyncstate.runtime.rows.prepared_rows import python_values
from asyncstate.state.versions import PICKLED
from asyncstate.storage import StateSpec
from asyncstate.testing.harness_rows import kind_codes, record_batch

InitialRows: TypeAlias = pa.RecordBatch | Sequence[Sequence[Any] | Mapping[str, Any]]
"""Rows as for ``push``; their kinds, if they have any, in a column ``row_kind`` of a RecordBatch or of dicts."""
InitialState: TypeAlias = InitialRows | Sequence[InitialRows | None] | Mapping[str, InitialRows] | None
"""Rows that precede all others, for several inputs one entry each or None; or values by name of state."""

_GIVEN: Final = "initial_state"
_KIND: Final = pa.field(ROW_KIND_COLUMN, pa.string())


class HarnessInitialRows(NamedTuple):
    """The initial state of an operator: ``rows`` (None: no rows), or for each state with ``values`` its writer, its
    input, and the values."""

    rows: Sequence[InputBatch] | None = None
    values: Sequence[tuple[Operator, InputSpec, InputBatch]] = ()


def initial_of(
    uid: str,
    given: InitialState,
    operator: Operator,
    specs: Sequence[InputSpec],
    ready: Sequence[InputSpec],
    states: Sequence[StateSpec],
    check: Callable[[Operator, InputSpec], None],
) -> HarnessInitialRows:
    """The given initial state, checked. ``ready``: ``specs`` with the columns that tasks need; ``states``: those that
    the operator declares; ``check``: whether an operator can run on an input.

    Raises JobError for another form, SchemaError for other columns, StateDeclarationError for states without values.
    """
    if operator.stateless:
        check_keeps(uid, given)
    if given is None:
        return HarnessInitialRows()
    if isinstance(given, Mapping):
        return HarnessInitialRows(values=list(_values(uid, given, operator, ready, states, check)))
    each = [given] if len(specs) == 1 else list(given) if isinstance(given, list | tuple) else []
    if len(each) != len(specs) or not any(one is not None for one in each):
        raise JobError(
            f"operator '{uid}' has {len(specs)} inputs, and initial_state is {given!r}; give for each of them rows or "
            "None, or {name of a state: rows of its values}"
        )
    rows = []
    for index, (one, spec) in enumerate(zip(each, specs, strict=True)):
        if one is not None:
            batch = initial_rows(f"operator '{uid}'", one, spec.schema, spec.changelog)
            rows.append(input_batch(batch, index))
    return HarnessInitialRows(rows=rows)


def initial_rows(what: str, given: Any, schema: pa.Schema, changelog: bool) -> pa.RecordBatch:
    """``given`` as rows of ``schema``, of a changelog with their kinds as text; without kinds they are insertions.

    Raises SchemaError for rows of other columns, JobError for anything but rows, such as a DataFrame.
    """
    if not isinstance(given, pa.RecordBatch | list | tuple):
        raise JobError(
            f"{what} would start from {given!r}; a harness needs a RecordBatch or a list of rows. Pass DataFrames to "
            "the pipeline as arguments, and give it rows in tests"
        )
    kinds = changelog and _has_kinds(given)
    wanted = pa.schema([*schema, *([_KIND] if kinds else [])])
    if isinstance(given, pa.RecordBatch):
        check_columns(what, _types(given.schema), _types(wanted))
        given = pa.RecordBatch.from_arrays([given.column(name) for name in wanted.names], schema=wanted)
    else:
        given = record_batch(given, wanted, what, _GIVEN)
    if kinds:
        kind_codes(given.column(ROW_KIND_COLUMN).to_pylist(), given.num_rows, _GIVEN)
    elif changelog:
        given = given.append_column(_KIND, pa.array(["+I"] * given.num_rows, pa.string()))
    return given


def input_batch(rows: pa.RecordBatch, index: int) -> InputBatch:
    """Rows of input ``index``, whose kinds, if they have any, are text in one of their columns."""
    if ROW_KIND_COLUMN not in rows.schema.names:
        return InputBatch(rows, None, index)
    codes = kind_codes(rows.column(ROW_KIND_COLUMN).to_pylist(), rows.num_rows)
    names = [name for name in rows.schema.names if name != ROW_KIND_COLUMN]
    return InputBatch(rows.select(names), codes if codes.any() else None, index)


def _values(
    uid: str,
    given: Mapping[str, Any],
    operator: Operator,
    inputs: Sequence[InputSpec],
    states: Sequence[StateSpec],
    check: Callable[[Operator, InputSpec], None],
) -> Iterator[tuple[Operator, InputSpec, InputBatch]]:
    keyed = next(spec for spec in inputs if not spec.broadcast)
    for state, rows in given.items():
        writer = InitialValues(operator, inputs, state)
        bare = pa.schema([*keyed.key_schema, pa.field("value", pa.int64())])
        check(writer, InputSpec(bare, keyed.key))
        if not isinstance(rows, pa.RecordBatch):
            what = f"operator '{uid}', values of state '{state}'"
            declared = next(one for one in states if one.name == state)
            given = rows
            rows = initial_rows(what, given, _value_columns(keyed.key_schema, declared, given), False)
            if declared.types["value"] == PICKLED:
                _check_kept(what, list(map(_value_in, given)), python_values(rows.column("value"), "value"))
        check_values(uid, state, rows.schema, keyed.key_schema)
        yield writer, InputSpec(rows.schema, keyed.key), InputBatch(rows)


def _value_columns(key: pa.Schema, state: StateSpec, rows: Any) -> pa.Schema:
    """Those of rows of values: the key's, of a map ``user_key``, and ``value``."""
    value = _value_type(state, rows)
    more = [pa.field("user_key", type_from_text(state.types["key"]))] if state.kind == "map" else []
    return pa.schema([*key, *more, pa.field("value", value)])


def _value_type(state: StateSpec, rows: Any) -> pa.DataType:
    text = state.types["value"]
    if text == PICKLED:
        try:
            return pa.infer_type(list(map(_value_in, rows)) if isinstance(rows, list | tuple) else [])
        except pa.ArrowException as error:
            raise SchemaError(
                f"initial_state: values of state '{state.name}' are not Arrow values: {error}; push the rows that "
                "produce the state instead"
            ) from error
    kind = type_from_text(text)
    return pa.list_(kind) if state.kind == "list" else kind


def _check_kept(what: str, given: Sequence[Any], kept: Sequence[Any]) -> None:
    """Raise SchemaError for a value that changes on its way through Arrow, which initial values take."""
    for number, (one, other) in enumerate(zip(given, kept, strict=True)):
        if type(one) is not type(other) or (one != other and one == one):
            raise SchemaError(
                f"{what}: row {number} has the value {one!r}, which would become {other!r}: initial values of a "
                "pickled state pass through Arrow; push the rows that produce the state instead"
            )


def _value_in(row: Any) -> Any:
    """The value of a row of values; None if it has none, which is refused when the row is read."""
    if isinstance(row, Mapping):
        return row.get("value")
    return row[-1] if isinstance(row, Sequence) and row else None


def _has_kinds(given: Any) -> bool:
    if isinstance(given, pa.RecordBatch):
        return ROW_KIND_COLUMN in given.schema.names
    return any(isinstance(row, Mapping) and ROW_KIND_COLUMN in row for row in given)


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}
