"""Valid histories of an input, and the tables that they come to.

Owns: ``Change``, ``Record``, ``History`` and the generators of each kind of input.
Invariant: a history is right in its own order: no row is taken back that is not there, a row under a unique key that
is taken comes as an update, and the sequence of a key only grows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

Row = tuple[Any, ...]
Table = Counter[Row]
Form = Literal["full", "upsert"]


class Record(NamedTuple):
    """A row as it is pushed: its input, kind and values."""

    input: int
    kind: str
    row: Row

    @property
    def added(self) -> bool:
        """True for +I and +U."""
        return self.kind in ("+I", "+U")


@dataclass(frozen=True)
class Change:
    """What happened at once: one record, or the two halves of an update. ``order_key`` is the key whose order counts
    where an input has one; None where any order will do."""

    records: tuple[Record, ...]
    order_key: Any = None


@dataclass
class History:
    """The changes of all inputs in their true order."""

    changes: list[Change] = field(default_factory=list)
    num_inputs: int = 1
    identities: Sequence[Callable[[Row], Any] | None] = (None, None)

    @property
    def records(self) -> list[Record]:
        """All rows in their true order."""
        return [record for change in self.changes for record in change.records]

    def tables(self, records: Iterable[Record]) -> list[Table]:
        """What each input's ``records``, the first ones of the history, come to."""
        tables = [_Folded(self.identities[i]) for i in range(self.num_inputs)]
        for record in records:
            tables[record.input].apply(record)
        return [folded.table for folded in tables]


class _Folded:
    """A table that records are applied to in order; with an ``identity`` a row replaces the one before it."""

    def __init__(self, identity: Callable[[Row], Any] | None) -> None:
        self._identity = identity
        self._rows: dict[Any, Row] = {}
        self.table: Table = Counter()

    def apply(self, record: Record) -> None:
        if self._identity is not None:
            known = self._rows.pop(self._identity(record.row), None)
            if known is not None:
                self._add(known, -1)
            if not record.added:
                return
            self._rows[self._identity(record.row)] = record.row
        self._add(record.row, 1 if record.added else -1)

    def _add(self, row: Row, times: int) -> None:
        self.table[row] += times
        assert self.table[row] >= 0, "a history that takes back what is not there"
        if not self.table[row]:
            del self.table[row]


def insertions(rows: st.SearchStrategy[Row], size: int = 14, input: int = 0) -> st.SearchStrategy[History]:
    """Rows that are only added."""
    return st.lists(rows, max_size=size).map(
        lambda drawn: History([Change((Record(input, "+I", row),)) for row in drawn], input + 1)
    )


@st.composite
def changelogs(draw: st.DrawFn, rows: st.SearchStrategy[Row], size: int = 14, input: int = 0) -> History:
    """Rows that come, are replaced by others and go; equal ones may be there more than once."""
    history, there = History(num_inputs=input + 1), []
    for _ in range(draw(st.integers(0, size))):
        what = draw(st.sampled_from(["add", "add", "update", "delete"])) if there else "add"
        records: tuple[Record, ...] = ()
        if what != "add":
            old = there.pop(draw(st.integers(0, len(there) - 1)))
            records = (Record(input, "-D" if what == "delete" else "-U", old),)
        if what != "delete":
            new = draw(rows)
            there.append(new)
            records += (Record(input, "+I" if what == "add" else "+U", new),)
        history.changes.append(Change(records))
    return history


@st.composite
def keyed_changelogs(
    draw: st.DrawFn,
    rows: st.SearchStrategy[Row],
    identity: Callable[[Row], Any],
    form: Form = "full",
    size: int = 14,
    input: int = 0,
    sequence_at: int | None = None,
    better: Callable[[Row, Row], bool] | None = None,
    once: bool = False,
) -> History:
    """Rows of which one at most is there for each ``identity``.

    ``form``: an update is -U and +U ("full") or only +U ("upsert"). ``sequence_at``: the column that gets the number of
    the change, as a log of changes has it: in both halves of an update, and in -D, which else are the row as it was.
    ``better``: a row is replaced only by one for which it says yes, and never deleted. ``once``: what is gone does not
    come again.
    """
    history = History(num_inputs=input + 1)
    by_identity = form == "upsert" or sequence_at is not None
    history.identities = [None] * input + [identity if by_identity else None]
    there: dict[Any, Row] = {}
    gone: set[Any] = set()
    for number in range(draw(st.integers(0, size))):
        new = _numbered(draw(rows), sequence_at, number)
        key = identity(new)
        old = there.get(key)
        if old is None:
            if key in gone:
                continue
            records: tuple[Record, ...] = (Record(input, draw(st.sampled_from(_FIRST[form])), new),)
        elif better is None and draw(st.integers(0, 2)) == 0:
            records, new = (Record(input, "-D", _numbered(old, sequence_at, number)),), ()
        elif better is not None and not better(new, old):
            continue
        elif form == "full":
            records = (Record(input, "-U", _numbered(old, sequence_at, number)), Record(input, "+U", new))
        else:
            records = (Record(input, "+U", new),)
        if new:
            there[key] = new
        else:
            del there[key]
            gone |= {key} if once else set()
        history.changes.append(Change(records, ("row", input, key) if form == "upsert" else None))
    return history


def _numbered(row: Row, column: int | None, number: int) -> Row:
    return row if column is None else (*row[:column], number, *row[column + 1 :])


_FIRST: dict[str, list[str]] = {"full": ["+I"], "upsert": ["+I", "+U"]}


@st.composite
def both(draw: st.DrawFn, left: st.SearchStrategy[History], right: st.SearchStrategy[History]) -> History:
    """Histories of two inputs, shuffled into each other. ``right`` is drawn for input 1."""
    one, other = draw(left), draw(right)
    turns = draw(st.permutations([0] * len(one.changes) + [1] * len(other.changes)))
    waiting = [iter(one.changes), iter(other.changes)]
    return History([next(waiting[turn]) for turn in turns], 2, [one.identities[0], other.identities[1]])


def timed(history: History, times: Sequence[int]) -> dict[int, list[Record]]:
    """The records of insert-only inputs by the value of their time column, one column number an input."""
    by_time: dict[int, list[Record]] = defaultdict(list)
    for record in history.records:
        by_time[record.row[times[record.input]]].append(record)
    return by_time


def on_input(history: History, input: int) -> History:
    """The same changes as those of another input."""
    changes = [
        replace(change, records=tuple(record._replace(input=input) for record in change.records))
        for change in history.changes
    ]
    return History(changes, input + 1, [None] * input + [history.identities[0]])
