"""LookupJoin against a plain dict of answers, over inserts and over changelogs."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import StateTtl
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.operator import Bundle, BundleContext
from asyncstate.testing import OperatorHarness, net
from operators.join.lookup import lookup_requests
from operators.join.lookup.lookup_join import LookupJoin, StatelessLookupJoin
from operators.join.lookup.lookup_requests import LookupCache, Retry

ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
FOUND = pa.schema([("name", pa.string())])
Row = tuple[Any, ...]


_places: list[Place] = []


def _place(number: int) -> Place:
    return _places[number]


class Place:
    """Answers that tests change, and a count of what was asked; a pickled copy is the same object."""

    def __init__(self, **rows: list[Row]) -> None:
        _places.append(self)
        self.number = len(_places) - 1
        self.rows: dict[int, list[Row]] = {int(key[1:]): found for key, found in rows.items()}
        self.asked: list[int] = []
        self.fail = 0

    def __reduce__(self) -> Any:
        return _place, (self.number,)

    def ask(self, keys: Sequence[tuple[Any, ...]]) -> list[list[Row]]:
        self.asked += [key for (key,) in keys]
        if self.fail:
            self.fail -= 1
            raise ConnectionError("the line is dead")
        return [self.rows.get(key, []) for (key,) in keys]

    async def ask_async(self, keys: Sequence[tuple[Any, ...]]) -> list[list[Row]]:
        return self.ask(keys)


def joined(how: str, rows: list[Row], answers: dict[int, list[Row]]) -> list[Row]:
    out = []
    for row in rows:
        found = answers.get(row[0], []) if row[0] is not None else []
        out += [(*row, *one) for one in found] or ([(*row, None)] if how == "left" else [])
    return out


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("changelog", [False, True], ids=["inserts", "changes"])
def test_rows_leave_in_order_with_all_that_is_found(
    async_enabled: bool, plain: bool, how: Any, batch: int, changelog: bool
) -> None:
    place = Place(k1=[("a",), ("b",)], k3=[("c",)])
    rows = [(1, 0), (2, 1), (None, 2), (3, 3), (1, 4)]
    join = LookupJoin(place.ask if plain else place.ask_async, FOUND, how=how, batch=batch)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=changelog) as harness:
        harness.push(rows)
        assert harness.end_batch() == [("+I", *row) for row in joined(how, rows, place.rows)]
        assert sorted(place.asked) == [1, 2, 3]


def test_without_an_exchange(async_enabled: bool) -> None:
    place = Place(k1=[("a",)])
    join = StatelessLookupJoin(place.ask_async, FOUND, on=["k"])
    with OperatorHarness(join, ROWS, None, async_enabled=async_enabled, changelog=False) as harness:
        harness.push([(2, 0), (1, 1)])
        assert harness.end_batch() == [("+I", 2, 0, None), ("+I", 1, 1, "a")]


def test_unordered_rows_are_the_same_rows(async_enabled: bool) -> None:
    place = Place(k1=[("a",), ("b",)], k3=[("c",)])
    rows = [(1, 0), (2, 1), (None, 2), (3, 3), (1, 4)]
    join = LookupJoin(place.ask_async, FOUND, ordered=False, batch=2)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push(rows)
        wanted = Counter(("+I", *row) for row in joined("left", rows, place.rows))
        assert Counter(harness.end_batch()) == wanted


class Watching(LookupJoin):
    """Says when the rows of two keys have left: what a step has put out has, when the next one begins."""

    others_left: ClassVar[threading.Event]

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        for number, step in enumerate(super().process_bundle(bundle, ctx)):
            yield step
            if number == 1:
                self.others_left.set()


async def slow_for_1(keys: Sequence[tuple[Any, ...]]) -> list[list[Row]]:
    if keys == [(1,)]:
        assert await anyio.to_thread.run_sync(Watching.others_left.wait, 30)
    return [[("found",)] for _ in keys]


def test_a_slow_key_holds_no_other() -> None:
    Watching.others_left = threading.Event()
    join = Watching(slow_for_1, FOUND, ordered=False)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=True, changelog=False) as harness:
        harness.push([(1, 0), (2, 1), (3, 2)])
        out = harness.end_batch()
    assert sorted(out[:2]) == [("+I", 2, 1, "found"), ("+I", 3, 2, "found")]
    assert out[2:] == [("+I", 1, 0, "found")]


def test_rows_that_do_not_meet_the_condition_ask_for_nothing(async_enabled: bool) -> None:
    place = Place(k1=[("a",)], k2=[("b",)])
    join = LookupJoin(place.ask, FOUND, where=lambda batch: [k == 1 for k in batch.column("k").to_pylist()])
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0), (2, 1)])
        assert harness.end_batch() == [("+I", 1, 0, "a"), ("+I", 2, 1, None)]
        assert place.asked == [1]


def test_a_row_is_taken_back_as_it_was_put_out(async_enabled: bool) -> None:
    place = Place(k1=[("a",), ("b",)])
    join = LookupJoin(place.ask, FOUND)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=True) as harness:
        harness.push([(1, 0), (2, 0)])
        harness.end_batch()
        place.rows = {1: [("new",)], 2: [("late",)]}
        harness.push([(1, 0), (2, 0), (1, 9)], kinds=["-D", "-D", "-D"])
        wanted = Counter([("-D", 1, 0, "a"), ("-D", 1, 0, "b"), ("-D", 2, 0, None)])
        assert Counter(harness.end_batch()) == wanted
        assert harness.statistics()["counter.retractions_without_state"] == 1
        assert sorted(place.asked) == [1, 2]


steps = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.booleans()), max_size=7), max_size=5
)


@given(
    batches=steps,
    answers=st.lists(
        st.dictionaries(st.integers(0, 3), st.lists(st.tuples(st.sampled_from("xy")), max_size=2)),
        min_size=5,
        max_size=5,
    ),
    how=st.sampled_from(["left", "inner"]),
    enabled=st.booleans(),
    size=st.sampled_from(["500000", "1", "3"]),
    restart=st.integers(0, 5),
)
def test_changes_against_a_model(
    batches: Any, answers: Any, how: Any, enabled: bool, size: str, restart: int
) -> None:
    """The model keeps what each live row was joined with; the oldest of equal rows goes."""
    place, shown = Place(), list[Row]()
    live: dict[Row, list[list[Row]]] = {}
    harness = OperatorHarness(
        LookupJoin(place.ask, FOUND, how=how, batch=2),
        ROWS,
        ["k"],
        async_enabled=enabled,
        changelog=True,
        max_parallelism=4,
        parallelism=2,
        options={"async-state.bundle-size": size},
    )
    for at, batch in enumerate(batches):
        if at == restart:
            again = harness.restore(harness.snapshot(), parallelism=3)
            harness.close()
            harness = again
        place.rows = answers[at]
        old = {row: list(outs) for row, outs in live.items()}
        left = Counter({row: len(outs) for row, outs in live.items()})
        rows, kinds = [], []
        for key, number, retract in batch:
            row = (key, number)
            if retract and not left[row]:
                continue
            left[row] += -1 if retract else 1
            rows.append(row)
            kinds.append("-D" if retract else "+I")
        harness.push(rows, kinds=kinds)
        live = {}
        for row, count in left.items():
            kept = old.get(row, [])
            gone = max(len(kept) - count, 0)
            new = [joined(how, [row], place.rows)] * max(count - len(kept), 0)
            if count:
                live[row] = kept[gone:] + new
        shown += harness.end_batch()
        wanted = Counter(out for outs in live.values() for one in outs for out in one)
        assert net(shown) == wanted
    harness.close()


def test_requests_that_raise_are_made_again(async_enabled: bool) -> None:
    place = Place(k1=[("a",)])
    place.fail = 2
    join = LookupJoin(place.ask_async, FOUND, retry=Retry(3, 0.0))
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0)])
        assert harness.end_batch() == [("+I", 1, 0, "a")]
        assert place.asked == [1, 1, 1]


def test_keys_without_rows_alone_are_asked_for_again(async_enabled: bool) -> None:
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND, batch=2, retry_empty=Retry(3, 0.0))
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0), (2, 0)])
        assert harness.end_batch() == [("+I", 1, 0, "a"), ("+I", 2, 0, None)]
        assert place.asked == [1, 2, 2, 2]


def test_a_failure_names_the_key(async_enabled: bool) -> None:
    place = Place()
    place.fail = 1
    with OperatorHarness(LookupJoin(place.ask, FOUND), ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(7, 0)])
        with pytest.raises(
            OperatorError, match=r"LookupJoin: the lookup of key \(7,\) failed: ConnectionError"
        ):
            harness.end_batch()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "returned 0 answers for 1 keys"),
        (None, "returned 'NoneType' for 1 keys"),
        (["a"], "answered key"),
        ([[("a", "b")]], "a tuple of 2 values"),
        ([[(object(),)]], "key \\(7,\\) returned, for column 'name', .*, which does not fit its type string"),
    ],
)
def test_answers_that_do_not_fit(async_enabled: bool, answer: Any, message: str) -> None:
    join = LookupJoin(lambda keys: answer, FOUND)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(7, 0)])
        with pytest.raises(OperatorError, match=message):
            harness.end_batch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "right"}, "how is 'right'"),
        ({"batch": 0}, "batch is 0"),
        ({"on": "k"}, "on is 'k'"),
        ({"timeout": 0}, "timeout is 0"),
        ({"columns": None}, "columns is None"),
        ({"lookup": 5}, "lookup is 5"),
    ],
)
def test_parameters_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        LookupJoin(**{"lookup": Place().ask, "columns": FOUND, **options})


def test_answers_are_remembered_over_bundles(async_enabled: bool) -> None:
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND, cache=LookupCache())
    options = {"async-state.bundle-size": "1"}
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, options=options) as harness:
        harness.push([(1, 0), (2, 1), (1, 2), (2, 3)])
        assert sorted(harness.end_batch()) == sorted(
            ("+I", *row) for row in joined("left", [(1, 0), (2, 1), (1, 2), (2, 3)], place.rows)
        )
        assert sorted(place.asked) == [1, 2]


def test_answers_are_remembered_over_micro_batches(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(lookup_requests, "_now", lambda: now[0])
    monkeypatch.setattr(
        lookup_requests, "_of_process", functools.cache(lookup_requests._of_process.__wrapped__)
    )
    place, other = Place(k1=[("a",)]), Place(k1=[("theirs",)])
    cache = LookupCache(100, seconds=60)  # one object for two operators, which have answers of their own
    joins = [LookupJoin(one.ask, FOUND, cache=cache) for one in (place, other)]
    asked = []
    with (
        OperatorHarness(joins[0], ROWS, ["k"], async_enabled=async_enabled) as harness,
        OperatorHarness(joins[1], ROWS, ["k"], async_enabled=async_enabled) as another,
    ):
        for seconds in (0, 59, 1):
            now[0] += seconds
            for one in (harness, another):
                one.push([(1, 0), (2, 0)])
            assert harness.end_batch() == [("+I", 1, 0, "a"), ("+I", 2, 0, None)]
            assert another.end_batch() == [("+I", 1, 0, "theirs"), ("+I", 2, 0, None)]
            asked.append((sorted(place.asked), sorted(other.asked)))
    assert asked == [([1, 2], [1, 2]), ([1, 2], [1, 2]), ([1, 1, 2, 2], [1, 1, 2, 2])]


def test_what_expires_is_not_known_any_more(async_enabled: bool) -> None:
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND, ttl=StateTtl("10 seconds"))
    options = {"async-state.on-missing-row": "count"}
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, options=options) as harness:
        harness.push([(1, 0), (2, 1)])
        harness.end_batch()
        harness.advance_processing_time(11_000_000)
        harness.push([(1, 0)], kinds=["-D"])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.retractions_without_state"] == 1


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_filter_before_a_changelog(async_enabled: bool, how: Any) -> None:
    """Rows that do not meet it are never asked for, and are taken back as they came."""
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND, how=how, where=pc.field("id") > 0, suffixes=("", "_found"))
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0), (1, 1)])
        came = harness.end_batch()
        harness.push([(1, 0), (1, 1)], kinds=["-D", "-D"])
        gone = harness.end_batch()
    padded = [(1, 0, None)] if how == "left" else []
    assert sorted(came, key=repr) == sorted((("+I", *row) for row in [*padded, (1, 1, "a")]), key=repr)
    assert sorted(gone, key=repr) == sorted((("-D", *row) for row in [*padded, (1, 1, "a")]), key=repr)
    assert place.asked == [1]


def test_columns_that_both_have_get_suffixes(async_enabled: bool) -> None:
    found = pa.schema([("id", pa.int64())])
    join = LookupJoin(lambda keys: [[(key * 10,)] for (key,) in keys], found, suffixes=("", "_there"))
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        assert harness.output_schema.names == ["k", "id", "id_there"]
        harness.push([(1, 5)])
        assert harness.end_batch() == [("+I", 1, 5, 10)]


LOGGED = ROWS.append(pa.field("lsn", pa.int64()))


@pytest.mark.parametrize("apart", [False, True])
def test_an_equal_row_of_another_position_replaces_the_old_one(async_enabled: bool, apart: bool) -> None:
    """Whether both halves of the update are in one micro-batch or in two."""
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND)
    with OperatorHarness(join, LOGGED, ["k"], sequence="lsn", async_enabled=async_enabled) as harness:
        harness.push([(1, 0, 1)])
        harness.end_batch()
        harness.push([(1, 0, 2)], kind="-U")
        if apart:
            harness.end_batch()
        harness.push([(1, 0, 2)], kind="+U")
        harness.end_batch()
        assert net(harness.output) == {(1, 0, 2, "a"): 1}


@pytest.mark.parametrize("size", ["500000", "1"])
def test_rows_that_ask_for_nothing_are_taken_back_by_another_position(async_enabled: bool, size: str) -> None:
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND, where=pc.field("id") > 0)
    options = {"async-state.bundle-size": size}
    with OperatorHarness(
        join, LOGGED, ["k"], sequence="lsn", async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([(1, 0, 1), (None, 1, 2), (1, 1, 3), (1, 0, 4), (1, 0, 5)], kinds=["+I"] * 4 + ["-D"])
        harness.end_batch()
        assert net(harness.output) == {(1, 0, 4, None): 1, (None, 1, 2, None): 1, (1, 1, 3, "a"): 1}
        harness.push([(1, 0, 6), (None, 1, 7), (1, 1, 8), (1, 2, 9)], kinds=["-D"] * 3 + ["+I"])
        harness.end_batch()
        assert net(harness.output) == {(1, 2, 9, "a"): 1}
        assert place.asked == [1, 1]
        assert len(harness.state_entries()) == 1


def test_a_row_that_comes_again_lives_on(async_enabled: bool) -> None:
    """As in two micro-batches: the row that comes again is a new one."""
    place = Place(k1=[("a",)])
    join = LookupJoin(place.ask, FOUND, ttl=StateTtl("10 seconds"))
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0)])
        harness.end_batch()
        harness.advance_processing_time(6_000_000)
        harness.push([(1, 0), (1, 0)], kinds=["-U", "+U"])
        harness.end_batch()
        harness.advance_processing_time(6_000_000)
        harness.push([(1, 0)], kind="-D")
        harness.end_batch()
        assert net(harness.output) == {}
