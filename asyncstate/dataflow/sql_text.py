"""What Spark SQL text says of columns, without Spark.

Owns: ``spark_sql``, which parses a text; ``plain_column``, what one text does with a column, ``columns_in`` and
``column_of``.
Must not import Spark.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import sqlglot
import sqlglot.expressions as exp

_WORDS: Final = ("null", "true", "false", "current_date", "current_timestamp", "current_user")


@lru_cache(maxsize=4096)
def spark_sql(text: str) -> Any:
    """A text as sqlglot parses it. It is parsed once, not in each micro-batch, so nobody may change the tree. Raises
    SqlglotError."""
    return sqlglot.parse_one(text, read="spark")


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
