"""Rank: rows known by their content or by a unique key, every function, with and without numbers and offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from operators import Rank, SortLimit, asc, desc
from operators.rank.retractable import all_rows
from operators.rank.retractable.blocks import BlockSizes
from tests.properties.examples import Entries, Example, nullable, small
from tests.properties.histories import History, Row, Table, changelogs, insertions, keyed_changelogs
from tests.properties.models import ranked
from tests.properties.views import ranked_rows

BIDS = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("note", pa.string()),
        ("seq", pa.int64()),
        ("most", pa.int32()),
    ]
)
AUCTION, BIDDER, PRICE, NOTE, SEQUENCE, MOST = range(6)

_DRAWN = st.tuples(small(0, 1), small(0, 5), nullable(small(0, 4)), st.sampled_from("xy"), st.just(0))
BID = _DRAWN.map(lambda row: (*row, row[AUCTION] + 1))
"""``most``, the limit of a key where a column names it, follows from the key."""

Histories = Callable[[st.SearchStrategy[Row]], st.SearchStrategy[History]]


def within_auction(row: Row) -> Any:
    """The identity of a bidder's bid on an auction."""
    return row[AUCTION], row[BIDDER]


def anywhere(row: Row) -> Any:
    """The identity of a bid that may move to another auction, where it comes as +U without -U.

    It does not come again once it is gone: the +U and -D of the one and the +I of the other could be upserts, too, for
    which another order means another answer.
    """
    return row[BIDDER]


def _by_price(row: Row) -> Any:
    return row[PRICE] is None, -(row[PRICE] or 0)  # nulls come last, descending


def _by_all(row: Row) -> Any:
    return (*_by_price(row), row[BIDDER], row[NOTE], row[SEQUENCE])


@contextmanager
def _tiny_blocks() -> Iterator[None]:
    """So that a few rows lie in many blocks."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = BlockSizes(spare_least=1, spare_most=2, block_rows=2, growth=2, spare_events=1)
        patch.setattr(all_rows, "SIZES", sizes)
        yield


@st.composite
def rankings(
    draw: st.DrawFn,
    histories: Histories,
    unique: bool = False,
    monotonic: bool = False,
    shuffle: Any = "within keys",
    blocks: bool = False,
    **settings: Any,
) -> Example:
    """A Rank whose row numbers follow from a total order; the other functions may have ties."""
    function = draw(
        st.sampled_from(["row_number", "rank"] if monotonic else ["row_number", "rank", "dense_rank"])
    )
    total, numbered = function == "row_number", draw(st.booleans())
    order = [desc("price"), asc("bidder"), "note", "seq"] if total else [desc("price")]
    offset, n = draw(small(0, 2)), draw(st.one_of(st.integers(1, 3), st.just("most")))

    def shown(row: Row) -> tuple[int, int]:
        return offset, offset + (row[MOST] if n == "most" else n)

    def expected(tables: list[Table]) -> Table:
        by = _by_all if total else _by_price
        return ranked(tables[0], lambda row: row[AUCTION], by, shown, function, numbered)

    return Example(
        make=lambda: Rank(
            order,
            n,
            offset=offset,
            function=function,
            rank_column="place" if numbered else None,
            unique=["bidder"] if unique else None,
            monotonic=monotonic,
        ),
        inputs=[BIDS],
        key=[["auction"]],
        history=draw(histories(BID)),
        expected=expected,
        settings=settings,
        shuffle=shuffle,
        view=ranked_rows,
        output_key=lambda row: row[AUCTION],
        whole_updates=monotonic,  # -U is ignored: the row stays until its +U
        around=_tiny_blocks if blocks else nullcontext,
    )


@st.composite
def sort_limits(draw: st.DrawFn, histories: Histories, blocks: bool = False, **settings: Any) -> Example:
    """The first rows of everything in a total order."""
    offset, n = draw(small(0, 2)), draw(st.integers(1, 4))

    def expected(tables: list[Table]) -> Table:
        shown = offset, offset + n

        def order(row: Row) -> Any:
            return (*_by_all(row), row[AUCTION])

        return ranked(tables[0], lambda row: (), order, lambda row: shown, "row_number", False)

    return Example(
        make=lambda: SortLimit([desc("price"), asc("bidder"), "note", "seq", "auction"], n, offset=offset),
        inputs=[BIDS],
        key=[None],
        history=draw(histories(BID)),
        expected=expected,
        settings=settings,
        view=ranked_rows,
        output_key=lambda row: (),
        around=_tiny_blocks if blocks else nullcontext,
    )


def _unique(identity: Callable[[Row], Any], form: Any = "full", **more: Any) -> Histories:
    return lambda rows: keyed_changelogs(rows, identity, form, **more)


def _better(new: Row, old: Row) -> bool:
    return _by_price(new) < _by_price(old)


RANKS: Entries = {
    "a changelog in many blocks": rankings(partial(changelogs, size=30), blocks=True),
    "unique rows in many blocks": rankings(_unique(within_auction, size=30), unique=True, blocks=True),
    "limit of a changelog": sort_limits(changelogs),
    "limit of a changelog in many blocks": sort_limits(partial(changelogs, size=30), blocks=True),
    "limit of insertions": sort_limits(insertions, changelog=False),
    "insertions": rankings(insertions, changelog=False),
    "a changelog": rankings(changelogs),
    "unique rows": rankings(_unique(within_auction), unique=True),
    "unique rows that move between keys": rankings(_unique(anywhere, once=True), unique=True),
    "unique rows that only get better": rankings(
        _unique(within_auction, better=_better), unique=True, monotonic=True
    ),
    "upserts that only get better": rankings(
        _unique(within_auction, "upsert", better=_better), unique=True, monotonic=True, shuffle="any"
    ),
    "upserts in their order": rankings(_unique(within_auction, "upsert"), unique=True),
    "upserts by sequence": rankings(
        _unique(within_auction, "upsert", sequence_at=SEQUENCE), unique=True, shuffle="any", sequence="seq"
    ),
    "updates by sequence": rankings(
        _unique(within_auction, sequence_at=SEQUENCE), unique=True, shuffle="any", sequence="seq"
    ),
}
