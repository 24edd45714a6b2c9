"""The relational methods of a stream as operators.

Owns: ``Grouped``, ``Over``, ``distinct``, ``top`` and ``joined``; the uids of operators whose uid is not given.
Invariant: what is wanted of an operator follows from the call alone, and modes, keys and refusals are the operator's.
Must not import Spark.

Source: the methods of Spark's DataFrame and GroupedData; SQL's GROUP BY, OVER, ORDER BY with LIMIT, and JOIN USING.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from asyncstate.dataflow import Apply, Source, Stream
from asyncstate.dataflow.arrow_sql import column_of
from asyncstate.dataflow.changelog_inference import changes_by_itself
from asyncstate.dataflow.graph import caller
from asyncstate.errors import JobError, SchemaError
from asyncstate.operators import (
    Aggregate,
    Frame,
    GroupAggregate,
    Join,
    OrderColumn,
    OverAggregate,
    Rank,
    SessionWindow,
    SlicedWindow,
    SortLimit,
    WindowAggregate,
    unbounded,
    whole,
)
from asyncstate.relational.calls import OperatorExpressions, order_of, words_of
from asyncstate.runtime.declarations.uids import FILE_NAME_RULE, names_files
from asyncstate.spark.column_types import quoted
from asyncstate.state.expiring.ttl import Ttl

__all__ = ["Frame", "Grouped", "Ordering", "Over", "Window", "distinct", "joined", "top"]

Window = SlicedWindow | SessionWindow
"""Made by ``tumble``, ``hop``, ``cumulate`` or ``session``."""
Ordering = str | OrderColumn | Sequence[str | OrderColumn]
"""A column or Spark SQL text, with or without a direction ("amount DESC"), ``asc(...)``, ``desc(...)``, or a list."""

_PLACES: Final = {
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "lag",
    "lead",
    "nth_value",
}
"""Functions of OVER whose value depends on the order of the rows."""
_WINDOW_COLUMNS: Final = ("window_start", "window_end", "window_time")


class Grouped:
    """Rows by the values of some columns, and by a window of time: ``agg`` and ``top`` of a group of rows."""

    def __init__(
        self,
        stream: Stream,
        keys: Mapping[str, str],
        window: Window | None = None,
        event_time: str | None = None,
    ) -> None:
        self._stream, self._keys, self._window, self._event_time = stream, keys, window, event_time

    @classmethod
    def by(cls, stream: Stream, texts: Sequence[str], named: Mapping[str, str]) -> Grouped:
        """The rows by these columns, given as texts and by name."""
        with _Placed("group_by"):
            keys: dict[str, str] = {}
            for name, text in [*map(_named, texts), *named.items()]:
                if not isinstance(text, str):
                    raise SchemaError(f"{text!r} is not a column; give its name, or Spark SQL text")
                if name in keys:
                    raise SchemaError(f"there are two columns '{name}'; give one of them another name")
                keys[name] = text
        return cls(stream, keys)

    def __repr__(self) -> str:
        window = "" if self._window is None else f" and {self._window!r}"
        return f"<{self._stream!r} by {', '.join(self._keys.values()) or 'nothing'}{window}>"

    def window(self, window: Window, *, event_time: str | None = None) -> Grouped:
        """Group by a window of the event time as well: ``tumble``, ``hop``, ``cumulate`` or ``session``. A window is
        emitted once, when the watermark has passed it. ``event_time``: the column, if the rows have no declared one,
        such as those of an operator. Raises JobError for a second window."""
        with _Placed("window"):
            if self._window is not None:
                raise SchemaError(f"the rows are in windows already, {self._window!r}; give one window")
        return Grouped(self._stream, self._keys, window, event_time)

    def agg(
        self, *aggregates: Aggregate, uid: str | None = None, ttl: Ttl = None, **named: Aggregate | str
    ) -> Stream:
        """One row for each group: its columns, ``window_start``, ``window_end`` and ``window_time`` if there is a
        window, and one column for each aggregate.

        An aggregate is made by ``sum_``, ``count`` and so on, or a Spark SQL text with aggregate functions, such as
        ``share="sum(price * quantity) / count(*)"``; columns of either may be SQL texts. Without aggregates: the
        distinct values of the columns. Without columns and window there is one row, also before there is input.

        The operator is ``GroupAggregate``, with a window ``WindowAggregate``. ``uid``: by default made of the stream
        and the columns. ``ttl``: a group without rows for so long is forgotten; not for windows. Raises
        JobError for what is not an aggregate.
        """
        with _Placed("agg"):
            wanted = OperatorExpressions()
            keys = {name: wanted.column(text) for name, text in self._keys.items()}
            for one in aggregates:
                wanted.add(one)
            for name, result in named.items():
                wanted.add(result, name)
            twice = next((name for name in wanted.results if name in keys), None)
            if twice is not None:
                raise SchemaError(f"there are two columns '{twice}'; give one of them another name")
            calls = list(wanted.calls.values())
            operator: GroupAggregate | WindowAggregate
            arguments: dict[str, Any] = {}
            if self._window is not None:
                operator = WindowAggregate(self._window, calls)
                arguments = {} if self._event_time is None else {"event_time": self._event_time}
                if ttl is not None:
                    raise SchemaError("a window is forgotten when the watermark has passed it; leave out ttl")
            else:
                operator = GroupAggregate(calls, ttl=ttl, empty_row=not keys)
            word = "group" if self._window is None else "window"
            uid = _uid(self._stream, uid, word, list(self._keys))
            given = _with(self._stream, wanted, is_final=self._window is not None)
        by = list(dict.fromkeys(keys.values()))
        rows = given.apply(operator, uid=uid, key=by or None, **arguments)
        windows = () if self._window is None else _WINDOW_COLUMNS
        texts = {name: quoted(column) for name, column in keys.items()}
        texts |= {name: quoted(name) for name in windows} | wanted.results
        made = [*by, *windows, *wanted.calls]
        if made == list(texts) and all(text == quoted(name) for name, text in texts.items()):
            return rows
        return rows.select(*(_as(text, name) for name, text in texts.items()))

    def top(
        self, n: int, by: Ordering, *, number: str | None = None, uid: str | None = None, ttl: Ttl = None
    ) -> Stream:
        """The first ``n`` rows of each group, the largest ``by`` first, kept up to date; ``asc(column)`` or "column
        ASC" for the smallest. They have all columns of the stream and of the group. ``number``: a column for the
        places, from 1 on. The operator is ``Rank``; rows of equal order are in order of arrival. ``ttl``: see
        ``Rank``."""
        with _Placed("top"):
            if self._window is not None:
                raise SchemaError(
                    "the top rows of a window are those of WindowRank; use apply(WindowRank(...))"
                )
            wanted = OperatorExpressions()
            keys = {name: wanted.column(text) for name, text in self._keys.items()}
            order = _order(by, wanted, descending=True)
            operator = Rank(order, n, rank_column=number, ttl=ttl)
            uid = _uid(self._stream, uid, "top", list(self._keys))
            given = _with(self._stream, wanted)
        columns = list(dict.fromkeys(keys.values()))
        rows = given.apply(operator, uid=uid, key=columns or None)
        named = {name: quoted(column) for name, column in keys.items() if name != column}
        rows = rows.with_columns(**named) if named else rows
        return _without(rows, [name for name in wanted.computed if name not in keys])


class Over:
    """The rows of a stream, each to get columns that depend on other rows."""

    def __init__(
        self,
        stream: Stream,
        partition_by: str | Sequence[str],
        order_by: Ordering | None,
        frame: Frame | None,
    ) -> None:
        self._stream, self._frame, self._order = stream, frame, order_by
        self._partition = [partition_by] if isinstance(partition_by, str) else list(partition_by)

    def __repr__(self) -> str:
        return f"<{self._stream!r} over {', '.join(self._partition) or 'all rows'}>"

    def with_columns(self, *, uid: str | None = None, **named: Aggregate | str) -> Stream:
        """The rows with one more column for each aggregate or window function: an object such as ``sum_("amount")``
        and ``row_number()``, or a Spark SQL text, such as ``share="amount / sum(amount)"``.

        The operator is ``OverAggregate``: all rows are kept, and a row is emitted again when a later one changes its
        columns. ``uid``: by default made of the stream and the columns. Raises JobError for what is not an aggregate.
        """
        with _Placed("over"):
            wanted = OperatorExpressions(over=True)
            keys = list(dict.fromkeys(map(wanted.column, self._partition)))
            order = None if self._order is None else _order(self._order, wanted, descending=False)
            for name, one in named.items():
                wanted.add(one, name)
            places = [one.kind.name for one in wanted.calls.values() if one.kind.name in _PLACES]
            if places and order is None:
                raise SchemaError(f"{places[0]}() needs an order of the rows; give over(..., order_by=...)")
            frame = self._frame or (whole() if order is None else unbounded())
            calls, made = wanted.calls, wanted.results
            if all(text == quoted(name) for name, text in made.items()):
                made = {}
            else:  # all results are named afterwards, in the order in which they are wanted
                calls = {f"over {name}" if name in made else name: one for name, one in calls.items()}
                made = {
                    name: quoted(f"over {name}") if name in wanted.calls else text
                    for name, text in made.items()
                }
            aggregates = [one.alias(name) for name, one in calls.items()]
            operator = OverAggregate(aggregates, frame, order_by=order)
            uid = _uid(self._stream, uid, "over", self._partition)
            given = _with(self._stream, wanted)
        rows = given.apply(operator, uid=uid, key=keys or None)
        if made:
            rows = rows.with_columns(**made)
        return _without(rows, [*wanted.computed, *(calls if made else ())])


def distinct(stream: Stream, uid: str | None) -> Stream:
    """Each row once."""
    with _Placed("distinct"):
        uid = _uid(stream, uid, "distinct", [])
    return stream.apply(GroupAggregate(), uid=uid, key=list(stream.columns))


def top(stream: Stream, n: int, by: Ordering, uid: str | None) -> Stream:
    """The first ``n`` of all rows, the largest ``by`` first."""
    with _Placed("top"):
        wanted = OperatorExpressions()
        operator = SortLimit(_order(by, wanted, descending=True), n)
        uid = _uid(stream, uid, "top", [])
        given = _with(stream, wanted)
    return _without(given.apply(operator, uid=uid), wanted.computed)


def joined(
    left: Stream, right: Stream, on: str | Sequence[str] | Mapping[str, str], how: str, uid: str | None
) -> Stream:
    """The rows of both streams with equal columns ``on``. Raises JobError for columns that they do not have."""
    with _Placed("join"):
        kind = how.lower().replace("_", "")
        kind = kind.removesuffix("outer") or "full"
        kind = kind.removeprefix("left") or "left"
        if kind not in ("inner", "left", "right", "full", "semi", "anti"):
            raise SchemaError(f"how is {how!r}; choose inner, left, right, full, semi or anti")
        names = [on] if isinstance(on, str) else on
        keys = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        if not keys:
            raise SchemaError("on is empty; name at least one column that both streams have")
        sides = list[str | None]()
        for stream, own in ((left, list(keys)), (right, list(keys.values()))):
            schema, changes = stream._flow.facts_of(stream.node)
            for name in own:
                if name not in schema.names:
                    raise SchemaError(
                        f"there is no column '{name}' in {stream.node.called}; the columns are "
                        f"{', '.join(schema.names)}"
                    )
            sides.append("join_key" if changes.identifies(own) else None)
        operator = Join(kind, left_unique=sides[0], right_unique=sides[1])  # type: ignore[arg-type]
        uid = _uid(left, uid, "join", [right.node.name])
    rows = left.apply(operator, right, uid=uid, key=(list(keys), list(keys.values())))
    shared = {name: f"{name}_right" for name, other in keys.items() if name == other}
    if kind in ("semi", "anti") or not shared:
        return rows
    if kind == "right":
        rows = rows.with_columns(**{name: quoted(other) for name, other in shared.items()})
    if kind == "full":
        rows = rows.with_columns(
            **{name: f"coalesce({quoted(name)}, {quoted(other)})" for name, other in shared.items()}
        )
    return rows.drop(*shared.values())


def _with(stream: Stream, wanted: OperatorExpressions, is_final: bool = False) -> Stream:
    """The rows with what is computed for an operator; ``is_final``: its rows are never retracted."""
    varying = list(filter(changes_by_itself, wanted.computed.values()))
    if not varying or stream._flow.facts_of(stream.node)[1].is_insert_only:
        varying = [] if is_final else list(filter(changes_by_itself, wanted.results.values()))
    if varying:
        raise SchemaError(
            f"{varying[0]} is another value each time, so a retraction would not match its row; compute it at the "
            "source, or leave it out"
        )
    return stream.with_columns(**wanted.computed) if wanted.computed else stream


def _without(stream: Stream, names: Mapping[str, str] | Sequence[str]) -> Stream:
    return stream.drop(*names) if names else stream


def _as(text: str, name: str) -> str:
    return text if text == quoted(name) else f"{text} AS {quoted(name)}"


def _named(text: Any) -> tuple[str, Any]:
    """The name of a column and its text: ``"a"``, ``"date(at)"`` or ``"date(at) AS day"``."""
    if not isinstance(text, str):
        return str(text), text
    words = words_of(text)
    if len(words) > 2 and words.words[-2] == "AS":
        return words.tokens[-1].value, text[: words.spans[-2][0]].strip()
    return column_of(text.strip()) or " ".join(text.split()), text


def _order(given: Ordering, wanted: OperatorExpressions, descending: bool) -> list[OrderColumn]:
    """The columns of an order; ``descending``: the direction where none is given."""
    found = []
    columns: Sequence[Any] = (
        given if type(given) in (list, tuple) else [given]
    )  # an OrderColumn is a tuple, too
    for one in columns:
        by = order_of(one, descending)
        found.append(by._replace(column=wanted.column(by.column)))
    return found


def _uid(stream: Stream, given: str | None, word: str, names: Sequence[str]) -> str:
    """The uid that is given, or one of the source or operator upstream, ``word`` and ``names``: another operator
    elsewhere in the graph does not change it."""
    if given is not None:
        return given
    node = stream.node
    while not isinstance(node, Source | Apply):
        node = node.inputs[0]
    parts = ["-".join(re.findall(r"\w+", name)) for name in (word, *names)]
    found = "-".join(re.findall(r"[\w.]+", node.name)) + "." + "-".join(parts)
    if not names_files(found):
        raise SchemaError(f"its uid would be '{found}': {FILE_NAME_RULE}; give uid=")
    if any(isinstance(one, Apply) and one.name == found for one in stream._flow.nodes):
        raise SchemaError(
            f"its uid would be '{found}', which another operator has; give one of them a name of its own by uid="
        )
    return found


class _Placed:
    """Errors inside get the line of the call of a method."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SchemaError):
            raise JobError(f"{caller()}: {self._method}: {str(error).splitlines()[0]}") from error
