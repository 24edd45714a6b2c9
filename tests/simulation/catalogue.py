"""The operators that simulated jobs are made of, each with the model that says what it must emit.

Owns: ``Edge``, what is known of a stream's rows; ``Kind``, one of ``KINDS``; the models, in plain Python.
Invariant: a model shares no code with the operator. Every stream has the columns ``id``, ``k``, ``v`` and, where rows
have a time, ``at``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from asyncstate.dataflow import Stream
from asyncstate.lookups import TableLookup
from asyncstate.operators import (
    ChangelogNormalize,
    Deduplicate,
    GroupAggregate,
    IntervalJoin,
    Join,
    LookupJoin,
    OverAggregate,
    Rank,
    TemporalSort,
    UpsertMaterialize,
    WindowAggregate,
    WindowRank,
    count,
    hop,
    max_,
    min_,
    session,
    sum_,
    tumble,
    unbounded,
)

SECOND: Final = 1_000_000
MIN_TIME: Final = -(2**63)
Row = tuple[Any, ...]
Table = Counter[Row]
"""How often each row is there; in a change how often it comes (above zero) or goes."""


class Edge(NamedTuple):
    """``is_unique``: the id is a key of the rows and never null. ``is_in_time``: they move a watermark. ``has_keys``:
    the column ``k`` is never null. ``is_upsert``: a change does not take back the row before."""

    is_changelog: bool
    is_unique: bool
    has_time: bool
    is_in_time: bool
    has_keys: bool = True
    is_upsert: bool = False


class Times(NamedTuple):
    """The watermark of a micro-batch and that of the one before, microseconds."""

    watermark: int
    passed: int


class Kind(ABC):
    """One kind of step. ``new()`` makes the model of one that starts without state."""

    num_inputs: ClassVar[int] = 1
    has_state: ClassVar[bool] = True
    takes_upserts: ClassVar[bool] = False

    @abstractmethod
    def takes(self, inputs: Sequence[Edge]) -> bool:
        """Whether it can have such inputs."""

    @abstractmethod
    def edge(self, inputs: Sequence[Edge]) -> Edge:
        """What is known of its rows."""

    @abstractmethod
    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        """The step, with the columns of every stream behind it."""

    @abstractmethod
    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        """Its model."""


class Model(ABC):
    """What a step must emit, micro-batch by micro-batch."""

    @abstractmethod
    def step(self, changes: Sequence[Table], times: Times) -> Table:
        """The net change of its rows for those of its inputs."""


class OfTables(Model):
    """A step whose rows are a function of the rows that its inputs have had so far."""

    def __init__(self, function: Callable[..., Table], inputs: int = 1) -> None:
        self._function = function
        self._inputs: list[Table] = [Counter() for _ in range(inputs)]
        self._before: Table = Counter()

    def step(self, changes: Sequence[Table], times: Times) -> Table:
        for table, change in zip(self._inputs, changes, strict=True):
            add(table, change)
        after = self._function(*self._inputs)
        change = difference(after, self._before)
        self._before = after
        return change


def add(table: Table, change: Table) -> None:
    """Let the changes happen to a table."""
    for row, number in change.items():
        table[row] += number
        if not table[row]:
            del table[row]


def difference(after: Table, before: Table) -> Table:
    """What came and went between two tables."""
    change = Counter(after)
    change.subtract(before)
    return Counter({row: number for row, number in change.items() if number})


def by(table: Table, column: int) -> dict[Any, list[Row]]:
    """The rows of each value of a column, as often as they are there."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in table.elements():
        groups[row[column]].append(row)
    return groups


def arrived(change: Table) -> list[Row]:
    """The rows of a stream to which rows are only added."""
    return list(change.elements())


def greatest(rows: list[Row], count: int) -> list[Row]:
    """The rows with the greatest values; as in Spark, nulls come last where the order descends. The id breaks ties."""
    return sorted(rows, key=lambda row: (row[2] is None, -(row[2] or 0), row[0]))[:count]


# -- one row at a time ---------------------------------------------------------------------------------


class Where(Kind):
    has_state = False

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return True

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return inputs[0]

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        return streams[0].where(f"v > {number} OR k = 1")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return OfTables(
            lambda table: Counter(
                {
                    row: count
                    for row, count in table.items()
                    if (row[2] is not None and row[2] > number) or row[1] == 1
                }
            )
        )


class Lookup(Kind):
    """A static table; keys that it lacks are padded. Of rows that are only inserted it keeps nothing."""

    has_state = False
    NAMES: Final = {0: 100, 1: 101, 2: 102}

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return not inputs[0].is_changelog

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return inputs[0]._replace(is_in_time=False, has_keys=False)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        names = [{"k": k, "found": found} for k, found in self.NAMES.items()]
        table = TableLookup(pa.Table.from_pylist(names), ["k"], ["found"])
        rows = streams[0].apply(LookupJoin(table, "found long"), uid=uid, key="k")
        return rows.select("id", "found AS k", "v", *(["at"] if inputs[0].has_time else []))

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return OfTables(
            lambda table: Counter(
                {(row[0], self.NAMES.get(row[1]), *row[2:]): count for row, count in table.items()}
            )
        )


# -- tables --------------------------------------------------------------------------------------------


class Group(Kind):
    """Of each key how many rows, and the sum, least and greatest value; the id is the key."""

    def __init__(self, function: str) -> None:
        self._function = function

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return True

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(True, inputs[0].has_keys, False, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        made = {"count": count("v"), "sum": sum_("v"), "min": min_("v"), "max": max_("v")}[self._function]
        rows = streams[0].apply(self.aggregation(made), uid=uid, key="k")
        return rows.select("k AS id", "k", f"{self._function}_v AS v")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return OfTables(self._grouped)

    def aggregation(self, made: Any) -> GroupAggregate:
        """The operator."""
        return GroupAggregate([made])

    def _grouped(self, table: Table) -> Table:
        found: Table = Counter()
        for key, rows in by(table, 1).items():
            values = [row[2] for row in rows if row[2] is not None]
            figure = {
                "count": len(values),
                "sum": sum(values) if values else None,
                "min": min(values, default=None),
                "max": max(values, default=None),
            }[self._function]
            found[key, key, figure] += 1
        return found


class Replacing(Group):
    """As ``Group``, without taking back the figure before."""

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return super().edge(inputs)._replace(is_upsert=True)

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].has_keys

    def aggregation(self, made: Any) -> GroupAggregate:
        return GroupAggregate([made], emit_update_before=False)


class Normalize(Kind):
    """Of upserts a full changelog."""

    takes_upserts = True

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_upsert

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return inputs[0]._replace(is_upsert=False)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        return streams[0].apply(ChangelogNormalize(), uid=uid, key="id")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return OfTables(Counter)


class Top(Kind):
    """The rows of each key with the greatest values; the id breaks ties."""

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_unique

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(True, True, inputs[0].has_time, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        return streams[0].apply(Rank([("v", "desc"), ("id", "asc")], number + 1), uid=uid, key="k")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        def best(table: Table) -> Table:
            found: Table = Counter()
            for rows in by(table, 1).values():
                found.update(greatest(rows, number + 1))
            return found

        return OfTables(best)


class Last(Kind):
    """Of each key the row with the first or the last time."""

    def __init__(self, keep: str) -> None:
        self._keep: Any = keep

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].has_time and not inputs[0].is_changelog

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(True, inputs[0].is_unique, True, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        return streams[0].apply(Deduplicate(self._keep), uid=uid, key="k", event_time="at")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        choose: Any = min if self._keep == "first" else max

        def chosen(table: Table) -> Table:
            return Counter(choose(rows, key=lambda row: row[3]) for rows in by(table, 1).values())

        return OfTables(chosen)


class Materialize(Kind):
    """A table of what it is given, whose id is a key."""

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_changelog and inputs[0].is_unique

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(True, True, inputs[0].has_time, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        return streams[0].apply(UpsertMaterialize(), uid=uid, key="id")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return OfTables(Counter)


class Joined(Kind):
    """Rows of two streams with one key; where both ids are there the left one's counts."""

    num_inputs = 2

    def __init__(self, kind: str) -> None:
        self._kind: Any = kind

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return True

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        is_changelog = any(one.is_changelog for one in inputs) or self._kind in ("left", "anti")
        is_unique = self._kind in ("semi", "anti") and inputs[0].is_unique
        return Edge(is_changelog, is_unique, False, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        rows = streams[0].join(streams[1], Join(self._kind), uid=uid, key="k")
        if self._kind in ("semi", "anti"):
            return rows.select("id", "k", "v")
        return rows.select("id", "k", "v_right AS v")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return OfTables(self._joined, 2)

    def _joined(self, left: Table, right: Table) -> Table:
        partners = by(right, 1)
        found: Table = Counter()
        for row in left.elements():
            own = partners.get(row[1], []) if row[1] is not None else []
            if self._kind in ("semi", "anti"):
                if bool(own) == (self._kind == "semi"):
                    found[row[:3]] += 1
                continue
            for other in own:
                found[row[0], row[1], other[2]] += 1
            if not own and self._kind == "left":
                found[row[0], row[1], None] += 1
        return found


# -- time ----------------------------------------------------------------------------------------------


class Windows(Kind):
    """How many rows a key has in each window, and their sum; the id is the window's end in seconds."""

    def __init__(self, form: str) -> None:
        self._form = form

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_in_time and not inputs[0].is_changelog

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(False, False, True, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        window: Any = {
            "tumble": tumble("10 seconds"),
            "hop": hop("10 seconds", "5 seconds"),
            "session": session("4 seconds"),
        }[self._form]
        rows = streams[0].apply(WindowAggregate(window, [count(), sum_("v")]), uid=uid, key="k")
        return rows.select("count AS id", "k", "sum_v AS v", "window_end AS at")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return (
            SessionsModel(4 * SECOND)
            if self._form == "session"
            else WindowsModel(10 * SECOND, 5 * SECOND if self._form == "hop" else 10 * SECOND)
        )


class WindowsModel(Model):
    def __init__(self, size: int, slide: int) -> None:
        self._size, self._slide = size, slide
        self._open: dict[tuple[Any, int], list[Row]] = {}

    def step(self, changes: Sequence[Table], times: Times) -> Table:
        for row in arrived(changes[0]):
            last = row[3] // self._slide * self._slide
            for start in range(last, last - self._size, -self._slide):
                end = start + self._size
                if end - 1 > times.passed:
                    self._open.setdefault((row[1], end), []).append(row)
        due = [one for one in self._open if one[1] - 1 <= times.watermark]
        return Counter(_window_row(key, end, self._open.pop((key, end))) for key, end in due)


def _window_row(key: Any, end: int, rows: Iterable[Row]) -> Row:
    found = list(rows)
    values = [row[2] for row in found if row[2] is not None]
    return len(found), key, sum(values) if values else None, end


class WindowTop(Kind):
    """The rows of each key and window with the greatest values."""

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_in_time and inputs[0].is_unique and not inputs[0].is_changelog

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(False, True, True, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        operator = WindowRank([("v", "desc"), ("id", "asc")], number + 1, window=tumble("10 seconds"))
        return streams[0].apply(operator, uid=uid, key="k").select("id", "k", "v", "at")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return WindowTopModel(10 * SECOND, number + 1)


class WindowTopModel(Model):
    def __init__(self, size: int, count: int) -> None:
        self._size, self._count = size, count
        self._open: dict[tuple[Any, int], list[Row]] = {}

    def step(self, changes: Sequence[Table], times: Times) -> Table:
        for row in arrived(changes[0]):
            end = row[3] // self._size * self._size + self._size
            if end - 1 > times.passed:
                self._open.setdefault((row[1], end), []).append(row)
        found: Table = Counter()
        for one in [one for one in self._open if one[1] - 1 <= times.watermark]:
            found.update(greatest(self._open.pop(one), self._count))
        return found


class SessionsModel(Model):
    def __init__(self, gap: int) -> None:
        self._gap = gap
        self._open: dict[Any, list[tuple[int, int, list[Row]]]] = defaultdict(list)

    def step(self, changes: Sequence[Table], times: Times) -> Table:
        for row in arrived(changes[0]):
            self._arrive(row)
        fired: Table = Counter()
        for key, sessions in self._open.items():
            for one in [one for one in sessions if one[1] - 1 <= times.watermark]:
                if one[1] - 1 > times.passed:  # else none of its rows was in time, in any order
                    fired[_window_row(key, one[1], one[2])] += 1
                sessions.remove(one)
        return fired

    def _arrive(self, row: Row) -> None:
        sessions = self._open[row[1]]
        start, end, rows = row[3], row[3] + self._gap, [row]
        merged = [one for one in sessions if one[0] <= end and start <= one[1]]
        for one in merged:
            start, end, rows = min(start, one[0]), max(end, one[1]), [*rows, *one[2]]
            sessions.remove(one)
        sessions.append((start, end, rows))


class Running(Kind):
    """Each row with the sum of its key so far, in order of time."""

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_in_time and not inputs[0].is_changelog

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(False, inputs[0].is_unique, True, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        rows = streams[0].apply(OverAggregate([sum_("v")], unbounded()), uid=uid, key="k")
        return rows.select("id", "k", "sum_v AS v", "at")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return RunningModel(sums=True)


class Sorted(Kind):
    """The rows, once the watermark has passed them."""

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return inputs[0].is_in_time and not inputs[0].is_changelog

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(False, inputs[0].is_unique, True, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        return streams[0].apply(TemporalSort(), uid=uid)

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return RunningModel(sums=False)


class RunningModel(Model):
    def __init__(self, sums: bool) -> None:
        self._sums: dict[Any, int | None] | None = {} if sums else None
        self._waiting: list[Row] = []

    def step(self, changes: Sequence[Table], times: Times) -> Table:
        self._waiting += [row for row in arrived(changes[0]) if row[3] > times.passed]
        due = sorted((row for row in self._waiting if row[3] <= times.watermark), key=lambda row: row[3])
        self._waiting = [row for row in self._waiting if row[3] > times.watermark]
        return Counter(map(self._emitted, due))

    def _emitted(self, row: Row) -> Row:
        if self._sums is None:
            return row
        before = self._sums.get(row[1])
        total = before if row[2] is None else (before or 0) + row[2]
        self._sums[row[1]] = total
        return row[0], row[1], total, row[3]


class Interval(Kind):
    """Rows of two streams with one key, at most some seconds apart."""

    num_inputs = 2
    REACH: Final = 5 * SECOND

    def __init__(self, kind: str) -> None:
        self._kind: Any = kind

    def takes(self, inputs: Sequence[Edge]) -> bool:
        return all(one.is_in_time and not one.is_changelog for one in inputs)

    def edge(self, inputs: Sequence[Edge]) -> Edge:
        return Edge(False, False, False, False, inputs[0].has_keys)

    def declare(self, streams: Sequence[Stream], inputs: Sequence[Edge], uid: str, number: int) -> Stream:
        reach = f"{self.REACH // SECOND} seconds"
        operator = IntervalJoin(self._kind, lower=f"-{reach}", upper=reach)
        rows = streams[0].join(streams[1], operator, uid=uid, key="k")
        return rows.select("id", "k", "v_right AS v")

    def new(self, number: int, inputs: Sequence[Edge]) -> Model:
        return IntervalModel(self._kind, self.REACH)


class IntervalModel(Model):
    def __init__(self, kind: str, reach: int) -> None:
        self._pads = kind == "left"
        self._reach = reach
        self._rows: tuple[list[list[Any]], list[list[Any]]] = ([], [])

    def step(self, changes: Sequence[Table], times: Times) -> Table:
        out: Table = Counter()
        for side, change in enumerate(changes):
            for row in arrived(change):
                self._arrive(side, row, times, out)
        for side in (0, 1):
            kept = []
            for stored in self._rows[side]:
                if stored[0][3] + self._reach > times.watermark:
                    kept.append(stored)
                elif self._pads and side == 0 and not stored[1]:
                    out[stored[0][0], stored[0][1], None] += 1
            self._rows[side][:] = kept
        return out

    def _arrive(self, side: int, row: Row, times: Times, out: Table) -> None:
        own = [row, False]
        for other in self._rows[1 - side]:
            if other[0][1] == row[1] and abs(other[0][3] - row[3]) <= self._reach:
                left, right = (row, other[0]) if side == 0 else (other[0], row)
                out[left[0], left[1], right[2]] += 1
                own[1] = other[1] = True
        if row[3] + self._reach > times.passed:
            self._rows[side].append(own)
        elif self._pads and side == 0 and not own[1]:
            out[row[0], row[1], None] += 1


KINDS: Final[dict[str, Kind]] = {
    "where": Where(),
    "lookup": Lookup(),
    "count": Group("count"),
    "sum": Group("sum"),
    "min": Group("min"),
    "max": Group("max"),
    "sum_upserts": Replacing("sum"),
    "max_upserts": Replacing("max"),
    "normalize": Normalize(),
    "top": Top(),
    "first": Last("first"),
    "last": Last("last"),
    "materialize": Materialize(),
    "inner_join": Joined("inner"),
    "left_join": Joined("left"),
    "semi_join": Joined("semi"),
    "anti_join": Joined("anti"),
    "tumble": Windows("tumble"),
    "hop": Windows("hop"),
    "session": Windows("session"),
    "window_top": WindowTop(),
    "running": Running(),
    "sorted": Sorted(),
    "interval_join": Interval("inner"),
    "interval_left": Interval("left"),
}
