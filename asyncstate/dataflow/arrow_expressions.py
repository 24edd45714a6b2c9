"""Spark SQL expressions as Arrow functions, where both give the same answer for every row.

Owns: ``arrow_value``, ``arrow_condition``, ``projection``, the columns that a selection makes, and
``may_be_other_columns``.
Invariant: what is not certain to give Spark's answer, of Spark's type, is None, and so is what can fail for some row.
Supported are columns, literals, conditions of values of one type, AND, OR, NOT, IN, LIKE, CASE, IF, COALESCE, sums and
products of decimals and of floats, casts that fit all values, and a few functions of texts and dates. Not supported are
integer arithmetic, which can overflow, and comparisons of floats, whose NaN Spark orders.
Must not import Spark.
Source: Spark's DecimalPrecision and DecimalType for the types of decimals.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
import sqlglot.expressions as exp

from asyncstate.dataflow.sql_text import plain_column, spark_sql

Expression = Callable[[pa.RecordBatch], Any]
"""Maps rows (n) to one value per row (n), or to one value for all rows."""


class ArrowValue(NamedTuple):
    """What an expression computes, and its type."""

    of: Expression
    type: pa.DataType

    def column(self, rows: pa.RecordBatch) -> pa.Array:
        """One value per row (n)."""
        value = self.of(rows)
        return pa.repeat(value, rows.num_rows) if isinstance(value, pa.Scalar) else value


class MadeColumn(NamedTuple):
    """A column of a selection. ``source``: the name of the column that it passes through, or what computes it."""

    name: str
    source: str | ArrowValue
    type: pa.DataType

    def column(self, rows: pa.RecordBatch) -> pa.Array:
        """One value per row (n)."""
        return rows.column(self.source) if isinstance(self.source, str) else self.source.column(rows)


class _NotTheSameError(Exception):
    """Part of a text that Arrow may evaluate differently, or cannot evaluate."""


def arrow_value(text: str, schema: pa.Schema) -> ArrowValue | None:
    """The expression over columns of ``schema``, without its alias; None if it must be left to Spark."""
    if "\\" in text or '"' in text:
        return None  # escapes; and a text or a name, as a setting says
    try:
        node = spark_sql(text)
        return _value(node.this if isinstance(node, exp.Alias) else node, schema)
    except (_NotTheSameError, sqlglot.errors.SqlglotError):
        return None


def arrow_condition(text: str, schema: pa.Schema) -> Expression | None:
    """The condition over columns of ``schema``; None if it must be left to Spark."""
    found = arrow_value(text, schema)
    return found.column if found is not None and pa.types.is_boolean(found.type) else None


def projection(
    expressions: Sequence[Any], named: Mapping[str, Any], schema: pa.Schema
) -> tuple[MadeColumn, ...] | None:
    """The columns of texts such as ``"a"`` and ``"a * b AS c"``, and of texts by name; None if one of them is something
    else or must be left to Spark, or if two have one name."""
    found = [_made(text, None, schema) for text in expressions]
    found += [_made(text, name, schema) for name, text in named.items()]
    made = [one for one in found if one is not None]
    return tuple(made) if len(made) == len(found) == len({one.name for one in made}) else None


def may_be_other_columns(named: Mapping[str, Any], schema: pa.Schema) -> bool:
    """Whether ``with_columns`` has a name that is a column with other letters, which Spark would replace."""
    own = {name.lower(): name for name in schema.names}
    return any(own.get(name.lower(), name) != name for name in named)


def _made(text: Any, name: str | None, schema: pa.Schema) -> MadeColumn | None:
    source, alias = plain_column(text)
    name = name or alias
    if source:
        known = schema.names.count(source) == 1
        return MadeColumn(name, source, schema.field(source).type) if known else None
    value = arrow_value(text, schema) if isinstance(text, str) and name else None  # or else Spark names it
    return None if value is None else MadeColumn(name, value, value.type)


# -- functions of rows, which can be pickled -----------------------------------------------------------


def _column(name: str, rows: pa.RecordBatch) -> Any:
    return rows.column(name)


def _literal(value: pa.Scalar, _: pa.RecordBatch) -> Any:
    return value


def _called(function: str, arguments: Sequence[Expression], options: Any, rows: pa.RecordBatch) -> Any:
    return pc.call_function(function, [argument(rows) for argument in arguments], options)


def _cast(value: Expression, kind: pa.DataType, rows: pa.RecordBatch) -> Any:
    return value(rows).cast(kind)


def _is_in(value: Expression, values: pa.Array, rows: pa.RecordBatch) -> Any:
    found = value(rows)
    return pc.if_else(pc.is_valid(found), pc.is_in(found, value_set=values), pa.scalar(None, pa.bool_()))


def _same(first: Expression, second: Expression, rows: pa.RecordBatch) -> Any:
    one, two = first(rows), second(rows)
    return pc.coalesce(pc.equal(one, two), pc.and_(pc.is_null(one), pc.is_null(two)))


def _cases(
    cases: Sequence[tuple[Expression, Expression]], otherwise: Expression, rows: pa.RecordBatch
) -> Any:
    found = otherwise(rows)
    for condition, value in reversed(cases):
        found = pc.if_else(pc.coalesce(condition(rows), False), value(rows), found)
    return found


def _calendar(unit: str, dates: ArrowValue, rows: pa.RecordBatch) -> Any:
    """The year or the month ("Y", "M") of dates. Arrow's own function has years of 16 bits."""
    days = dates.column(rows)
    numbers = days.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    found = numbers.astype(f"datetime64[{unit}]").astype(np.int64)  # since 1970
    found = found + 1970 if unit == "Y" else found % 12 + 1
    return pa.array(found.astype(np.int32), mask=days.is_null().to_numpy(zero_copy_only=False))


def _call(function: str, *arguments: ArrowValue, kind: pa.DataType, options: Any = None) -> ArrowValue:
    return ArrowValue(partial(_called, function, [one.of for one in arguments], options), kind)


# -- parts of a text -----------------------------------------------------------------------------------


def _value(node: Any, schema: pa.Schema) -> ArrowValue:
    read = _NODES.get(type(node))
    given = {name for name, part in node.args.items() if part}
    if read is None or not given <= {"this", "expression", *_OTHER_PARTS.get(type(node), ())}:
        raise _NotTheSameError
    if isinstance(node, _PREDICATES) and any(map(_is_predicate, node.iter_expressions())):
        raise _NotTheSameError  # Spark reads ``a = b < c`` from the left: all comparisons have one precedence
    if isinstance(node, exp.NullSafeEQ) and _is_predicate(node.right.unnest()):
        raise _NotTheSameError  # sqlglot adds brackets to ``a <=> b < c``
    return read(node, schema)


def _is_predicate(node: Any) -> bool:
    return isinstance(node, (*_PREDICATES, exp.Not))


def _paren(node: Any, schema: pa.Schema) -> ArrowValue:
    return _value(node.this, schema)


def _field(node: Any, schema: pa.Schema) -> ArrowValue:
    if node.table or schema.names.count(node.name) != 1:
        raise _NotTheSameError
    kind = schema.field(node.name).type
    if not (_is_comparable(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        raise _NotTheSameError
    return ArrowValue(partial(_column, node.name), kind)


def _is_comparable(kind: pa.DataType) -> bool:
    kinds = (
        pa.types.is_signed_integer,
        pa.types.is_decimal128,
        pa.types.is_string,
        pa.types.is_boolean,
        pa.types.is_timestamp,
        pa.types.is_date32,
    )
    return any(of_kind(kind) for of_kind in kinds)


def _scalar(value: Any, kind: pa.DataType) -> ArrowValue:
    try:
        return ArrowValue(partial(_literal, pa.scalar(value, kind)), kind)
    except (pa.ArrowException, OverflowError) as error:
        raise _NotTheSameError from error


def _number(text: str) -> ArrowValue:
    if text.removeprefix("-").isdecimal():
        number = int(text)
        return _scalar(number, pa.int32() if -(2**31) <= number < 2**31 else pa.int64())
    return _decimal(text)


def _decimal(text: str) -> ArrowValue:
    """A decimal literal: ``1.50`` is a DECIMAL(3,2), and ``0.05`` a DECIMAL(2,2)."""
    if not text.removeprefix("-").replace(".", "", 1).isdecimal():
        raise _NotTheSameError
    number = decimal.Decimal(text)
    _, digits, exponent = number.as_tuple()
    scale = -int(exponent)
    return _scalar(number, _decimal_type(max(len(digits), scale), scale))


def _decimal_type(precision: int, scale: int) -> pa.DataType:
    """Raises for more digits than Spark has, which it then rounds."""
    if precision > _DIGITS:
        raise _NotTheSameError
    return pa.decimal128(precision, scale)


def _given_literal(node: Any, _: pa.Schema) -> ArrowValue:
    return _scalar(node.this, pa.string()) if node.is_string else _number(node.this)


def _boolean(node: Any, _: pa.Schema) -> ArrowValue:
    return _scalar(bool(node.this), pa.bool_())


def _negative(node: Any, schema: pa.Schema) -> ArrowValue:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(f"-{node.this.this}")
    value = _value(node.this, schema)
    if not (pa.types.is_decimal(value.type) or pa.types.is_floating(value.type)):
        raise _NotTheSameError  # the lowest integer has no opposite
    return _call("negate", value, kind=value.type)


def _conditions(nodes: Iterable[Any], schema: pa.Schema) -> list[ArrowValue]:
    found = [_value(node, schema) for node in nodes]
    if not all(pa.types.is_boolean(one.type) for one in found):
        raise _NotTheSameError
    return found


def _logical(function: str, node: Any, schema: pa.Schema) -> ArrowValue:
    sides = (node.this,) if isinstance(node, exp.Not) else (node.left, node.right)
    return _call(function, *_conditions(sides, schema), kind=pa.bool_())


def _is(node: Any, schema: pa.Schema) -> ArrowValue:
    if not isinstance(node.expression, exp.Null):
        raise _NotTheSameError
    return _call("is_null", _value(node.this, schema), kind=pa.bool_())


def _is_int_literal(node: Any) -> bool:
    inner = node.this if isinstance(node, exp.Neg) else node
    return isinstance(inner, exp.Literal) and inner.is_int and not inner.is_string


def _may_be_literal(node: Any) -> bool:
    """Whether the node may be a literal of Spark: also in brackets, and with a suffix such as ``2L``, which sqlglot
    reads as a cast."""
    inner = node.unnest()
    inner = inner.this if isinstance(inner, exp.Neg | exp.Cast) else inner
    return isinstance(inner, exp.Literal)


def _pair(left: Any, right: Any, schema: pa.Schema) -> tuple[ArrowValue, ArrowValue]:
    """Two nodes as values of one type, by which Spark compares them."""
    one, two = _of_one_type([left, right], schema)
    if not _is_comparable(one.type):
        raise _NotTheSameError
    return one, two


def _of_one_type(nodes: Sequence[Any], schema: pa.Schema) -> list[ArrowValue]:
    """The values of nodes, as the type that has all of their values."""
    values = [_value(node, schema) for node in nodes]
    kind = values[0].type
    for one in values[1:]:
        kind = kind if one.type == kind else _common(kind, one.type)
    return [_as_type(one, kind) for one in values]


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType:
    if pa.types.is_signed_integer(one) and pa.types.is_signed_integer(two):
        return max(one, two, key=lambda kind: kind.bit_width)
    (p1, s1), (p2, s2) = _digits(one), _digits(two)
    return _decimal_type(max(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2))


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Precision and scale of a decimal, or of the one that holds all values of an integer."""
    if pa.types.is_decimal128(kind):
        return kind.precision, kind.scale
    if pa.types.is_signed_integer(kind):
        return _INTEGER_DIGITS[kind.bit_width], 0
    raise _NotTheSameError


def _as_type(value: ArrowValue, kind: pa.DataType) -> ArrowValue:
    """``value`` as ``kind``, which has all of its values."""
    if value.type == kind:
        return value
    if pa.types.is_signed_integer(kind):
        if not (pa.types.is_signed_integer(value.type) and value.type.bit_width <= kind.bit_width):
            raise _NotTheSameError
    elif pa.types.is_decimal128(kind):
        precision, scale = _digits(value.type)
        if kind.scale < scale or kind.precision - kind.scale < precision - scale:
            raise _NotTheSameError
    else:
        raise _NotTheSameError
    return ArrowValue(partial(_cast, value.of, kind), kind)


def _compared(function: str, node: Any, schema: pa.Schema) -> ArrowValue:
    return _call(function, *_pair(node.left, node.right, schema), kind=pa.bool_())


def _null_safe_equal(node: Any, schema: pa.Schema) -> ArrowValue:
    one, two = _pair(node.left, node.right, schema)
    return ArrowValue(partial(_same, one.of, two.of), pa.bool_())


def _between(node: Any, schema: pa.Schema) -> ArrowValue:
    least = _call("greater_equal", *_pair(node.this, node.args["low"], schema), kind=pa.bool_())
    most = _call("less_equal", *_pair(node.this, node.args["high"], schema), kind=pa.bool_())
    return _call("and_kleene", least, most, kind=pa.bool_())


def _in(node: Any, schema: pa.Schema) -> ArrowValue:
    value, listed = _value(node.this, schema), node.expressions
    if not listed or not _is_comparable(value.type):
        raise _NotTheSameError
    found = []
    for one in listed:
        literal = _value(one, schema)
        if not isinstance(literal.of, partial) or literal.of.func is not _literal:
            raise _NotTheSameError
        of_integer = _is_int_literal(one) and pa.types.is_signed_integer(value.type)
        if literal.type != value.type and not of_integer and _common(value.type, literal.type) != value.type:
            raise _NotTheSameError
        found.append(literal.of.args[0].as_py())
    try:
        values = pa.array(found, value.type)
    except (pa.ArrowException, OverflowError) as error:
        raise _NotTheSameError from error
    return ArrowValue(partial(_is_in, value.of, values), pa.bool_())


def _text(node: Any, schema: pa.Schema) -> ArrowValue:
    value = _value(node, schema)
    if not pa.types.is_string(value.type):
        raise _NotTheSameError
    return value


def _matched(function: str, node: Any, schema: pa.Schema) -> ArrowValue:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise _NotTheSameError
    options = pc.MatchSubstringOptions(pattern.this)
    found = _call(function, _text(node.this, schema), kind=pa.bool_(), options=options)
    return _call("invert", found, kind=pa.bool_()) if node.args.get("negate") else found


def _substring(node: Any, schema: pa.Schema) -> ArrowValue:
    start, length = node.args.get("start"), node.args.get("length")
    if not (_is_int_literal(start) and _is_int_literal(length)) or isinstance(start, exp.Neg):
        raise _NotTheSameError
    first, size = int(start.name), 0 if isinstance(length, exp.Neg) else int(length.name)
    if not first:
        raise _NotTheSameError
    options = pc.SliceOptions(first - 1, first - 1 + size)
    return _call("utf8_slice_codeunits", _text(node.this, schema), kind=pa.string(), options=options)


def _part_of_date(unit: str, node: Any, schema: pa.Schema) -> ArrowValue:
    inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
    value = _value(inner, schema)
    if not pa.types.is_date32(value.type):
        raise _NotTheSameError
    return ArrowValue(partial(_calendar, unit, value), pa.int32())


def _converted(node: Any, schema: pa.Schema) -> ArrowValue:
    kind, inner = node.to.this.name, node.this  # not is_type, which parses the name of a type each time
    literal = inner.this if isinstance(inner, exp.Literal) and inner.is_string else None
    if kind == "DATE" and literal is not None and _DATE.fullmatch(literal):
        try:
            return _scalar(datetime.date.fromisoformat(literal), pa.date32())
        except ValueError as error:
            raise _NotTheSameError from error
    if kind == "DECIMAL":
        digits = [int(one.name) for one in node.to.expressions]
        precision, scale = (*digits, 0)[:2] if digits else (10, 0)
        if isinstance(inner, exp.Literal):
            literal = inner.name
        value = _decimal(literal) if literal is not None else _value(inner, schema)
        return _as_type(value, _decimal_type(precision, scale))
    if kind not in _INTEGERS:
        raise _NotTheSameError
    return _as_type(_value(inner, schema), _INTEGERS[kind])


def _arithmetic(node: Any, schema: pa.Schema) -> ArrowValue:
    function = _ARITHMETIC[type(node)]
    one, two = _value(node.left, schema), _value(node.right, schema)
    if one.type == two.type and pa.types.is_floating(one.type):
        return _call(function, one, two, kind=one.type)
    others = [
        side
        for side, value in ((node.left, one), (node.right, two))
        if not pa.types.is_decimal128(value.type)
    ]
    if len(others) == 2 or any(map(_may_be_literal, others)):
        raise _NotTheSameError  # the type of an integer literal follows a setting
    (p1, s1), (p2, s2) = _digits(one.type), _digits(two.type)
    one, two = _as_type(one, pa.decimal128(p1, s1)), _as_type(two, pa.decimal128(p2, s2))
    if function == "multiply":
        kind = _decimal_type(p1 + p2 + 1, s1 + s2)
    else:
        kind = _decimal_type(max(p1 - s1, p2 - s2) + max(s1, s2) + 1, max(s1, s2))
    return _call(function, one, two, kind=kind)


def _case(node: Any, schema: pa.Schema) -> ArrowValue:
    if isinstance(node, exp.If):
        ifs, otherwise = [node], node.args.get("false")
    else:
        ifs, otherwise = node.args["ifs"], node.args.get("default")
    if isinstance(node, exp.Case) and node.this is not None:
        raise _NotTheSameError
    conditions = _conditions([one.this for one in ifs], schema)
    nodes = [one.args["true"] for one in ifs] + ([] if otherwise is None else [otherwise])
    values = _of_one_type(nodes, schema)
    last = _scalar(None, values[0].type) if otherwise is None else values.pop()
    cases = tuple((condition.of, value.of) for condition, value in zip(conditions, values, strict=True))
    return ArrowValue(partial(_cases, cases, last.of), last.type)


def _coalesce(node: Any, schema: pa.Schema) -> ArrowValue:
    values = _of_one_type([node.this, *node.expressions], schema)
    return _call("coalesce", *values, kind=values[0].type)


_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_DIGITS: Final = 38
_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
_INTEGERS: Final = {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()}
_ARITHMETIC: Final[Mapping[type[Any], str]] = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}
_PREDICATES: Final = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ),
    *(exp.Is, exp.In, exp.Between, exp.Like),
)
_OTHER_PARTS: Final[Mapping[type[Any], tuple[str, ...]]] = {
    exp.Literal: ("is_string",),
    exp.Between: ("low", "high"),
    exp.In: ("expressions",),
    exp.Like: ("negate",),
    exp.Substring: ("start", "length"),
    exp.Cast: ("to", "requires_string"),
    exp.TryCast: ("to", "requires_string", "safe"),
    exp.If: ("true", "false"),
    exp.Case: ("ifs", "default"),
    exp.Coalesce: ("expressions",),
}
"""What a node may have next to ``this`` and ``expression``: a flag of another version of sqlglot is not overlooked."""
_NODES: Final[Mapping[type[Any], Callable[[Any, pa.Schema], ArrowValue]]] = {
    exp.Paren: _paren,
    exp.Column: _field,
    exp.Literal: _given_literal,
    exp.Boolean: _boolean,
    exp.Neg: _negative,
    exp.And: partial(_logical, "and_kleene"),
    exp.Or: partial(_logical, "or_kleene"),
    exp.Not: partial(_logical, "invert"),
    exp.Is: _is,
    exp.EQ: partial(_compared, "equal"),
    exp.NEQ: partial(_compared, "not_equal"),
    exp.LT: partial(_compared, "less"),
    exp.LTE: partial(_compared, "less_equal"),
    exp.GT: partial(_compared, "greater"),
    exp.GTE: partial(_compared, "greater_equal"),
    exp.NullSafeEQ: _null_safe_equal,
    exp.Between: _between,
    exp.In: _in,
    exp.StartsWith: partial(_matched, "starts_with"),
    exp.EndsWith: partial(_matched, "ends_with"),
    exp.Contains: partial(_matched, "match_substring"),
    exp.Like: partial(_matched, "match_like"),
    exp.Substring: _substring,
    exp.Year: partial(_part_of_date, "Y"),
    exp.Month: partial(_part_of_date, "M"),
    exp.Cast: _converted,
    exp.TryCast: _converted,
    exp.Add: _arithmetic,
    exp.Sub: _arithmetic,
    exp.Mul: _arithmetic,
    exp.If: _case,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
}
