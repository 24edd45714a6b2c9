"""The SQL of the queries against events small enough to work the result out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bench.nexmark.oracle import QUERIES, register_events

NOON = datetime(2015, 7, 15, 12)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("""
            CREATE TABLE person (id BIGINT, name VARCHAR, emailAddress VARCHAR, creditCard VARCHAR,
                city VARCHAR, state VARCHAR, dateTime TIMESTAMP, extra VARCHAR);
            CREATE TABLE auction (id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT,
                reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT,
                extra VARCHAR);
            CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
                dateTime TIMESTAMP, extra VARCHAR);
            CREATE TABLE bid_arrival (bidder BIGINT, micro_batch BIGINT)""")
        yield connection


def person(
    db: duckdb.DuckDBPyConnection, id: int, state: str = "OR", name: str = "Ann", time: float = 0
) -> None:
    db.execute("INSERT INTO person VALUES (?, ?, 'e', 'c', 'Bend', ?, ?, 'x')", [id, name, state, at(time)])


def auction(
    db: duckdb.DuckDBPyConnection,
    id: int,
    seller: int = 1,
    category: int = 10,
    time: float = 0,
    expires: float = 9,
) -> None:
    db.execute(
        "INSERT INTO auction VALUES (?, ?, 'd', 5, 7, ?, ?, ?, ?, 'y')",
        [id, f"item {id}", at(time), at(expires), seller, category],
    )


def bid(
    db: duckdb.DuckDBPyConnection,
    auction: int,
    price: int = 100,
    time: float = 0,
    bidder: int = 1,
    channel: str = "channel-1",
    url: str = "https://www.nexmark.com/a_b/cde/fgh/item.htm?query=1",
    extra: str = "z",
) -> None:
    db.execute(
        "INSERT INTO bid VALUES (?, ?, ?, ?, ?, ?, ?)",
        [auction, bidder, price, channel, url, at(time), extra],
    )


def result(db: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return sorted(db.execute(QUERIES[query].sql).fetchall(), key=repr)


@pytest.mark.parametrize("name", QUERIES)
def test_the_sql_has_the_documented_columns_and_types(db: duckdb.DuckDBPyConnection, name: str) -> None:
    duck_types = {
        "bigint": "BIGINT",
        "string": "VARCHAR",
        "timestamp": "TIMESTAMP",
        "decimal(23,3)": "DECIMAL(23,3)",
    }
    described = db.execute(f"DESCRIBE {QUERIES[name].sql}").fetchall()
    assert {row[0]: row[1] for row in described} == {
        column: duck_types[kind] for column, kind in QUERIES[name].columns.items()
    }
    assert [row[0] for row in described] == list(QUERIES[name].columns)


@pytest.mark.parametrize("name", QUERIES)
def test_the_fields_a_query_needs_are_enough(db: duckdb.DuckDBPyConnection, name: str) -> None:
    tables = {row[0] for row in db.execute("SHOW TABLES").fetchall()} - {"bid_arrival"}
    for table in tables:
        kept = QUERIES[name].needs.get(table, ())
        for column, *_rest in db.execute(f"DESCRIBE {table}").fetchall():
            if kept and column not in kept:
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        if not kept:
            db.execute(f"DROP TABLE {table}")
    db.execute(QUERIES[name].sql)


def test_q1_multiplies_by_the_rate(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 7, price=1234)
    ((_, _, price, _, _),) = result(db, "q1")
    assert str(price) == "1120.472"


def test_q2_takes_every_123rd_auction(db: duckdb.DuckDBPyConnection) -> None:
    for number in (1106, 1107, 1108, 1230):
        bid(db, number, price=number)
    assert result(db, "q2") == [(1107, 1107), (1230, 1230)]


def test_q3_joins_sellers_of_three_states_in_category_10(db: duckdb.DuckDBPyConnection) -> None:
    for number, state in enumerate(["OR", "ID", "CA", "WA"], start=1):
        person(db, number, state, name=f"P{number}")
        auction(db, 10 + number, seller=number)
    auction(db, 21, seller=1, category=11)
    auction(db, 22, seller=1)
    auction(db, 23, seller=99)
    assert result(db, "q3") == [
        ("P1", "Bend", "OR", 11),
        ("P1", "Bend", "OR", 22),
        ("P2", "Bend", "ID", 12),
        ("P3", "Bend", "CA", 13),
    ]


def test_q4_averages_the_highest_bid_in_time(db: duckdb.DuckDBPyConnection) -> None:
    auction(db, 1, category=10, time=1, expires=5)
    auction(db, 2, category=10, time=1, expires=5)
    auction(db, 3, category=11, time=1, expires=5)
    auction(db, 4, category=12)
    bid(db, 1, price=900, time=0.999999)  # before the auction
    bid(db, 1, price=100, time=1)
    bid(db, 1, price=300, time=5)  # both ends count
    bid(db, 1, price=800, time=5.000001)  # after it
    bid(db, 2, price=402, time=3)
    bid(db, 3, price=50, time=3)
    bid(db, 9, price=50, time=3)
    # (300 + 402) / 2 = 351; category 12 has no bid and so no row
    assert result(db, "q4") == [(10, 351), (11, 50)]
    bid(db, 2, price=403, time=3)
    assert result(db, "q4") == [(10, 351), (11, 50)]  # 351.5 loses its fraction


def test_q5_finds_the_most_bids_of_each_hop(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, time=1)
    bid(db, 1, time=1.5)
    bid(db, 2, time=1)
    bid(db, 2, time=3)
    # Windows of 10 s start at -8, -6, -4, -2, 0 and 2. The one from -8 ends before the bid at 3 s; those from
    # -6 to 0 have two bids on each, a tie, and both are shown; the one from 2 has only the bid at 3 s.
    assert result(db, "q5") == sorted([(1, 2)] + [(1, 2), (2, 2)] * 4 + [(2, 1)], key=repr)


def test_q6_averages_eleven_winning_bids_of_a_seller(db: duckdb.DuckDBPyConnection) -> None:
    for number in range(12):
        auction(db, number, seller=5, time=0, expires=100)
        bid(db, number, price=number * 100, time=number)
        bid(db, number, price=number * 100 - 1, time=number)
    averages = [100 * sum(range(max(0, last - 10), last + 1)) // min(11, last + 1) for last in range(12)]
    assert result(db, "q6") == sorted(((5, average) for average in averages), key=repr)


def test_q7_shows_the_highest_bids_of_each_window(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, price=10, time=0)
    bid(db, 2, price=30, time=4)
    bid(db, 3, price=30, time=9.999999)
    bid(db, 4, price=20, time=12)
    bid(db, 5, price=30, time=13)
    assert [(row[0], row[2]) for row in result(db, "q7")] == [(2, 30), (3, 30), (5, 30)]


def test_q7_counts_a_bid_on_the_boundary_for_both_windows(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, price=30, time=4)
    bid(db, 2, price=30, time=10)
    # The query compares with BETWEEN, so the bid at 10 s also matches the window that ends there.
    assert [(row[0], row[2]) for row in result(db, "q7")] == [(1, 30), (2, 30), (2, 30)]


def test_q8_joins_people_and_auctions_of_one_window(db: duckdb.DuckDBPyConnection) -> None:
    person(db, 1, name="A", time=2)
    person(db, 2, name="B", time=2)
    person(db, 3, name="C", time=11)
    auction(db, 10, seller=1, time=9)
    auction(db, 11, seller=1, time=9.5)  # twice in one window: one row
    auction(db, 12, seller=2, time=10)  # next window
    auction(db, 13, seller=3, time=10)
    assert result(db, "q8") == [(1, "A", at(0)), (3, "C", at(10))]


def test_q9_takes_the_earlier_of_equal_highest_bids(db: duckdb.DuckDBPyConnection) -> None:
    auction(db, 1)
    auction(db, 2)
    for time, price, bidder in ((1, 50, 11), (2, 70, 12), (3, 70, 13)):
        bid(db, 1, price, time, bidder)
    ((number, *_), *others) = result(db, "q9")
    assert (number, others) == (1, [])
    assert db.execute(f"SELECT bidder, price, bid_dateTime FROM ({QUERIES['q9'].sql})").fetchall() == [
        (12, 70, at(2))
    ]


def test_q10_adds_day_and_minute(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, time=61)
    assert result(db, "q10")[0][-2:] == ("2015-07-15", "12:01")


def test_q11_parts_sessions_by_more_than_ten_seconds(db: duckdb.DuckDBPyConnection) -> None:
    for time in (0, 4, 14, 24.000001, 60):
        bid(db, 1, time=time, bidder=7)
    bid(db, 2, time=5, bidder=8)
    assert result(db, "q11") == sorted(
        [
            (7, 3, at(0), at(24)),  # exactly 10 s from 4 to 14 keeps the session open
            (7, 1, at(24.000001), at(34.000001)),
            (7, 1, at(60), at(70)),
            (8, 1, at(5), at(15)),
        ],
        key=repr,
    )


def test_q14_converts_filters_and_counts(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, price=2_000_000, time=0, extra="cabc")
    bid(db, 2, price=2_000_000, time=7.5 * 3600)  # 19:30
    bid(db, 3, price=2_000_000, time=9 * 3600)  # 21:00
    bid(db, 4, price=1_101_321)  # 999,999.468 euro cents: too low
    bid(db, 5, price=60_000_000)
    rows = [(row[0], str(row[2]), row[3], row[6]) for row in result(db, "q14")]
    assert rows == [
        (1, "1816000.000", "dayTime", 2),
        (2, "1816000.000", "otherTime", 0),
        (3, "1816000.000", "nightTime", 0),
    ]


def test_q15_and_q16_count_distinct_by_level(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, price=9_999, bidder=1, channel="Apple")
    bid(db, 1, price=10_000, bidder=1, channel="Apple", time=60)
    bid(db, 2, price=999_999, bidder=2, channel="Baidu")
    bid(db, 2, price=1_000_000, bidder=1, channel="Apple")
    bid(db, 2, price=1_000_000, bidder=1, channel="Apple", time=13 * 3600)  # 01:00 of the next day
    assert result(db, "q15") == [
        ("2015-07-15", 4, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1),
        ("2015-07-16", 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1),
    ]
    assert result(db, "q16") == [
        ("Apple", "2015-07-15", "12:01", 3, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1),
        ("Apple", "2015-07-16", "01:00", 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1),
        ("Baidu", "2015-07-15", "12:00", 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0),
    ]


def test_q17_reports_an_auction_by_day(db: duckdb.DuckDBPyConnection) -> None:
    for price in (100, 9_999, 10_000, 1_000_000):
        bid(db, 1, price)
    bid(db, 1, price=3, time=13 * 3600)
    bid(db, 2, price=5)
    assert result(db, "q17") == [
        (1, "2015-07-15", 4, 2, 1, 1, 100, 1_000_000, 255_024, 1_020_099),  # 1,020,099 / 4 = 255,024.75
        (1, "2015-07-16", 1, 1, 0, 0, 3, 3, 3, 3),
        (2, "2015-07-15", 1, 1, 0, 0, 5, 5, 5, 5),
    ]


def test_q18_keeps_the_last_bid_of_a_bidder_on_an_auction(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, price=10, time=3, bidder=1)
    bid(db, 1, price=30, time=5, bidder=1)
    bid(db, 1, price=20, time=4, bidder=1)
    bid(db, 1, price=40, time=1, bidder=2)
    bid(db, 2, price=50, time=1, bidder=1)
    assert [row[:3] for row in result(db, "q18")] == [(1, 1, 30), (1, 2, 40), (2, 1, 50)]


def test_q19_ranks_ten_bids_and_the_earlier_of_equal_ones_first(db: duckdb.DuckDBPyConnection) -> None:
    for number in range(12):
        bid(db, 1, price=100 + number // 2, time=number, bidder=number)
    bid(db, 2, price=1)
    ranked = {(row[0], row[7]): row[1] for row in result(db, "q19")}
    assert [ranked[1, rank] for rank in range(1, 11)] == [10, 11, 8, 9, 6, 7, 4, 5, 2, 3]
    assert ranked[2, 1] == 1
    assert len(ranked) == 11


def test_q20_expands_bids_of_category_10(db: duckdb.DuckDBPyConnection) -> None:
    auction(db, 1, category=10, expires=3)
    auction(db, 2, category=11)
    bid(db, 1, price=70, time=99)  # late for the auction, yet joined
    bid(db, 1, price=80)
    bid(db, 2, price=90)
    bid(db, 3, price=91)
    columns = list(QUERIES["q20"].columns)
    rows = [dict(zip(columns, row, strict=True)) for row in result(db, "q20")]
    assert [(row["price"], row["bid_dateTime"], row["bid_extra"]) for row in rows] == [
        (70, at(99), "z"),
        (80, at(0), "z"),
    ]
    assert {(row["itemName"], row["auction_extra"], row["expires"]) for row in rows} == {
        ("item 1", "y", at(3))
    }


def test_q21_finds_channel_ids_by_name_or_url(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1, channel="Google")
    bid(db, 2, channel="channel-7", url="https://www.nexmark.com/a/b/c/item.htm?query=1&channel_id=42")
    bid(db, 3, channel="channel-8")
    assert [(row[0], row[4]) for row in result(db, "q21")] == [(1, "1"), (2, "42")]


def test_q22_splits_the_url(db: duckdb.DuckDBPyConnection) -> None:
    bid(db, 1)
    assert result(db, "q22")[0][-3:] == ("a_b", "cde", "fgh")


def test_views_read_the_wide_rows_of_the_event_files(tmp_path: Path) -> None:
    instant = "CAST('2015-07-15 12:00:00+00' AS TIMESTAMPTZ)"
    with duckdb.connect() as db:
        db.execute(f"""
            COPY (
                SELECT 0 AS event_type, {{'id': 1, 'dateTime': {instant}}} AS person,
                    NULL::STRUCT(id BIGINT, "dateTime" TIMESTAMPTZ, expires TIMESTAMPTZ) AS auction,
                    NULL::STRUCT(price BIGINT, "dateTime" TIMESTAMPTZ) AS bid
                UNION ALL SELECT 1, NULL, {{'id': 2, 'dateTime': {instant}, 'expires': {instant}}}, NULL
                UNION ALL SELECT 2, NULL, NULL, {{'price': 3, 'dateTime': {instant}}}
            ) TO '{tmp_path}/events.parquet'""")
        register_events(db, tmp_path)
        assert db.execute("FROM person").fetchall() == [(1, NOON)]
        assert db.execute("FROM auction").fetchall() == [(2, NOON, NOON)]
        assert db.execute("FROM bid").fetchall() == [(3, NOON)]
