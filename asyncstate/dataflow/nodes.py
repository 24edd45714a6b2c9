"""The nodes of a dataflow.

Owns: ``Source``, ``Transform``, ``Union``, ``Apply``, ``Output``, ``Sink``; the time attributes that a stream inherits
from its source; ``upstream_of``, ``watermark_sources``, ``check_one_start``, ``same_destinations``, ``NEVER_PASSED``.
Invariant: a node is immutable; its inputs were created before it.
Must not import Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import sqlglot.expressions as exp

from asyncstate.changelog import Changelog, ChangelogMode
from asyncstate.dataflow.sql_text import normal_sql, parsed_sql, plain_column, star_leaves_out
from asyncstate.durations import Duration
from asyncstate.errors import JobError, OperatorError, SchemaError
from asyncstate.operator import Operator
from asyncstate.program_text import function_text
from asyncstate.runtime import Delay, Keys, OrderBy, SequenceBy, WatermarkSource, watermark_source

NEVER_PASSED = (
    "its rows wait for the watermark, but no source of the job has a watermark_delay: they would wait until "
    "finish()"
)
"""The problem of an operator that buffers rows which nothing would release."""

ArrowFunction = Callable[[pa.RecordBatch], Any]
"""Maps columns of rows (n) to an array (n); in ``where``, to booleans."""


class Times(NamedTuple):
    """What the rows of a stream inherit from their source, as declared in ``Dataflow.source``."""

    event_time: str | None = None
    watermark_delay: Delay = None
    sequence: SequenceBy = None
    drop_stale: bool = False
    idle_after: Duration | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """``name``: used in errors and pictures; ``place``: file and line of its declaration; ``inputs``: upstream
    nodes."""

    name: str
    place: str
    inputs: tuple[Node, ...] = ()

    @property
    def times(self) -> Times:
        """The time attributes of its rows."""
        return Times()

    @property
    def text(self) -> str:
        """What it does, in one line."""
        return self.name

    @property
    def called(self) -> str:
        """Its name in error messages."""
        return f"{type(self).__name__.lower()} '{self.name}'"

    def problem(self, what: str) -> str:
        """One line that describes a problem of the node and where it was declared."""
        named = what.startswith((f"{self.called}:", f"{self.called} ("))
        return f"{self.place}: {what if named else f'{self.called}: {what}'}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """Rows from outside. ``mode``: if None, the rows are changes if they have row kinds. ``schema``: given where there
    is no DataFrame to take it from (in tests). ``streams``: False for a table, which is read once."""

    declared: Times
    mode: ChangelogMode | None
    primary_key: tuple[str, ...] | None = None
    schema: pa.Schema | None = None
    streams: bool = True

    @property
    def changelog(self) -> bool:
        """Whether its rows are declared to be changes."""
        return self.mode not in (None, ChangelogMode.INSERT_ONLY)

    @property
    def times(self) -> Times:
        """The time attributes of its rows."""
        return self.declared

    @property
    def watermark(self) -> WatermarkSource | None:
        """How it advances the watermark, None if it does not. Raises JobError and ConfigurationError."""
        times = self.declared
        return watermark_source(times.event_time, times.watermark_delay, times.idle_after)

    @property
    def text(self) -> str:
        """What it does, in one line."""
        times = self.declared
        key = f" by {key_text(self.primary_key)}" if self.primary_key else ""
        said = ["a changelog" + key] if self.mode is ChangelogMode.RETRACT else []
        said += ["upserts" + key] if self.mode is ChangelogMode.UPSERT else []
        said += [f"event time {times.event_time}"] if times.event_time else []
        said += [f"watermark {times.watermark_delay} behind"] if times.watermark_delay is not None else []
        said += [f"idle after {times.idle_after}"] if times.idle_after is not None else []
        said += [f"in order of {times.sequence}"] if times.sequence else []
        return ", ".join(["source", *said])


@dataclass(frozen=True, eq=False, kw_only=True)
class Transform(Node):
    """A row-by-row transformation of one input. ``expressions`` are SQL texts, Spark columns or functions of Arrow
    columns; those of ``named`` have a name. The kind ``transform`` has one expression, a function of one DataFrame per
    input, and may declare the ``changes`` that it returns. ``inherits``: whether its rows have the times of its first
    input. ``row_by_row``: its function reads all rows, and decides on each alone."""

    kind: Literal["where", "select", "with_columns", "drop", "transform"]
    expressions: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    changes: Changelog | None = None
    inherits: bool = True
    row_by_row: bool = False

    @functools.cached_property
    def times(self) -> Times:
        """The time attributes of its rows: a renamed column has its new name, and another column of the same name is
        not the event time."""
        given = self.inputs[0].times if self.inherits else Times()
        if self.kind in ("where", "transform") or given == Times():
            return given
        event_time = None if given.event_time is None else self.passed(given.event_time)
        sequence: Any = given.sequence
        if sequence is not None:
            names = [sequence] if isinstance(sequence, str) else list(sequence)
            found = [self.passed(name) for name in names]
            lost = next((name for name, new in zip(names, found, strict=True) if new is None), None)
            # The order of changes is not given up silently: an operator says that there is no such column.
            sequence = f"{lost} (as it was before: {self.text})" if lost else [name or "" for name in found]
            sequence = sequence[0] if isinstance(given.sequence, str) and not lost else sequence
        return given._replace(event_time=event_time, sequence=sequence)

    def passed(self, column: str) -> str | None:
        """The name of a column of the first input in the output; None if the output has it no more. A Spark column, of
        which nothing is known, passes what it may pass."""
        own = column.lower()
        if self.kind == "drop":
            return None if own in {str(one).lower() for one in self.expressions} else column
        named = {name.lower(): one for name, one in self.named.items()}
        given = named.get(own)
        if (
            given is not None
            and not isinstance(given, str)
            and (not callable(given) or hasattr(given, "_jc"))
        ):
            return column
        if self.kind == "with_columns":
            return None if given is not None and plain_column(given)[0].lower() != own else column
        plain = [plain_column(one) for one in self.expressions]
        plain += [(plain_column(one)[0], name) for name, one in self.named.items()]
        found = [new for old, new in plain if old.lower() == own]
        if found:
            return column if column in found else found[0]
        if own in {new.lower() for _, new in plain}:
            return None
        stars = [one for one in map(parsed_sql, self.expressions) if isinstance(one, exp.Star)]
        unknown = any(not isinstance(one, str) for one in self.expressions)
        return column if unknown or any(not star_leaves_out(one, own) for one in stars) else None

    @property
    def text(self) -> str:
        """What it does, in one line."""
        said = [expression_text(one) for one in self.expressions]
        said += [f"{expression_text(one)} AS {name}" for name, one in self.named.items()]
        return f"{self.kind} {', '.join(said)}"

    @property
    def called(self) -> str:
        """Its name in error messages."""
        return self.text


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    """The rows of all inputs, which have the same columns."""

    @property
    def times(self) -> Times:
        """The attributes that all inputs share; none if their event times differ."""
        first, *others = (one.times for one in self.inputs)
        if any(one.event_time != first.event_time for one in others):
            return Times()
        if any(one.watermark_delay is None for one in others):  # the watermark does not wait for its rows
            first = first._replace(watermark_delay=None)
        if all((one.sequence, one.drop_stale) == (first.sequence, first.drop_stale) for one in others):
            return first
        return Times(first.event_time)

    @property
    def text(self) -> str:
        """What it does, in one line."""
        return "union"


@dataclass(frozen=True, eq=False, kw_only=True)
class Apply(Node):
    """An operator over its inputs; ``name`` is its uid. Event time and sequence that are None are inherited from the
    inputs; ``watermark_delay`` makes the inputs sources of the watermark, in addition to the declared ones.
    ``initial_state``: the state it starts from, see ``MicroBatch.apply``."""

    operator: Operator
    key: Keys
    event_time: Any
    watermark_delay: Any
    order_by: OrderBy
    sequence: Any
    drop_stale: Any
    options: Mapping[str, object]
    initial_state: Any = None

    @property
    def text(self) -> str:
        """What it does, in one line."""
        key = f" by {key_text(self.key)}" if self.key is not None else ""
        return f"{type(self.operator).__name__}{key}"

    @property
    def called(self) -> str:
        """Its name in error messages."""
        return f"operator '{self.name}'"

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``MicroBatch.apply``, except operator and inputs."""
        from_inputs = [one.times for one in self.inputs]
        if self.operator.stateless:  # no state: a row has no order and no predecessors
            from_inputs = [Times(times.event_time) for times in from_inputs]

        def each(given: Any, name: str) -> Any:
            if given is not None:
                return given
            found = [getattr(times, name) for times in from_inputs]
            return found[0] if len(found) == 1 else found

        drops = [times.drop_stale for times in from_inputs]
        own_sequence = self.sequence is not None
        return {
            "uid": self.name,
            "key": self.key,
            "event_time": each(self.event_time, "event_time"),
            "watermark_delay": self.watermark_delay,
            "order_by": self.order_by,
            "sequence": _or_none(each(self.sequence, "sequence")),
            "drop_stale": self.drop_stale
            if self.drop_stale is not None
            else (False if own_sequence or not any(drops) else (drops if len(drops) > 1 else drops[0])),
            "options": self.options,
            "filters": self._filters,
        }

    @functools.cached_property
    def _filters(self) -> list[str]:
        return [filters_of(one) for one in self.inputs]


@dataclass(frozen=True, eq=False, kw_only=True)
class Output(Node):
    """The rows of a side output of the operator that is its input."""

    side: str

    @property
    def text(self) -> str:
        """What it does, in one line."""
        return f"side output '{self.side}'"


@dataclass(frozen=True, eq=False, kw_only=True)
class Sink(Node):
    """The destination of its input's rows: a function of (rows, batch id), or an object with such a method ``write``.
    ``starting_now``: its table may lack the rows from before it was added."""

    sink: Any
    starting_now: bool = False

    @property
    def is_table(self) -> bool:
        """Whether the sink declares that it keeps the table which its rows describe."""
        return getattr(self.sink, "keeps_table", False) is True

    @property
    def text(self) -> str:
        """What it does, in one line."""
        return "sink"


def filters_of(node: Node) -> str:
    """The filters applied to the rows of ``node`` since their source or a stateful operator, as a text that does not
    depend on formatting; "none" if there are none."""
    if isinstance(node, Union):
        parts = [filters_of(one) for one in node.inputs]
        return " or ".join(f"({part})" for part in parts) if set(parts) != {"none"} else "none"
    if not isinstance(node, Transform | Apply) or (isinstance(node, Apply) and not node.operator.stateless):
        return "none"
    before = [filters_of(one) for one in node.inputs]
    conditions = node.expressions if isinstance(node, Transform) and node.kind == "where" else ()
    own = [condition_text(one) for one in conditions]
    return " and ".join([*(part for part in before if part != "none"), *own]) or "none"


def condition_text(condition: object) -> str:
    """SQL in its normal form; the code of a function."""
    if isinstance(condition, str):
        return normal_sql(condition)
    return function_text(condition) if callable(condition) else " ".join(str(condition).split())


def array_of(
    function: ArrowFunction, batch: pa.RecordBatch, name: str, kind: pa.DataType | None = None
) -> pa.Array:
    """Apply ``function`` to the rows (n); returns an array (n) of type ``kind``. Raises SchemaError for other
    results."""
    try:
        found: Any = function(batch)
    except Exception as error:
        raise OperatorError(f"'{name}': {type(error).__name__}: {error}") from error
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if not isinstance(found, pa.Array) or len(found) != batch.num_rows:
        raise SchemaError(
            f"'{name}' returned {type(found).__name__}; return a pyarrow array with one value for each of the "
            f"{batch.num_rows} rows"
        )
    if kind is not None and found.type != kind:
        raise SchemaError(f"'{name}' returned {found.type}, but {kind} was expected; cast it")
    return found


def expression_text(expression: object) -> str:
    """The expression as written, or the name of a function."""
    return expression if isinstance(expression, str) else getattr(expression, "__name__", str(expression))


def key_text(key: Any) -> str:
    """The key columns of all inputs."""
    return key if isinstance(key, str) else ", ".join(map(key_text, filter(None, key or ())))


def upstream_of(node: Node) -> list[Node]:
    """The nodes that the rows of ``node`` come through, inputs first, the last one ``node`` itself."""
    found: dict[Node, None] = {}

    def visit(one: Node) -> None:
        for given in one.inputs:
            if given not in found:
                visit(given)
        found[one] = None

    visit(node)
    return list(found)


def watermark_sources(nodes: Iterable[Node]) -> dict[str, WatermarkSource]:
    """The sources that advance the watermark, by name; none if no operator has state, since nothing uses it then.

    Raises JobError for a source with the name of an operator input that has a watermark_delay.
    """
    nodes = list(nodes)
    if all(node.operator.stateless for node in nodes if isinstance(node, Apply)):
        return {}
    declared = {node.name: node.watermark for node in nodes if isinstance(node, Source)}
    for node in nodes:
        if isinstance(node, Apply) and node.watermark_delay is not None:
            taken = next(
                (name for i in range(len(node.inputs)) if (name := f"{node.name}:{i}") in declared), None
            )
            if taken is not None:
                raise JobError(
                    f"'{taken}' is a source and an input of operator '{node.name}'; rename the source"
                )
    return {name: one for name, one in declared.items() if one is not None}


def _or_none(given: Any) -> Any:
    """None if there are several inputs and none has a value."""
    return None if isinstance(given, list) and not any(given) else given


def check_one_start(node: Apply, started: Collection[str]) -> None:
    """Raise JobError if both the operator and a source upstream of it, one of ``started``, have initial rows."""
    if node.initial_state is None:
        return
    above: list[Node] = list(node.inputs)
    for one in above:
        above += [] if isinstance(one, Apply) else one.inputs
    both = [one.name for one in above if isinstance(one, Source) and one.name in started]
    if both:
        raise JobError(f"it has initial_state, and its source '{both[0]}' has initial rows; give one of them")


def same_destinations(sinks: Sequence[Sink]) -> Iterator[str]:
    """Problems of sinks that would confuse each other's micro-batches with their own."""
    seen: dict[Any, Sink] = {}
    for node in sinks:
        destination = getattr(node.sink, "destination", None)
        if not callable(destination):
            continue
        where = destination(node.name)
        other = seen.setdefault(where, node)
        if other is not node:
            yield node.problem(
                f"it writes where {other.called} does, by the same writer ({', '.join(map(str, where))}), so each "
                "would mistake the other's micro-batches for its own; give one of them another writer or another "
                "table"
            )
