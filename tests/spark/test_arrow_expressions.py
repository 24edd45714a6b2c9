"""Expressions that Arrow computes, against Spark: the same values, of the same types."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import SparkSession

from asyncstate.dataflow.arrow_expressions import arrow_value

pytestmark = pytest.mark.spark

COLUMNS = {
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "number": "INT",
    "large": "BIGINT",
    "price": "DECIMAL(12,2)",
    "rate": "DECIMAL(5,4)",
    "wide": "DECIMAL(20,0)",
    "ratio": "DOUBLE",
    "single": "FLOAT",
    "name": "STRING",
    "other": "STRING",
    "day": "DATE",
    "at": "TIMESTAMP",
    "flag": "BOOLEAN",
}
TEXTS = [None, "", "a", "ab", "äb", "b\nc", "aXb", "😀a", "a%", "_"]
PATTERNS = ["'a%'", "'%b'", "'a_b'", "'%'", "''", "'_'", "'%X%'", "'b_c'", "'ä%'", "'.*'"]


def value_of(pick: random.Random, kind: str) -> Any:
    """A value for a column, often null or at an end of its type."""
    if pick.random() < 0.15:
        return None
    if kind == "STRING":
        return pick.choice(TEXTS)
    if kind == "BOOLEAN":
        return pick.random() < 0.5
    if kind == "DATE":
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=pick.randint(-200_000, 200_000))
    if kind == "TIMESTAMP":
        return datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=pick.randint(-5, 5))
    if kind in ("DOUBLE", "FLOAT"):
        return pick.choice([0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, 1e30])
    if kind.startswith("DECIMAL"):
        digits, scale = map(int, kind[8:-1].split(","))
        most = 10**digits - 1
        unscaled = pick.choice([most, -most, 0, 1, pick.randint(-most, most), pick.randint(-500, 500)])
        return decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=50))
    bits = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}[kind]
    return pick.choice([-(2**bits), 2**bits - 1, 0, 1, pick.randint(-3, 3)])


def exact(pick: random.Random, depth: int) -> str:
    """A decimal."""
    kind = pick.randrange(7 if depth else 3)
    if kind < 3:
        literals = ["1.5", "0.05", "-2.00", "CAST(1BD AS DECIMAL(1,0))", "100.00BD", "5BD"]
        return pick.choice(["price", "rate", "wide", pick.choice(literals)])
    if kind == 3:
        return f"CAST({pick.choice(['tiny', 'small', 'number', 'large', '7', 'price'])} AS DECIMAL(24,3))"
    if kind == 4:
        return f"(- {exact(pick, depth - 1)})"
    others = [exact(pick, depth - 1), "number", "tiny", pick.choice(["2L", "(3)", "CAST(4 AS BIGINT)"])]
    sides = [exact(pick, depth - 1), pick.choice(others)]
    pick.shuffle(sides)
    return f"({sides[0]} {pick.choice('+-*')} {sides[1]})"


def integer(pick: random.Random, depth: int) -> str:
    """An integer."""
    kind = pick.randrange(5)
    if kind == 0:
        return pick.choice(["0", "1", "-1", "127", "-129", "2147483648", "-2147483648"])
    if kind == 1:
        return f"CAST({pick.choice(['tiny', 'small', 'number'])} AS {pick.choice(['INT', 'BIGINT'])})"
    if kind == 2 and depth:
        return f"{pick.choice(['year', 'month'])}(day)"
    return pick.choice(["tiny", "small", "number", "large"])


def text(pick: random.Random, depth: int) -> str:
    """A text."""
    kind = pick.randrange(4 if depth else 2)
    if kind == 0:
        return pick.choice(["'a'", "''", "'ab'", "'ä'"])
    if kind == 1:
        return pick.choice(["name", "other"])
    if kind == 2:
        return f"substring({text(pick, depth - 1)}, {pick.randint(1, 3)}, {pick.randint(-1, 3)})"
    return f"coalesce({text(pick, depth - 1)}, {text(pick, depth - 1)})"


def condition(pick: random.Random, depth: int) -> str:
    """A condition."""
    kind = pick.randrange(14 if depth else 9)
    sign = pick.choice(["=", "!=", "<", "<=", ">", ">=", "<=>"])
    if kind == 0:
        return f"({integer(pick, depth)} {sign} {integer(pick, depth)})"
    if kind == 1:
        return f"({exact(pick, depth)} {sign} {pick.choice([exact(pick, depth), integer(pick, depth)])})"
    if kind == 2:
        return f"({text(pick, depth)} {sign} {text(pick, depth)})"
    if kind == 3:
        return f"({pick.choice(['day {} day', 'at {} at', 'flag {} flag'])})".format(sign)
    if kind == 4:
        return f"(day {sign} DATE '{pick.choice(['1998-09-02', '1492-01-01', '2400-02-29'])}')"
    if kind == 5:
        function = pick.choice(["startswith", "endswith", "contains"])
        return f"{function}({text(pick, depth)}, {pick.choice(PATTERNS)})"
    if kind == 6:
        return f"({text(pick, depth)} {pick.choice(['', 'NOT '])}LIKE {pick.choice(PATTERNS)})"
    if kind == 7:
        listed = {
            "name": "'a', 'ab', ''",
            "tiny": "1, -1, 0",
            "large": "0, 1",
            "price": "0.0, 1",
            "day": "DATE '1970-01-02'",
        }
        column = pick.choice(list(listed))
        return f"({column} {pick.choice(['', 'NOT '])}IN ({listed[column]}))"
    if kind == 8:
        column = pick.choice(list(COLUMNS))
        return pick.choice(
            ["flag", "true", "(flag IS NULL)", f"({column} IS NOT NULL)", "(flag = flag < flag)"]
        )
    if kind == 9:
        return f"(NOT {condition(pick, depth - 1)})"
    if kind == 10:
        return f"({integer(pick, depth)} BETWEEN {integer(pick, depth)} AND {integer(pick, depth)})"
    return f"({condition(pick, depth - 1)} {pick.choice(['AND', 'OR'])} {condition(pick, depth - 1)})"


def number(pick: random.Random, depth: int) -> str:
    """An integer or a decimal."""
    return pick.choice([exact, integer])(pick, depth)


def expression(pick: random.Random) -> str:
    """An expression of any type."""
    kind = pick.randrange(8)
    made = {0: exact, 1: integer, 2: text, 3: condition}
    if kind in made:
        return made[kind](pick, 3)
    if kind == 4:
        return pick.choice(["ratio", "(ratio * ratio)", "(ratio - ratio)", "(single * single)", "(- ratio)"])
    if kind == 7:
        return f"coalesce({number(pick, 1)}, {number(pick, 1)}, {pick.choice(['0', number(pick, 1)])})"
    of = pick.choice([exact, integer, number, text, condition])
    otherwise = pick.choice(["", f" ELSE {of(pick, 1)}"])
    if kind == 5:
        return (
            f"CASE WHEN {condition(pick, 2)} THEN {of(pick, 1)} WHEN flag THEN {of(pick, 1)}{otherwise} END"
        )
    return f"IF({condition(pick, 2)}, {of(pick, 1)}, {of(pick, 1)})"


def shown(value: Any) -> Any:
    """A value that is equal to itself, with the sign of zero."""
    return str(value) if isinstance(value, float) else value


@pytest.mark.parametrize("seed", range(4))
def test_arrow_and_spark_agree(spark: SparkSession, seed: int) -> None:
    pick = random.Random(seed)
    rows = [tuple(value_of(pick, kind) for kind in COLUMNS.values()) for _ in range(60)]
    frame = spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))
    (batch,) = frame.coalesce(1).toArrow().combine_chunks().to_batches()
    texts: dict[str, Any] = {}
    while len(texts) < 150:
        candidate = expression(pick)
        found = arrow_value(candidate, batch.schema)
        if found is not None:
            texts.setdefault(candidate, found)
    expected = frame.coalesce(1).selectExpr(*(f"{one} AS c{at}" for at, one in enumerate(texts))).toArrow()
    wrong = []
    for at, (candidate, value) in enumerate(texts.items()):
        made = value.column(batch)
        wanted = expected.column(at)
        if not value.type == made.type == wanted.type:
            wrong.append((candidate, value.type, made.type, wanted.type))
        pairs = zip(map(shown, made.to_pylist()), map(shown, wanted.to_pylist()), rows, strict=True)
        wrong += [(candidate, one, two, row) for one, two, row in pairs if one != two][:1]
    assert not wrong, "\n".join(map(str, wrong))


def test_years_and_months_of_all_dates(spark: SparkSession) -> None:
    """Also of those that Python does not have."""
    pick = random.Random(7)
    days = [-(2**31), 2**31 - 1, 11_000_000, -12_700_000, 2_932_896, -719_529, 0, -1, None]
    days += [pick.randint(-(2**31), 2**31 - 1) for _ in range(50)]
    numbers = pa.array(days, pa.int32())
    rows = pa.RecordBatch.from_arrays([numbers.cast(pa.date32())], ["day"])[3:]
    texts = ["year(day)", "month(day)", "year(DATE '1999-12-31')"]
    found = [arrow_value(text, rows.schema) for text in texts]
    made = [None if one is None else one.column(rows) for one in found]
    frame = spark.createDataFrame(pa.table([numbers], ["number"])).coalesce(1)
    dates = frame.selectExpr("date_from_unix_date(number) as day").selectExpr(*texts)
    wanted = dates.toArrow().slice(3).combine_chunks()
    assert made == [column.chunk(0) for column in wanted.columns]
