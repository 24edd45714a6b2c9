"""Join, GroupAggregate and Deduplicate with a time to live: generated stories against plain Python, row by row.

How soon the clean-up comes to a row depends on its key group. The models look at what is stored to learn what is gone,
and check that it had expired, and that nothing is left that has been over for half the ttl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncstate import InputSpec, StateTtl
from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.state import TtlTime
from asyncstate.state.columnar import list_blocks
from asyncstate.testing import net
from operators import Deduplicate, GroupAggregate, Join, count, max_, min_, sum_
from operators.join.rules import JoinKind
from tests.operators.set_model import Outcome, net_of_set
from tests.state.ttl_direct import MS, ExpiringRunner, Stored

SCHEMA = pa.schema([
    ("k", pa.int64()),
    ("id", pa.int64()),
    ("v", pa.int64()),
    ("t", pa.timestamp("us", tz="UTC")),
])  # fmt: skip
KEYS, IDS = range(2), range(2)
ADDS = ("+I", "+U")

ttls = st.builds(
    StateTtl,
    st.sampled_from([100 * MS, 300 * MS]),
    st.sampled_from(["processing", "event"]),
)
pauses = st.sampled_from([0, 20, 30, 60, 99, 100])


class Row(NamedTuple):
    """A row of SCHEMA; ``t`` in milliseconds."""

    k: int
    id: int
    v: int
    t: int

    def given(self) -> tuple[int, ...]:
        return (*self[:3], self.t * MS)


@dataclass
class Held:
    """A stored row or state with its stamp in milliseconds."""

    content: Any
    stamp: int


@dataclass
class Table:
    """What one state holds by key, in its order."""

    ttl: StateTtl | None
    rows: dict[int, list[Held]] = field(default_factory=lambda: {key: [] for key in KEYS})

    @property
    def lasts(self) -> int:
        assert self.ttl is not None
        return self.ttl.duration_us // MS

    def lives(self, held: Held, now: int) -> bool:
        return self.ttl is None or held.stamp + self.lasts > now

    def shown(self, key: int, now: int) -> list[Held]:
        return [held for held in self.rows[key] if self.lives(held, now)]

    def stamp(self, now: int, time: int) -> int:
        return max(now, time) if self.ttl is not None and self.ttl.time is TtlTime.EVENT else now

    def learn(self, stored: list[Stored], now: int, content: Any) -> None:
        """Forget what the clean-up has removed; what is left must be what is stored."""
        found: dict[int, list[tuple[Any, int]]] = {key: [] for key in KEYS}
        for row in stored:
            found[row.key[0]].append((content(row), now if row.stamp is None else row.stamp))
        for key, mine in self.rows.items():
            left = list(found[key])
            kept = []
            if self.ttl is None:  # rows that come again need not change their place
                assert sorted(row for row, _ in left) == sorted(held.content for held in mine)
                continue
            for held in mine:
                entry = (held.content, held.stamp)
                if left and left[0] == entry:
                    left.pop(0)
                    kept.append(held)
                else:
                    assert not self.lives(held, now), (key, entry, found[key])
            assert not left, (key, left, mine)
            assert all(held.stamp + self.lasts * 3 // 2 > now for held in kept)
            self.rows[key] = kept


def outcome(runner: ExpiringRunner, output: Any) -> Any:
    return output, dict(runner.entries), dict(runner.counters)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a few rows have several chunks."""
    monkeypatch.setattr(list_blocks, "TAIL_ROWS", 2)
    monkeypatch.setattr(list_blocks, "CHUNK_ROWS", 3)


# -- Join -----------------------------------------------------------------------------------------------------

changes = st.lists(
    st.tuples(
        st.sampled_from(["+I", "+I", "+U", "-U", "-D"]),
        st.builds(
            Row, st.sampled_from(KEYS), st.sampled_from(IDS), st.integers(0, 1), st.sampled_from([0, 30])
        ),
    ),
    max_size=4,
)
join_stories = st.lists(st.tuples(pauses, changes, changes), min_size=3, max_size=6)


class JoinModel:
    """Both tables; what a bundle puts out is what the join is of afterwards less what it was before."""

    def __init__(self, kind: JoinKind, unique: tuple[Any, Any], ttls: Sequence[StateTtl | None]) -> None:
        self.kind = kind
        self.unique = unique
        self.tables = [Table(ttl) for ttl in ttls]
        self.dropped = 0
        self.expired = 0

    def bundle(self, side: int, changes: Sequence[tuple[str, Row]], now: int) -> Counter[Any]:
        own = self.tables[side]
        missing = [row for key in KEYS for row in self.net(own, self.unique[side], key, changes, now).missing]
        if own.ttl is None:
            self.dropped += len(missing)
        else:  # they may have expired, so what they have made is taken back
            self.expired += len(missing)
            for row in missing:
                own.rows[row.k].append(Held(row, now))
        before = self.joined(now)
        if own.ttl is not None:
            for row in missing:
                own.rows[row.k].pop()
        for key in KEYS:
            self.change(own, self.unique[side], key, changes, now)
        if self.unique[side] == "join_key":
            own.rows = {key: rows[-1:] for key, rows in own.rows.items()}
        net = self.joined(now)
        net.subtract(before)
        return Counter({row: times for row, times in net.items() if times})

    def net(self, own: Table, unique: Any, key: int, changes: Sequence[tuple[str, Row]], now: int) -> Outcome:
        stored = [held.content for held in own.shown(key, now)]
        events = [(kind, row) for kind, row in changes if row.k == key]
        identity = None if unique is None else partial(self.identity, unique)
        return net_of_set(stored, events, identity, refresh=own.ttl is not None)

    def change(self, own: Table, unique: Any, key: int, changes: Sequence[tuple[str, Row]], now: int) -> None:
        """A list that loses rows is written without those that reads do not show."""
        shown = own.shown(key, now)
        events = [row for _, row in changes if row.k == key]
        net = self.net(own, unique, key, changes, now)
        if len(net.stays) < len(shown):
            own.rows[key] = [shown[at] for at in net.stays]
        own.rows[key] += [Held(events[at], own.stamp(now, events[at].t)) for at in net.comes]

    @staticmethod
    def identity(unique: Any, row: Row) -> Any:
        return () if unique == "join_key" else row.id if unique == ("id",) else row

    def joined(self, now: int) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for key in KEYS:
            left, right = ([held.content for held in table.shown(key, now)] for table in self.tables)
            if self.kind in ("semi", "anti"):
                found.update((row, None) for row in left if bool(right) == (self.kind == "semi"))
                continue
            found.update(product(left, right))
            if self.kind in ("left", "full") and not right:
                found.update((row, None) for row in left)
            if self.kind in ("right", "full") and not left:
                found.update((None, row) for row in right)
        return found


def pairs(output: Sequence[tuple[Any, ...]]) -> Counter[Any]:
    """The net of the output, each row as the one of the left and the one of the right side, which may be missing."""
    sides = [
        [
            None if side[0] is None else Row(*side[:3], side[3] // MS)
            for side in ((values[:4], values[4:]) if len(values) == 8 else (values, [None]))
        ]
        for _, *values in output
    ]
    return net((change[0], *both) for change, both in zip(output, sides, strict=True))


def run_join(
    story: Any, kind: JoinKind, unique: tuple[Any, Any], ttls: Sequence[StateTtl | None], deferred: bool
) -> list[Any]:
    inputs = [InputSpec(SCHEMA, ("k",), "t", changes=RETRACT, name=name) for name in ("left", "right")]
    join = Join(kind, left_unique=unique[0], right_unique=unique[1], left_ttl=ttls[0], right_ttl=ttls[1])
    runner, model, now, outcomes = (
        ExpiringRunner(join, inputs, deferred),
        JoinModel(kind, unique, ttls),
        1_000,
        [],
    )
    for pause, *bundles in [*story, *[(60, [], [])] * 8]:
        now += pause
        given = [
            (side, [(kind_, row._replace(t=row.t + now)) for kind_, row in changes])
            for side, changes in enumerate(bundles)
            if changes
        ]
        output = runner.batch(
            now,
            *((side, [row.given() for _, row in rows], [kind_ for kind_, _ in rows]) for side, rows in given),
        )
        model.dropped = model.expired = 0
        for (side, rows), found in zip(given, output, strict=True):
            assert pairs(found) == model.bundle(side, rows, now)
        assert runner.counters["retractions_without_state"] == model.dropped
        assert runner.counters["retractions_of_expired_rows"] == model.expired
        for name, table in zip(("left", "right"), model.tables, strict=True):
            table.learn(runner.stored(name), now, _stored_row)
        outcomes.append(outcome(runner, output))
    if None not in ttls:
        assert runner.entries == {}
    return outcomes


def _stored_row(stored: Stored) -> Row:
    *values, time = stored.values
    return Row(*values, int(time.timestamp() * 1_000 + 0.5))


ONE, OTHER, THIRD = Row(0, 1, 0, 0), Row(0, 0, 0, 0), Row(0, 0, 1, 0)
PARTNER_EXPIRED = [(0, [("+I", ONE)], [("+I", OTHER)]), (100, [], [("+I", THIRD)])]
OTHERS_STAY = [(0, [("+I", ONE), ("+I", OTHER)], []), (60, [("-D", ONE)], []), (30, [("+I", THIRD)], [])]


@pytest.mark.long
@given(
    join_stories,
    st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]),
    st.tuples(*[st.sampled_from([None, ("id",), "join_key"])] * 2),
    st.tuples(ttls, ttls) | st.tuples(st.none(), ttls) | st.tuples(ttls, st.none()),
)
@settings(max_examples=2 * settings().max_examples)
@example(PARTNER_EXPIRED, "left", (None, None), (None, StateTtl(100 * MS)))
@example(PARTNER_EXPIRED, "semi", ("join_key", ("id",)), (StateTtl(300 * MS), StateTtl(100 * MS)))
@example(OTHERS_STAY, "inner", (None, None), (StateTtl(300 * MS), None))
def test_joins(story: Any, kind: JoinKind, unique: Any, ttls: Any) -> None:
    assert run_join(story, kind, unique, ttls, False) == run_join(story, kind, unique, ttls, True)


# -- GroupAggregate ---------------------------------------------------------------------------------------------

group_stories = st.lists(st.tuples(pauses, changes), min_size=2, max_size=6)


def aggregated(values: Sequence[int]) -> tuple[int, ...]:
    return len(values), sum(values), min(values), max(values)


def existing(rows: Sequence[tuple[str, Row]], table: Table, now: int) -> list[tuple[str, Row]]:
    """``rows`` at ``now``; what is taken back is a row that its key has, if it has any."""
    given = []
    there = {
        key: [Row(key, 0, value, -now) for held in table.shown(key, now) for value in held.content]
        for key in KEYS
    }
    for kind, row in rows:
        own = there[row.k]
        if kind in ADDS:
            own.append(row)
        elif own:
            row = own.pop(row.id % len(own))
        given.append((kind, row._replace(t=row.t + now)))
    return given


def in_order_of(rows: Sequence[Any], changes: Sequence[tuple[str, Row]]) -> list[Any]:
    """``rows`` that were taken back, in the order in which their last retractions came."""
    places = [at for at, (kind, _) in enumerate(changes) if kind not in ADDS]
    wanted, found = Counter(rows), []
    for at in reversed(places):
        if wanted[changes[at][1]]:
            wanted[changes[at][1]] -= 1
            found.append(changes[at][1])
    return found[::-1]


def group_batch(
    rows: Sequence[tuple[str, Row]], table: Table, now: int, distinct: bool
) -> tuple[list[tuple[Any, ...]], int]:
    """What a micro-batch puts out, and how many rows it drops; changes the table."""
    out: list[tuple[Any, ...]] = []
    dropped = 0
    for key in dict.fromkeys(row.k for _, row in rows):
        own = [(kind, row) for kind, row in rows if row.k == key]
        before = [value for held in table.shown(key, now) for value in held.content]
        values = list(before)
        net = net_of_set([], own)
        taken = [row.v for row in in_order_of(net.missing, own)]
        for value in taken[: len(before)]:
            values.remove(value)
        dropped += max(len(taken) - len(before), 0)
        values += [own[at][1].v for at in net.comes]
        if before:
            out.append(("-U" if values else "-D", key, *(() if distinct else aggregated(before))))
        if values:
            out.append(("+U" if before else "+I", key, *(() if distinct else aggregated(values))))
        if before or values:
            stamp = max(table.stamp(now, row.t) for _, row in own)
            table.rows[key] = [Held(tuple(values), stamp)] if values else []
    return out, dropped


def run_groups(story: Any, ttl: StateTtl, distinct: bool, changelog: bool, deferred: bool) -> list[Any]:
    spec = InputSpec(SCHEMA, ("k",), "t", changes=RETRACT if changelog else INSERT_ONLY)
    aggregates = () if distinct else (count(), sum_("v"), min_("v"), max_("v"))
    runner = ExpiringRunner(GroupAggregate(aggregates, ttl=ttl), [spec], deferred)
    table, now, outcomes = Table(ttl), 1_000, []
    for pause, changes in [*story, *[(60, [])] * 8]:
        now += pause
        rows = existing([change for change in changes if changelog or change[0] == "+I"], table, now)
        bundles = [(0, [row.given() for _, row in rows], [kind for kind, _ in rows])] if rows else []
        output = [row for found in runner.batch(now, *bundles) for row in found]
        expected, dropped = group_batch(rows, table, now, distinct)
        assert output == expected
        assert runner.counters["retractions_without_state"] == dropped
        table.learn(
            runner.stored("accumulators"), now, lambda row: held_of(table, row, distinct and not changelog)
        )
        if changelog and not distinct:
            assert logged(runner) == {
                key: Counter(rows[0].content) for key, rows in table.rows.items() if rows
            }
        outcomes.append(outcome(runner, output))
    assert runner.entries == {}
    return outcomes


def held_of(table: Table, stored: Stored, marks: bool) -> Any:
    """The values that a stored accumulator counts, checked by their number where it has that."""
    (held,) = table.rows[stored.key[0]]
    assert stored.values[0] == (True if marks else len(held.content))
    return held.content


def logged(runner: ExpiringRunner) -> dict[int, Counter[int]]:
    """The values in the logs of each key that has one."""
    found: dict[int, Counter[int]] = {}
    for row in runner.stored("values.v"):
        value, times = row.values
        found.setdefault(row.key[0], Counter())[value] += times
    return {key: Counter({v: n for v, n in values.items() if n}) for key, values in found.items()}


REVIVED = [(0, [("+I", ONE), ("+I", THIRD)]), (100, [("+I", ONE)]), (0, [("-D", ONE), ("+I", THIRD)])]


@given(group_stories, ttls, st.booleans(), st.booleans())
@example(REVIVED, StateTtl(100 * MS), False, True)
def test_groups(story: Any, ttl: StateTtl, distinct: bool, changelog: bool) -> None:
    sync = run_groups(story, ttl, distinct, changelog, False)
    assert run_groups(story, ttl, distinct, changelog, True) == sync


# -- Deduplicate ------------------------------------------------------------------------------------------------

dedup_stories = st.lists(
    st.tuples(
        pauses,
        st.lists(
            st.builds(
                Row,
                st.sampled_from(KEYS),
                st.just(0),
                st.integers(0, 1),
                st.sampled_from([-60, -20, 0, 0, 30]),
            ),
            max_size=5,
        ),
    ),
    min_size=2,
    max_size=6,
)


def takes_place(old: Row, new: Row, keep: str, time: str) -> bool:
    if time == "processing":
        return keep == "last"
    return old.t <= new.t if keep == "last" else new.t < old.t


def run_deduplicate(story: Any, ttl: StateTtl, keep: Any, time: Any, deferred: bool) -> list[Any]:
    spec = InputSpec(SCHEMA, ("k",), "t")
    runner = ExpiringRunner(Deduplicate(keep, time, ttl=ttl), [spec], deferred)
    table, now, outcomes = Table(ttl), 1_000, []
    marks = keep == "first" and time == "processing"
    for pause, rows in [*story, *[(60, [])] * 8]:
        now += pause
        rows = [row._replace(t=row.t + now) for row in rows]
        bundles = [(0, [row.given() for row in rows], ["+I"] * len(rows))] if rows else []
        output = [row for found in runner.batch(now, *bundles) for row in found]
        expected: list[Any] = []
        for key in dict.fromkeys(row.k for row in rows):
            own = [row for row in rows if row.k == key]
            chosen = own[0] if keep == "first" else own[-1]
            if time == "event":
                chosen = (
                    min(own, key=lambda row: row.t)
                    if keep == "first"
                    else max(own[::-1], key=lambda row: row.t)
                )
            old = [held.content for held in table.shown(key, now)]
            if not old:
                expected.append(("+I", *chosen.given()))
            elif takes_place(old[0], chosen, keep, time):
                expected += [("-U", *old[0].given()), ("+U", *chosen.given())]
            else:
                continue
            table.rows[key] = [Held(chosen, table.stamp(now, chosen.t))]
        assert output == expected
        if marks:  # which row it was is not stored
            table.learn(runner.stored("rows"), now, lambda row: table.rows[row.key[0]][0].content)
        else:
            table.learn(
                runner.stored("rows"), now, lambda row: _stored_row(Stored((), (row.key[0], *row.values), 0))
            )
        outcomes.append(outcome(runner, output))
    assert runner.entries == {}
    return outcomes


@given(dedup_stories, ttls, st.sampled_from(["first", "last"]), st.sampled_from(["event", "processing"]))
def test_deduplicate(story: Any, ttl: StateTtl, keep: Any, time: Any) -> None:
    assert run_deduplicate(story, ttl, keep, time, False) == run_deduplicate(story, ttl, keep, time, True)
