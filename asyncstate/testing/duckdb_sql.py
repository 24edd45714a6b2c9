"""Translation of Spark SQL expressions to DuckDB's dialect, with Spark's values and types.

Owns: ``in_duckdb``. Invariant: a function to which DuckDB gives another value or type than Spark is mapped or refused;
``tests/testing/test_spark_functions.py`` compares them by the examples of Spark's own documentation.
Must not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import sqlglot
import sqlglot.expressions as exp

from asyncstate.dataflow.sql_text import spark_sql
from asyncstate.errors import SchemaError

TypeOf = Callable[[str], pa.DataType | None]
"""The type of an expression in DuckDB's dialect; None if it is not known on its own, as within a lambda."""

_SEVERAL_ROWS: Final = (exp.AggFunc, exp.Window, exp.Subquery, exp.Select, exp.UDTF)
_WHOLE: Final = {getattr(exp.DataType.Type, name) for name in ("TINYINT", "SMALLINT", "INT", "BIGINT")}

_INT: Final = (
    *(exp.Length, exp.BitLength, exp.Levenshtein, exp.StrPosition, exp.RegexpInstr, exp.RegexpCount),
    *(exp.Year, exp.Quarter, exp.Month, exp.WeekOfYear, exp.Day, exp.DayOfMonth, exp.DayOfYear, exp.Extract),
    *(exp.Hour, exp.Minute, exp.Second, exp.DateDiff, exp.UnixDate, exp.ArraySize, exp.BitwiseCount),
)
_TYPES: Final[dict[type[exp.Expr], str]] = {
    **dict.fromkeys(_INT, "INT"),
    **dict.fromkeys((exp.TsOrDsAdd, exp.AddMonths, exp.DateFromUnixDate), "DATE"),
    **dict.fromkeys((exp.TimestampTrunc, exp.StrToTime, exp.TimestampFromParts), "TIMESTAMPTZ"),
    **dict.fromkeys((exp.IntDiv, exp.Factorial, exp.StrToUnix), "BIGINT"),
    exp.Sign: "DOUBLE",
}
"""Spark's types of functions to which DuckDB gives the same values in another type."""
_INT_NAMES: Final = ("cardinality", "json_array_length", "octet_length")
_UNITS: Final = {"MM": "MONTH", "MON": "MONTH", "YYYY": "YEAR", "YY": "YEAR"}
_OTHER_VALUES: Final = (
    *(exp.ArrayDistinct, exp.ArrayPosition, exp.ArrayRemove, exp.ArraysZip, exp.ArrayContains),
    *(exp.ConvertTimezone, exp.AtTimeZone, exp.FromTimeZone, exp.Dayname, exp.Monthname, exp.MonthsBetween),
    *(exp.CurrentCatalog, exp.CurrentDatabase, exp.CurrentSchema, exp.CurrentUser, exp.SessionUser),
    *(exp.Typeof, exp.Reduce, exp.Format),
    *(exp.ToChar, exp.ToNumber, exp.JSONFormat, exp.ParseJSON, exp.JSONExtractScalar),
    *(exp.CurrentTime, exp.Localtime, exp.BitmapBitPosition, exp.BitmapBucketNumber),
)
_TRIED: Final[dict[str, type[exp.Binary]]] = {
    **{"SafeAdd": exp.Add, "SafeSubtract": exp.Sub, "SafeMultiply": exp.Mul, "SafeDivide": exp.Div},
    "try_mod": exp.Mod,
}
"""Functions that are null where they fail."""
_OTHER_VALUES_NAMES: Final = ("date_part", "datepart", "hash", "time_bucket", "user", "version")


def in_duckdb(expression: str, type_of: TypeOf) -> str:
    """The expression in DuckDB's dialect. Raises SchemaError for what is not computed from one row, and for functions
    to which DuckDB gives other values."""
    try:
        parsed = spark_sql(expression)
    except sqlglot.errors.SqlglotError as error:
        raise SchemaError(f"'{expression}' is not Spark SQL: {str(error).splitlines()[0]}") from error
    inner = parsed.this if isinstance(parsed, exp.Alias | exp.Aliases) else parsed
    if isinstance(inner, exp.Explode) and type(inner) is not exp.Explode:
        return _generated(inner, in_duckdb(inner.this.sql(dialect="spark"), type_of), parsed)
    found = (inner.this if type(inner) is exp.Explode else parsed).find(*_SEVERAL_ROWS)
    if found is not None:
        raise SchemaError(
            f"'{expression}': {found.key} is not computed from one row, so it needs Spark; use an operator, or a "
            "function of Arrow columns"
        )
    made = parsed.copy()
    for node in reversed(list(made.walk())):
        other = _mapped(node, type_of) if _takes_format(node) else _REFUSED
        if other is _REFUSED:
            raise SchemaError(
                f"'{expression}': DuckDB, which evaluates SQL text here, gives other values to "
                f"{node.sql(dialect='spark')} than Spark; use a function of Arrow columns, which runs everywhere"
            )
        if other is not None and node is made:
            made = other
        elif other is not None:
            node.replace(other)
    return str(made.sql(dialect="duckdb", identify=True))


def _generated(made: exp.Expr, array: str, named: exp.Expr) -> str:
    """A row for each element of an array: also with its place (``posexplode``), or a row of nulls if there is none
    (``explode_outer``)."""
    kind, names = type(made).__name__.lower(), [one.name for one in named.expressions] or [named.alias]
    parts = [f"range(len({array}))", array] if "pos" in kind else [array]
    if "outer" in kind:
        parts = [f"CASE WHEN len({array}) > 0 THEN {one} ELSE [NULL] END" for one in parts]
    parts = [f"unnest({one})" for one in parts]
    if len(parts) > 1:
        parts[0] = f"CAST({parts[0]} AS INT)"
    names = names if all(names) else ["pos", "col"][-len(parts) :]
    if len(names) != len(parts):
        raise SchemaError(
            f"{kind} makes {len(parts)} columns and has {len(names)} names; give it a name for each"
        )
    return ", ".join(f'{part} AS "{name}"' for part, name in zip(parts, names, strict=True))


_REFUSED: Final = exp.Null()
_WHOLE_UNITS: Final = ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK")
_COMPARED: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between)
_NUMBERS: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
_TIMES: Final = (pa.types.is_date, pa.types.is_timestamp)
_ROUNDED_MAX: Final = 10**17  # above, doubles are whole
_WHOLE_NUMBER: Final = r"^\s*([+-]?[0-9]+)(\.[0-9]*)?\s*$"
_NO_TEXT: Final = "DuckDB has another text of a number that is not between 0.001 and 10000000 than Spark"


def _mapped(node: Any, type_of: TypeOf) -> Any:
    """What DuckDB needs in place of ``node``; None if it is right as it is."""
    kind, name = type(node), node.name.lower() if type(node) is exp.Anonymous else ""

    def given(one: Any) -> pa.DataType | None:
        return type_of(one.sql(dialect="duckdb", identify=True))

    if kind in _OTHER_VALUES or name in _OTHER_VALUES_NAMES or _differs(node):
        return _REFUSED
    elif name == "get":
        array, at = node.expressions
        found = exp.Bracket(this=exp.paren(array), expressions=[exp.paren(at) + 1], offset=1)
        return exp.Case().when(exp.paren(at) >= 0, found)
    elif (name or kind.__name__) in _TRIED:
        one, two = map(exp.paren, node.expressions or (node.this, node.expression))
        if node.find(exp.Interval) is not None:
            return _REFUSED
        if kind is exp.SafeDivide:
            two = exp.paren(exp.func("NULLIF", two, exp.Literal.number(0)))
        tried = _TRIED[name or kind.__name__](this=one, expression=two)
        return exp.Anonymous(this="try", expressions=[tried])
    elif name == "timestamp_micros":
        return exp.Anonymous(this="make_timestamptz", expressions=node.expressions)
    elif kind is exp.DayOfWeek:  # Spark's Sunday is 1
        return exp.cast(exp.paren(node.copy() + 1, copy=False), "INT")
    elif name == "weekday":  # Spark's Monday is 0
        return exp.cast(exp.paren(exp.func("ISODOW", *node.expressions) - 1, copy=False), "INT")
    elif kind is exp.DateTrunc:
        named = node.text("unit").upper()
        unit = exp.Literal.string(_UNITS.get(named, named))
        return exp.cast(exp.func("DATE_TRUNC", unit, node.this.copy()), "DATE")
    elif kind in (exp.Ceil, exp.Floor, exp.Round):
        return _rounded(node, given(node.this))
    elif isinstance(node, exp.Cast):
        return _cast(node, given(node.this))
    elif kind in (exp.Concat, exp.ConcatWs, exp.DPipe):
        return _joined(node, given)
    elif kind is exp.Substring:
        start = node.args.get("start")
        if start is None or (isinstance(start, exp.Literal) and start.name != "0"):
            return None
        made = node.copy()  # Spark counts from 0 as from 1
        made.set("start", exp.Case().when(exp.paren(start).eq(0), 1).else_(exp.paren(start)))
        return made
    elif kind in (exp.Left, exp.Right) and not isinstance(node.expression, exp.Literal):
        made = node.copy()
        made.set("expression", exp.func("GREATEST", made.expression, exp.Literal.number(0)))
        return made
    elif kind in (exp.Ln, exp.Log):  # null in Spark where there is no logarithm
        value = exp.paren(node.expression or node.this)
        return exp.Case().when(value > 0, node.copy())
    elif kind is exp.TimestampDiff or (kind is exp.DateDiff and node.text("unit")):
        unit = node.text("unit").upper()
        if unit not in _WHOLE_UNITS:
            return _REFUSED
        begin, end = (
            one.this.copy() if isinstance(one, exp.TsOrDsToDate) else one.copy()
            for one in (node.expression, node.this)
        )
        counted = exp.Anonymous(this="datesub", expressions=[exp.Literal.string(unit), begin, end])
        return exp.cast(counted, "BIGINT")
    elif kind is exp.Sub and all(_is(given(one), *_TIMES) for one in (node.this, node.expression)):
        return None if node.find_ancestor(*_COMPARED) else _REFUSED  # an interval in Spark
    elif kind in (exp.Add, exp.Sub) and isinstance(node.expression, exp.Interval):
        if _is(given(node.this), pa.types.is_date) and node.expression.text("unit") in _OF_DAYS:
            return exp.cast(node.copy(), "DATE")
    elif kind in _DECIMALS:
        return _arithmetic(node, given(node.this), given(node.expression))
    elif kind is exp.ArraySort and isinstance(node.expression, exp.Lambda):
        plain = spark_sql("array_sort(a)").copy()
        plain.set("this", node.this.copy())
        return plain if node.expression.sql(dialect="spark") == _ASCENDING else _REFUSED
    elif kind is exp.GenerateSeries:
        return _series(node, given(node.args["start"]), given(node.args["end"]))
    elif kind in _TYPES:
        return exp.cast(node.copy(), _TYPES[kind])
    elif name in _INT_NAMES:
        return exp.cast(node.copy(), "INT")
    return None


def _takes_format(node: Any) -> bool:
    """Give ``node`` DuckDB's words for its format of times; False if DuckDB has none for a part of it."""
    given = node.args.get("format")
    if not isinstance(given, exp.Literal) or not given.is_string:
        return True
    # sqlglot has translated the letters that it knows, and knows no quotes.
    plain, quoted = given.name.split("'")[::2], given.name.split("'")[1::2]
    plain = [one.replace("SSS", "%g") for one in plain]
    unknown = any(re.search("[A-Za-z]", re.sub("%-?[A-Yabdefgmpy](strict)?", "", one)) for one in plain)
    if unknown or len(plain) == len(quoted) or "%" in "".join(quoted) or "" in quoted:
        return False
    texts = [one for pair in zip(plain, [*quoted, ""], strict=True) for one in pair]
    node.set("format", exp.Literal.string("".join(texts)))
    return True


def _cast(node: Any, given: pa.DataType | None) -> Any:
    """A cast with Spark's value."""
    to, value = node.to.this, exp.paren(node.this)
    if to is exp.DType.TIMESTAMP:  # of ``to_timestamp``
        return exp.cast(node.this.copy(), "TIMESTAMPTZ")
    elif to is exp.DType.DECIMAL and not node.to.expressions:
        made = node.copy()  # DuckDB has other digits
        made.set("to", exp.DataType.build("DECIMAL(10, 0)"))
        return made
    elif given is None:
        return None
    elif to in exp.DataType.TEXT_TYPES:
        return _text(node.this, given)
    elif to in _WHOLE and (pa.types.is_floating(given) or pa.types.is_decimal(given)):
        # Spark cuts what DuckDB rounds.
        return _cast_of(node, exp.Anonymous(this="trunc", expressions=[value]))
    elif to in _WHOLE and pa.types.is_string(given):
        whole = [value, exp.Literal.string(_WHOLE_NUMBER), exp.Literal.number(1)]
        return _cast_of(node, exp.Anonymous(this="regexp_extract", expressions=whole))
    elif pa.types.is_timestamp(given) and to in exp.DataType.NUMERIC_TYPES:
        seconds = exp.Anonymous(this="epoch", expressions=[value])
        if to in _WHOLE:
            return _cast_of(node, exp.Anonymous(this="floor", expressions=[seconds]))
        return _cast_of(node, seconds) if to is exp.DType.DOUBLE else _REFUSED
    elif to is exp.DType.TIMESTAMPTZ and _is(given, *_NUMBERS):
        micros = exp.Mul(this=exp.cast(value, "BIGINT"), expression=exp.Literal.number(1_000_000))
        known = pa.types.is_integer(given)
        return exp.Anonymous(this="make_timestamptz", expressions=[micros]) if known else _REFUSED
    return None


def _cast_of(node: Any, value: Any) -> Any:
    made = node.copy()
    made.set("this", value)
    return made


def _text(node: Any, given: pa.DataType) -> Any:
    """A value as Spark's text of it; None if DuckDB's is the same."""
    value = exp.paren(node)
    if pa.types.is_timestamp(given):
        return exp.cast(exp.cast(value, "TIMESTAMP"), "TEXT")
    elif pa.types.is_floating(given):
        size = exp.func("ABS", value)
        same = exp.or_(
            value.copy().eq(0), exp.and_(size >= exp.Literal.number("0.001"), size.copy() < 10_000_000)
        )
        failed = exp.Anonymous(this="error", expressions=[exp.Literal.string(_NO_TEXT)])
        made = exp.Case().when(value.copy().is_(exp.Null()), exp.Null())
        return made.when(same, exp.cast(value.copy(), "TEXT")).else_(failed)
    return _REFUSED if pa.types.is_nested(given) or pa.types.is_interval(given) else None


def _joined(node: Any, given: Callable[[Any], pa.DataType | None]) -> Any:
    """Texts in a row, with Spark's text of each value."""
    made = node.copy()
    for one in list(made.expressions or (made.this, made.expression)):
        kind = given(one)
        text = None if kind is None or pa.types.is_nested(kind) else _text(one, kind)
        if text is _REFUSED:
            return _REFUSED
        elif text is not None:
            one.replace(text)
    return made


def _is(kind: pa.DataType | None, *tests: Callable[[pa.DataType], bool]) -> bool:
    return kind is not None and any(test(kind) for test in tests)


def _rounded(node: Any, given: pa.DataType | None) -> Any:
    """A rounded value of Spark's type."""
    places = node.args.get("decimals")
    whole = type(node) is not exp.Round
    if whole and (places is not None or given is None):
        return _REFUSED
    elif _is(given, pa.types.is_decimal):
        assert given is not None
        scale = min(int(places.name) if places is not None and places.is_int else 0, given.scale)
        return exp.cast(
            node.copy(), f"DECIMAL({min(given.precision - given.scale + 1 + scale, _MOST_DIGITS)}, {scale})"
        )
    elif whole:
        return exp.cast(node.copy(), "BIGINT")
    elif _is(given, pa.types.is_floating) and places is not None and places.is_int and places.name != "0":
        # Spark rounds the digits that a number is shown with: 1.005 to 1.01.
        value = exp.paren(node.this)
        shown = exp.TryCast(this=exp.cast(value, "TEXT"), to=exp.DataType.build("DECIMAL(38, 18)"))
        rounded = exp.cast(
            exp.func("ROUND", shown, places.copy()), "REAL" if given == pa.float32() else "DOUBLE"
        )
        return exp.Case().when(exp.func("ABS", value.copy()) < _ROUNDED_MAX, rounded).else_(value.copy())
    return None


def _series(node: Any, *given: pa.DataType | None) -> Any:
    """The whole numbers of a ``sequence``, which counts down in Spark if its end is less than its start."""
    if node.args.get("step") or not all(_is(one, pa.types.is_integer) for one in given):
        return _REFUSED
    down = node.copy()
    down.set("step", exp.Literal.number(-1))
    falls = exp.LT(this=node.args["end"].copy(), expression=node.args["start"].copy())
    made = exp.Case().when(falls, down).else_(node.copy())
    return made if pa.int64() in given else exp.cast(made, "INT[]")


def _arithmetic(node: Any, *given: pa.DataType | None) -> Any:
    """A calculation with decimals in the type that Spark gives it."""
    if None in given or not any(_is(one, pa.types.is_decimal) for one in given):
        return None
    if not all(_is(one, pa.types.is_decimal, pa.types.is_integer) for one in given):
        return None  # doubles
    sides = (node.this.unnest(), node.expression.unnest())
    if any(
        _is(one, pa.types.is_integer) and isinstance(side, exp.Cast) and side.this.is_int
        for one, side in zip(given, sides, strict=True)
    ):
        return _REFUSED  # perhaps 2L, of which Spark counts the digits
    (p1, s1), (p2, s2) = (_digits(one, side) for one, side in zip(given, sides, strict=True))
    precision, scale = _DECIMALS[type(node)](p1, s1, p2, s2)
    if precision > _MOST_DIGITS and scale > _KEPT_SCALE:  # Spark gives up digits after the point
        if type(node) is not exp.Div:
            return _REFUSED
        scale = max(_MOST_DIGITS - (precision - scale), _KEPT_SCALE)
    return exp.cast(node.copy(), f"DECIMAL({min(precision, _MOST_DIGITS)}, {scale})")


def _digits(given: Any, node: Any) -> tuple[int, int]:
    """Precision and scale that Spark takes a value to have."""
    if pa.types.is_decimal(given):
        return given.precision, given.scale
    if node.is_int:
        return len(str(abs(int(node.name)))), 0
    return {8: 3, 16: 5, 32: 10}.get(given.bit_width, 20), 0


_MOST_DIGITS: Final = 38
_KEPT_SCALE: Final = 6


def _sum_of(p1: int, s1: int, p2: int, s2: int) -> tuple[int, int]:
    scale = max(s1, s2)
    return max(p1 - s1, p2 - s2) + scale + 1, scale


def _quotient_of(p1: int, s1: int, p2: int, s2: int) -> tuple[int, int]:
    scale = max(_KEPT_SCALE, s1 + p2 + 1)
    return p1 - s1 + s2 + scale, scale


_DECIMALS: Final[dict[type[exp.Expr], Callable[[int, int, int, int], tuple[int, int]]]] = {
    exp.Add: _sum_of,
    exp.Sub: _sum_of,
    exp.Mul: lambda p1, s1, p2, s2: (p1 + p2 + 1, s1 + s2),
    exp.Div: _quotient_of,
    exp.Mod: lambda p1, s1, p2, s2: (min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2)),
}
"""Precision and scale of Spark's results. DuckDB divides doubles, so a quotient has 15 right digits."""
_ASCENDING: Final = "(left, right) -> (IF((left < right), -1, (IF((left > right), 1, 0))))"
"""How Spark writes an ``array_sort`` without an order of its own."""
_OF_DAYS: Final = ("DAY", "DAYS", "WEEK", "WEEKS", "MONTH", "MONTHS", "YEAR", "YEARS")


def _differs(node: Any) -> bool:
    """Whether DuckDB ignores some arguments of this call."""
    if isinstance(node, exp.StrPosition):
        return bool(node.args.get("position") or node.args.get("occurrence"))
    if isinstance(node, exp.Rand):
        return node.this is not None
    if isinstance(node, exp.RegexpReplace):  # groups are $1 in Spark, \\1 in DuckDB
        return not node.args["replacement"].is_string or any(one in node.text("replacement") for one in "$\\")
    if isinstance(node, exp.Levenshtein):
        return bool(node.args.get("ins_cost"))
    if isinstance(node, exp.ArrayFilter | exp.Transform):
        return isinstance(node.expression, exp.Lambda) and len(node.expression.expressions) > 1
    if isinstance(node, exp.Extract):
        return node.name.upper().startswith("SEC") or type(node.expression) is exp.Interval
    if isinstance(node, exp.Like | exp.ILike):
        return "\\" in node.expression.name
    return False
