"""Sources of changelogs: each format's events, types, malformed rows, and what is refused before a row is read.

Few jobs over tiny frames: an event's form is one row of a frame, and what it must give stands beside it.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate import Changelog
from asyncstate.changelog import ChangelogMode
from asyncstate.errors import AsyncStateError, ConfigurationError, JobError, SchemaError
from asyncstate.spark.facts import known_changes, source_facts
from asyncstate.spark.sources import (
    POSITIONS,
    canal_json,
    debezium_json,
    delta_change_feed,
    json_rows,
    maxwell_json,
    operation_column,
)
from asyncstate.spark.sources.malformed import mark_of
from asyncstate.spark.task_errors import restore
from operators import ChangelogNormalize, GroupAggregate, count

pytestmark = pytest.mark.spark

ITEMS = "id bigint not null, name string"
A, B = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}


def events(spark: SparkSession, *given: Any) -> DataFrame:
    """A row each, numbered; what is not a string becomes JSON."""
    texts = [one if one is None or isinstance(one, str) else json.dumps(one) for one in given]
    return spark.createDataFrame(list(enumerate(texts)), "n int, value string")


def change(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    """An event of Debezium."""
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 5}


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in df.collect()]


def reasons(df: DataFrame) -> list[tuple[int, str]]:
    return [(row.n, row.malformed) for row in df.orderBy("n").collect()]


def test_debezium_with_and_without_its_envelope(spark: SparkSession) -> None:
    given = [
        change("r", None, A),
        {"schema": {"type": "struct"}, "payload": change("u", A, B)},
        change("d", B),
        None,
        change("c", None, {"name": None, "id": 2, "more": [1]}),
    ]
    read = debezium_json(events(spark, *given), ITEMS, keep="n")
    assert read.columns == ["id", "name", "n", "row_kind"]
    assert rows(read) == [
        (1, "a", 0, "+I"), (1, "a", 1, "-U"), (1, "b", 1, "+U"), (1, "b", 2, "-D"), (2, None, 4, "+I"),
    ]  # fmt: skip
    as_bytes = events(spark, *given).selectExpr("n", "encode(value, 'UTF-8') as body")
    assert rows(debezium_json(as_bytes, ITEMS, "body", keep="n")) == rows(read)


def test_debezium_as_upserts(spark: SparkSession) -> None:
    given = [
        change("t"),
        change("u", None, B),
        change("u", {"id": 1, "name": None}, B),
        change("d", {"id": 1, "name": "a default"}),
        change("u", {"id": 1}, {"id": 3, "name": "c"}),
    ]
    read = debezium_json(
        events(spark, *given), "id bigint, name string not null", upsert_key="id", skip=["t"]
    )
    assert rows(read) == [
        (1, "b", "+U"), (1, "b", "+U"), (1, None, "-D"), (1, None, "-D"), (3, "c", "+U"),
    ]  # fmt: skip


def test_positions_put_snapshots_before_changes(spark: SparkSession) -> None:
    postgres = [change("r", None, A, lsn=900, snapshot="true"), change("u", A, B, lsn=870)]
    read = debezium_json(events(spark, *postgres), ITEMS, connector="postgresql")
    assert read.columns == ["id", "name", *POSITIONS["postgresql"], "row_kind"]
    assert rows(read) == [(1, "a", 0, 900, "+I"), (1, "a", 1, 870, "-U"), (1, "b", 1, 870, "+U")]
    mysql = [
        change("c", None, A, file="bin.000009", pos=77, row=2),
        change("d", A, None, file="bin.1000010", pos=4),
        change("r", None, A),
    ]
    places = [row[2:6] for row in rows(debezium_json(events(spark, *mysql), ITEMS, connector="mysql"))]
    assert places == [(1, 9, 77, 2), (1, 1_000_010, 4, 0), (0, None, None, 0)]
    again = [  # a snapshot, a change, and another snapshot, which has its place in the log
        change("r", None, A, file="bin.000009", pos=300),
        change("u", A, B, file="bin.000009", pos=200),
        change("r", None, A, file="bin.000009", pos=100),
    ]
    read = debezium_json(events(spark, *again), ITEMS, connector="mysql", upsert_key="id", keep="n")
    assert [row.n for row in read.orderBy(*POSITIONS["mysql"]).collect()] == [2, 1, 0]
    server = [change("c", None, A, commit_lsn="0025:01", change_lsn="0025:00", event_serial_no=2)]
    read = debezium_json(events(spark, *server), ITEMS, connector="sqlserver")
    assert rows(read) == [(1, "a", 1, "0025:01", "0025:00", 2, "+I")]
    elsewhere = debezium_json(events(spark, *mysql), ITEMS, connector="postgresql", malformed="only")
    assert [n for n, reason in reasons(elsewhere) if "no position" in reason] == [0, 1]


def test_what_is_malformed_and_the_rest(spark: SparkSession) -> None:
    bad = [
        '{"op": "c", "after": {"id"',
        "",
        "[]",
        {"before": None, "after": A},
        change("t"),
        change("c"),
        change("u", None, B),
        change("d"),
        change("u", A, {"id": "x", "name": "b"}),
        change("c", None, {"name": "no id"}),
        change("u", A, {"id": 1, "name": "__debezium_unavailable_value"}),
        {"op": "c", "after": "text"},
        change("c", None, {"id": 1.5, "name": "a"}),
    ]
    given = events(spark, *bad, change("c", None, A))
    found = dict(reasons(debezium_json(given, ITEMS, malformed="only")))
    expected = [
        "not an event", "not an event", "not an event", "has no operation", "operation 't' is not a change",
        "no row after", "no row before the change; configure full row images at the source", "no row before",
        "column 'id': 'x' is not of type bigint", "column 'id' has no value",
        "column 'name' has a value that is not in the log", "not an event", "column 'id': '1.5' is not of type bigint",
    ]  # fmt: skip
    assert sorted(found) == list(range(len(bad)))
    for number, reason in enumerate(expected):
        assert reason in found[number]
    assert rows(debezium_json(given, ITEMS, malformed="drop")) == [(1, "a", "+I")]
    assert 4 not in dict(reasons(debezium_json(given, ITEMS, malformed="only", skip="t")))
    one = debezium_json(given, ITEMS, malformed="only").where("n = 4")
    assert one.columns == ["n", "value", "malformed"]
    assert [row.value for row in one.collect()] == [json.dumps(change("t"))]


@pytest.mark.parametrize("seed", [1, 2])
def test_formats_agree_with_a_model(spark: SparkSession, seed: int) -> None:
    """One history as each tool writes it: the same changelog, that of the history."""
    random = Random(seed)
    there: dict[int, tuple[int, str | None, int | None]] = {}
    expected = []
    lines: dict[str, list[Any]] = {"debezium": [], "maxwell": [], "canal": []}
    for number in range(60):
        new = random.randrange(5), random.choice(["a", "it's", None]), random.choice([0, 7, None])
        old = there.pop(new[0], None)
        gone = old is not None and random.random() < 0.3
        if not gone:
            there[new[0]] = new
        word = "delete" if gone else "insert" if old is None else "update"
        before, after = (
            old and dict(zip("kxy", old, strict=True)),
            None if gone else dict(zip("kxy", new, strict=True)),
        )
        changed = {name: value for name, value in (before or {}).items() if after and after[name] != value}
        data, kept = after or before, changed if word == "update" else None
        lines["debezium"].append(change({"insert": "c", "update": "u", "delete": "d"}[word], before, after))
        lines["maxwell"].append({"type": word, "data": data, "old": kept})
        lines["canal"].append(
            {"type": word.upper(), "data": [_texts(data)], "old": None if kept is None else [_texts(kept)]}
        )
        if old is not None:
            expected.append((*old, number, "-D" if gone else "-U"))
        if not gone:
            expected.append((*new, number, "+I" if old is None else "+U"))
    for read, name in ((debezium_json, "debezium"), (maxwell_json, "maxwell"), (canal_json, "canal")):
        found = read(events(spark, *lines[name]), "k int, x string, y bigint", keep="n")
        assert rows(found) == expected


def _texts(row: dict[str, Any] | None) -> dict[str, str | None]:
    """As Canal writes it."""
    return {name: None if value is None else str(value) for name, value in (row or {}).items()}


def test_a_malformed_row_ends_the_query_with_an_example(spark: SparkSession) -> None:
    for read in (
        debezium_json(events(spark, change("c", None, {"id": "it's"})), ITEMS),
        operation_column(events(spark, "it's"), "value", {"I": "+I"}),
    ):
        with pytest.raises(Exception, match="it's") as caught:
            read.collect()
        error = restore(str(caught.value))
        assert isinstance(error, SchemaError)
        assert "malformed='drop'" in str(error)
        assert "it's" in str(error)


EVERY_TYPE = (
    "t tinyint, s smallint, i int, l bigint, f float, d double, b boolean, x string, at timestamp, zoned timestamp, "
    "nano timestamp, day date, bytes binary, price decimal(38, 10), `odd 'n.a``me` string"
)


def test_types(spark: SparkSession) -> None:
    moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123_456, tzinfo=dt.UTC)
    millis = int(moment.timestamp()) * 1000 + 123
    unscaled = [0, 5, -5, 127, 128, -128, -129, 2**63, -(2**63) - 1, 10**37 + 1, -(10**37)]
    after = {
        "t": -128, "s": 32767, "i": 7, "l": 2**63 - 1, "f": 0.5, "d": 1e300, "b": 1, "x": {"k": [1, "ü"]},
        "at": millis, "zoned": "2024-03-01T01:59:59.123456+02:00", "nano": -1_500, "day": 19_782,
        "bytes": base64.b64encode(b"\x00\xff").decode(), "odd 'n.a`me": "odd",
    }  # fmt: skip
    given = [
        change("c", None, {**after, "price": base64.b64encode(_signed(number)).decode()})
        for number in unscaled
    ]
    units = {"at": "ms", "nano": "ns"}
    read = debezium_json(events(spark, *given), EVERY_TYPE, decimals="base64", timestamps=units)
    times = ["at", "zoned", "nano"]
    plain = [name for name in read.columns if name not in (*times, "price", "row_kind")]
    first = read.selectExpr(*(f"unix_micros({name}) as {name}" for name in times)).first()
    micros = int(moment.timestamp()) * 1_000_000
    assert first is not None
    assert tuple(first) == (millis * 1000, micros + 123_456, -2)
    row = read.select(*(f"`{name.replace('`', '``')}`" for name in plain)).first()
    assert row is not None
    assert tuple(row) == (
        -128, 32767, 7, 2**63 - 1, 0.5, 1e300, True, '{"k":[1,"ü"]}', dt.date(2024, 2, 29), b"\x00\xff", "odd",
    )  # fmt: skip
    assert [row.price for row in read.select("price").collect()] == [
        Decimal(f"{number}E-10") for number in unscaled
    ]


PLACEHOLDER = "__debezium_unavailable_value"
NOT_IN_THE_LOG = {  # as Debezium 3.6 writes an unchanged large value of PostgreSQL's type, and what to read it as
    "text": (PLACEHOLDER, "string"),
    "jsonb": (PLACEHOLDER, "string"),
    "bytea": (base64.b64encode(PLACEHOLDER.encode()).decode(), "binary"),
    "hstore": (f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}', "string"),
    "hstore as a map": ({PLACEHOLDER: PLACEHOLDER}, "string"),
    "text[]": ([PLACEHOLDER], "string"),
    "bytea[]": ([base64.b64encode(PLACEHOLDER.encode()).decode()], "string"),
    "int8[]": (list(PLACEHOLDER.encode()), "string"),
    "date[]": (list(PLACEHOLDER.encode()), "string"),
    "uuid[]": (["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], "string"),
    "numeric": (PLACEHOLDER, "double"),
}


def test_values_that_the_log_does_not_have_are_malformed(spark: SparkSession) -> None:
    columns = [f"c{number}" for number in range(len(NOT_IN_THE_LOG))]
    there = {"id": 1} | dict.fromkeys(columns)
    given = [
        change("u", None, there | {name: value})
        for name, (value, _) in zip(columns, NOT_IN_THE_LOG.values(), strict=True)
    ]
    kinds = [f"{name} {kind}" for name, (_, kind) in zip(columns, NOT_IN_THE_LOG.values(), strict=True)]
    schema = ", ".join(["id int not null", *kinds])
    found = reasons(debezium_json(events(spark, *given), schema, upsert_key="id", malformed="only"))
    for number, (n, reason) in enumerate(found):
        assert n == number
        assert f"column 'c{number}' has a value that is not in the log" in reason
    assert len(found) == len(given)


DAYS = {  # by JVM and by where the event comes from, as Debezium 3.6 counts the days of PostgreSQL's infinities
    "infinity": [2147483647, -622191234, -622191233, -2147472692],
    "-infinity": [-2147483648, -625821272, -625821271, -2147472691],
}
MICROS = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}


def infinite() -> list[dict[str, Any]]:
    found = []
    for word in ("infinity", "-infinity"):
        found += [{"d": day} for day in DAYS[word]]
        found += [{"us": MICROS[word]}, {"ms": MICROS[word] // 1000}, {"tz": word}]
    return found


INFINITE = "d date, us timestamp, ms timestamp, tz timestamp"
UNITS = {"us": "us", "ms": "ms"}


def test_infinities_are_malformed_unless_it_is_said_what_they_are(spark: SparkSession) -> None:
    given = events(spark, *(change("c", None, one) for one in infinite()))
    found = reasons(debezium_json(given, INFINITE, timestamps=UNITS, malformed="only"))
    half = len(infinite()) // 2
    for number, one in enumerate(infinite()):
        (name,) = one
        sign = "" if number < half else "-"
        assert f"column '{name}' is {sign}infinity; set its replacement with infinity=" in found[number][1]

    def values(infinity: Any) -> list[str | None]:
        read = debezium_json(given, INFINITE, timestamps=UNITS, infinity=infinity, keep="n").orderBy("n")
        micros = [f"unix_micros({name})" for name in ("us", "ms", "tz")]
        texts = read.selectExpr(
            f"coalesce(cast(d as string), string(coalesce({', '.join(micros)}))) as x"
        ).collect()
        return [row.x for row in texts]

    def as_micros(year: int) -> str:
        return str(int(dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000)

    high, low = as_micros(9999), as_micros(1900)
    both = ["9999-01-01"] * 4 + [high] * 3 + ["1900-01-01"] * 4 + [low] * 3
    assert values(("1900-01-01", dt.date(9999, 1, 1))) == both
    assert values((None, "9999-01-01")) == both[:half] + [None] * half
    required = INFINITE.replace("d date", "d date not null")
    empty = reasons(debezium_json(given, required, timestamps=UNITS, infinity=(None, None), malformed="only"))
    assert [reason for _, reason in empty] == ["column 'd' has no value"] * len(infinite())


def test_the_first_and_last_times_of_a_database_are_values(spark: SparkSession) -> None:
    given = [
        {"d": 2145042905, "us": 9223371158400000000},  # 5874897-12-31, 294246-12-31
        {"d": -2440550, "us": -210863520000000000},  # 4713-01-01 BC
        {"d": 2145042906},
    ]
    log = events(spark, *(change("c", None, one) for one in given))
    read = debezium_json(log, INFINITE, timestamps=UNITS, malformed="drop")
    found = rows(read.selectExpr("unix_date(d)", "unix_micros(us)"))
    assert found == [(one["d"], one["us"]) for one in given[:2]]
    ((_, reason),) = reasons(debezium_json(log, INFINITE, timestamps=UNITS, malformed="only"))
    assert "column 'd' has a time that no database can have" in reason


@pytest.mark.parametrize("infinity", ["9999-12-31", ("0001-01-01",), ("today", None), 7, (None, 9999)])
def test_an_infinity_that_is_no_pair_of_dates_is_refused(spark: SparkSession, infinity: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="is not a pair of dates; give replacements of -infinity and infinity"
    ):
        debezium_json(events(spark), ITEMS, infinity=infinity)


ZEROS = "d date not null, ms timestamp, tz timestamp"
EPOCH = {"d": 0, "ms": 0, "tz": "1970-01-01T00:00:00Z"}


def zero_events(spark: SparkSession, *sources: dict[str, Any]) -> DataFrame:
    """What Debezium makes of 0000-00-00 in columns that are not null, a column an event; and a day that is one. Four
    events of each source."""
    day = {"d": 19000, "ms": 86_400_000, "tz": "2020-01-01T00:00:00Z"}
    found = [*({**day, name: value} for name, value in EPOCH.items()), day]
    return events(spark, *(change("c", None, one, **source) for source in sources for one in found))


@pytest.mark.parametrize(
    ("sources", "connector"),
    [([{"connector": "mysql"}, {"connector": "mariadb"}], None), ([{"file": "b.1", "pos": 1}], "mysql")],
    ids=["as the events say", "as the call says"],
)
def test_a_day_that_may_be_a_zero_date_is_malformed_unless_it_is_said_what_it_is(
    spark: SparkSession, sources: list[dict[str, Any]], connector: str | None
) -> None:
    log, firsts = zero_events(spark, *sources), range(0, 4 * len(sources), 4)

    def read(**options: Any) -> DataFrame:
        return debezium_json(log, ZEROS, timestamps={"ms": "ms"}, connector=connector, **options)

    found = reasons(read(malformed="only"))
    assert [(n, reason.split(",")[0]) for n, reason in found] == [
        (first + n, f"column '{name}' is 1970-01-01") for first in firsts for n, name in enumerate(EPOCH)
    ]
    assert all("0000-00-00; set its meaning with zero_dates=" in reason for _, reason in found)

    def values(**options: Any) -> list[tuple[Any, ...]]:
        made = read(keep="n", **options).orderBy("n")
        return [
            tuple(row)
            for row in made.selectExpr("unix_date(d)", "unix_millis(ms)", "unix_millis(tz)").collect()
        ]

    later = 1_577_836_800_000
    assert values(zero_dates="1970-01-01") == len(sources) * [
        (0, 86_400_000, later), (19000, 0, later), (19000, 86_400_000, 0), (19000, 86_400_000, later),
    ]  # fmt: skip
    assert values(zero_dates=dt.date(1970, 1, 11)) == len(sources) * [
        (10, 86_400_000, later), (19000, 864_000_000, later), (19000, 86_400_000, 864_000_000),
        (19000, 86_400_000, later),
    ]  # fmt: skip
    empty = reasons(read(malformed="only", zero_dates="null"))
    assert empty == [(first, "column 'd' has no value") for first in firsts]
    assert values(malformed="drop", zero_dates="null") == len(sources) * [
        (19000, None, later), (19000, 86_400_000, None), (19000, 86_400_000, later),
    ]  # fmt: skip


def test_the_day_1970_01_01_of_other_databases_is_a_value(spark: SparkSession) -> None:
    log = zero_events(spark, {"connector": "postgresql"})
    assert reasons(debezium_json(log, ZEROS, timestamps={"ms": "ms"}, malformed="only")) == []


def test_a_zero_date_in_the_row_before_a_change_counts_where_it_is_used(spark: SparkSession) -> None:
    log = events(spark, change("u", {"id": 1, "d": 0}, {"id": 1, "d": 5}, connector="mysql"))
    assert len(reasons(debezium_json(log, "id int, d date", malformed="only"))) == 1
    read = debezium_json(log, "id int, d date", upsert_key="id")
    assert rows(read) == [(1, dt.date(1970, 1, 6), "+U")]


@pytest.mark.parametrize(
    ("raw", "kind"), [("0000-00-00", "date"), ("2020-00-10", "date"), ("0000-00-00 00:00:00", "timestamp")]
)
def test_zero_dates_of_maxwell_and_canal_are_malformed(spark: SparkSession, raw: str, kind: str) -> None:
    row = {"id": 1, "d": raw}
    maxwell = maxwell_json(
        events(spark, {"type": "insert", "data": row}), f"id int, d {kind}", malformed="only"
    )
    canal = canal_json(
        events(spark, {"type": "INSERT", "data": [_texts(row)]}), f"id int, d {kind}", malformed="only"
    )
    for read in (maxwell, canal):
        ((_, reason),) = reasons(read)
        assert reason == f"column 'd': '{raw}' is not of type {kind} in the declared form"


@pytest.mark.parametrize("zero_dates", ["0000-00-00", 0, dt.datetime(1970, 1, 1), "NULL"])
def test_what_zero_dates_cannot_be_is_refused(spark: SparkSession, zero_dates: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=("zero_dates=.* is not a date; give the replacement of 0000-00-00")
    ):
        debezium_json(events(spark), ITEMS, zero_dates=zero_dates)


def test_a_message_with_more_than_an_event_is_malformed(spark: SparkSession) -> None:
    formats = [
        (debezium_json, change("c", None, A)),
        (maxwell_json, {"type": "insert", "data": A}),
        (canal_json, {"type": "INSERT", "data": [_texts(A)]}),
    ]
    for read, event in formats:
        one = json.dumps(event)
        behind = [
            one, f"\n{one}", f",{one}", f"],[{one}", f"]}} {one}", ' garbage', "}", "]", "]}", ",", '{"', "null",
            ',{"__asyncstate_end":true}',
        ]  # fmt: skip
        given = events(spark, *(one + more for more in behind), f"[{one}]", f"[{one},{one}]", f" {one}\n ")
        found = reasons(read(given, ITEMS, malformed="only"))
        assert [n for n, _ in found] == list(range(len(behind) + 2))
        assert all("or more text follows it" in reason for _, reason in found)
        assert rows(read(given, ITEMS, malformed="drop")) == [(1, "a", "+I")]


@pytest.mark.parametrize("name", ["row_kind", "ROW_KIND", "Row_Kind"])
def test_the_kind_of_rows_has_its_name_in_any_case(spark: SparkSession, name: str) -> None:
    with pytest.raises(SchemaError, match="more than one column 'row_kind'"):
        debezium_json(events(spark), f"id int, {name} string")
    flat = spark.createDataFrame([("I", "+U", 1)], f"op string, {name} string, id int")
    with pytest.raises(SchemaError, match=f"has a column '{name}' already"):
        operation_column(flat, "op", {"I": "+I"})
    assert rows(operation_column(flat, name, {"+U": "+I"})) == [("I", 1, "+I")]


@pytest.mark.parametrize("kinds", [7, None, "+I", ["+I"], {7: "+I"}])
def test_kinds_that_are_no_mapping_of_texts_are_refused(spark: SparkSession, kinds: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a dict from the values of 'op'"):
        operation_column(spark.createDataFrame([("I",)], "op string"), "op", kinds)


def test_bytes_that_are_no_text_are_malformed(spark: SparkSession) -> None:
    """Spark would read U+FFFD in their place."""
    latin, good = (
        '{"id": 1, "name": "Z\u00fcrich"}'.encode("latin-1"),
        '{"id": 2, "name": "Z\u00fcrich \ufffd"}',
    )
    given = [(0, latin), (1, good.encode()), (2, None)]
    df = spark.createDataFrame(given, "n int, value binary")
    for value in (df, df.selectExpr("n", "cast(value as string) as value")):
        assert rows(json_rows(value, ITEMS, malformed="drop")) == [(2, "Z\u00fcrich \ufffd")]
        assert reasons(json_rows(value, ITEMS, malformed="only")) == [(0, "the message is not text in UTF-8")]


def test_numbers_beyond_the_largest_float_are_malformed(spark: SparkSession) -> None:
    pairs = [(1e39, 0), ("-1e39", 0), (0, "1e400"), ("Infinity", " -inf "), ("+Inf", "NaN"), (None, 1e300)]
    given = events(spark, *(change("c", None, {"f": f, "d": d}) for f, d in pairs))
    found = dict(reasons(debezium_json(given, "f float, d double", malformed="only")))
    assert found == {
        0: "column 'f': '1.0E39' is not of type float in the declared form",
        1: "column 'f': '-1e39' is not of type float in the declared form",
        2: "column 'd': '1e400' is not of type double in the declared form",
    }
    read = rows(debezium_json(given, "f float, d double", malformed="drop").selectExpr("f", "string(d)"))
    assert read == [(math.inf, "-Infinity"), (math.inf, "NaN"), (None, "1.0E300")]


def _signed(number: int) -> bytes:
    """As Java's BigInteger.toByteArray."""
    size = 1
    while not -(1 << (8 * size - 1)) <= number < 1 << (8 * size - 1):
        size += 1
    return number.to_bytes(size, "big", signed=True)


def test_texts_of_numbers_and_times_in_any_session(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    session.conf.set("spark.sql.ansi.enabled", "false")
    schema = "price decimal(30, 8), at timestamp, day date, b boolean"
    given = [
        '{"op":"c","after":{"price":1234567890123456789012.12345678,"at":"2024-02-29 12:00:00","b":"true"}}',
        change("c", None, {"price": "-0.5", "at": "2024-02-29T12:00:00Z", "day": "2024-02-29", "b": False}),
        change(
            "c", None, {"at": "2024-02-29T12:00:00.000000Z", "day": "2024-02-29Z"}
        ),  # time.precision.mode=isostring
    ]
    read = debezium_json(events(session, *given), schema, decimals="text")
    noon = int(dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC).timestamp()) * 1_000_000
    assert rows(read.selectExpr("price", "unix_micros(at)", "day", "b")) == [
        (Decimal("1234567890123456789012.12345678"), noon, None, True),
        (Decimal("-0.50000000"), noon, dt.date(2024, 2, 29), False),
        (None, noon, dt.date(2024, 2, 29), None),
    ]
    bad = [
        {"at": 1_700_000_000_000}, {"at": "12:00:00"}, {"at": "2024-02-30 12:00:00"}, {"day": "soon"}, {"b": "yes"},
        {"price": "a lot"}, {"price": 10**30}, {"at": "infinity"}, {"price": ""},
        {"day": "2024-02-29 12:00:00"}, {"at": ""}, {"day": "2024-02-30Z"}, {"day": "2024-02-29ZZ"},
    ]  # fmt: skip
    found = debezium_json(
        events(session, *(change("c", None, row) for row in bad)), schema, decimals="text", malformed="only"
    )
    assert [n for n, _ in reasons(found)] == list(range(len(bad)))
    assert dict(reasons(found))[6] == (
        "not an event of this format, or more text follows it, or a decimal that does not fit its type"
    )
    far = debezium_json(
        events(session, change("c", None, {"at": 2**62})), "at timestamp", timestamps="ms", malformed="only"
    )
    assert [reason for _, reason in reasons(far)] == [
        f"column 'at': '{2**62}' is not of type timestamp in the declared form"
    ]


def test_a_decimal_with_a_comma_is_malformed(spark: SparkSession) -> None:
    """Spark's parser removes commas: 1,5 would be 15."""
    schema = "price decimal(10, 2), note string"
    prices = ["1,5", "1,234.50", ",5", "-1,0e1"]
    good = [
        {"price": "1.5", "note": "1,5"},
        {"price": 2.5},
        {"price": None, "note": "x,1,y"},
        {"note": '"1,5"'},
    ]
    given: list[dict[str, Any]] = [*good, *({"price": price} for price in prices)]
    read = [(Decimal("1.50"), "1,5"), (Decimal("2.50"), None), (None, "x,1,y"), (None, '"1,5"')]
    said = [
        f"column 'price': '{price}' is not of type decimal(10,2) in the declared form" for price in prices
    ]
    bad = list(enumerate(said, len(good)))
    assert rows(json_rows(events(spark, *given), schema, malformed="drop")) == read
    assert reasons(json_rows(events(spark, *given), schema, malformed="only")) == bad
    changes = events(spark, *(change("c", None, row) for row in given))
    assert reasons(debezium_json(changes, schema, decimals="text", malformed="only")) == bad
    gone = events(spark, change("d", {"price": "1,5", "note": "k"}))
    upserts = debezium_json(gone, schema, decimals="text", upsert_key="note")
    assert rows(upserts) == [(None, "k", "-D")]
    assert len(reasons(debezium_json(gone, schema, decimals="text", malformed="only"))) == 1
    updates = events(spark, *({"type": "update", "data": {"price": "2"}, "old": row} for row in given[3:5]))
    assert reasons(maxwell_json(updates, schema, malformed="only")) == [(1, said[0])]
    two = events(spark, {"type": "INSERT", "data": [{"price": "2"}, {"price": "1,5"}]})
    assert reasons(canal_json(two, schema, malformed="only")) == [(0, said[0])]


def test_maxwell(spark: SparkSession) -> None:
    schema = "id int, name string, price decimal(20, 2)"
    new = {"id": 1, "name": None, "price": 123456789012345678.12}
    texts = [
        '{"type":"bootstrap-start","table":"t"}',
        '{"type":"bootstrap-insert","data":{"id":1,"name":"a","price":5.10}}',
        '{"type":"update","position":"master.000006:800911","data":{"id":1,"price":123456789012345678.12},'
        '"old":{"name":"a","price":5.10}}',
        '{"type":"update","position":"m.000006:9","data":{"id":1,"name":"x","price":1},"old":{"name":null}}',
        {"type": "delete", "position": "m.000007:4", "data": {"id": 1, "name": "x", "price": 1}},
    ]
    read = maxwell_json(events(spark, *texts), schema, position=True)
    assert read.columns == ["id", "name", "price", *POSITIONS["maxwell"], "row_kind"]
    cents = Decimal("5.10")
    long = Decimal("123456789012345678.12")
    assert float(long) == new["price"]
    assert rows(read) == [
        (1, "a", cents, 0, None, None, "+I"),
        (1, "a", cents, 1, 6, 800911, "-U"), (1, None, long, 1, 6, 800911, "+U"),
        (1, None, Decimal(1), 1, 6, 9, "-U"), (1, "x", Decimal(1), 1, 6, 9, "+U"),
        (1, "x", Decimal(1), 1, 7, 4, "-D"),
    ]  # fmt: skip
    moved = {"type": "update", "data": {"id": 2, "name": "a"}, "old": {"id": 1}}
    assert rows(maxwell_json(events(spark, moved), ITEMS, upsert_key=["id"])) == [
        (1, None, "-D"), (2, "a", "+U"),
    ]  # fmt: skip
    bad = [
        {"type": "table-drop"},
        {"type": "update", "data": A},
        {"type": "insert"},
        {"type": "delete", "data": None},
    ]
    found = maxwell_json(events(spark, *bad), ITEMS, malformed="only", skip=["table-drop"])
    assert [n for n, _ in reasons(found)] == [1, 2, 3]


def test_canal(spark: SparkSession) -> None:
    schema = "id int, name string, price decimal(10, 2)"
    row = {"id": "1", "name": "a", "price": "5.18"}
    given = [
        {"type": "INSERT", "data": [row, {**row, "id": "2"}], "old": None, "isDdl": False},
        {
            "type": "UPDATE",
            "data": [row, {**row, "id": "2", "name": None}],
            "old": [{"price": "5"}, {"name": "b"}],
        },
        {"type": "DELETE", "data": [row], "old": None},
    ]
    cents = Decimal("5.18")
    assert rows(canal_json(events(spark, *given), schema, keep="n")) == [
        (1, "a", cents, 0, "+I"), (2, "a", cents, 0, "+I"),
        (1, "a", Decimal(5), 1, "-U"), (1, "a", cents, 1, "+U"), (2, "b", cents, 1, "-U"), (2, None, cents, 1, "+U"),
        (1, "a", cents, 2, "-D"),
    ]  # fmt: skip
    bad = [
        {"type": "ALTER", "isDdl": True, "data": None},
        {"type": "UPDATE", "data": [row, row], "old": [{"price": "5"}]},
        {"type": "INSERT", "data": [row, {"id": "x"}]},
        {"type": "INSERT", "data": [None]},
    ]
    found = dict(reasons(canal_json(events(spark, *bad), schema, malformed="only")))
    assert sorted(found) == [0, 1, 2, 3]
    assert "operation 'ALTER'" in found[0]
    assert rows(canal_json(events(spark, *bad), schema, malformed="drop")) == []


def test_a_dropped_message_is_marked_wherever_it_comes_from(spark: SparkSession) -> None:
    schema = "topic string, partition int, offset bigint, value string"
    frame = spark.createDataFrame([("t", 1, 2, "x"), (None, 1, None, "x")], schema)
    assert rows(frame.selectExpr(mark_of(frame.columns, "'bad'", "value"))) == [
        ("topic t, partition 1, offset 2: bad",),
        ("topic null, partition 1, offset null: bad",),
    ]


def test_operation_columns(spark: SparkSession) -> None:
    feed = spark.createDataFrame(
        [(1, "insert", 3), (1, "update_preimage", 4), (2, "update_postimage", 4), (2, "delete", 5)],
        "`a.b` int, _change_type string, _commit_version long",
    ).selectExpr("*", "current_timestamp() as _commit_timestamp")
    read = delta_change_feed(feed)
    assert read.columns == ["a.b", "_commit_version", "row_kind"]
    assert rows(read) == [(1, 3, "+I"), (1, 4, "-U"), (2, 4, "+U"), (2, 5, "-D")]
    given = spark.createDataFrame([(1, 0), (2, 1), (3, 7), (4, None)], "id int, op int")
    kinds = {"0": "+I", "1": "-D"}
    assert rows(operation_column(given, "op", kinds, malformed="drop")) == [(1, "+I"), (2, "-D")]
    assert rows(operation_column(given, "op", kinds, malformed="only")) == [
        (3, 7, "operation '7' in column 'op' is not one of 0, 1"),
        (4, None, "operation 'null' in column 'op' is not one of 0, 1"),
    ]
    own = operation_column(spark.createDataFrame([("add",)], "row_kind string"), "row_kind", {"add": "+U"})
    assert rows(own) == [("+U",)]


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"schema": "id bigint,"}, SchemaError, "cannot be read"),
        ({"schema": ""}, SchemaError, "has no columns"),
        ({"schema": "id array<int>"}, SchemaError, "'id' is of type array<int>.* declare it as string"),
        ({"schema": "n int", "keep": "n"}, SchemaError, "more than one column 'n'"),
        ({"schema": "row_kind string"}, SchemaError, "more than one column 'row_kind'"),
        ({"schema": "source_lsn int", "connector": "postgresql"}, SchemaError, "one column 'source_lsn'"),
        ({"value": "n"}, SchemaError, "column 'n' is of type int"),
        ({"value": "v"}, SchemaError, "no column 'v'; its columns are: n, value"),
        ({"keep": ["n", "offset"]}, SchemaError, "no column 'offset'"),
        ({"upsert_key": "key"}, SchemaError, "upsert_key names 'key'"),
        ({"malformed": "ignore"}, ConfigurationError, "not one of fail, drop, only"),
        ({"connector": "oracle"}, ConfigurationError, "supported are postgresql, mysql, sqlserver"),
        ({"schema": "p decimal(9, 2)"}, ConfigurationError, "'base64' for decimal.handling.mode=precise"),
        ({"decimals": "float"}, ConfigurationError, "decimals='float'"),
        ({"timestamps": "seconds"}, ConfigurationError, "the units are iso, ms, us, ns"),
        ({"timestamps": {"id": "ms"}}, SchemaError, "names 'id', which is not a timestamp"),
    ],
)
def test_what_is_refused_before_a_row_is_read(
    spark: SparkSession, settings: dict[str, Any], kind: type[AsyncStateError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        debezium_json(events(spark), **{"schema": ITEMS, **settings})


def test_what_the_other_sources_refuse(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("I", "+I", 1)], "op string, row_kind string, _change_type int")
    with pytest.raises(SchemaError, match="'b' is of type binary"):
        canal_json(events(spark), "b binary")
    with pytest.raises(SchemaError, match="no column 'operation'"):
        operation_column(frame, "operation", {"I": "+I"})
    with pytest.raises(SchemaError, match="'row_kind' already"):
        operation_column(frame, "op", {"I": "+I"})
    with pytest.raises(ConfigurationError, match="maps to 'insert'"):
        operation_column(frame.drop("row_kind"), "op", {"I": "insert"})
    with pytest.raises(ConfigurationError, match="kinds is empty"):
        operation_column(frame.drop("row_kind"), "op", {})
    with pytest.raises(SchemaError, match="readChangeFeed"):
        delta_change_feed(frame.drop("row_kind"))


def test_a_reader_with_an_upsert_key_knows_the_mode_of_its_rows(spark: SparkSession) -> None:
    log = events(spark, change("c", None, {"id": 1, "name": "a"}))
    columns = "id bigint not null, name string"
    for read in (debezium_json, maxwell_json, canal_json):
        assert known_changes(read(log, columns, upsert_key="id")) == Changelog.upsert("id")
        assert known_changes(read(log, columns)) == Changelog.retract()
        assert known_changes(read(log, columns, upsert_key="id", malformed="only")) == Changelog.insert_only()
    upserts = debezium_json(log, columns, upsert_key=["id"])
    for given in ((None, None, None), ("upsert", None, None), (None, True, "id")):
        assert source_facts("users", upserts, *given) == (ChangelogMode.UPSERT, ("id",))
    for wrong, said in (
        (("retract", None, None), "mode='retract'"),
        ((None, False, None), "changelog=False"),
        ((None, None, "name"), "primary_key='name'"),
    ):
        with pytest.raises(
            JobError, match=rf"source 'users': {said}, but .* upsert by \(id\); leave {said} out"
        ):
            source_facts("users", upserts, *wrong)
    assert source_facts("users", log, "retract", None, "n") == ("retract", "n")


def test_a_job_over_upserts_that_were_read_needs_no_mode(
    spark: SparkSession, make_job: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    log = spark.readStream.text(str(tmp_path / "log"))
    job = make_job()
    users = job.source("users", debezium_json(log, "id bigint not null, name string", upsert_key="id"))
    users.apply(ChangelogNormalize(), key="id", uid="newest").to(print, name="out")
    job.check()
    assert "gives upsert by (id)" in job.explain()
    users.apply(GroupAggregate([count()]), key="name", uid="names")
    with pytest.raises(
        JobError, match=r"needs the row before each change, but .*upsert by \(id\), of source 'users'"
    ):
        job.check()
