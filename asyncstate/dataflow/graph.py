"""The declaration of a dataflow.

Owns: ``Dataflow``, with its nodes in the order of their declaration, and ``Stream``, the builder of a dataflow.
Invariant: names are unique; a node's inputs belong to the same dataflow and are declared before it.
Must not import Spark.

Source: the DataStream API of Flink, and Spark's names for row transformations.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog, ChangelogMode
from asyncstate.dataflow.changelog_inference import declared_key, declared_mode
from asyncstate.dataflow.nodes import (
    Apply,
    ArrowFunction,
    Node,
    Output,
    Sink,
    Source,
    Times,
    Transform,
    Union,
)
from asyncstate.dataflow.sample import Sample, sample_text
from asyncstate.errors import JobError
from asyncstate.flink_names import stream_hint
from asyncstate.metrics import DROPPED
from asyncstate.operator import Operator
from asyncstate.runtime import Delay, Keys, OrderBy, SequenceBy, check_is_operator

if TYPE_CHECKING:
    from asyncstate.relational.chain import Frame, Grouped, Ordering, Over

_QUOTED: Final = re.compile(r"`([^`]*)`")
_PACKAGE: Final = str(Path(__file__).resolve().parents[1])


Facts = tuple[pa.Schema, Changelog]
"""The columns of a node's rows, without ``row_kind``, and their changelog properties."""


class Dataflow:
    """Nodes in the order in which they were declared; ``Stream``s add them.

    ``infer``: how a job, or a harness, infers the facts of a node's rows. ``sample``: how it makes some of them, of the
    rows given by source and at most so many others of each. Both raise JobError."""

    def __init__(
        self,
        infer: Callable[[Node], Facts] | None = None,
        sample: Callable[[Node, Mapping[str, Any], int], Sample] | None = None,
    ) -> None:
        self.nodes: list[Node] = []
        self._infer = infer
        self._sample = sample
        self._shown: set[Node] = set()
        self.superseded: set[str] = set()
        """The uids of operators of earlier programs whose stored state is dropped, as others have taken their place."""

    def __getstate__(self) -> dict[str, Any]:
        # In another process nothing is declared any more.
        return {**self.__dict__, "_infer": None, "_sample": None}

    def facts_of(self, node: Node) -> Facts:
        """What is known of a node's rows before any is read. Raises JobError with the problems of nodes upstream."""
        if self._infer is None:
            raise _of_no_job(node)
        return self._infer(node)

    def sample_of(self, node: Node, given: Mapping[str, Any], limit: int) -> Sample:
        """Rows of a node over a sample of its sources. Raises JobError."""
        if self._sample is None:
            raise _of_no_job(node)
        self._shown.add(node)
        return self._sample(node, given, limit)

    def add_source(
        self,
        name: str,
        times: Times,
        changelog: bool | None,
        schema: pa.Schema | None = None,
        mode: ChangelogMode | str | None = None,
        primary_key: str | Sequence[str] | None = None,
        streams: bool = True,
    ) -> Stream:
        """Add a source; see ``StreamingJob.source`` and ``PipelineHarness``."""
        if not (isinstance(name, str) and name.strip()):  # type: ignore[redundant-expr]  # as it may be called
            raise JobError(f"{caller()}: a source has the name {name!r}; give it a string, such as 'orders'")
        node = Source(
            name=name,
            place=caller(),
            declared=times,
            mode=declared_mode(name, mode, changelog),
            primary_key=declared_key(name, primary_key),
            schema=schema,
            streams=streams,
        )
        return self.add(node)

    def add(self, node: Node) -> Stream:
        """Append a node. Raises JobError if its name is taken."""
        if any(other.name == node.name and isinstance(other, type(node)) for other in self.nodes):
            raise JobError(f"{node.place}: there is a {_kind(node)} '{node.name}' already; give another name")
        self.nodes.append(node)
        return Stream(self, node)

    @property
    def sources(self) -> list[Source]:
        """All sources."""
        return [node for node in self.nodes if isinstance(node, Source)]

    @property
    def reads_sources_apart(self) -> bool:
        """Whether several inputs read rows of sources, of one or of several."""
        return sum(isinstance(one, Source) for node in self.nodes for one in node.inputs) > 1

    def columns_read(self, columns: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """By name, of each source with ``columns`` that is read, at least those that may be: all, unless only
        selections of SQL texts read it. A source without reader has its event times, and its dropped rows."""
        found: dict[str, list[str]] = {}
        for source in self.sources:
            if source.name not in columns:
                continue
            readers = [node for node in self.nodes if source in node.inputs]
            texts = [text for node in readers for text in _selected_texts(node)]
            own, every = {ROW_KIND_COLUMN, DROPPED, source.times.event_time}, columns[source.name]
            every_one = any(map(_may_read_all, texts))
            names = [name for name in every if name in own or every_one or _may_read(texts, name)]
            if names or readers:
                found[source.name] = names or list(every[:1])  # also if only the number of rows is read
        return found

    @property
    def sinks(self) -> list[Sink]:
        """All sinks."""
        return [node for node in self.nodes if isinstance(node, Sink)]

    def check_used(self) -> None:
        """Raise JobError if no operator and no sink reads the sources."""
        if not any(isinstance(node, Apply | Sink) for node in self.nodes):
            raise JobError("the job has no operator and no sink; apply an operator or add a sink")

    def unused(self, known: Collection[Node]) -> Iterator[str]:
        """Problems of those nodes of ``known`` whose rows nothing reads. Operators do not count, since others may read
        their state, and neither do sources, which may serve for their time alone."""
        used = {one for node in self.nodes for one in node.inputs} | self._shown
        for node in self.nodes:
            if isinstance(node, Transform | Union | Output) and node in known and node not in used:
                yield node.problem(
                    "no operator and no sink uses its rows; continue from the stream that it returned, or leave it "
                    "out"
                )

    def named(self, kind: str) -> str:
        """A name for a node without a name."""
        return f"{kind} {sum(node.name.startswith(f'{kind} ') for node in self.nodes) + 1}"


class Stream:
    """The rows that a node emits. Each method adds a node and returns the stream of that node.

    Over a changelog the column ``row_kind`` stays with its rows, whatever ``select`` lists. Whether a stream is
    insert-only or has changes, and what identifies a row, is inferred from how it is built; ``explain()`` shows it.
    """

    def __init__(self, flow: Dataflow, node: Node) -> None:
        self._flow = flow
        self.node = node

    def __repr__(self) -> str:
        return f"<Stream '{self.node.name}': {self.node.text}>"

    if not TYPE_CHECKING:  # a type checker should report missing attributes

        def __getattr__(self, name):
            raise AttributeError(stream_hint(name))

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        """Names and types of the rows' columns, without ``row_kind``. No row is read: the graph upstream is checked, as
        ``check()`` of the job does. Raises JobError with its problems."""
        return {field.name: field.type for field in self._flow.facts_of(self.node)[0]}

    def show(
        self,
        rows: Mapping[str, Any] | int | None = None,
        n: int = 20,
        *,
        changes: bool = False,
        sample: int = 1_000,
    ) -> None:
        """Print the first ``n`` rows of the stream over a sample, as a table, and how many rows were read for it.

        ``rows``: the rows of sources by name, DataFrames or lists of tuples or dicts; ``show(5)`` is ``show(n=5)``. Of
        other sources the first ``sample`` rows are read, from where the streaming DataFrame starts. The operators
        upstream run once over all of them and then to the end of the input, in this process: windows close. The job's
        checkpoint, its sinks and the position of its sources stay as they are. In a ``PipelineHarness`` all rows are
        given.

        Of changes it prints the table that they describe, with ``changes=True`` the changes with their row kinds. A
        join of samples may lack partners. Raises JobError with the problems of the graph upstream.
        """
        given, n = ({}, rows) if isinstance(rows, int) else (rows or {}, n)
        print(sample_text(self._flow.sample_of(self.node, given, sample), n, changes))

    def where(self, condition: str | ArrowFunction | Any) -> Stream:
        """Keep the rows for which ``condition`` is true: Spark SQL text, a Spark column, or a function of the rows'
        Arrow columns that returns a boolean array."""
        return self._transform("where", (condition,), {})

    def select(self, *expressions: Any, **named: Any) -> Stream:
        """Keep these columns: Spark SQL texts (``"price * 2 AS double"``) or Spark columns; those given by name may
        also be functions of the rows' Arrow columns."""
        return self._transform("select", expressions, named)

    def with_columns(self, **named: Any) -> Stream:
        """Keep all columns and add these; a column with an existing name replaces that column."""
        return self._transform("with_columns", (), named)

    def drop(self, *columns: str) -> Stream:
        """Keep all columns except these."""
        return self._transform("drop", columns, {})

    def transform(
        self, function: Callable[..., Any], *others: Stream, changes: Changelog | None = None
    ) -> Stream:
        """Apply ``function`` to the DataFrames of these rows and of ``others``. It may do all that Spark SQL can do
        with the rows of one micro-batch. It needs Spark, and keeps no state.

        ``changes``: the changelog properties of the rows that it returns. By default, rows without ``row_kind`` are
        insertions. Rows with it are insertions if all inputs of the function are, and otherwise a changelog without a
        unique key. Upserts need ``changes``, since the function's effect on their key is not known."""
        inputs = self._nodes("transform", (self, *others))
        if not callable(function):
            raise JobError(f"{caller()}: transform got {function!r}; give a function of DataFrames")
        name = self._flow.named("transform")
        return self._flow.add(
            Transform(
                name=name,
                place=caller(),
                inputs=inputs,
                kind="transform",
                expressions=(function,),
                changes=changes,
            )
        )

    def union(self, *others: Stream) -> Stream:
        """The rows of all streams, which must have the same columns, by name. If their event times differ, the union
        has none. Insertions and changes can be mixed; upserts cannot, since the same key may occur in several
        streams."""
        inputs = self._nodes("union", (self, *others))
        return self._flow.add(Union(name=self._flow.named("union"), place=caller(), inputs=inputs))

    def apply(
        self,
        operator: Operator,
        *others: Stream,
        uid: str,
        key: Keys = None,
        event_time: str | Sequence[str | None] | None = None,
        watermark_delay: Delay | Sequence[Delay] = None,
        order_by: OrderBy = None,
        sequence: SequenceBy = None,
        drop_stale: bool | Sequence[bool] | None = None,
        options: Mapping[str, object] | None = None,
        initial_state: Any = None,
    ) -> Stream:
        """The output of ``operator`` over these rows and those of ``others``; see ``MicroBatch.apply``.

        A ``key`` of one name applies to all inputs. Event time and sequence come from the source of the rows, unless
        they are given here; rows that an operator emits have neither. The watermark comes from the sources;
        ``watermark_delay`` makes an input another source of the watermark, observed where its rows enter this operator.
        An operator with ``initial_state`` does not run in the task of the operator upstream.
        """
        check_is_operator(uid, operator)
        inputs = self._nodes(uid, (self, *others))
        node = Apply(
            name=uid,
            place=caller(),
            inputs=inputs,
            operator=operator,
            key=_of_all(key, operator, len(inputs)),
            event_time=event_time,
            watermark_delay=watermark_delay,
            order_by=order_by,
            sequence=sequence,
            drop_stale=drop_stale,
            options=dict(options or {}),
            initial_state=initial_state,
        )
        return self._flow.add(node)

    @overload
    def join(self, other: Stream, operator: Operator, *, uid: str, **arguments: Any) -> Stream: ...

    @overload
    def join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: str = "inner",
        uid: str | None = None,
    ) -> Stream: ...

    def join(
        self,
        other: Stream,
        operator: Operator | None = None,
        *,
        uid: str | None = None,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        how: str = "inner",
        **arguments: Any,
    ) -> Stream:
        """The rows of both streams with equal columns ``on``: names that both have, which the result has once, or
        ``{name here: name there}``. ``how``: inner, left, right, full, semi or anti. Another column that both streams
        have gets the suffix ``_right`` there. ``Join`` keeps the rows of both sides, one per key where the columns
        include a unique key. ``uid``: by default made of both streams' names.

        With an ``operator``: ``apply`` for an operator with two inputs.
        """
        if isinstance(operator, Operator) and on is None:
            return self.apply(operator, other, uid=str(uid), **arguments)
        if operator is not None or arguments or on is None:
            given = ", ".join([repr(operator)] * (operator is not None) + [f"{name}=" for name in arguments])
            raise JobError(
                f"{caller()}: join got {given or 'no columns'}; give on= and how= for a join by equal columns, or an "
                "operator with its arguments"
            )
        from asyncstate.relational.chain import joined

        self._nodes("join", (self, other))
        return joined(self, other, on, how, uid)

    def group_by(self, *columns: str, **named: str) -> Grouped:
        """The rows by the values of ``columns``: names or Spark SQL texts, those ``named`` under that name. Go on with
        ``agg``, ``window`` or ``top``. Without columns all rows are one group."""
        from asyncstate.relational.chain import Grouped

        return Grouped.by(self, columns, named)

    def over(
        self,
        partition_by: str | Sequence[str] = (),
        order_by: Ordering | None = None,
        frame: Frame | None = None,
    ) -> Over:
        """The rows, to get columns that depend on the other rows with the same ``partition_by``: go on with
        ``with_columns``. All may be Spark SQL texts, ``order_by`` with a direction ("amount DESC").

        ``frame``: the rows that count, such as ``rows(10)`` and ``range_("1 hour")``. As in SQL, by default all rows up
        to this one in the order, and without an order all.
        """
        from asyncstate.relational.chain import Over

        return Over(self, partition_by, order_by, frame)

    def distinct(self, *, uid: str | None = None) -> Stream:
        """Each row once, however often it comes, as SQL's SELECT DISTINCT: ``GroupAggregate`` by all columns."""
        from asyncstate.relational.chain import distinct

        return distinct(self, uid)

    def top(self, n: int, by: Ordering, *, uid: str | None = None) -> Stream:
        """The first ``n`` of all rows, the largest ``by`` first, kept up to date; ``asc(column)`` or "column ASC" for
        the smallest. The operator is ``SortLimit``; ``group_by(...).top`` has the first rows of each group."""
        from asyncstate.relational.chain import top

        return top(self, n, by, uid)

    def output(self, name: str) -> Stream:
        """The rows that an operator emits to its side output ``name``; several calls return the same rows."""
        if not isinstance(self.node, Apply):
            raise JobError(
                f"{caller()}: '{self.node.name}' is not an operator, so it has no side output {name!r}; call output "
                "on the stream that apply returned"
            )
        known = (one for one in self._flow.nodes if isinstance(one, Output) and one.inputs == (self.node,))
        found = next((one for one in known if one.side == name), None)
        if found is not None:
            return Stream(self._flow, found)
        node = Output(name=f"{self.node.name}.{name}", place=caller(), inputs=(self.node,), side=name)
        return self._flow.add(node)

    def to(self, sink: Any, name: str | None = None, *, starting_now: bool = False) -> Stream:
        """Write these rows to ``sink`` in each micro-batch: a function of (rows, batch id), or an object with such a
        method ``write``. ``name``: its name in pictures, tests and the checkpoint, by default the function's.
        ``starting_now``: allow adding a sink that keeps a table to a running job, although the table then lacks all
        rows that do not change from now on. Returns the same stream."""
        if not (callable(sink) or callable(getattr(sink, "write", None))):
            raise JobError(
                f"{caller()}: {sink!r} is not a sink; give a function of (rows, batch id), or an object with "
                "a method write"
            )
        if not isinstance(starting_now, bool):
            raise JobError(f"{caller()}: starting_now is {starting_now!r}; give True or False")
        own = getattr(sink, "__name__", type(sink).__name__)
        name = name or (own if own != "<lambda>" else self._flow.named("sink"))
        self._flow.add(
            Sink(name=name, place=caller(), inputs=(self.node,), sink=sink, starting_now=starting_now)
        )
        return self

    def _transform(self, kind: Any, expressions: tuple[Any, ...], named: Mapping[str, Any]) -> Stream:
        place = caller()
        if not (expressions or named):
            raise JobError(f"{place}: {kind} was given nothing; name a column or give an expression")
        for expression in expressions if kind in ("select", "drop") else ():
            if callable(expression) and not isinstance(expression, str) and not hasattr(expression, "_jc"):
                raise JobError(f"{place}: {kind} was given a function without a name; write name=function")
        node = Transform(
            name=self._flow.named(kind),
            place=place,
            inputs=(self.node,),
            kind=kind,
            expressions=expressions,
            named=dict(named),
        )
        return self._flow.add(node)

    def _nodes(self, what: str, streams: Sequence[object]) -> tuple[Node, ...]:
        for stream in streams:
            if not isinstance(stream, Stream) or stream._flow is not self._flow:
                raise JobError(
                    f"{caller()}: '{what}' got {stream!r}, which is not a stream of this job; give what source, "
                    "apply, where and the others return"
                )
        return tuple(stream.node for stream in streams if isinstance(stream, Stream))


def caller() -> str:
    """File and line of the first caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _of_no_job(node: Node) -> JobError:
    return JobError(
        f"{caller()}: nothing is known of the rows of '{node.name}', since its graph is of no job; declare it with "
        "what StreamingJob.source returns, or inside the function that PipelineHarness gets"
    )


def _of_all(key: Any, operator: Operator, inputs: int) -> Any:
    """Apply one name to all inputs that have a key."""
    if inputs < 2 or not isinstance(key, str):
        return key
    return tuple(None if number == operator.broadcast_input else key for number in range(inputs))


def _kind(node: Node) -> str:
    return "uid" if isinstance(node, Apply) else type(node).__name__.lower()


def _selected_texts(node: Node) -> Sequence[str]:
    """The texts of a selection of columns; of another node, or with other expressions, the one that reads all."""
    texts = [*node.expressions, *node.named.values()] if isinstance(node, Transform) else []
    is_known = isinstance(node, Transform) and node.kind == "select" and texts
    return texts if is_known and all(isinstance(one, str) for one in texts) else ["*"]


def _may_read_all(text: str) -> bool:
    """Whether an expression may read columns without their names. A setting makes quoted names patterns of Spark."""
    return "*" in text or not all(name.isidentifier() for name in _QUOTED.findall(text))


def _may_read(texts: Sequence[str], column: str) -> bool:
    """Whether expressions may read the column: its name occurs in one, or may be written in another way."""
    return bool(texts) and (not column.isidentifier() or any(column.lower() in one.lower() for one in texts))
