"""Builds streams and operators from the nodes of a compiled statement.

Owns: ``Builder``; ``Built``, a stream and what is known of its rows before the job is checked.
Invariant: facts come from where a job infers them, ``node_changes`` and ``bind``; nothing is inferred again here.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate import operators as ops
from asyncstate.changelog import ROW_KIND_COLUMN, Changelog
from asyncstate.codec import check_key_type, read_type
from asyncstate.dataflow import Stream
from asyncstate.dataflow.changelog_inference import node_changes, operator_changes
from asyncstate.dataflow.sql_text import column_of
from asyncstate.errors import SchemaError, SqlError
from asyncstate.operator import InputSpec, Operator, OutputSpec
from asyncstate.relational.calls import aggregate_of
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.conditions import arrow_condition, is_met
from asyncstate.sql.own_operators import Clock, ConstantJoin
from asyncstate.state.expiring.ttl import Ttl

_FOUND: Final = "__found"
_FALLS_MAX: Final = "1 day"
"""A local time falls by less than this where clocks are set back, in any time zone."""


@dataclass(frozen=True)
class Built:
    """A stream, its columns without ``row_kind``, and its changelog facts."""

    stream: Stream
    schema: pa.Schema
    changes: Changelog

    @property
    def columns(self) -> list[str]:
        """The columns, with ``row_kind`` if there are changes."""
        return [*self.schema.names, *([] if self.changes.is_insert_only else [ROW_KIND_COLUMN])]

    def then(self, stream: Stream, schema: pa.Schema | None = None) -> Built:
        """A stream that is made of its rows without an operator; ``schema``: of it, if it has other columns."""
        changes = node_changes(stream.node, [self.changes], self.columns, ROW_KIND_COLUMN in self.columns)
        return Built(stream, self.schema if schema is None else schema, changes)


@dataclass(frozen=True)
class LookupTable:
    """A lookup as a table: ``key``: the columns that are sent; ``columns``: those of what it finds; ``options``: of
    ``LookupJoin``."""

    lookup: Any
    key: pa.Schema
    columns: pa.Schema
    options: Mapping[str, Any]

    @property
    def schema(self) -> pa.Schema:
        """All columns that a statement sees."""
        return pa.schema([*self.key, *self.columns])


class Builder:
    """Builds the nodes of one statement; ``prefix`` begins the uids of its operators, ``ttl`` is how long they keep
    state. ``uid_of``: the uid of an operator, by its own and its node."""

    def __init__(
        self,
        tables: Mapping[str, Built],
        prefix: str,
        ttl: Ttl = None,
        uid_of: Callable[[str, ir.Node], str] = lambda own, _: own,
        lookups: Mapping[str, LookupTable] | None = None,
    ) -> None:
        self._tables, self._prefix, self._ttl, self._uid_of = tables, prefix, ttl, uid_of
        self._lookups = lookups or {}
        self._expiring: set[ir.Node] = set()
        self._built: dict[ir.Node, Built] = {}
        self._uids: dict[str, int] = {}

    def whole(self, nodes: Sequence[ir.Node], keys: Sequence[str] = ()) -> Built:
        """The stream of a plan; with ``keys``, of a table that it is written into, the newest row of each. Raises
        SqlError for what turns out to have no operator."""
        built = self.build(nodes[-1])
        for node in nodes:
            if isinstance(node, ir.Kept) and node not in self._expiring:
                raise SqlError(
                    f"{node.sql}: not kept up to date: a state retention of rows whose reader cannot forget them; give "
                    "it to tables that a join, GROUP BY or DISTINCT reads, or a ranking of insertions"
                )
        if not keys or built.changes.identifies(keys):
            return built
        return self._applied("materialize", ops.UpsertMaterialize(), [built], nodes[-1], [tuple(keys)])

    def build(self, node: ir.Node) -> Built:
        """The stream of a node. Raises SqlError for what turns out to have no operator."""
        found = self._built.get(node)
        if found is None:
            inputs = [self.build(one) for one in node.inputs if not isinstance(one, ir.Constant)]
            try:
                made: Built = getattr(self, f"_{type(node).__name__.lower()}")(node, *inputs)
            except SchemaError as error:
                raise SqlError(f"{node.sql or node.names[0]}: its operator says: {error}") from error
            self._built[node] = found = made
        return found

    # -- one node each ------------------------------------------------------------------------------------

    def _scan(self, node: ir.Scan) -> Built:
        texts = [_as(name, new) for name, new in zip(node.own, node.names, strict=True)]
        return self._selected(self._tables[node.source], node.columns, texts)

    def _project(self, node: ir.Project, given: Built) -> Built:
        texts = [
            _as(own, column.name) if own is not None else f"{text} AS {quoted(column.name)}"
            for text, column in zip(node.texts, node.columns, strict=True)
            for own in [column_of(text)]
        ]
        if texts == [quoted(name) for name in given.schema.names]:
            return given
        return self._selected(given, node.columns, texts)

    def _filter(self, node: ir.Filter, given: Built) -> Built:
        for condition in node.conditions:
            given = given.then(given.stream.where(condition))
        return given

    def _union(self, node: ir.Union, *given: Built) -> Built:
        if len(given) == 1:
            return given[0]
        stream = given[0].stream.union(*(one.stream for one in given[1:]))
        changes = node_changes(stream.node, [one.changes for one in given], given[0].columns, False)
        return Built(stream, given[0].schema, changes)

    def _explode(self, node: ir.Explode, given: Built) -> Built:
        kept = [quoted(name) for name in node.names if name not in node.made]
        made = ", ".join(map(quoted, node.made))
        text = f"{node.text} AS {made if len(node.made) == 1 else f'({made})'}"
        return self._selected(given, node.columns, [*kept, text])

    def _aggregate(self, node: ir.Aggregate, given: Built) -> Built:
        settings: dict[str, Any] = {"empty_row": True}
        if node.keys:
            settings = {"ttl": self._ttl_of(node.inputs[0])}
        operator = ops.GroupAggregate([_declared(one) for one in node.calls], **settings)
        return self._applied("group", operator, [given], node, [node.keys])

    def _windowaggregate(self, node: ir.WindowAggregate, given: Built) -> Built:
        operator = ops.WindowAggregate(_window(node.window), [_declared(one) for one in node.calls])
        return self._applied("window", operator, [given], node, [node.keys], event_time=node.time)

    def _windowtable(self, node: ir.WindowTable, given: Built) -> Built:
        operator, own = ops.WindowTableFunction(_window(node.window)), (*node.names[:-3], *ir.WINDOW_COLUMNS)
        key = [node.key or None]
        return self._applied("windows", operator, [given], node, key, own, event_time=node.time)

    def _match(self, node: ir.Match, given: Built) -> Built:
        define: Any = {
            variable: partial(is_met, condition) if looks else pc.field(condition)
            for variable, looks, condition in node.define
        }
        measures = {one.name: _measure(one) for one in node.calls}
        then = _orders(node.order) or None
        after = skip_of(node.after)
        operator = ops.Match(node.pattern, define, measures, within=node.within, after_match=after, then=then)
        return self._applied("match", operator, [given], node, [node.key], event_time=node.time)

    def _kept(self, _: ir.Kept, given: Built) -> Built:
        return given

    def _ttl_of(self, node: ir.Node) -> Ttl:
        """How long the rows of an input are kept."""
        while isinstance(node, ir.Project | ir.Filter | ir.Explode):
            (node,) = node.inputs
        if not isinstance(node, ir.Kept):
            return self._ttl
        self._expiring.add(node)
        return node.ttl

    def _join(self, node: ir.Join, *given: Built) -> Built:
        constant = [isinstance(one, ir.Constant) for one in node.inputs]
        if any(constant):
            return self._with_constant(node, given[0], constant[0])
        left, right = given
        how = node.how
        if how == "single" and not node.left_key and node.condition is None:
            return self._with_one_row(node, left, right)
        if how == "single":
            if not right.changes.identifies(node.right_key):
                raise SqlError(
                    f"{node.sql + ': ' if node.sql else ''}nothing says that this subquery has at most one row; use an "
                    "aggregate such as max(x), ORDER BY ... LIMIT 1, or declare primary_key= at its source"
                )
            how = "left"
        keys = [node.left_key, node.right_key]
        unique = [
            "join_key" if key and one.changes.identifies(key) else None
            for key, one in zip(keys, given, strict=True)
        ]
        condition = None if node.condition is None else arrow_condition(node.condition)

        operator = ops.Join(
            how,  # type: ignore[arg-type]
            condition,
            left_unique=unique[0],
            right_unique=unique[1],
            null_safe=node.null_safe,
            mark=node.names[-1],
            left_ttl=self._ttl_of(node.inputs[0]),
            right_ttl=self._ttl_of(node.inputs[1]),
        )
        return self._applied(f"{node.how}-join", operator, [left, right], node, keys)

    def _with_one_row(self, node: ir.Join, left: Built, right: Built) -> Built:
        """Rows with the value of a scalar subquery, which every partition gets."""
        self._check_keeps(node, "a scalar subquery")
        return self._applied("one-row-join", ops.OneRowJoin(), [left, right], node, [_spread(left), None])

    def _dynamicfilter(self, node: ir.DynamicFilter, left: Built, right: Built) -> Built:
        self._check_keeps(node, "a scalar subquery")
        comparison: Any = node.comparison
        operator = ops.DynamicFilter(node.column, comparison, node.bound)
        return self._applied("dynamic-filter", operator, [left, right], node, [_spread(left), None])

    def _temporalfilter(self, node: ir.TemporalFilter, left: Built, right: Built) -> Built:
        comparison: Any = node.comparison
        operator = ops.DynamicFilter(node.column, comparison, node.bound, falls_max=_FALLS_MAX)
        return self._applied("temporal-filter", operator, [left, right], node, [_spread(left), None])

    def _clock(self, node: ir.Clock, given: Built) -> Built:
        return self._applied("clock", Clock(), [given], node, [()], ["now"])

    def _with_constant(self, node: ir.Join, given: Built, is_left: bool) -> Built:
        """A join with rows that never change keeps nothing."""
        table = node.inputs[0 if is_left else 1]
        assert isinstance(table, ir.Constant)
        own, sent = (node.left_key, node.right_key) if is_left else (node.right_key, node.left_key)
        how: Any = "left" if node.how == "right" else node.how
        return self._applied(
            "constant-join", ConstantJoin(table.table, sent, own, how), [given], node, [None]
        )

    def _intervaljoin(self, node: ir.IntervalJoin, left: Built, right: Built) -> Built:
        operator = ops.IntervalJoin(
            node.how,  # type: ignore[arg-type]
            lower=node.bounds[0],
            upper=node.bounds[1],
            condition=None if node.condition is None else arrow_condition(node.condition),
            null_safe=node.null_safe,
        )
        keys, times = [node.left_key, node.right_key], list(node.times)
        return self._applied("interval-join", operator, [left, right], node, keys, event_time=times)

    def _temporaljoin(self, node: ir.TemporalJoin, left: Built, right: Built) -> Built:
        pairs, more = list(zip(node.left_key, node.right_key, strict=True)), list[Any]()
        if not right.changes.is_insert_only:
            known = (set(key) for key in right.changes.unique_keys if set(key) <= set(node.right_key))
            key = next(known, None)
            if key is None:
                raise SqlError(
                    f"{node.sql}: not kept up to date: versions of changed rows by ({', '.join(node.right_key)}), "
                    "which nothing says is their primary key; declare primary_key= at the source, and join by it"
                )
            # Other columns may change with a version: they say which rows join with it.
            more = [_same(node, *pair) for pair in pairs if pair[1] not in key]
            pairs = [pair for pair in pairs if pair[1] in key]
        time: Any = "event" if node.times else "processing"
        operator = ops.TemporalJoin(
            node.how,  # type: ignore[arg-type]
            reduce(and_, more) if more else None,
            time=time,
        )
        keys, times = [*zip(*pairs, strict=True)] or [(), ()], [*node.times, None, None][:2]
        return self._applied("temporal-join", operator, [left, right], node, keys, event_time=times)

    def _lookupjoin(self, node: ir.LookupJoin, given: Built) -> Built:
        lookup, own = self._lookups[node.source], given.schema.names
        is_changed = not given.changes.is_insert_only
        operator: ops.LookupJoin = (ops.LookupJoin if is_changed else ops.StatelessLookupJoin)(
            lookup.lookup,
            lookup.columns,
            on=node.key,
            how=node.how,  # type: ignore[arg-type]
            suffixes=("", _FOUND),
            ttl=self._ttl,
            **lookup.options,
        )
        names = (*own, *(name + _FOUND if name in own else name for name in node.own))
        key = node.key if is_changed else None
        return self._applied("lookup-join", operator, [given], node, [key], names)

    def _rank(self, node: ir.Rank, given: Built) -> Built:
        settings: dict[str, Any] = {
            "offset": node.offset,
            "function": node.function,
            "rank_column": node.number,
        }
        operator: Operator
        if node.windows:
            name, operator = "window-rank", ops.WindowRank(_orders(node.order), node.limit, **settings)
        else:
            ttl = self._ttl_of(node.inputs[0])
            name, operator = "rank", ops.Rank(_orders(node.order), node.limit, **settings, ttl=ttl)
        return self._applied(name, operator, [given], node, [node.key])

    def _limit(self, node: ir.Limit, given: Built) -> Built:
        operator: Operator
        if node.order:
            operator = ops.SortLimit(_orders(node.order), node.limit, offset=node.offset)
        else:
            operator = ops.Limit(node.limit, offset=node.offset)
        return self._applied("limit", operator, [given], node, [None])

    def _over(self, node: ir.Over, given: Built) -> Built:
        self._check_keeps(node, "OVER")
        kind, *ends = node.frame
        make: Any = {"whole": ops.whole, "rows": ops.rows, "range": ops.range_}[str(kind)]
        order = _orders(node.order) if node.order else None
        calls = [_declared(one) for one in node.calls]
        operator = ops.OverAggregate(calls, make(*ends), order_by=order)
        return self._applied("over", operator, [given], node, [node.key])

    def _check_keeps(self, node: ir.Node, what: str) -> None:
        if self._ttl is not None:
            raise SqlError(
                f"{node.sql or node.names[0]}: {what} needs all rows, so state_ttl would make it wrong; leave "
                "state_ttl out, or give it to a statement for the other parts, with a name"
            )

    # -- streams ------------------------------------------------------------------------------------------

    def normalized(self, given: Built) -> Built:
        """Upserts as a full changelog."""
        if not given.changes.is_upsert:
            return given
        key = given.changes.upsert_key
        times, names = given.stream.node.times, given.schema.names
        found: Any = times.sequence
        sequence = [found] if isinstance(found, str) else list(found or ())
        if not set(sequence) <= set(names):
            raise SqlError(
                f"the sequence ({', '.join(sequence)}) that orders the changes of a key is not among the columns; "
                "select it, too"
            )
        own: dict[str, Any] = {"sequence": times.sequence, "drop_stale": times.drop_stale}
        # Without an event time: rows of -D may have their key alone.
        made = self._applied("normalize", ops.ChangelogNormalize(), [given], None, [key], **own)
        if made.schema.names == names:
            return made
        schema = pa.schema([made.schema.field(name) for name in names])
        return made.then(made.stream.select(*map(quoted, names)), schema)

    def _selected(self, given: Built, columns: Sequence[ir.Column], texts: Sequence[str]) -> Built:
        schema = pa.schema([pa.field(one.name, read_type(one.type, one.name)) for one in columns])
        return given.then(given.stream.select(*texts), schema)

    def _applied(
        self,
        what: str,
        operator: Operator,
        given: Sequence[Built],
        node: ir.Node | None,
        keys: Sequence[tuple[str, ...] | None],
        own: Sequence[str] | None = None,
        **arguments: Any,
    ) -> Built:
        """The rows of an operator, with the columns of the node; without one, all of its columns. ``own``: what the
        operator calls them."""
        self._uids[what] = number = self._uids.get(what, 0) + 1
        # Columns of sources have other names by now, so nothing is inherited by name.
        arguments = {"event_time": [None] * len(given), "sequence": [None] * len(given), **arguments}
        first = f"{self._prefix}.{what}-{number}"
        key: Any = keys[0] if len(given) == 1 else tuple(keys)
        if not any(keys):
            key = None
        stream = given[0].stream.apply(
            operator,
            *(one.stream for one in given[1:]),
            uid=first if node is None or operator.stateless else self._uid_of(first, node),
            key=list(key) if len(given) == 1 and key else key,
            **arguments,
        )
        times = arguments["event_time"]
        specs = [
            InputSpec(
                one.schema,
                tuple(by or ()),
                times if times is None or isinstance(times, str) else times[n],
                one.changes,
                name=f"the input of {what}",
                broadcast=n == operator.broadcast_input,
            )
            for n, (one, by) in enumerate(zip(given, keys, strict=True))
        ]
        for spec in specs:
            for name in spec.key:
                check_key_type(name, spec.column(name).type)
        bound = OutputSpec.of(operator.bind(specs))
        found = Built(stream, bound.schema, operator_changes(stream.node, bound.changes))
        if node is None:
            return found
        texts = []
        for column, name in zip(node.columns, own or node.names, strict=True):
            same = bound.schema.field(name).type == read_type(column.type, column.name)
            cast = f"CAST({quoted(name)} AS {column.type}) AS {quoted(column.name)}"
            texts.append(_as(name, column.name) if same else cast)
        if texts == [quoted(name) for name in bound.schema.names]:
            return found
        return self._selected(found, node.columns, texts)


def _window(given: tuple[str | int, ...]) -> Any:
    kind, *lengths = given
    return getattr(ops, str(kind))(*lengths)


def _measure(call: ir.Call) -> Any:
    if call.function == "match_number":
        return ops.match_number()
    if call.function in ("first", "last"):
        return getattr(ops, call.function)(call.columns[0], call.where, call.numbers[0])
    return _declared(call if call.function == "string_agg" else replace(call, numbers=()))


def _same(node: ir.Node, one: str, two: str) -> pc.Expression:
    """Whether two columns of the rows of a node are equal."""
    kind = node.type_of(one)
    return arrow_condition(("=", ("field", one, kind), ("field", two, kind), kind in ("float", "double")))


def skip_of(words: tuple[str, ...]) -> Any:
    """What AFTER MATCH says; none is its default. Raises SchemaError."""
    match words:
        case ():
            return None
        case ("SKIP", "PAST", "LAST", "ROW"):
            return ops.skip_past_last()
        case ("SKIP", "TO", "NEXT", "ROW"):
            return ops.skip_to_next()
        case ("SKIP", "TO", "FIRST", name):
            return ops.skip_to_first(name)
        case ("SKIP", "TO", "LAST", name) | ("SKIP", "TO", name):
            return ops.skip_to_last(name)
    raise SchemaError(
        f"AFTER MATCH {' '.join(words)}: give SKIP PAST LAST ROW, or SKIP TO NEXT ROW, FIRST A, LAST A"
    )


def _spread(given: Built) -> tuple[str, ...]:
    """A key for rows that may be in any partition: a unique one, or all columns that can be keys."""
    flat = [one.name for one in given.schema if not pa.types.is_nested(one.type)]
    return next((one for one in given.changes.unique_keys if one), tuple(flat))


def _declared(call: ir.Call) -> ops.Aggregate:
    order = _orders(call.order)
    found = aggregate_of(
        call.function, call.columns, call.numbers, order=order, distinct=call.distinct, where=call.where
    )
    return found.alias(call.name)


def _orders(order: Sequence[ir.Order]) -> list[Any]:
    return [
        (ops.desc if one.descending else ops.asc)(one.column, nulls="first" if one.nulls_first else "last")
        for one in order
    ]


def _as(own: str, new: str) -> str:
    return quoted(own) if own == new else f"{quoted(own)} AS {quoted(new)}"
