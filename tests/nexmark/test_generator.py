"""The events against the rules of the benchmark, and the same events however they are made."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstate.errors import ConfigurationError
from asyncstate.spark.compatibility import type_of_ddl
from bench.nexmark.generator import (
    AUCTION,
    BID,
    EVENT_SCHEMA,
    FIRST_NAMES,
    LAST_NAMES,
    PERSON,
    US_CITIES,
    US_STATES,
    GeneratorConfig,
    events,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

EVENTS = 20_000
BASE_US = 1_436_918_400_000_000


def rows_of(frame: DataFrame) -> list[Row]:
    return frame.collect()


@pytest.fixture(scope="module")
def generated(spark: SparkSession) -> list[dict[str, Any]]:
    """The first 20,000 events with their numbers, times as microseconds."""
    made = events(spark.range(0, EVENTS, 1, 1)).selectExpr(
        "event_type", "person", "auction", "bid", "unix_micros(dateTime) AS time",
        "unix_micros(auction.expires) AS expires", "unix_micros(coalesce(person.dateTime, auction.dateTime, "
        "bid.dateTime)) AS inner_time",
    )  # fmt: skip
    return [{"n": n, **row.asDict()} for n, row in enumerate(rows_of(made))]


def of_kind(generated: list[dict[str, Any]], kind: int) -> list[dict[str, Any]]:
    return [event for event in generated if event["event_type"] == kind]


def last_ids(n: int) -> tuple[int, int]:
    """The last person and auction, counted from 0, that exist at event ``n``; from the definition."""
    kinds = [PERSON] + [AUCTION] * 3 + [BID] * 46
    rounds, offset = divmod(n, 50)
    seen = Counter(kinds[: offset + 1])
    return rounds + seen[PERSON] - 1, rounds * 3 + seen[AUCTION] - 1


def near(share: float, expected: float, trials: int) -> bool:
    """Within five standard deviations of a binomial share."""
    return abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / trials)


def test_every_round_has_1_person_3_auctions_and_46_bids_in_this_order(
    generated: list[dict[str, Any]],
) -> None:
    kinds = [event["event_type"] for event in generated]
    assert kinds == ([PERSON] + [AUCTION] * 3 + [BID] * 46) * (EVENTS // 50)
    for event in generated:
        present = [kind for kind in ("person", "auction", "bid") if event[kind] is not None]
        assert present == [("person", "auction", "bid")[event["event_type"]]]


def test_ids_count_from_1000(generated: list[dict[str, Any]]) -> None:
    people, auctions = of_kind(generated, PERSON), of_kind(generated, AUCTION)
    assert [event["person"].id for event in people] == list(range(1000, 1000 + len(people)))
    assert [event["auction"].id for event in auctions] == list(range(1000, 1000 + len(auctions)))


def test_event_time_is_in_order_and_evenly_spaced(generated: list[dict[str, Any]]) -> None:
    assert [event["time"] for event in generated] == [BASE_US + n * 100 for n in range(EVENTS)]
    assert all(event["inner_time"] == event["time"] for event in generated)


def test_bids_go_to_the_hot_auction_or_to_one_in_flight(generated: list[dict[str, Any]]) -> None:
    bids, hot_bids = of_kind(generated, BID), 0
    for event in bids:
        last = last_ids(event["n"])[1]
        auction = event["bid"].auction - 1000
        assert max(last - 100, 0) <= auction <= last + 10 or auction == last // 100 * 100
        hot_bids += auction == last // 100 * 100
    # Half go to the hot one on purpose; one of the about 111 others may be the same.
    assert 0.5 <= hot_bids / len(bids) <= 0.5 + 0.5 / 90 + 5 * math.sqrt(0.25 / len(bids))


def test_bidders_and_sellers_are_hot_or_active(generated: list[dict[str, Any]]) -> None:
    for kind, place, ratio in ((BID, 1, 0.75), (AUCTION, 0, 0.75)):
        drawn, hot = of_kind(generated, kind), 0
        for event in drawn:
            last = last_ids(event["n"])[0]
            person = (event["bid"].bidder if kind == BID else event["auction"].seller) - 1000
            hot_person = last // 100 * 100 + place
            assert max(last + 1 - 1000, 0) <= person <= last + 10 or person == hot_person
            hot += person == hot_person
        # While there are few people, an active one drawn at random is often the hot one.
        assert ratio - 5 * math.sqrt(0.19 / len(drawn)) <= hot / len(drawn) <= ratio + 0.03


def test_the_first_person_id_is_added_once(generated: list[dict[str, Any]]) -> None:
    bidders = {event["bid"].bidder for event in of_kind(generated, BID)}
    assert min(bidders) == 1000
    assert max(bidders) <= 1000 + EVENTS // 50 + 10


def test_prices_are_spread_evenly_over_six_orders_of_magnitude(generated: list[dict[str, Any]]) -> None:
    prices = [event["bid"].price for event in of_kind(generated, BID)]
    assert min(prices) >= 100
    assert max(prices) <= 100_000_000
    decades = Counter(int(math.log10(price / 100)) for price in prices)
    assert all(near(decades[decade] / len(prices), 1 / 6, len(prices)) for decade in range(6))


def test_auctions_follow_their_rules(generated: list[dict[str, Any]]) -> None:
    auctions = of_kind(generated, AUCTION)
    categories = Counter(event["auction"].category for event in auctions)
    assert set(categories) == set(range(10, 15))
    assert all(near(count / len(auctions), 0.2, len(auctions)) for count in categories.values())
    assert all(event["auction"].reserve >= event["auction"].initialBid + 100 for event in auctions)
    # 100 auctions come in 1666 events, so in 166 ms: a length is 1 ms and at most twice that, less 1.
    lengths_ms = [(event["expires"] - event["time"]) / 1000 for event in auctions]
    assert min(lengths_ms) >= 1
    assert max(lengths_ms) <= 332
    assert sum(lengths_ms) / len(lengths_ms) == pytest.approx(166.5, abs=5 * 96 / math.sqrt(len(lengths_ms)))


def test_people_follow_their_rules(generated: list[dict[str, Any]]) -> None:
    people = [event["person"] for event in of_kind(generated, PERSON)]
    assert {person.state for person in people} == set(US_STATES)
    assert {person.city for person in people} == set(US_CITIES)
    assert {person.name.split(" ")[0] for person in people} == set(FIRST_NAMES)
    assert {person.name.split(" ")[1] for person in people} == set(LAST_NAMES)
    for person in people:
        assert [len(part) for part in person.creditCard.split(" ")] == [4] * 4
        assert person.emailAddress.endswith(".com")


def test_sizes_average_200_500_and_100_bytes(generated: list[dict[str, Any]]) -> None:
    def size(event: dict[str, Any]) -> int:
        if event["bid"] is not None:
            return 32 + len(event["bid"].extra)  # the benchmark leaves out channel and url
        if event["person"] is not None:
            texts = (
                event["person"][name]
                for name in ("name", "emailAddress", "creditCard", "city", "state", "extra")
            )
            return 8 + sum(map(len, texts))
        return 48 + sum(len(event["auction"][name]) for name in ("itemName", "description", "extra"))

    for kind, average in ((PERSON, 200), (AUCTION, 500), (BID, 100)):
        sizes = [size(event) for event in of_kind(generated, kind)]
        assert sum(sizes) / len(sizes) == pytest.approx(average, rel=0.02)
        assert len(set(sizes)) > average / 10


def test_half_the_bids_name_a_hot_channel_and_each_channel_has_one_url(
    generated: list[dict[str, Any]],
) -> None:
    bids = [event["bid"] for event in of_kind(generated, BID)]
    hot = [bid for bid in bids if bid.channel in ("Google", "Facebook", "Baidu", "Apple")]
    assert near(len(hot) / len(bids), 0.5, len(bids))
    urls: dict[str, set[str]] = {}
    for bid in bids:
        urls.setdefault(bid.channel, set()).add(bid.url)
        assert bid.url.startswith("https://www.nexmark.com/")
        assert len(bid.url.split("/")) == 7
        assert "item.htm?query=1" in bid.url
    assert all(len(found) == 1 for found in urls.values())
    cold = {channel: url for channel, (url,) in urls.items() if channel.startswith("channel-")}
    with_id = {channel: url.split("&channel_id=")[1] for channel, url in cold.items() if "channel_id" in url}
    assert near(len(with_id) / len(cold), 0.9, len(cold))
    assert not any("channel_id" in bid.url for bid in hot)
    for channel, text in with_id.items():
        reversed_bits = int(f"{int(channel[8:]):032b}"[::-1], 2)
        assert int(text) == abs(reversed_bits - (reversed_bits >> 31 << 32))


def test_partitioning_changes_nothing(spark: SparkSession, generated: list[dict[str, Any]]) -> None:
    numbers = [0, 1, 77, 4_999, 12_345, 19_999]
    made = events(spark.createDataFrame([(n,) for n in reversed(numbers)], "id bigint").repartition(3))
    assert made.schema.simpleString() == type_of_ddl(EVENT_SCHEMA).simpleString()
    again = {row.dateTime: row for row in rows_of(made)}
    for row, n in zip([again[time] for time in sorted(again)], numbers, strict=True):
        assert [row.person, row.auction, row.bid] == [
            generated[n][kind] for kind in ("person", "auction", "bid")
        ]


def test_a_stream_has_the_same_events(
    spark: SparkSession, generated: list[dict[str, Any]], tmp_path: Path
) -> None:
    ids = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load().select("value")
    writer = events(ids).writeStream.format("parquet").trigger(once=True)
    writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "out")).awaitTermination()
    streamed = rows_of(spark.read.parquet(str(tmp_path / "out")).orderBy("dateTime"))
    assert [(row.person, row.auction, row.bid) for row in streamed] == [
        (event["person"], event["auction"], event["bid"]) for event in generated[:100]
    ]


def test_ids_beyond_the_32_bit_range_do_not_overflow(spark: SparkSession) -> None:
    start = 2**42 - 50
    made = events(spark.range(start, start + 50, 1, 1), GeneratorConfig(first_event_rate=1))
    rows = rows_of(made.selectExpr("person.id AS person", "auction.id AS auction", "bid.price AS price"))
    assert [row.person for row in rows if row.person] == [1000 + -(-start // 50)]
    assert len(rows) == 50


def test_seed_changes_values_but_not_kinds_and_times(
    spark: SparkSession, generated: list[dict[str, Any]]
) -> None:
    other = rows_of(events(spark.range(200), GeneratorConfig(seed=1)))
    first = generated[:200]
    assert [row.event_type for row in other] == [event["event_type"] for event in first]
    assert (
        sum(row.bid.price == event["bid"].price for row, event in zip(other, first, strict=True) if row.bid)
        < 20
    )


def test_the_rate_spaces_events(spark: SparkSession) -> None:
    config = GeneratorConfig(first_event_rate=3)
    made = rows_of(events(spark.range(0, 100, 1, 1), config).selectExpr("unix_micros(dateTime) AS time"))
    assert [row.time for row in made] == [BASE_US + n * 1_000_000 // 3 for n in range(100)]


@pytest.mark.parametrize("rate", [0, 1_000_001])
def test_a_rate_out_of_range_is_refused_by_name(rate: int) -> None:
    with pytest.raises(ConfigurationError, match="first_event_rate"):
        GeneratorConfig(first_event_rate=rate)
