"""Turns the statements of other engines into those of DuckDB and of Spark.

Owns: ``parsed``, ``for_duckdb``, ``for_spark``, ``NotTranslatedError``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import sqlglot
import sqlglot.expressions as exp
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

logging.getLogger("sqlglot").setLevel(logging.ERROR)
_ONLY_RISINGWAVE = re.compile(
    r"\bappend\s+only\b|,?\s*watermark\s+for\s+\w+\s+as\s+\w+(\s*-\s*interval\s*'[^']*'(\s*\w+)?)?",
    re.IGNORECASE,
)
_EMITS = re.compile(r"\bemit\s+on\s+window\s+close\b", re.IGNORECASE)
_WINDOWS = {"tumble": 1, "hop": 2}
_TYPES = exp.DataType.Type
_WHOLE = {_TYPES.INT, _TYPES.SMALLINT, _TYPES.TINYINT, _TYPES.BIGINT, _TYPES.MEDIUMINT}


class NotTranslatedError(Exception):
    """A statement that has no equal in the other dialect; says why."""


def parsed(sql: str, engine: str) -> exp.Expression:
    """A statement of an engine. Raises NotTranslatedError."""
    if engine == "risingwave":
        if _EMITS.search(sql):
            raise NotTranslatedError("EMIT ON WINDOW CLOSE")
        if re.search(r"\basof\s+(left\s+)?join\b", sql, re.IGNORECASE):
            raise NotTranslatedError("ASOF JOIN without MATCH_CONDITION")
        if re.match(r"create\s+table", sql, re.IGNORECASE):
            sql = _ONLY_RISINGWAVE.sub("", sql)
    try:
        found = sqlglot.parse_one(sql, read=engine)
    except Exception as error:
        raise NotTranslatedError("sqlglot does not parse it") from error
    if isinstance(found, exp.Command):
        raise NotTranslatedError("sqlglot does not parse it")
    return found


def for_duckdb(statement: exp.Expression, engine: str) -> str:
    """The statement in DuckDB's words, with types that Spark has."""
    return str(statement.copy().transform(_with_spark_types, engine).sql(dialect="duckdb"))


def _with_spark_types(node: exp.Expression, engine: str) -> exp.Expression:
    if isinstance(node, exp.DataType):
        if engine == "sqlite" and node.this in _WHOLE:
            return exp.DataType.build("bigint")
        if node.this is _TYPES.DECIMAL and not node.expressions:
            return exp.DataType.build("decimal(18, 6)" if engine == "risingwave" else "decimal(18, 3)")
    return node


def for_spark(query: exp.Expression, engine: str, schemas: Mapping[str, Mapping[str, str]]) -> str:
    """The query in Spark's words; ``schemas``: the type of each column, by table. Raises NotTranslatedError."""
    query = query.copy().transform(_with_spark_types, engine)
    if any(one.args.get("with_ties") for one in query.find_all(exp.LimitOptions)):
        raise NotTranslatedError("FETCH ... WITH TIES")
    if query.find(exp.Div) and engine != "duckdb":  # a division of whole numbers is whole
        known = {table: dict(columns) for table, columns in schemas.items()}
        try:
            typed = qualify(
                query.copy(),
                schema=known,
                dialect=engine,
                expand_stars=False,
                expand_alias_refs=False,
                validate_qualify_columns=False,
                quote_identifiers=False,
            )
            query = annotate_types(typed, schema=known, dialect=engine).transform(_divided, engine)
        except Exception as error:
            raise NotTranslatedError("sqlglot does not find the types of a division") from error
    for one in query.find_all(exp.Table):
        if one.name.lower() == "stream":  # a word of Spark's
            one.this.set("quoted", True)
    for one in query.find_all(exp.CTE):
        one.set("materialized", None)
    text = query.transform(_table_function).transform(_percentile).transform(_in).sql(dialect="spark")
    return text.replace("TIMESTAMP AS OF PROCTIME()", "FOR SYSTEM_TIME AS OF PROCTIME()")


def _divided(node: exp.Expression, engine: str) -> exp.Expression:
    if isinstance(node, exp.Div) and node.args.get("typed"):
        kinds = [one.type.this if one.type else None for one in (node.left, node.right)]
        if all(one in _WHOLE for one in kinds):
            divisor = node.right
            if node.args.get("safe") or engine == "risingwave":  # where a view has NULL for an error
                divisor = exp.func("nullif", exp.paren(divisor), exp.Literal.number(0))
            return exp.Paren(this=exp.IntDiv(this=exp.paren(node.left), expression=exp.paren(divisor)))
    return node


def _table_function(node: exp.Expression) -> exp.Expression:
    """Windows of a table, as Flink has them."""
    if not (isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous)):
        return node
    call = node.this
    lengths = _WINDOWS.get(str(call.this).lower())
    if lengths is None or len(call.expressions) != 2 + lengths:
        return node
    table, time, *sizes = call.expressions
    arguments = [
        f"TABLE {table.sql()}",
        f"DESCRIPTOR({time.name})",
        *(one.sql(dialect="spark") for one in sizes),
    ]
    made = exp.Anonymous(this=str(call.this).upper(), expressions=[exp.Var(this=one) for one in arguments])
    alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name))
    return exp.Table(this=made, alias=alias, joins=node.args.get("joins"))


def _percentile(node: exp.Expression) -> exp.Expression:
    """Exact percentiles, for which sqlglot has approximate ones."""
    if isinstance(node, exp.PercentileCont | exp.PercentileDisc):
        name = "PERCENTILE_CONT" if isinstance(node, exp.PercentileCont) else "PERCENTILE_DISC"
        if node.expression is None:  # within WITHIN GROUP
            return exp.Anonymous(this=name, expressions=[node.this])
        call = exp.Anonymous(this=name, expressions=[node.expression])
        return exp.WithinGroup(this=call, expression=exp.Order(expressions=[exp.Ordered(this=node.this)]))
    return node


def _in(node: exp.Expression) -> exp.Expression:
    """``= ANY`` of a subquery, which Spark calls IN."""
    if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any):
        given = node.expression.this
        query = given.this if isinstance(given, exp.Paren | exp.Subquery) else given
        if isinstance(query, exp.Query):
            return exp.In(this=node.this, query=exp.Subquery(this=query))
    return node
