"""Nexmark events as Spark column expressions over a sequence of event ids.

Owns: the schema of the wide event row and the expressions of its columns.
Invariant: the row of an id depends on the id and the configuration only: streaming, batch, any partitioning
and any scale give the same rows. Built-in expressions only: Spark compiles them, and no Python runs.
Must not import asyncstate beyond its errors.

Source: the generator of github.com/nexmark/nexmark, with these differences: event times have microseconds,
strings are cut from a constant random text, and the first person id is added to a bidder once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with
from pyspark.sql.types import LongType

from asyncstate.errors import SchemaError
from bench.nexmark import config as nexmark
from bench.nexmark.config import GeneratorConfig
from bench.nexmark.randomness import Draws, TextPool

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

_TEXT_POOL_BYTES = 1 << 16
_URL_POOL_BYTES = 1 << 13
_LONG_BYTES = 8
_CARD_DIGITS = 10_000


def events(ids: DataFrame, config: GeneratorConfig | None = None, id_column: str | None = None) -> DataFrame:
    """The events with the given ids, as rows of ``EVENT_SCHEMA`` in the order of ``ids``.

    Args:
        ids: Has a bigint column of event numbers from 0 (``id_column``, or the only bigint column it has).
            A batch or a streaming DataFrame.
        config: The generator's settings, the benchmark's own by default.
        id_column: Which column, if there are several bigint ones.

    Raises:
        SchemaError: No such column, or none or several to choose from.
    """
    config = config or GeneratorConfig()
    number = F.col(_id_column(ids, id_column))
    base = ids.select(_adjusted(number, config).alias("n"))
    base = base.select("n", *_positions(F.col("n"), config), *_channels(Draws(F.col("n"), config.seed)))
    return base.select(
        F.col("event_type"),
        F.when(F.col("event_type") == PERSON, _person(config)).alias("person"),
        F.when(F.col("event_type") == AUCTION, _auction(config)).alias("auction"),
        F.when(F.col("event_type") == BID, _bid(config)).alias("bid"),
        F.col("dateTime"),
    )


def _id_column(ids: DataFrame, name: str | None) -> str:
    longs = [field.name for field in ids.schema if isinstance(field.dataType, LongType)]
    if name is not None:
        longs = [column for column in longs if column == name]
    if len(longs) != 1:
        wanted = f"a bigint column '{name}'" if name else "exactly one bigint column of event numbers"
        raise SchemaError(
            f"Nexmark generator: the ids need {wanted}, but have {ids.schema.simpleString()}; "
            "cast or select it, or name it with id_column"
        )
    return longs[0]


def _adjusted(number: Column, config: GeneratorConfig) -> Column:
    """The event number, permuted inside its out-of-order group."""
    group = config.out_of_order_group_size
    if group == 1:
        return number
    offset = number % group
    return number - offset + offset * 953 % group


def _positions(n: Column, config: GeneratorConfig) -> list[Column]:
    """Kind and time of event ``n`` and the last ids (counted from 0) that exist when it happens."""
    offset = n % config.total_proportion
    epoch = F.call_function("div", n, F.lit(config.total_proportion))
    persons, auctions = config.person_proportion, config.auction_proportion
    event_type = F.when(offset < persons, PERSON).when(offset < persons + auctions, AUCTION).otherwise(BID)
    # A person comes before the auctions of its round, so the last auction there is, is of the round before.
    last_auction = (
        F.when(offset < persons, epoch * auctions - 1)
        .when(offset < persons + auctions, epoch * auctions + offset - persons)
        .otherwise(epoch * auctions + (auctions - 1))
    )
    elapsed_us = F.call_function("div", n * 1_000_000, F.lit(config.first_event_rate))
    return [
        event_type.alias("event_type"),
        (epoch * persons + F.least(offset, F.lit(persons - 1))).alias("last_person"),
        last_auction.alias("last_auction"),
        F.timestamp_micros(elapsed_us + config.base_time_ms * 1000).alias("dateTime"),
    ]


def _person(config: GeneratorConfig) -> Column:
    draws = Draws(F.col("n"), config.seed)
    words = TextPool.words(config.seed, _TEXT_POOL_BYTES, " ")
    first_name = draws.choice("person.first", nexmark.FIRST_NAMES)
    name = F.concat_ws(" ", first_name, draws.choice("person.last", nexmark.LAST_NAMES))
    mailbox, host = words.string(draws, "person.mailbox", 7), words.string(draws, "person.host", 5)
    email = F.concat(mailbox, F.lit("@"), host, F.lit(".com"))
    card = [F.lpad(draws.below(f"person.card{i}", _CARD_DIGITS).cast("string"), 4, "0") for i in range(4)]
    credit_card = F.concat_ws(" ", *card)
    city, state = (
        draws.choice("person.city", nexmark.US_CITIES),
        draws.choice("person.state", nexmark.US_STATES),
    )
    size = F.lit(_LONG_BYTES) + sum(
        (F.length(text) for text in (name, email, credit_card, city, state)), F.lit(0)
    )
    return F.struct(
        (F.col("last_person") + nexmark.FIRST_PERSON_ID).alias("id"),
        name.alias("name"),
        email.alias("emailAddress"),
        credit_card.alias("creditCard"),
        city.alias("city"),
        state.alias("state"),
        F.col("dateTime").alias("dateTime"),
        _extra(draws, "person.extra", size, config.avg_person_byte_size, config).alias("extra"),
    )


def _auction(config: GeneratorConfig) -> Column:
    draws = Draws(F.col("n"), config.seed)
    words = TextPool.words(config.seed, _TEXT_POOL_BYTES, " ")
    item, description = (
        words.string(draws, "auction.item", 20),
        words.string(draws, "auction.description", 100),
    )
    initial_bid = _price(draws, "auction.initialBid")
    length_ms = draws.below("auction.length", max(config.auction_horizon_ms * 2, 1)) + 1
    hot_seller = F.col("last_person") - F.col("last_person") % nexmark.HOT_SELLER_RATIO
    seller = F.when(draws.chance("auction.hotSeller", config.hot_sellers_ratio), hot_seller).otherwise(
        _active_person(draws, "auction.seller", config)
    )
    size = F.lit(6 * _LONG_BYTES) + F.length(item) + F.length(description)
    return F.struct(
        (F.col("last_auction") + nexmark.FIRST_AUCTION_ID).alias("id"),
        item.alias("itemName"),
        description.alias("description"),
        initial_bid.alias("initialBid"),
        (initial_bid + _price(draws, "auction.reserve")).alias("reserve"),
        F.col("dateTime").alias("dateTime"),
        F.timestamp_micros(F.unix_micros("dateTime") + length_ms * 1000).alias("expires"),
        (seller + nexmark.FIRST_PERSON_ID).alias("seller"),
        (draws.below("auction.category", nexmark.NUM_CATEGORIES) + nexmark.FIRST_CATEGORY_ID).alias(
            "category"
        ),
        _extra(draws, "auction.extra", size, config.avg_auction_byte_size, config).alias("extra"),
    )


def _bid(config: GeneratorConfig) -> Column:
    draws = Draws(F.col("n"), config.seed)
    last_auction, last_person = F.col("last_auction"), F.col("last_person")
    oldest = F.greatest(last_auction - config.num_in_flight_auctions, F.lit(0).cast("bigint"))
    in_flight = oldest + draws.below("bid.auction", last_auction - oldest + (1 + nexmark.AUCTION_ID_LEAD))
    hot_auction = last_auction - last_auction % nexmark.HOT_AUCTION_RATIO
    auction = F.when(draws.chance("bid.hotAuction", config.hot_auction_ratio), hot_auction).otherwise(
        in_flight
    )
    hot_bidder = last_person - last_person % nexmark.HOT_BIDDER_RATIO + 1
    bidder = F.when(draws.chance("bid.hotBidder", config.hot_bidders_ratio), hot_bidder).otherwise(
        _active_person(draws, "bid.bidder", config)
    )
    channel, url = _channel_and_url(config)
    size = F.lit(4 * _LONG_BYTES)
    return F.struct(
        (auction + nexmark.FIRST_AUCTION_ID).alias("auction"),
        (bidder + nexmark.FIRST_PERSON_ID).alias("bidder"),
        _price(draws, "bid.price").alias("price"),
        channel.alias("channel"),
        url.alias("url"),
        F.col("dateTime").alias("dateTime"),
        _extra(draws, "bid.extra", size, config.avg_bid_byte_size, config).alias("extra"),
    )


def _active_person(draws: Draws, field: str, config: GeneratorConfig) -> Column:
    """One of the last ``num_active_people`` people or of the few who come next, counted from 0."""
    people = F.col("last_person") + 1
    active = F.least(people, F.lit(config.num_active_people).cast("bigint"))
    return people - active + draws.below(field, active + nexmark.PERSON_ID_LEAD)


def _price(draws: Draws, field: str) -> Column:
    """100 * 10**(6u) cents, rounded: from 1 to 1,000,000 dollars, each order of magnitude as likely."""
    return F.round(F.pow(F.lit(10.0), draws.uniform(field) * 6.0) * 100.0).cast("bigint")


def _extra(draws: Draws, field: str, size: Column, average: int, config: GeneratorConfig) -> Column:
    """Padding that brings the event from ``size`` to ``average`` bytes on average, give or take a fifth."""
    missing = F.greatest(F.lit(average) - size, F.lit(0))
    delta = F.round(missing * 0.2).cast("int")
    spread = draws.below(field, F.greatest(delta * 2, F.lit(1)).cast("bigint")).cast("int")
    return TextPool.letters(config.seed, _TEXT_POOL_BYTES).exact_string(
        draws, field, missing - delta + spread, max_length=2 * average
    )


def _channels(draws: Draws) -> list[Column]:
    """The number of a bid's channel: 0 to 9999 for a cold one, from 10,000 for one of the few hot ones.

    Columns of their own, because the url needs the number a dozen times.
    """
    hot = draws.chance("bid.hotChannel", nexmark.HOT_CHANNELS_RATIO)
    hot_number = draws.below("bid.hotChannelNumber", len(nexmark.HOT_CHANNELS)) + nexmark.CHANNELS_NUMBER
    cold_number = draws.below("bid.channelNumber", nexmark.CHANNELS_NUMBER)
    return [F.when(hot, hot_number).otherwise(cold_number).alias("channel_number")]


def _channel_and_url(config: GeneratorConfig) -> tuple[Column, Column]:
    """Name and url of the channel; the url belongs to the channel, nine in ten cold ones carry their id."""
    number = F.col("channel_number")
    is_hot = number >= nexmark.CHANNELS_NUMBER
    names = F.array(*[F.lit(name) for name in nexmark.HOT_CHANNELS])
    channel = F.when(is_hot, F.get(names, (number - nexmark.CHANNELS_NUMBER).cast("int"))).otherwise(
        F.concat(F.lit("channel-"), number.cast("string"))
    )
    draws = Draws(number, config.seed)
    has_id = ~is_hot & draws.chance("channel.hasId", 10)
    suffix = F.when(has_id, F.concat(F.lit("&channel_id="), _reversed_bits(number).cast("string")))
    return channel, F.concat(_base_url(draws, config), F.coalesce(suffix, F.lit("")))


def _base_url(draws: Draws, config: GeneratorConfig) -> Column:
    pool = TextPool.words(config.seed, _URL_POOL_BYTES, "_")
    directories = [pool.string(draws, f"channel.directory{i}", 5) for i in range(3)]
    return F.concat_ws("/", F.lit("https://www.nexmark.com"), *directories, F.lit("item.htm?query=1"))


def _reversed_bits(number: Column) -> Column:
    """Absolute value of the 32-bit integer whose bits are those of ``number`` (below 2**14) in reverse."""
    bits = nexmark.CHANNELS_NUMBER.bit_length()
    unsigned = sum(
        (F.shiftleft(F.shiftright(number, i).bitwiseAND(1), 31 - i) for i in range(bits)),
        F.lit(0).cast("bigint"),
    )
    return F.when(number % 2 == 1, F.lit(2**32) - unsigned).otherwise(unsigned)
