"""Nexmark events as Spark column expressions over a sequence of event ids, and as Parquet files in event order.

Invariant: the row of an id depends on the id and the configuration only: streaming, batch, any partitioning and any
scale give the same rows. No expression can overflow, so that ANSI mode is no matter. Built-in expressions only: Spark
compiles them, and no Python runs. Files sort by modification time and by name in the order of their events, so that a
file stream which takes ``files_per_micro_batch`` files a trigger sees micro-batch k as the events [k * m, (k + 1) * m).
Must not import asyncstate beyond its errors.

Source: ``NexmarkConfiguration`` and the generator of github.com/nexmark/nexmark, with these differences: event times
have microseconds, strings are cut from a constant random text, and the first person id is added to a bidder once.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.errors import ConfigurationError
from bench.frame.measure import stamp
from bench.nexmark.oracle import EVENT_KINDS, QuerySpec

PERSON, AUCTION, BID = 0, 1, 2
"""The values of ``event_type``."""

EVENT_SCHEMA = (
    "event_type int, "
    "person struct<id: bigint, name: string, emailAddress: string, creditCard: string, city: string, "
    "state: string, dateTime: timestamp, extra: string>, "
    "auction struct<id: bigint, itemName: string, description: string, initialBid: bigint, reserve: bigint, "
    "dateTime: timestamp, expires: timestamp, seller: bigint, category: bigint, extra: string>, "
    "bid struct<auction: bigint, bidder: bigint, price: bigint, channel: string, url: string, "
    "dateTime: timestamp, extra: string>, "
    "dateTime timestamp"
)
"""One wide row an event, as DDL text: the struct of its kind is set, the two others are null."""

MAX_EVENT_ID = 2**42
"""Above this the microseconds since ``BASE_TIME_MS`` would leave the bigint range at the lowest rate."""
US_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
US_CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
BASE_TIME_MS = 1_436_918_400_000  # of event 0: 2015-07-15 UTC
_PERSONS, _AUCTIONS, _ROUND = 1, 3, 50  # events of a round, in this order; the others are bids
_FIRST_ID, _FIRST_CATEGORY_ID, _CATEGORIES = 1000, 10, 5
_LEAD = 10  # so many people and auctions that do not exist yet may already bid, sell or get bids
_IN_FLIGHT_AUCTIONS, _ACTIVE_PEOPLE = 100, 1000  # bids, and sellers and bidders, are of the last so many
_HOT = 100  # of each block of so many the first auction and seller are hot, and the second bidder
_COLD_BIDS, _COLD_SELLERS, _COLD_BIDDERS, _COLD_CHANNELS = 2, 4, 4, 2  # one in so many is not of a hot one
_HOT_CHANNELS, _CHANNELS = ("Google", "Facebook", "Baidu", "Apple"), 10_000
_PERSON_BYTES, _AUCTION_BYTES, _BID_BYTES = 200, 500, 100  # on average, filled up by ``extra``
_TEXT_BYTES, _URL_BYTES, _LONG_BYTES = 1 << 16, 1 << 13, 8
_MAX_RATE = 1_000_000
_DRAW_BITS = 53
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_MIN_STRING_LENGTH, _GAP_RATIO = 3, 13


@dataclass(frozen=True)
class GeneratorConfig:
    """Another ``seed`` gives other random values; ids, kinds and times stay. ``first_event_rate``: events a second of
    event time, so few that no two share a microsecond and "the last bid" is one bid. Raises ConfigurationError."""

    seed: int = 0
    first_event_rate: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= self.first_event_rate <= _MAX_RATE:
            what = f"'first_event_rate' is {self.first_event_rate}; give 1 to {_MAX_RATE}"
            raise ConfigurationError(f"Nexmark generator: {what}")


def events(ids: DataFrame, config: GeneratorConfig | None = None) -> DataFrame:
    """The events with the given ids, as rows of ``EVENT_SCHEMA`` in the order of ``ids``, a batch or a streaming
    DataFrame of which the first column is a bigint with event numbers from 0."""
    config = config or GeneratorConfig()
    n = F.col(ids.columns[0])
    offset, epoch = n % _ROUND, F.call_function("div", n, F.lit(_ROUND))
    # A person comes before the auctions of its round, so the last auction there is, is of the round before.
    last_auction = (
        F.when(offset < _PERSONS, epoch * _AUCTIONS - 1)
        .when(offset < _PERSONS + _AUCTIONS, epoch * _AUCTIONS + offset - _PERSONS)
        .otherwise(epoch * _AUCTIONS + (_AUCTIONS - 1))
    )
    elapsed_us = F.call_function("div", n * 1_000_000, F.lit(config.first_event_rate))
    kind = F.when(offset < _PERSONS, PERSON).when(offset < _PERSONS + _AUCTIONS, AUCTION).otherwise(BID)
    # The last ids, counted from 0, that exist when the event happens. The channel is 0 to 9999 for a cold one, from
    # 10,000 for one of the few hot ones; a column of its own, because the url needs the number a dozen times.
    draws = Draws(n, config.seed)
    hot_number = draws.below("bid.hotChannelNumber", len(_HOT_CHANNELS)) + _CHANNELS
    cold_number = draws.below("bid.channelNumber", _CHANNELS)
    channel = F.when(draws.chance("bid.hotChannel", _COLD_CHANNELS), hot_number).otherwise(cold_number)
    base = ids.select(
        n.alias("n"),
        kind.alias("event_type"),
        (epoch * _PERSONS + F.least(offset, F.lit(_PERSONS - 1))).alias("last_person"),
        last_auction.alias("last_auction"),
        F.timestamp_micros(elapsed_us + BASE_TIME_MS * 1000).alias("dateTime"),
        channel.alias("channel_number"),
    )
    drawn = Draws(F.col("n"), config.seed)
    kinds = (("person", PERSON, _person), ("auction", AUCTION, _auction), ("bid", BID, _bid))
    structs = [F.when(F.col("event_type") == at, made(drawn, config)).alias(name) for name, at, made in kinds]
    return base.select("event_type", *structs, "dateTime")


def _struct(**fields: Column) -> Column:
    return F.struct(*(column.alias(name) for name, column in fields.items()))


def _person(draws: Draws, _: GeneratorConfig) -> Column:
    card = [F.lpad(draws.below(f"person.card{i}", 10_000).cast("string"), 4, "0") for i in range(4)]
    names = (draws.choice("person.first", FIRST_NAMES), draws.choice("person.last", LAST_NAMES))
    mailbox, host = draws.words("person.mailbox", 7), draws.words("person.host", 5)
    texts = {
        "name": F.concat_ws(" ", *names),
        "emailAddress": F.concat(mailbox, F.lit("@"), host, F.lit(".com")),
        "creditCard": F.concat_ws(" ", *card),
        "city": draws.choice("person.city", US_CITIES),
        "state": draws.choice("person.state", US_STATES),
    }
    size = F.lit(_LONG_BYTES) + sum(map(F.length, texts.values()), F.lit(0))
    extra = draws.extra("person.extra", size, _PERSON_BYTES)
    return _struct(id=F.col("last_person") + _FIRST_ID, **texts, dateTime=F.col("dateTime"), extra=extra)


def _auction(draws: Draws, config: GeneratorConfig) -> Column:
    item, description = draws.words("auction.item", 20), draws.words("auction.description", 100)
    initial_bid = draws.price("auction.initialBid")
    # On average as long as it takes for so many auctions to open.
    horizon_ms = _IN_FLIGHT_AUCTIONS * _ROUND // _AUCTIONS * 1000 // config.first_event_rate
    length_ms = draws.below("auction.length", max(horizon_ms * 2, 1)) + 1
    hot, cold = F.col("last_person") - F.col("last_person") % _HOT, draws.active_person("auction.seller")
    seller = F.when(draws.chance("auction.hotSeller", _COLD_SELLERS), hot).otherwise(cold)
    size = F.lit(6 * _LONG_BYTES) + F.length(item) + F.length(description)
    return _struct(
        id=F.col("last_auction") + _FIRST_ID,
        itemName=item,
        description=description,
        initialBid=initial_bid,
        reserve=initial_bid + draws.price("auction.reserve"),
        dateTime=F.col("dateTime"),
        expires=F.timestamp_micros(F.unix_micros("dateTime") + length_ms * 1000),
        seller=seller + _FIRST_ID,
        category=draws.below("auction.category", _CATEGORIES) + _FIRST_CATEGORY_ID,
        extra=draws.extra("auction.extra", size, _AUCTION_BYTES),
    )


def _bid(draws: Draws, config: GeneratorConfig) -> Column:
    last_auction, last_person = F.col("last_auction"), F.col("last_person")
    oldest = F.greatest(last_auction - _IN_FLIGHT_AUCTIONS, F.lit(0).cast("bigint"))
    in_flight = oldest + draws.below("bid.auction", last_auction - oldest + (1 + _LEAD))
    hot_auction, hot_bidder = last_auction - last_auction % _HOT, last_person - last_person % _HOT + 1
    auction = F.when(draws.chance("bid.hotAuction", _COLD_BIDS), hot_auction).otherwise(in_flight)
    active = draws.active_person("bid.bidder")
    bidder = F.when(draws.chance("bid.hotBidder", _COLD_BIDDERS), hot_bidder).otherwise(active)
    channel, url = _channel_and_url(config)
    return _struct(
        auction=auction + _FIRST_ID,
        bidder=bidder + _FIRST_ID,
        price=draws.price("bid.price"),
        channel=channel,
        url=url,
        dateTime=F.col("dateTime"),
        extra=draws.extra("bid.extra", F.lit(4 * _LONG_BYTES), _BID_BYTES),
    )


def _channel_and_url(config: GeneratorConfig) -> tuple[Column, Column]:
    """Name and url of the channel; the url belongs to the channel, nine in ten cold ones carry their id."""
    number = F.col("channel_number")
    is_hot = number >= _CHANNELS
    names = F.array(*[F.lit(name) for name in _HOT_CHANNELS])
    cold = F.concat(F.lit("channel-"), number.cast("string"))
    channel = F.when(is_hot, F.get(names, (number - _CHANNELS).cast("int"))).otherwise(cold)
    draws = Draws(number, config.seed)
    # Absolute value of the 32-bit integer whose bits are those of the number (below 2**14) in reverse.
    bits = range(_CHANNELS.bit_length())
    shifted = (F.shiftleft(F.shiftright(number, i).bitwiseAND(1), 31 - i) for i in bits)
    unsigned = sum(shifted, F.lit(0).cast("bigint"))
    reversed_bits = F.when(number % 2 == 1, F.lit(2**32) - unsigned).otherwise(unsigned)
    has_id = ~is_hot & draws.chance("channel.hasId", 10)
    suffix = F.when(has_id, F.concat(F.lit("&channel_id="), reversed_bits.cast("string")))
    pool = _text(config.seed, "words", _URL_BYTES, "_")
    directories = [draws.string(f"channel.directory{i}", pool, 5) for i in range(3)]
    url = F.concat_ws("/", F.lit("https://www.nexmark.com"), *directories, F.lit("item.htm?query=1"))
    return channel, F.concat(url, F.coalesce(suffix, F.lit("")))


@dataclass(frozen=True)
class Draws:
    """Random values for the entity that ``entity_id`` (a bigint column) names, independent by field. Texts are cut from
    a constant, which takes some nanoseconds however long they are; from bytes, because a slice of bytes is a copy while
    a slice of a string walks over the characters before it."""

    entity_id: Column
    seed: int

    def bits(self, field: str) -> Column:
        # A 63-bit number from the text, the same in every process.
        digest = hashlib.blake2b(f"{self.seed}\x1f{field}".encode(), digest_size=8).digest()
        hashed = F.xxhash64(F.lit(int.from_bytes(digest) >> 1), self.entity_id)
        return F.shiftrightunsigned(hashed, 64 - _DRAW_BITS)

    def below(self, field: str, bound: int | Column) -> Column:
        """A bigint from [0, bound); the bias is below bound / 2**53."""
        return self.bits(field) % (F.lit(bound).cast("bigint") if isinstance(bound, int) else bound)

    def chance(self, field: str, ratio: int) -> Column:
        """True with probability ``1 - 1 / ratio``."""
        return self.below(field, ratio) > 0

    def choice(self, field: str, values: Sequence[str]) -> Column:
        index = self.below(field, len(values)).cast("int")
        return F.get(F.array(*[F.lit(value) for value in values]), index)

    def active_person(self, field: str) -> Column:
        """One of the last people or of the few who come next, counted from 0."""
        people = F.col("last_person") + 1
        active = F.least(people, F.lit(_ACTIVE_PEOPLE).cast("bigint"))
        return people - active + self.below(field, active + _LEAD)

    def price(self, field: str) -> Column:
        """100 * 10**(6u) cents, rounded: from 1 to 1,000,000 dollars, each order of magnitude as likely."""
        uniform = self.bits(field) / F.lit(float(2**_DRAW_BITS))
        return F.round(F.pow(F.lit(10.0), uniform * 6.0) * 100.0).cast("bigint")

    def words(self, field: str, max_length: int) -> Column:
        return self.string(field, _text(self.seed, "words", _TEXT_BYTES, " "), max_length)

    def string(self, field: str, pool: bytes, max_length: int) -> Column:
        """From 3 to ``max_length - 1`` characters, blanks at the ends removed."""
        length = self.below(f"{field}.length", max_length - _MIN_STRING_LENGTH) + _MIN_STRING_LENGTH
        return F.trim(self._cut(field, pool, length.cast("int"), max_length))

    def extra(self, field: str, size: Column, average: int) -> Column:
        """Padding that brings the event from ``size`` to ``average`` bytes on average, give or take a fifth."""
        missing = F.greatest(F.lit(average) - size, F.lit(0))
        delta = F.round(missing * 0.2).cast("int")
        spread = self.below(field, F.greatest(delta * 2, F.lit(1)).cast("bigint")).cast("int")
        pool = _text(self.seed, "letters", _TEXT_BYTES)
        return self._cut(field, pool, missing - delta + spread, 2 * average)

    def _cut(self, field: str, pool: bytes, length: Column, max_length: int) -> Column:
        """``length`` characters (an int column, at most ``max_length``)."""
        start = self.below(f"{field}.start", len(pool) - max_length) + 1
        return F.lit(pool).substr(start.cast("int"), length).cast("string")


@lru_cache(maxsize=8)
def _text(seed: int, name: str, size: int, separator: str = "") -> bytes:
    """Random lower-case letters, with ``separator``, if there is one, in every 13th place on average."""
    letters = bytes(_LETTERS[value] for value in _uniform_bytes(seed, name, size, len(_LETTERS)))
    gaps = _uniform_bytes(seed, "gaps", size, _GAP_RATIO) if separator else bytes([1]) * size
    return bytes(letter if gap else ord(separator) for letter, gap in zip(letters, gaps, strict=True))


def _uniform_bytes(seed: int, name: str, size: int, bound: int) -> bytes:
    """``size`` numbers from [0, bound), none more likely than another."""
    limit = 256 // bound * bound
    raw = hashlib.shake_128(f"{seed}/{name}".encode()).digest(size * 2)
    values = bytes(byte % bound for byte in raw if byte < limit)
    assert len(values) >= size, "twice the bytes leave enough after rejection"
    return values[:size]


CODEGEN_SETTINGS = {"spark.sql.codegen.hugeMethodLimit": "8000"}
"""HotSpot does not compile methods above 8000 bytes; as one such, the event columns run five times slower."""
_WRITE_SETTINGS = CODEGEN_SETTINGS | {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# Nearly every string of an event is new, so a dictionary costs time and saves nothing.
_PARQUET_OPTIONS = {"parquet.enable.dictionary": "false", "compression": "snappy"}


class EventFiles(NamedTuple):
    """A folder of event files: ``*.parquet`` in it are all the events. The last micro-batch may have fewer."""

    path: Path
    events: int
    micro_batch_events: int
    files_per_micro_batch: int


def write_events(
    spark: SparkSession,
    path: Path,
    events_: int,
    micro_batch_events: int,
    config: GeneratorConfig | None = None,
    files_per_micro_batch: int = 1,
) -> EventFiles:
    """Write the events 0 to ``events_ - 1`` as Parquet files in event order into a new folder, by one Spark job of
    which a partition of the sequence is a file. More files than one let Spark read a micro-batch on several cores.
    Raises ConfigurationError if a number is out of range."""
    if not 1 <= events_ <= MAX_EVENT_ID:
        raise ConfigurationError(f"Nexmark source: {events_} events; ask for 1 to {MAX_EVENT_ID}")
    if files_per_micro_batch < 1 or micro_batch_events < 1 or micro_batch_events % files_per_micro_batch:
        raise ConfigurationError(
            f"Nexmark source: {micro_batch_events} events a micro-batch cannot be split evenly over "
            f"{files_per_micro_batch} files; make it a positive multiple of the number of files"
        )
    per_file = micro_batch_events // files_per_micro_batch
    files = -(-events_ // per_file)
    scratch = path.with_name(f".{path.name}.writing")
    ids = spark.range(0, files * per_file, 1, files).where(F.col("id") < events_)
    before = {key: spark.conf.get(key, None) for key in _WRITE_SETTINGS}
    try:
        for key, value in _WRITE_SETTINGS.items():
            spark.conf.set(key, value)
        events(ids, config).write.mode("overwrite").options(**_PARQUET_OPTIONS).parquet(str(scratch))
    finally:
        for key, earlier in before.items():
            spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)
    path.mkdir(parents=True)
    for number, file in enumerate(sorted(scratch.glob("part-*.parquet"))):
        stamp(file.rename(path / f"events-{number:06d}.parquet"), number)
    shutil.rmtree(scratch)
    return EventFiles(path, events_, micro_batch_events, files_per_micro_batch)


def file_stream(spark: SparkSession, source: EventFiles) -> DataFrame:
    """The events as a file stream, which the trigger ``availableNow`` reads by micro-batches."""
    reader = spark.readStream.schema(EVENT_SCHEMA).option("maxFilesPerTrigger", source.files_per_micro_batch)
    return reader.parquet(str(source.path))


def narrow(events: DataFrame, spec: QuerySpec) -> DataFrame:
    """The kinds of events and the fields that a query needs, still as wide rows; for a stream or a batch. Applied
    before ``foreachBatch``, because after it Spark no longer prunes columns in the file reader."""
    kinds = {kind: EVENT_KINDS.index(kind) for kind in spec.needs}
    structs = {kind: F.struct(*[f"{kind}.{name}" for name in names]) for kind, names in spec.needs.items()}
    named = [F.when(F.col("event_type") == kinds[kind], one).alias(kind) for kind, one in structs.items()]
    return events.where(F.col("event_type").isin(list(kinds.values()))).select("event_type", *named)
