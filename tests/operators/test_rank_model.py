"""Rank against a ranking kept row by row: all kinds of input, functions and limits, over blocks of any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.codec import KeyCodec
from asyncstate.operator import InputSpec
from asyncstate.state.columnar.list_columns import ListColumnStateDescriptor
from asyncstate.testing import net
from operators import Rank, asc, desc
from operators.rank.rank_plan import RankPlan
from operators.rank.retractable import all_rows
from operators.rank.retractable.blocks import BlockSizes
from tests.examples import at_most
from tests.operators.direct import DirectRunner
from tests.operators.rank_model import RankModel, expected_changes
from tests.operators.set_model import Row, exact
from tests.state.fakes import FakeContext

SCHEMA = pa.schema(
    [("k", pa.int64()), ("a", pa.float64()), ("b", pa.string()), ("u", pa.int64()), ("n", pa.int32())]
)
A, B, U, N = 1, 2, 3, 4
EXAMPLES = at_most(60)
TINY = BlockSizes(spare_least=1, spare_most=2, block_rows=2, growth=2, spare_events=1)
ORDERS: dict[str, tuple[Any, list[tuple[int, bool, bool]]]] = {
    "one column down": (desc("a"), [(A, True, False)]),
    "nulls where they are asked for": (
        [desc("a", nulls="first"), asc("b", nulls="last")],
        [(A, True, True), (B, False, False)],
    ),
    "strings": (["b", ("a", "desc")], [(B, False, True), (A, True, False)]),
    "arrival alone": ("k", []),
}


@dataclass
class Case:
    input: str
    order: str
    n: int | str
    offset: int
    function: str
    numbered: bool
    emit_update_before: bool
    tiny: bool

    @property
    def unique(self) -> list[int] | None:
        return [U] if self.input in ("unique", "monotonic") else None

    @property
    def keeps_all(self) -> bool:
        return self.input in ("retract", "unique")

    def operator(self) -> Rank:
        return Rank(
            ORDERS[self.order][0],
            self.n,
            offset=self.offset,
            function=self.function,  # type: ignore[arg-type]
            rank_column="number" if self.numbered else None,
            unique=["u"] if self.unique else None,
            monotonic=self.input == "monotonic",
            emit_update_before=self.emit_update_before,
        )

    def model(self) -> RankModel:
        return RankModel(
            ORDERS[self.order][1], self.n, self.offset, self.function, self.unique, N, self.keeps_all
        )

    @property
    def identity(self) -> str:
        if self.numbered and self.function == "row_number":
            return "number"
        return "unique" if self.unique else "nothing"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    case = Case(
        input=draw(st.sampled_from(["append", "retract", "unique", "monotonic"])),
        order=draw(st.sampled_from(list(ORDERS))),
        n=draw(st.one_of(st.integers(1, 4), st.just("n"))),
        offset=draw(st.integers(0, 2)),
        function=draw(st.sampled_from(["row_number", "rank", "dense_rank"])),
        numbered=draw(st.booleans()),
        emit_update_before=draw(st.booleans()),
        tiny=draw(st.sampled_from([True, True, False])),
    )
    if case.input == "monotonic" and case.function == "dense_rank":
        case.function = "rank"
    return case


NAN = float("nan")


def drawn_row(random: Random) -> Row:
    return (
        random.randrange(2),
        random.choice([None, -0.5, 1.0, 2.0, 3.0, NAN]),
        random.choice([None, "x", "y"]),
        random.randrange(25),
        random.choice([1, 1, 1, 2, 3, 0, -1, None]),
    )


def bundles(case: Case, seed: int) -> Iterator[Callable[[RankModel], list[tuple[str, Row]]]]:
    """A few bundles, growing at first, then shrinking: each a function that draws records and tells the model."""
    random = Random(seed)
    for taken_back in (0.1, 0.2, 0.7, 0.8, 0.3)[: random.randint(2, 5)]:
        size = random.choice([3, 20, 60])
        yield lambda model, size=size, part=taken_back: [  # type: ignore[misc]
            record for _ in range(size) for record in drawn_record(case, model, random, part)
        ]


def drawn_record(case: Case, model: RankModel, random: Random, taken_back: float) -> list[tuple[str, Row]]:
    """A record that the case's input may have, if any; the model knows of it."""
    row, kind = drawn_row(random), random.choice(["+I", "+U"])
    if case.input == "append":
        kind = "+I"
    elif random.random() < taken_back:
        kind = "-U" if case.input == "monotonic" else random.choice(["-U", "-D"])
        if model.rows.get(row[0]) and random.random() < 0.9:  # mostly of a row that is there
            row = random.choice(model.rows[row[0]])
    if case.input == "monotonic" and kind != "-U" and model.worse(row):
        return []
    if case.input != "monotonic" or kind != "-U":
        model.apply(kind, row)
    elif row[N] is None and case.n == "n":
        model.counts["rows_without_limit"] += 1
    return [(kind, row)]


SEEDS = st.integers(0, 2**32)


@settings(max_examples=EXAMPLES)
@given(case=cases(), seed=SEEDS)
def test_rank_is_what_row_by_row_ranking_gives(case: Case, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if case.tiny:
            patch.setattr(all_rows, "SIZES", TINY)
        check(case, seed)


def check(case: Case, seed: int) -> None:
    spec = InputSpec(SCHEMA, ("k",), changes=RETRACT if case.input != "append" else INSERT_ONLY)
    runners = [DirectRunner(case.operator(), spec, deferred=deferred) for deferred in (False, True)]
    model = case.model()
    for draw in bundles(case, seed):
        before = {key: model.shown(key) for key in model.rows}
        model.counts.clear()
        records = draw(model)
        model.end_bundle()
        kinds, rows = [kind for kind, _ in records], [row for _, row in records]
        outputs = [runner.run(rows, kinds, 0) for runner in runners]
        assert list(map(exact, outputs[0])) == list(map(exact, outputs[1]))
        assert runners[0].sink.contents() == runners[1].sink.contents()
        check_output(case, model, before, rows, outputs[0])
        if case.keeps_all and model.rows:
            check_counts(case, model, spec, runners[0])
        counts = {name: number for name, number in runners[0].counters.items() if number}
        assert counts == dict(model.counts)


def check_counts(case: Case, model: RankModel, spec: InputSpec, runner: DirectRunner) -> None:
    """The best rows and the blocks behind them have as many rows as there are."""
    plan = RankPlan(case.operator().settings, spec, "Rank")
    context = FakeContext(runner.sink)
    top = ListColumnStateDescriptor(
        "top", pa.schema([*plan.fields, *all_rows.BOOKKEEPING]), belongs_to=plan.belongs_to
    )
    keys = KeyCodec([pa.int64()], ["k"], 4).group([pa.array(sorted(model.rows))])
    entries = top.bind(runner.sink, 8, context, None).get(keys)  # type: ignore[arg-type]
    _, blocks, rows = (column.to_pylist() for column in entries.columns[-3:])
    found: Counter[int] = Counter()
    for key, block, count in zip(entries.key_index, blocks, rows, strict=True):
        found[keys.columns[0][int(key)].as_py()] += {0: 1, -1: 0}.get(block, count)
        assert count >= 0
    assert found == {key: len(rows) for key, rows in model.rows.items()}


def check_output(
    case: Case, model: RankModel, before: dict[Any, Any], rows: list[Row], output: list[Row]
) -> None:
    keys = [row[0] for row in rows if case.n != "n" or row[N] is not None]
    expected = [
        change
        for key in dict.fromkeys([*[row[0] for row in rows]])
        if key in keys
        for change in expected_changes(
            before.get(key, []), model.shown(key), case.identity, case.unique or [], case.numbered
        )
        if change[0] != "-U" or case.emit_update_before
    ]
    if case.identity == "nothing":  # of equal rows nothing tells which one stays
        assert Counter(map(exact, output)) == Counter(map(exact, expected))
        assert [row[:2] for row in output] == [row[:2] for row in expected]
    else:
        assert list(map(exact, output)) == list(map(exact, expected))


@pytest.mark.long
@settings(max_examples=at_most(10))
@given(seed=SEEDS, function=st.sampled_from(["row_number", "rank", "dense_rank"]))
def test_the_size_of_bundles_does_not_matter(seed: int, function: str) -> None:
    """Many bundles a micro-batch and one end in the same ranking."""
    case = Case("retract", "one column down", 2, 0, function, False, True, True)
    spec = InputSpec(SCHEMA, ("k",), changes=RETRACT)
    netted: list[Counter[Row]] = []
    for bundle_rows in (3, 17, None):
        runner, model, shown = DirectRunner(case.operator(), spec), case.model(), list[Row]()
        for draw in bundles(case, seed):
            records = draw(model)
            output = runner.run([row for _, row in records], [kind for kind, _ in records], 0, bundle_rows)
            assert {row[0] for row in output} <= {"+I", "-D"}
            shown += [(kind, exact(tuple(row))) for kind, *row in output]
        netted.append(net(shown, in_order=True))
    assert netted[0] == netted[1] == netted[2]
