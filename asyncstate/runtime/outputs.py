"""What operators put out: the outputs that ``bind`` declares, and rows on their way to each of them.

Owns: ``bound``, the checks of what ``bind`` returns and of ``late_outputs``; the parts of the rows that a micro-batch
of record grain puts out.
Invariant: within an output rows keep the order in which they were put out.
Must not import Spark or storage.

Source: the side outputs of Flink's DataStream API.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.errors import SchemaError
from asyncstate.execution import AnyRow, OutputRow, SideRow
from asyncstate.operator import InputSpec, Operator, OutputSpec

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


def bound(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> OutputSpec:
    """What ``bind`` of the operator declares; its errors name the operator of this job."""
    try:
        returned = operator.bind(inputs)
        output = OutputSpec.of(returned)
        _check(operator, output, returned)
        return output
    except SchemaError as error:
        if f"'{uid}'" in str(error):
            raise
        raise SchemaError(f"operator '{uid}': {error}") from error


def _check(operator: Operator, output: OutputSpec, returned: object) -> None:
    what = f"bind() of {type(operator).__name__} returned"
    if not isinstance(output.schema, pa.Schema):
        raise SchemaError(
            f"{what} {returned!r}; return the output's columns as a pyarrow schema, such as "
            "pa.schema([('n', pa.int64())]), or as a text such as 'n long'"
        )
    _check_columns(what, output.schema)
    _check_names(what, output.side_outputs)
    for name, schema in output.side_outputs.items():
        if not isinstance(schema, pa.Schema):
            raise SchemaError(
                f"{what} {schema!r} for side output '{name}'; give its columns as a pyarrow schema or a text such as "
                "'n long'"
            )
        _check_columns(f"{what}, for side output '{name}',", schema)
    if operator.stateless and output.side_outputs:
        raise SchemaError(
            f"{what} side outputs, but the operator is stateless: it would run once for each of them; leave stateless "
            "= True out, or put rows out to one output and tell them apart by a column"
        )


def _check_columns(what: str, schema: pa.Schema) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaError(f"{what} a schema with column '{twice[0]}' twice; rename all but one")
    if ROW_KIND_COLUMN in schema.names:
        raise SchemaError(
            f"{what} a schema with a column '{ROW_KIND_COLUMN}', which is the framework's; leave it out, kinds are "
            "given to emit()"
        )


def _check_names(what: str, names: Collection[object]) -> None:
    wrong = [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]
    if wrong:
        raise SchemaError(
            f"{what} a side output called {wrong[0]!r}; use letters, digits and '_', at most 100, with a letter in "
            "front"
        )
    lower = [str(name).lower() for name in names]
    alike = [str(name) for name in names if lower.count(str(name).lower()) > 1]
    if alike:
        raise SchemaError(
            f"{what} side outputs {' and '.join(map(repr, alike))}, which differ in case only; rename all but one"
        )


def late_outputs(
    uid: str, operator: Operator, inputs: Sequence[InputSpec], output: OutputSpec
) -> tuple[str | None, ...]:
    """Of each input the side output for rows that come too late for its order, None if they are dropped.

    Raises SchemaError for a side output that is not declared with the input's columns, and for an input of which no
    row is late.
    """
    names = tuple(operator.late_outputs(inputs))
    what = f"operator '{uid}' ({type(operator).__name__})"
    if len(names) != len(inputs):
        raise SchemaError(
            f"{what}: late_outputs() has {len(names)} entries for {len(inputs)} inputs; return one for each, None "
            "where late rows are dropped"
        )
    for name, spec in zip(names, inputs, strict=True):
        if name is not None:
            _check_late(what, name, spec, output)
    return names


def _check_late(what: str, name: str, spec: InputSpec, output: OutputSpec) -> None:
    order = spec.ordering
    if order is None or order.time != "event" or order.late != "drop":
        raise SchemaError(
            f"{what}: late rows of {spec.name} are to go to side output '{name}', but the input drops none: its rows "
            "do not wait for an order of event time. Let them (order_by, or an order of the operator's own), or leave "
            "the output out"
        )
    if not output.side(name).equals(spec.schema):
        raise SchemaError(
            f"{what}: side output '{name}' has the columns ({', '.join(map(str, output.side(name)))}), but takes the "
            f"late rows of {spec.name}: declare it with the input's schema"
        )


def rows_by_output(
    rows: Sequence[AnyRow], names: Collection[str]
) -> Iterator[tuple[str | None, Sequence[OutputRow]]]:
    """The rows of each output that has some, the main one (None) first."""
    if not names:
        yield None, rows  # type: ignore[misc]  # there can be none for a side output
        return
    parts: dict[str | None, list[OutputRow]] = {None: [], **{name: [] for name in names}}
    for row in rows:
        parts[row.output if isinstance(row, SideRow) else None].append(row[:2])
    yield from ((name, part) for name, part in parts.items() if part)
