"""The settings of the Nexmark generator.

Owns: ``GeneratorConfig`` and the fixed numbers of the benchmark.
Invariant: a configuration that was built is valid, and two equal ones give the same events.
Must not import Spark.

Source: ``NexmarkConfiguration`` and the generator classes of github.com/nexmark/nexmark.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from asyncstate.errors import ConfigurationError

FIRST_PERSON_ID = 1000
FIRST_AUCTION_ID = 1000
FIRST_CATEGORY_ID = 10
NUM_CATEGORIES = 5

PERSON_ID_LEAD = 10
"""How many people that do not exist yet may already bid or sell."""
AUCTION_ID_LEAD = 10
"""How many auctions that do not exist yet may already get bids."""

HOT_AUCTION_RATIO = 100
"""One auction in this many is hot."""
HOT_SELLER_RATIO = 100
"""One person in this many is a hot seller (the first of each block)."""
HOT_BIDDER_RATIO = 100
"""One person in this many is a hot bidder (the second of each block, so that it never is the hot seller)."""

HOT_CHANNELS_RATIO = 2
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS_NUMBER = 10_000

US_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
US_CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

MAX_EVENT_ID = 2**42
"""Above this the microseconds since ``base_time_ms`` would leave the bigint range at the lowest rate."""
_MAX_RATE = 1_000_000
_OUT_OF_ORDER_STEP = 953


@dataclass(frozen=True)
class GeneratorConfig:
    """What decides the events, in the benchmark's own terms.

    The event with id ``n`` is a function of ``n`` and this object alone.

    Attributes:
        seed: Another seed gives other random values; ids, kinds and times stay.
        person_proportion, auction_proportion, bid_proportion: Events of each kind in a round.
        hot_auction_ratio: 1 bid in so many goes to an auction that is not hot; likewise the next two.
        hot_sellers_ratio: 1 auction in so many is by a seller who is not hot.
        hot_bidders_ratio: 1 bid in so many is by a bidder who is not hot.
        num_in_flight_auctions: Bids go to the last so many auctions; also sets how long auctions last.
        num_active_people: Sellers and bidders are among the last so many people.
        avg_person_byte_size, avg_auction_byte_size, avg_bid_byte_size: Filled up by ``extra``.
        first_event_rate: Events a second of event time; at most 1,000,000, so that no two share a microsecond
            and "the last bid" is one bid.
        base_time_ms: Time of event 0, milliseconds since the epoch; 2015-07-15 UTC by default.
        out_of_order_group_size: 1 keeps the time order; ``n`` permutes each block of ``n`` events.

    Raises:
        ConfigurationError: A value is out of range.
    """

    seed: int = 0
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    hot_auction_ratio: int = 2
    hot_sellers_ratio: int = 4
    hot_bidders_ratio: int = 4
    num_in_flight_auctions: int = 100
    num_active_people: int = 1000
    avg_person_byte_size: int = 200
    avg_auction_byte_size: int = 500
    avg_bid_byte_size: int = 100
    first_event_rate: int = 10_000
    base_time_ms: int = 1_436_918_400_000
    out_of_order_group_size: int = 1

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name not in ("seed", "base_time_ms")):
            value = getattr(self, name)
            if not 1 <= value <= _MAX_RATE:
                raise ConfigurationError(
                    f"Nexmark generator: '{name}' is {value}; give a whole number from 1 to {_MAX_RATE}"
                )
        if self.out_of_order_group_size % _OUT_OF_ORDER_STEP == 0:
            raise ConfigurationError(
                f"Nexmark generator: 'out_of_order_group_size' is {self.out_of_order_group_size}, a multiple of "
                f"{_OUT_OF_ORDER_STEP}, which would repeat events; use another number"
            )

    @property
    def total_proportion(self) -> int:
        """Events in a round: 50 by default."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    @property
    def auction_horizon_ms(self) -> int:
        """Event time in which ``num_in_flight_auctions`` auctions open: their average length."""
        events = self.num_in_flight_auctions * self.total_proportion // self.auction_proportion
        return events * 1000 // self.first_event_rate
