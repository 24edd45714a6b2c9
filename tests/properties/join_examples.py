"""Join: all kinds over inputs whose rows repeat, are unique under columns or the join key, and move between keys."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from asyncstate.changelog import RETRACT, Changelog
from operators import DynamicFilter, Join, OneRowJoin
from tests.properties.examples import Entries, Example, floats, nullable, small
from tests.properties.histories import (
    Change,
    History,
    Row,
    Table,
    both,
    changelogs,
    insertions,
    keyed_changelogs,
)
from tests.properties.models import joined
from tests.properties.views import as_they_are, zeros_alike

LEFT = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", pa.int64()), ("seq", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("w", pa.int64()), ("seq", pa.int64())])
K, ID, VALUE, SEQUENCE = range(4)
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti", "mark")
SIZE = 9

Identity = Callable[[Row], Any]


def rows(keys: st.SearchStrategy[int | None]) -> st.SearchStrategy[Row]:
    """Rows of either input; the sequence is 0."""
    return st.tuples(keys, small(0, 2), nullable(small(0, 2)), st.just(0))


ANY_KEY, NO_NULLS = rows(nullable(small(0, 2))), rows(small(0, 2))


def under_key(row: Row) -> Any:
    """The identity of a row that is unique within the join key."""
    return row[K], row[ID]


def anywhere(row: Row) -> Any:
    """The identity of a row that may move from join key to join key, where it comes as +U without -U.

    It does not come again once it is gone: the +U and -D of the one and the +I of the other could be upserts, too, for
    which another order means another answer.
    """
    return row[ID]


def join_key(row: Row) -> Any:
    """The identity of a row that is alone under its join key."""
    return row[K]


@dataclass(frozen=True)
class Side:
    """What a side of the join declares as unique, and its histories for an input number."""

    unique: Any
    histories: Callable[[int], st.SearchStrategy[History]]
    changes: Changelog = RETRACT


def full(unique: Any, identity: Identity, sequence_at: int | None = None) -> Side:
    """Updates come as -U and +U."""
    return Side(
        unique,
        lambda number: keyed_changelogs(ANY_KEY, identity, size=SIZE, input=number, sequence_at=sequence_at),
    )


def upserts(unique: Any, identity: Identity, sequence_at: int | None = None) -> Side:
    """Updates come as +U alone, in a changelog that is not said to be one of upserts: so a row of a null key, which
    matches nothing, would not be known for what another one replaces."""
    return Side(
        unique,
        lambda number: keyed_changelogs(
            NO_NULLS, identity, "upsert", size=SIZE, input=number, sequence_at=sequence_at
        ),
    )


def declared_upserts(unique: Any, identity: Identity) -> Side:
    """Updates come as +U alone, and of a -D only the key counts."""

    def with_keys_alone(history: History) -> History:
        return replace(
            history, changes=[_keys_alone(change, identity is join_key) for change in history.changes]
        )

    key = ("k",) if identity is join_key else ("k", "id")
    return Side(
        unique,
        lambda number: keyed_changelogs(
            ANY_KEY, identity, "upsert", size=SIZE, input=number, sequence_at=SEQUENCE
        ).map(with_keys_alone),
        Changelog.upsert(*key),
    )


def _keys_alone(change: Change, by_join_key: bool) -> Change:
    records = tuple(
        record
        if record.added
        else record._replace(
            row=(record.row[K], None if by_join_key else record.row[ID], None, record.row[SEQUENCE])
        )
        for record in change.records
    )
    return replace(change, records=records)


INSERTS = Side(None, lambda number: insertions(ANY_KEY, SIZE, number))
REPEATED = Side(None, lambda number: changelogs(ANY_KEY, SIZE, number))
UNIQUE = full(["id"], under_key)
ALONE = full("join_key", join_key)
MOVING = Side(["id"], lambda number: keyed_changelogs(ANY_KEY, anywhere, size=SIZE, input=number, once=True))


def _condition(left: Row, right: Row) -> bool | None:
    return None if None in (left[VALUE], right[VALUE]) else bool(left[VALUE] <= right[VALUE])


@st.composite
def joins(
    draw: st.DrawFn,
    kind: Any,
    sides: Sequence[Side],
    null_safe: bool = False,
    null_aware: bool = False,
    **settings: Any,
) -> Example:
    """A join of one of ``sides`` with another one, with and without a condition."""
    left, right = draw(st.sampled_from(sides)), draw(st.sampled_from(sides))
    conditional = null_aware or draw(st.booleans())
    kind = draw(st.sampled_from(KINDS)) if kind is None else kind

    def expected(tables: list[Table]) -> Table:
        condition = _condition if conditional else None
        keys = [lambda row: (row[K],)] * 2
        return joined(kind, tables, keys, (4, 4), condition, null_safe, null_aware)

    return Example(
        make=lambda: Join(
            kind,
            pc.field("v") <= pc.field("w") if conditional else None,
            left_unique=left.unique,
            right_unique=right.unique,
            null_safe=null_safe,
            null_aware=null_aware,
        ),
        inputs=[LEFT, RIGHT],
        key=[["k"], ["k"]],
        history=draw(both(left.histories(0), right.histories(1))),
        expected=expected,
        settings={"changelog": [left.changes, right.changes], **settings},
        shuffle="within keys",
        output_key=lambda row: (
            row[K] if kind in ("semi", "anti", "mark") or row[K] is not None else row[4 + K]
        ),
    )


@st.composite
def in_sequence(draw: st.DrawFn, sides: Sequence[Side], drop_stale: bool = False) -> Example:
    """The same in order of the sequence: any arrival will do; with ``drop_stale`` rows may come again."""
    example = draw(joins(None, sides, sequence=("seq", "seq"), drop_stale=drop_stale))
    return replace(example, shuffle="any", come_again=drop_stale)


_ANY = [INSERTS, REPEATED, UNIQUE, ALONE]
_UPSERTS = [upserts(["id"], under_key), upserts("join_key", join_key)]
_IN_SEQUENCE = [upserts(["id"], under_key, SEQUENCE), upserts("join_key", join_key, SEQUENCE)]
_DECLARED = [declared_upserts(["id"], under_key), declared_upserts("join_key", join_key)]
_FULL_IN_SEQUENCE = [full(["id"], under_key, SEQUENCE), full("join_key", join_key, SEQUENCE)]

COMPARED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "numbers": (pa.int64(), small(-2, 4)),
    "floats": (pa.float64(), floats()),
    "decimals": (pa.decimal128(38, 2), small(-2, 3).map(lambda n: Decimal(n) / 100 + 10**20)),
    "texts": (pa.string(), st.sampled_from(["", "a", "abcdefgh", "abcdefghi", "abcdefgk", "é"])),
}
"""Values to compare, some of which are alike in their first bytes or digits."""


def _ordered(value: Any) -> Any:
    """The value as one that compares as it does in SQL: NaN is the largest."""
    return (value != value, 0 if value != value else value)


@st.composite
def filters(draw: st.DrawFn, what: str, in_sequence: bool = False) -> Example:
    """A DynamicFilter over a changelog, with a bound that comes, changes and goes."""
    kind, values = COMPARED[what]
    comparison: Any = draw(st.sampled_from(["<", "<=", ">", ">=", "="]))
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}

    def expected(tables: list[Table]) -> Table:
        bounds = [bound for (bound,) in tables[1].elements() if bound is not None]
        return Counter(
            {
                row: times
                for row, times in tables[0].items()
                if bounds
                and row[2] is not None
                and compare[comparison](_ordered(row[2]), _ordered(bounds[0]))
            }
        )

    left = st.tuples(nullable(small(0, 2)), small(0, 1), nullable(values), st.just(0))
    rows = keyed_changelogs(left, under_key, size=SIZE, sequence_at=SEQUENCE)
    bounds = keyed_changelogs(st.tuples(nullable(values)), lambda row: 0, size=SIZE, input=1)
    return Example(
        make=lambda: DynamicFilter("v", comparison, "bound"),
        inputs=[
            pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", kind), ("seq", pa.int64())]),
            pa.schema([("bound", kind)]),
        ],
        key=[["k"], None],
        history=draw(both(rows if in_sequence else changelogs(left, SIZE, 0), bounds)),
        expected=expected,
        settings={"sequence": ("seq", None)} if in_sequence else {},
        view=zeros_alike(as_they_are),
        whole_updates=True,
        output_key=lambda row: row[:1],
    )


@st.composite
def with_one_row(draw: st.DrawFn, in_sequence: bool = False) -> Example:
    """A OneRowJoin over a changelog, with a row that comes, changes and goes."""
    kind: Any = draw(st.sampled_from(["left", "inner"]))

    def expected(tables: list[Table]) -> Table:
        found = list(tables[1].elements()) or ([(None,) * 4] if kind == "left" else [])
        return Counter({left + right: times for left, times in tables[0].items() for right in found})

    one = keyed_changelogs(ANY_KEY, lambda row: 0, size=SIZE, input=1)
    logged = keyed_changelogs(ANY_KEY, under_key, size=SIZE, sequence_at=SEQUENCE)
    return Example(
        make=lambda: OneRowJoin(kind),
        inputs=[LEFT, RIGHT],
        key=[["k"], None],
        history=draw(both(logged if in_sequence else changelogs(ANY_KEY, SIZE, 0), one)),
        expected=expected,
        settings={"sequence": ("seq", None)} if in_sequence else {},
        whole_updates=True,
    )


FILTERS: Entries = {
    **{f"by {what}": filters(what) for what in COMPARED},
    "in sequence": filters("numbers", in_sequence=True),
}

JOINS: Entries = {
    **{f"{kind} join": joins(kind, _ANY) for kind in KINDS},
    "marks that may be null": joins("mark", _ANY, null_aware=True),
    "with one row": with_one_row(),
    "with one row, in sequence": with_one_row(in_sequence=True),
    "insertions only": joins(None, [INSERTS], changelog=False),
    "null keys that match": joins(None, [REPEATED, UNIQUE], null_safe=True),
    "unique rows that move between keys": joins(None, [MOVING]),
    "upserts in their order": joins(None, _UPSERTS),
    "upserts by sequence": in_sequence(_IN_SEQUENCE),
    "upserts that are declared": in_sequence(_DECLARED),
    "updates by sequence": in_sequence(_FULL_IN_SEQUENCE),
    "upserts that come again": in_sequence(_IN_SEQUENCE, drop_stale=True),
    "updates that come again": in_sequence(_FULL_IN_SEQUENCE, drop_stale=True),
}
