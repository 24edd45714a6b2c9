"""The nodes of a compiled query, and their JSON.

Owns: the node classes, ``Column``, ``Call``, ``Order``; ``to_json`` and ``from_json``.
Invariant: a node is immutable, and the names of its columns are unique in the plan; its expressions are Spark SQL texts
over the columns of its inputs. A node that several nodes read is one object, also after a round trip through JSON.
Must not import Spark or operators.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Final

import pyarrow as pa

from asyncstate.codec.times import in_utc

FORMAT: Final = 2
WINDOW_COLUMNS: Final = ("window_start", "window_end", "window_time")


@dataclass(frozen=True)
class Column:
    """A column: its name, and its type as Spark DDL text."""

    name: str
    type: str


@dataclass(frozen=True)
class Order:
    """A column to sort by."""

    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True)
class Call:
    """An aggregate or window function over columns of the input; ``name``: the column of its result; ``where``: a
    boolean column, the rows that count; ``numbers``: literal arguments, such as the offset of ``lag``; ``order``: the
    order of its values."""

    name: str
    function: str
    columns: tuple[str, ...] = ()
    distinct: bool = False
    where: str | None = None
    numbers: tuple[Any, ...] = ()
    order: tuple[Order, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the input that it reads."""
        ordered = [one.column for one in self.order]
        return (*self.columns, *ordered, *([] if self.where is None else [self.where]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """``columns``: those of its rows; ``sql``: the part of the query that it comes from, for people."""

    inputs: tuple[Node, ...] = ()
    columns: tuple[Column, ...] = ()
    sql: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.columns)

    def type_of(self, name: str) -> str:
        """The type of one of its columns, as Spark DDL text."""
        return next(column.type for column in self.columns if column.name == name)

    def where(self, conditions: Iterable[str]) -> Node:
        """Its rows for which all conditions are true."""
        texts = tuple(conditions)
        return Filter(inputs=(self,), columns=self.columns, conditions=texts) if texts else self


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(Node):
    """Columns of a source or of a view that is kept; ``own``: their names there, one a column."""

    source: str
    own: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Constant(Node):
    """Rows that never change: an Arrow table, in base64."""

    rows: str

    @property
    def table(self) -> pa.Table:
        """The rows, with times as operators get them: Spark gives them in the session's time zone."""
        rows = pa.ipc.open_stream(base64.b64decode(self.rows)).read_all()
        return rows.cast(pa.schema([field.with_type(in_utc(field.type)) for field in rows.schema]))

    @classmethod
    def of(cls, table: pa.Table, columns: tuple[Column, ...]) -> Constant:
        """The node of these rows."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        return cls(columns=columns, rows=base64.b64encode(out.getvalue().to_pybytes()).decode())


@dataclass(frozen=True, eq=False, kw_only=True)
class Project(Node):
    """One text a column."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, node: Node, made: Mapping[Column, str], sql: str = "") -> Project:
        """Columns, each with its text, of the rows of a node."""
        return cls(inputs=(node,), columns=tuple(made), texts=tuple(made.values()), sql=sql)


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Node):
    """The rows for which all conditions are true."""

    conditions: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    """The rows of all inputs, whose columns have the same names and types."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Explode(Node):
    """A row for each row that the generator ``text`` makes; ``made``: the names of its columns. The other columns are
    the input's."""

    text: str
    made: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Node):
    """One row for each distinct value of the ``keys``; without keys one row, also before there is input."""

    keys: tuple[str, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAggregate(Node):
    """An aggregate for each key and window of the event time ``time``; its columns include ``window_start`` and
    ``window_end``. ``window``: the kind (tumble, hop, cumulate, session), and its lengths in microseconds."""

    keys: tuple[str, ...]
    calls: tuple[Call, ...]
    time: str
    window: tuple[str | int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowTable(Node):
    """Each row once for each of its windows: the input's columns, then the window's start, its end and its time, one
    millisecond before its end. ``window``: see ``WindowAggregate``; ``key``: of sessions."""

    key: tuple[str, ...]
    time: str
    window: tuple[str | int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Match(Node):
    """A row for each run of a key's rows that matches ``pattern``. ``define``: (variable, whether its condition looks
    back, the condition, see ``conditions``, or a column); ``calls``: the measures, with a variable in ``where``;
    ``after``: the words of AFTER MATCH."""

    key: tuple[str, ...]
    time: str
    order: tuple[Order, ...]
    pattern: str
    define: Any
    calls: tuple[Call, ...]
    within: int | None
    after: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Kept(Node):
    """The input's rows, which the operator that reads them keeps for ``ttl`` only."""

    ttl: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Node):
    """``how``: inner, left, right, full, semi, anti, or mark, which adds a boolean column, whether there is a partner.
    ``condition``: what the join itself checks of candidate rows, see ``conditions``."""

    how: str
    left_key: tuple[str, ...] = ()
    right_key: tuple[str, ...] = ()
    null_safe: bool = False
    condition: Any = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicFilter(Node):
    """The rows of the first input whose ``column`` compares with ``bound``, the column of the second input, which has
    one row at most."""

    column: str
    comparison: str
    bound: str


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalFilter(DynamicFilter):
    """A filter whose bound is made of the time of a ``Clock``, and rises with it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Clock(Node):
    """One row, the time at which the micro-batch started; the input has no rows."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IntervalJoin(Join):
    """Rows whose ``times`` are close: a right row's is between the left row's plus both ``bounds``, in microseconds."""

    times: tuple[str, str]
    bounds: tuple[int, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalJoin(Node):
    """Left rows with the version of the right row at their time; without ``times``, with the newest one."""

    how: str
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    times: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class LookupJoin(Node):
    """The input's columns, and the columns ``own`` of what lookup ``source`` finds for the columns ``key``."""

    source: str
    how: str
    key: tuple[str, ...]
    own: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Rank(Node):
    """The rows of each key with numbers in (offset, offset + limit]; ``number``: the column of the number;
    ``windows``: of each window that closes, too, by the columns ``window_start`` and ``window_end``."""

    key: tuple[str, ...]
    order: tuple[Order, ...]
    limit: int
    offset: int = 0
    function: str = "row_number"
    number: str | None = None
    windows: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Limit(Node):
    """The first rows of all, in an order, or any."""

    order: tuple[Order, ...]
    limit: int
    offset: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Over(Node):
    """The input's columns, then one for each call. ``frame``: ("whole",), or ("rows", before, after) or ("range",
    before, after), None for an end that is unbounded."""

    key: tuple[str, ...]
    order: tuple[Order, ...]
    frame: tuple[str | int | None, ...]
    calls: tuple[Call, ...]


_NESTED: Final[Mapping[str, type]] = {"columns": Column, "calls": Call, "order": Order}


def walk(root: Node, seen: set[Node] | None = None) -> Iterator[Node]:
    """All nodes, each once, inputs first; without those that were ``seen``."""
    seen = set() if seen is None else seen
    if root not in seen:
        seen.add(root)
        for one in root.inputs:
            yield from walk(one, seen)
        yield root


def to_json(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """The nodes of a plan, as ``walk`` has them."""
    return [{"node": type(node).__name__, **_fields(node, nodes)} for node in nodes]


def from_json(given: Sequence[Mapping[str, Any]]) -> Node:
    """The plan that ``to_json`` wrote."""
    nodes: list[Node] = []
    found = [*Node.__subclasses__()]
    for kind in found:  # those of a subclass come later in the list
        found += kind.__subclasses__()
    kinds = {kind.__name__: kind for kind in found}
    for one in given:
        values = {name: _value(name, value) for name, value in one.items() if name != "node"}
        values["inputs"] = tuple(nodes[number] for number in one["inputs"])
        nodes.append(kinds[one["node"]](**values))
    return nodes[-1]


def declared(node: Node) -> dict[str, Any]:
    """What a node is, without its inputs and its place in the statement, as JSON."""
    found = _fields(replace(node, inputs=(), sql=""), ())
    return {"node": type(node).__name__, **found}


def _fields(node: Node, nodes: Sequence[Node]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name == "inputs":
            value = [nodes.index(one) for one in value]
        elif field.name in _NESTED:
            value = [_listed(one) for one in value]
        found[field.name] = value
    return found


def _listed(one: Any) -> list[Any]:
    values = list(astuple(one))
    # Checkpoints have digests of calls without an order.
    return values[:-1] if isinstance(one, Call) and not one.order else values


def _value(name: str, value: Any) -> Any:
    if name not in _NESTED:
        return _frozen(value)
    made = tuple(_NESTED[name](*map(_frozen, one)) for one in value)
    if name == "calls":
        return tuple(replace(one, order=tuple(Order(*by) for by in one.order)) for one in made)
    return made


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
