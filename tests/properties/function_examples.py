"""The DataStream functions: those that any order suits, and those that rely on the order of an ordered input."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from asyncstate.operator import Operator
from operators import (
    BroadcastProcess,
    CoFlatMap,
    CoMap,
    CoProcess,
    KeyedFilter,
    KeyedFlatMap,
    KeyedMap,
    KeyedProcess,
    KeyedReduce,
    WindowApply,
    WindowProcess,
    session,
    tumble,
)
from operators.process.process_table_function import TableFunction
from tests.properties import functions
from tests.properties.examples import MICROSECOND, Entries, Example, nullable, small
from tests.properties.histories import (
    Change,
    History,
    Record,
    Row,
    Table,
    both,
    changelogs,
    keyed_changelogs,
    on_input,
)
from tests.properties.models import by_key, folded, sessions, sliding, windowed
from tests.properties.views import View, as_they_are, session_rows, waiting_rows

INTEGER = pa.int64()
PLAIN = pa.schema([("k", INTEGER), ("v", INTEGER)])
LEFT = pa.schema([("k", INTEGER), ("at", MICROSECOND), ("id", INTEGER), ("v", INTEGER)])
RIGHT = pa.schema([("k", INTEGER), ("at", MICROSECOND), ("id", INTEGER), ("w", INTEGER)])
K, AT, ID, VALUE = range(4)
SECOND = functions.SECOND
Windows = dict[tuple[Any, int, int], list[Row]]


def _schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


@st.composite
def stateless(
    draw: st.DrawFn, operator: Callable[[], Operator], rows: Callable[[Row], Iterable[Row]]
) -> Example:
    """A function that gives the same rows for the same row, over a changelog."""

    def expected(tables: list[Table]) -> Table:
        return Counter(out for row in tables[0].elements() for out in rows(row))

    row = st.tuples(small(0, 2), nullable(small(0, 3)))
    return Example(operator, [PLAIN], [["k"]], draw(changelogs(row)), expected)


def _events(size: int = 12, rows: int = 3) -> st.SearchStrategy[History]:
    """Insertions with times and ids, a total order in which no two rows are equal."""
    drawn = st.lists(st.tuples(small(0, 1), small(0, 20), small(0, rows)), max_size=size)
    return drawn.map(
        lambda events: History(
            [
                Change((Record(0, "+I", (k, second * SECOND, number, value)),))
                for number, (k, second, value) in enumerate(events)
            ]
        )
    )


_TWO = both(_events(8), _events(8).map(lambda one: on_input(one, 1)))


@st.composite
def over_events(
    draw: st.DrawFn,
    operator: Callable[[], Operator],
    expected: Callable[[list[Table]], Table],
    inputs: int = 1,
    ordered: bool = False,
    view: View = as_they_are,
) -> Example:
    """One or two inputs with event times; ``ordered`` by time and id."""
    settings: dict[str, Any] = {"event_time": ["at"] * inputs, "changelog": False}
    if ordered:
        settings["order_by"] = ["at", "id"] if inputs == 1 else [["at", "id"]] * inputs
    return Example(
        operator,
        [LEFT, RIGHT][:inputs],
        [["k"]] * inputs,
        draw(_events() if inputs == 1 else _TWO),
        expected,
        settings,
        times=[AT] * inputs,
        view=waiting_rows if ordered else view,
    )


def _in_order(tables: Sequence[Table]) -> list[tuple[int, Row]]:
    """The rows of all inputs by time, input and id."""
    rows = [(number, row) for number, table in enumerate(tables) for row in table.elements()]
    return sorted(rows, key=lambda one: (one[1][AT], one[0], one[1][ID]))


def _of_each_key(
    function: Callable[[list[tuple[int, Row]]], Iterable[Row]],
) -> Callable[[list[Table]], Table]:
    """A model that sees the rows of a key in order, with the input of each."""

    def expected(tables: list[Table]) -> Table:
        rows: dict[Any, list[tuple[int, Row]]] = defaultdict(list)
        for number, row in _in_order(tables):
            rows[row[K]].append((number, row))
        return Counter(out for found in rows.values() for out in function(found))

    return expected


def _texts(rows: list[tuple[int, Row]]) -> Iterable[Row]:
    for end in range(1, len(rows) + 1):
        yield rows[0][1][K], "".join(f"{row[VALUE]} " for _, row in rows[:end])


def _rises(rows: list[tuple[int, Row]]) -> Iterable[Row]:
    before = [-1, *(row[VALUE] for _, row in rows)]
    return [row for last, (_, row) in zip(before, rows, strict=False) if row[VALUE] > last]


def _steps(rows: list[tuple[int, Row]]) -> Iterable[Row]:
    before = [0, *(row[VALUE] for _, row in rows)]
    for last, (_, row) in zip(before, rows, strict=False):
        yield from ((row[K], value) for value in range(last, row[VALUE]))


def _reductions(rows: list[tuple[int, Row]]) -> Iterable[Row]:
    for end in range(1, len(rows) + 1):
        yield folded(
            [row for _, row in rows[:end]], lambda a, b: (b[K], b[AT], b[ID], 3 * a[VALUE] + b[VALUE])
        )


def _latest(rows: list[tuple[int, Row]]) -> Iterable[Row]:
    newest: list[Any] = [None, None]
    for number, row in rows:
        newest[number] = row[VALUE]
        yield row[K], newest[0], newest[1]


def _over_limit(rows: list[tuple[int, Row]]) -> Iterable[Row]:
    limit = None
    for number, row in rows:
        if number == 1:
            limit = row[VALUE]
        elif limit is not None and row[VALUE] > limit:
            yield row[K], row[VALUE], limit


def _largest(tables: list[Table]) -> Table:
    rows = by_key(tables[0], lambda row: row[K])
    return Counter(max(found, key=lambda row: (row[VALUE], row[ID])) for found in rows.values())


def _buckets(table: Table) -> Windows:
    return windowed(table, lambda row: row[K], AT, sliding(functions.BUCKET, functions.BUCKET))


def _bucket_counts(tables: list[Table]) -> Table:
    return Counter((k, end, len(rows)) for (k, _, end), rows in _buckets(tables[0]).items())


def _bucket_sums(tables: list[Table]) -> Table:
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for number, table in enumerate(tables):
        for (k, _, end), rows in _buckets(table).items():
            sums[k, end][number] += sum(row[VALUE] for row in rows)
    return Counter((k, *both_sums) for (k, _), both_sums in sums.items())


WINDOWS: dict[str, tuple[Any, Callable[[Table], Windows]]] = {
    "tumbling": (
        tumble("5 seconds"),
        lambda table: windowed(table, lambda row: row[K], AT, sliding(5 * SECOND, 5 * SECOND)),
    ),
    "session": (session("3 seconds"), lambda table: sessions(table, lambda row: row[K], AT, 3 * SECOND)),
}


def _window_values(name: str) -> Callable[[list[Table]], Table]:
    def expected(tables: list[Table]) -> Table:
        return Counter(
            (k, start, end, end - 1_000, " ".join(map(str, sorted(row[VALUE] for row in rows))))
            for (k, start, end), rows in WINDOWS[name][1](tables[0]).items()
        )

    return expected


def _best_sums(name: str) -> Callable[[list[Table]], Table]:
    def expected(tables: list[Table]) -> Table:
        out, best = Counter[Row](), Counter[Any]()
        for (k, _, end), rows in sorted(WINDOWS[name][1](tables[0]).items(), key=lambda one: one[0][2]):
            total = sum(row[VALUE] for row in rows)
            best[k] = max(best[k], total)
            out[k, end, total, best[k]] += 1
        return out

    return expected


@st.composite
def with_rules(draw: st.DrawFn, operator: Callable[[pa.Schema], Operator]) -> Example:
    """Rows and rules, each rule once."""
    rows = draw(st.lists(st.tuples(small(0, 2), small(0, 3)), max_size=9))
    rules = draw(st.lists(small(0, 5), unique=True, max_size=4))
    records = [*(Record(0, "+I", row) for row in rows), *(Record(1, "+I", (rule,)) for rule in rules)]
    return Example(
        lambda: operator(_schema(k=INTEGER, v=INTEGER, rule=INTEGER)),
        [PLAIN, _schema(rule=INTEGER)],
        [["k"], None],
        History([Change((record,)) for record in draw(st.permutations(records))], 2),
        lambda tables: Counter((*row, rule[0]) for row in tables[0].elements() for rule in tables[1]),
        {"changelog": False},
    )


def _with_second(record: Record) -> Record:
    """The number of the change in two columns: three changes have one second."""
    row = record.row
    return record._replace(row=(row[K], row[ID] // 3 * SECOND, *row[ID:]))


@st.composite
def journals(draw: st.DrawFn, drop_stale: bool) -> Example:
    """Changes in order of two columns together; the halves of an update are equal in them."""
    rows = st.tuples(small(0, 1), st.just(0), st.just(0), small(0, 3))
    drawn = draw(keyed_changelogs(rows, lambda row: row[K], sequence_at=ID, size=10))
    changes = [Change(tuple(map(_with_second, change.records))) for change in drawn.changes]
    texts: Table = Counter()
    so_far: dict[Any, str] = defaultdict(str)
    for record in (record for change in changes for record in change.records):
        so_far[record.row[K]] += f"{record.kind}{record.row[VALUE]} "
        texts[record.row[K], so_far[record.row[K]]] += 1
    return Example(
        lambda: KeyedProcess(functions.Journal(), _schema(k=INTEGER, text=pa.string())),
        [LEFT],
        [["k"]],
        History(changes, identities=drawn.identities),
        settings={"sequence": ["at", "id"], "drop_stale": drop_stale},
        come_again=drop_stale,
        output=texts,
    )


_VALUES = _schema(k=INTEGER, v=INTEGER)
_PAIR = _schema(k=INTEGER, left=INTEGER, right=INTEGER)
_BEST = _schema(k=INTEGER, until=INTEGER, total=INTEGER, best=INTEGER)

FUNCTIONS: Entries = {
    "map of a changelog": stateless(
        lambda: KeyedMap(functions.Doubled(), _VALUES),
        lambda row: [(row[0], None if row[1] is None else 2 * row[1])],
    ),
    "flat map of a changelog": stateless(
        lambda: KeyedFlatMap(functions.UpTo(), _VALUES),
        lambda row: [(row[0], number) for number in range(row[1] or 0)],
    ),
    "filter of a changelog": stateless(
        lambda: KeyedFilter(functions.Odd()), lambda row: [row] if (row[1] or 0) % 2 else []
    ),
    "reduce to a changelog": over_events(lambda: KeyedReduce(functions.larger, changelog=True), _largest),
    "process with timers": over_events(
        lambda: KeyedProcess(functions.CountBuckets(), _schema(k=INTEGER, until=INTEGER, rows=INTEGER)),
        _bucket_counts,
    ),
    "process of two inputs with timers": over_events(
        lambda: CoProcess(functions.Matched(), _PAIR), _bucket_sums, inputs=2
    ),
    "process beside a broadcast input": with_rules(lambda pairs: BroadcastProcess(functions.Pairs(), pairs)),
    "table function of two tables in order": over_events(
        lambda: TableFunction(functions.over_limit, _PAIR), _of_each_key(_over_limit), inputs=2, ordered=True
    ),
    "table function of two tables with timers": over_events(
        lambda: TableFunction(functions.MatchedTables(), _PAIR), _bucket_sums, inputs=2
    ),
    "table function beside a broadcast table": with_rules(lambda out: TableFunction(functions.pairs, out)),
    "process by sequence": journals(False),
    "process of rows that come again": journals(True),
    "map in order": over_events(
        lambda: KeyedMap(functions.Total(), _schema(k=INTEGER, text=pa.string())),
        _of_each_key(_texts),
        ordered=True,
    ),
    "flat map in order": over_events(
        lambda: KeyedFlatMap(functions.Steps(), _VALUES), _of_each_key(_steps), ordered=True
    ),
    "filter in order": over_events(
        lambda: KeyedFilter(functions.Rises()), _of_each_key(_rises), ordered=True
    ),
    "reduce in order": over_events(
        lambda: KeyedReduce(functions.latest_sum), _of_each_key(_reductions), ordered=True
    ),
    "map of two inputs in order": over_events(
        lambda: CoMap(functions.Latest(), _PAIR), _of_each_key(_latest), inputs=2, ordered=True
    ),
    "flat map of two inputs in order": over_events(
        lambda: CoFlatMap(functions.OverLimit(), _PAIR), _of_each_key(_over_limit), inputs=2, ordered=True
    ),
    **{
        f"function of {name} windows": over_events(
            lambda name=name: WindowApply(  # type: ignore[misc]
                functions.all_values, WINDOWS[name][0], _schema(values=pa.string()), window_columns=True
            ),
            _window_values(name),
            view=session_rows,
        )
        for name in WINDOWS
    },
    **{
        f"process of {name} windows": over_events(
            lambda name=name: WindowProcess(functions.Best(), WINDOWS[name][0], _BEST),  # type: ignore[misc]
            _best_sums(name),
            view=session_rows,
        )
        for name in WINDOWS
    },
}
