"""Translation of Spark SQL text to Arrow expressions, where both give the same answer for every row.

Owns: ``spark_sql``, which parses a text; ``arrow_condition`` and ``plain_columns``; ``plain_column``, what one text
does with a column, ``columns_in`` and ``column_of``.
Invariant: what is not certain to give the same answer is None. Supported are conditions of columns and literals of one
type, joined by AND, OR and NOT; no floats, whose NaN Spark orders, and no decimals.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
import sqlglot.expressions as exp

_COMPARISONS: Final[Mapping[type[Any], str]] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
}


_WORDS: Final = ("null", "true", "false", "current_date", "current_timestamp", "current_user")

Expression = Callable[[pa.RecordBatch], Any]
"""Maps rows (n) to one value per row (n), or to one value for all rows."""


def _column(name: str, rows: pa.RecordBatch) -> Any:
    return rows.column(name)


def _literal(value: pa.Scalar, _: pa.RecordBatch) -> Any:
    return value


def _called(function: str, arguments: Sequence[Expression], rows: pa.RecordBatch) -> Any:
    return pc.call_function(function, [argument(rows) for argument in arguments])


class _NotTheSameError(Exception):
    """Part of a text that Arrow may evaluate differently, or cannot evaluate."""


@lru_cache(maxsize=4096)
def spark_sql(text: str) -> Any:
    """A text as sqlglot parses it. It is parsed once, not in each micro-batch, so nobody may change the tree. Raises
    SqlglotError."""
    return sqlglot.parse_one(text, read="spark")


def arrow_condition(text: str, schema: pa.Schema) -> Expression | None:
    """The condition over columns of ``schema``; None if it must be left to Spark."""
    try:
        return _condition(spark_sql(text), schema)
    except (_NotTheSameError, sqlglot.errors.SqlglotError):
        return None


def plain_columns(
    texts: Mapping[str | None, Any] | Any, schema: pa.Schema
) -> tuple[tuple[str, str], ...] | None:
    """Pairs (column, new name) of texts such as ``"a"`` and ``"a AS b"``; None if any text is something else."""
    found = []
    for text in texts:
        parsed = parsed_sql(text)
        name = parsed.alias if isinstance(parsed, exp.Alias) else None
        column = parsed.this if isinstance(parsed, exp.Alias) else parsed
        if not isinstance(column, exp.Column) or column.table or column.name not in schema.names:
            return None
        found.append((column.name, name or column.name))
    names = [name for _, name in found]
    return tuple(found) if len(set(names)) == len(names) else None


def _condition(node: Any, schema: pa.Schema) -> Expression:
    if isinstance(node, exp.Paren):
        return _condition(node.this, schema)
    if isinstance(node, exp.And):
        return partial(_called, "and_kleene", (_condition(node.left, schema), _condition(node.right, schema)))
    if isinstance(node, exp.Or):
        return partial(_called, "or_kleene", (_condition(node.left, schema), _condition(node.right, schema)))
    if isinstance(node, exp.Not):
        return partial(_called, "invert", (_condition(node.this, schema),))
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        return partial(_called, "is_null", (_field(node.this, schema)[0],))
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        value, low, high = node.this, node.args["low"], node.args["high"]
        least, most = (
            _compared("greater_equal", value, low, schema),
            _compared("less_equal", value, high, schema),
        )
        return partial(_called, "and_kleene", (least, most))
    if type(node) in _COMPARISONS:
        return _compared(_COMPARISONS[type(node)], node.left, node.right, schema)
    if isinstance(node, exp.Column):
        column, kind = _field(node, schema)
        if pa.types.is_boolean(kind):
            return column
    raise _NotTheSameError


def _compared(function: str, left: Any, right: Any, schema: pa.Schema) -> Expression:
    if isinstance(left, exp.Column):
        first, kind = _field(left, schema)
        return partial(_called, function, (first, _operand(right, kind, schema)))
    if isinstance(right, exp.Column):
        second, kind = _field(right, schema)
        return partial(_called, function, (_operand(left, kind, schema), second))
    raise _NotTheSameError


def _operand(node: Any, kind: pa.DataType, schema: pa.Schema) -> Expression:
    """A column of type ``kind``, or a literal converted to it."""
    if isinstance(node, exp.Column):
        column, other = _field(node, schema)
        if other == kind:
            return column
        raise _NotTheSameError
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if isinstance(literal, exp.Literal) and literal.is_int and pa.types.is_integer(kind):
        return _scalar(-int(literal.this) if negative else int(literal.this), kind)
    if isinstance(literal, exp.Literal) and literal.is_string and pa.types.is_string(kind) and not negative:
        return _scalar(literal.this, kind)
    raise _NotTheSameError


def _scalar(value: Any, kind: pa.DataType) -> Expression:
    try:
        return partial(_literal, pa.scalar(value, kind))
    except (pa.ArrowException, OverflowError) as error:
        raise _NotTheSameError from error


def _field(node: Any, schema: pa.Schema) -> tuple[Expression, pa.DataType]:
    if not isinstance(node, exp.Column) or node.table or schema.names.count(node.name) != 1:
        raise _NotTheSameError
    kind = schema.field(node.name).type
    comparable = (
        pa.types.is_integer,
        pa.types.is_string,
        pa.types.is_boolean,
        pa.types.is_timestamp,
        pa.types.is_date,
    )
    if not any(of_kind(kind) for of_kind in comparable):
        raise _NotTheSameError
    return partial(_column, node.name), kind


def normal_sql(text: str) -> str:
    """A condition as sqlglot formats it, without comments; if sqlglot cannot parse it, only its spaces are
    normalized."""
    try:
        return str(spark_sql(text).sql(dialect="spark", comments=False))
    except sqlglot.errors.SqlglotError:
        return " ".join(text.split())


def plain_column(expression: Any) -> tuple[str, str]:
    """The column that an expression passes through, and its new name; ("", name) for a computed value."""
    parsed = parsed_sql(expression)
    name = parsed.alias if isinstance(parsed, exp.Alias) else None
    inner = parsed.this if isinstance(parsed, exp.Alias) else parsed
    if isinstance(inner, exp.Column) and not inner.table:
        return inner.name, name or inner.name
    return "", name or ""


def star_leaves_out(star: exp.Star, name: str) -> bool:
    """Whether ``*`` does not pass the column unchanged."""
    given = {part for part, value in star.args.items() if value}
    hidden = {one.name.lower() for one in star.args.get("except_") or ()}
    return bool(given - {"except_"}) or name.lower() in hidden


def parsed_sql(expression: Any) -> Any:
    """A text as sqlglot parses it; None for what is no text, or what it cannot parse."""
    if not isinstance(expression, str):
        return None
    try:
        return spark_sql(expression)
    except sqlglot.errors.SqlglotError:
        return None


def columns_in(expression: Any) -> set[str]:
    """The names of the columns in an expression; none of what is no text."""
    parsed = parsed_sql(expression)
    return set() if parsed is None else {one.name for one in parsed.find_all(exp.Column)}


def column_of(text: str) -> str | None:
    """The column that an expression is, if it is nothing else."""
    if text.startswith("`") and text.endswith("`"):
        name = text[1:-1]
        return name.replace("``", "`") if "`" not in name.replace("``", "") else None
    return text if text.isidentifier() and text.lower() not in _WORDS else None
