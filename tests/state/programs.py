"""Programs of state operations: how they are generated, what they must give, and how they run on real states.

A program belongs to one record. It is a sequence of steps; a step is one operation, ``sync`` picks its plain
form and ``waits`` tells whether the next step is asked for only when its result is there.

Owns: ``Step``, ``generate`` (from hypothesis or from a seed), ``Model`` and ``ProgramRunner``.
Invariant: the model knows nothing of stores, bytes or futures: dicts, lists and the time at which each entry
was last touched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    ReducingStateDescriptor,
    StateFuture,
    StateIterator,
    StateTtl,
    ValueStateDescriptor,
    combine_all,
    completed_void_future,
)

T = TypeVar("T")

TTL_US = 10
NAMESPACES = (-1, 0, 1)


class Step(NamedTuple):
    """One call: ``method`` of the state called ``state`` (in ``namespace``, if it has namespaces)."""

    state: str
    method: str
    arguments: tuple[Any, ...]
    sync: bool
    waits: bool
    namespace: int = 0


Program = list[Step]


class RowProgram(NamedTuple):
    """A record: its key, its event time and what it does."""

    key: int
    time: int
    program: Program


class MicroBatch(NamedTuple):
    """Records in order of arrival, the processing time and the watermark (microseconds) under which they run."""

    processing_time: int
    watermark: int
    records: list[RowProgram]


# -- drawing ----------------------------------------------------------------------------------------------


class Draw(Protocol):
    """Where a generated program's choices come from."""

    def integer(self, low: int, high: int) -> int: ...

    def choice(self, options: Sequence[T]) -> T: ...


class SeededDraw:
    """Choices of a seed, for programs by the thousand."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


class HypothesisDraw:
    """Choices of hypothesis, which shrinks what fails."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))

    def choice(self, options: Sequence[T]) -> T:
        chosen: T = self._draw(st.sampled_from(options))
        return chosen


# -- kinds of state -----------------------------------------------------------------------------------------


def _number(draw: Draw) -> int:
    return draw.integer(-5, 5)


def _text(draw: Draw) -> str:
    return "".join(draw.choice("ab\x00é") for _ in range(draw.integer(0, 6)))


def _texts(draw: Draw) -> list[str]:
    return [_text(draw) for _ in range(draw.integer(0, 6))]


def _nothing(draw: Draw) -> tuple[Any, ...]:
    return ()


ArgumentMaker = Callable[[Draw], tuple[Any, ...]]

_VALUE: dict[str, ArgumentMaker] = {
    "value": _nothing,
    "update": lambda draw: (None if draw.integer(0, 5) == 0 else _number(draw),),
    "clear": _nothing,
}
_LIST: dict[str, ArgumentMaker] = {
    "get": _nothing,
    "add": lambda draw: (_text(draw),),
    "add_all": lambda draw: (_texts(draw),),
    "update": lambda draw: (None if draw.integer(0, 5) == 0 else _texts(draw),),
    "clear": _nothing,
}
_MAP: dict[str, ArgumentMaker] = {
    "get": lambda draw: (_number(draw),),
    "put": lambda draw: (_number(draw), _text(draw)),
    "put_all": lambda draw: ({_number(draw): _text(draw) for _ in range(draw.integer(0, 5))},),
    "remove": lambda draw: (_number(draw),),
    "contains": lambda draw: (_number(draw),),
    "entries": _nothing,
    "keys": _nothing,
    "values": _nothing,
    "is_empty": _nothing,
    "clear": _nothing,
}
_FOLD: dict[str, ArgumentMaker] = {"get": _nothing, "add": lambda draw: (_number(draw),), "clear": _nothing}


def _merge(draw: Draw) -> tuple[Any, ...]:
    target = draw.choice(NAMESPACES)
    others = [namespace for namespace in NAMESPACES if namespace != target]
    return target, others[: draw.integer(0, 2)]


class Kind(NamedTuple):
    """A declared state: which methods it has, whether it has namespaces, whether its entries expire and how."""

    methods: dict[str, ArgumentMaker]
    namespaced: bool = False
    ttl: str | None = None  # "processing" or "event"
    refreshed_by_reads: bool = False

    @property
    def state_ttl(self) -> StateTtl | None:
        if self.ttl is None:
            return None
        update = "read-and-write" if self.refreshed_by_reads else "create-and-write"
        return StateTtl(timedelta(microseconds=TTL_US), time=self.ttl, update=update)


KINDS: dict[str, Kind] = {
    "value": Kind(_VALUE),
    "list": Kind(_LIST),
    "map": Kind(_MAP),
    "reducing": Kind(_FOLD),
    "aggregating": Kind(_FOLD),
    "windowed map": Kind(_MAP, namespaced=True),
    "windowed list": Kind({**_LIST, "merge_namespaces": _merge}, namespaced=True),
    "windowed sum": Kind({**_FOLD, "merge_namespaces": _merge}, namespaced=True),
    "short value": Kind(_VALUE, ttl="processing"),
    "read value": Kind(_VALUE, ttl="event", refreshed_by_reads=True),
    "short list": Kind(_LIST, ttl="event"),
    "read list": Kind(_LIST, ttl="processing", refreshed_by_reads=True),
    "short map": Kind(_MAP, namespaced=True, ttl="processing"),
    "read map": Kind(_MAP, ttl="event", refreshed_by_reads=True),
    "short sum": Kind(_FOLD, ttl="processing"),
    "read mean": Kind(_FOLD, ttl="event", refreshed_by_reads=True),
}


def generate_step(draw: Draw, sync: bool | None, states: Sequence[str]) -> Step:
    """One step on one of ``states``; ``sync`` fixes its form, None draws it."""
    name = draw.choice(states)
    kind = KINDS[name]
    method = draw.choice(list(kind.methods))
    form = bool(draw.integer(0, 1)) if sync is None else sync
    return Step(
        name,
        method,
        kind.methods[method](draw),
        form,
        bool(draw.integer(0, 1)),
        draw.choice(NAMESPACES) if kind.namespaced else 0,
    )


def generate(
    draw: Draw,
    *,
    keys: int,
    records: int,
    steps: int,
    batches: int,
    sync: bool | None = None,
    states: Sequence[str] = tuple(KINDS),
) -> list[MicroBatch]:
    """``batches`` micro-batches of at most ``records`` records of at most ``steps`` steps, over ``keys`` keys.

    The fewer the ``states``, the more often steps meet on the same value.
    """
    now = watermark = 1_000
    program: list[MicroBatch] = []
    for _ in range(batches):
        rows = [
            RowProgram(
                draw.integer(0, keys - 1),
                watermark + draw.integer(-8, 12),
                [generate_step(draw, sync, states) for _ in range(draw.integer(1, steps))],
            )
            for _ in range(draw.integer(1, records))
        ]
        program.append(MicroBatch(now, watermark, rows))
        now += draw.integer(0, 8)
        watermark += draw.integer(0, 8)
    return program


def some_states() -> st.SearchStrategy[list[str]]:
    """All states, or one or two of them, so that steps meet often."""
    names = list(KINDS)
    return st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True) | st.just(names)


# -- the model ----------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """A value and when it was last touched, as its TTL counts (0 without)."""

    value: Any
    touched: int = 0


@dataclass
class StateModel:
    """One state of one key in one namespace. ``now`` is the time entries expire by, ``stamp`` the one they get."""

    kind: Kind
    single: Entry | None = None
    elements: list[Entry] = field(default_factory=list)
    entries: dict[int, Entry] = field(default_factory=dict)

    def forget_expired(self, now: int) -> None:
        if self.kind.ttl is None:
            return
        if self.single is not None and not _alive(self.single, now):
            self.single = None
        self.elements = [element for element in self.elements if _alive(element, now)]
        self.entries = {key: entry for key, entry in self.entries.items() if _alive(entry, now)}

    def run(self, name: str, method: str, arguments: tuple[Any, ...], stamp: int) -> Any:
        if self.kind.methods is _VALUE:
            return self._value(method, arguments, stamp)
        if self.kind.methods is _MAP:
            return self._map(method, arguments, stamp)
        if "add_all" in self.kind.methods:
            return self._list(method, arguments, stamp)
        return self._fold(name, method, arguments, stamp)

    def _value(self, method: str, arguments: tuple[Any, ...], stamp: int) -> Any:
        if method == "value":
            return self._read(self.single, stamp)
        given = arguments[0] if arguments else None
        self.single = None if given is None else Entry(given, stamp)
        return None

    def _fold(self, name: str, method: str, arguments: tuple[Any, ...], stamp: int) -> Any:
        if method == "get":
            value = self._read(self.single, stamp)
            return None if value is None else value[0] / value[1] if _is_mean(name) else value[0]
        if method == "clear":
            self.single = None
            return None
        total, count = (0, 0) if self.single is None else self.single.value
        self.single = Entry((total + arguments[0], count + 1), stamp)
        return None

    def _list(self, method: str, arguments: tuple[Any, ...], stamp: int) -> list[str] | None:
        match method:
            case "get":
                return [self._read(element, stamp) for element in self.elements]
            case "add":
                self.elements.append(Entry(arguments[0], stamp))
            case "add_all":
                self.elements += [Entry(text, stamp) for text in arguments[0]]
            case _:
                given = arguments[0] if arguments else None
                self.elements = [Entry(text, stamp) for text in given or ()]
        return None

    def _map(self, method: str, arguments: tuple[Any, ...], stamp: int) -> Any:
        entries = self.entries
        ordered = sorted(entries)
        match method:
            case "get":
                return self._read(entries.get(arguments[0]), stamp)
            case "contains":
                return self._read(entries.get(arguments[0]), stamp) is not None
            case "put":
                entries[arguments[0]] = Entry(arguments[1], stamp)
            case "put_all":
                entries.update({key: Entry(text, stamp) for key, text in arguments[0].items()})
            case "remove":
                entries.pop(arguments[0], None)
            case "clear":
                entries.clear()
            case "entries":
                return [(key, self._read(entries[key], stamp)) for key in ordered]
            case "keys":
                return [key for key in ordered if self._read(entries[key], stamp) is not None]
            case "values":
                return [self._read(entries[key], stamp) for key in ordered]
            case "is_empty":
                return not entries
        return None

    def _read(self, entry: Entry | None, stamp: int) -> Any:
        if entry is None:
            return None
        if self.kind.refreshed_by_reads:
            entry.touched = max(entry.touched, stamp)  # reading an entry never shortens its life
        return entry.value


def _alive(entry: Entry, now: int) -> bool:
    return entry.touched + TTL_US > now


def _is_mean(name: str) -> bool:
    return name in ("aggregating", "read mean")


class Model:
    """All states of all keys."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, str, int], StateModel] = {}

    def run(self, batches: Sequence[MicroBatch]) -> list[list[Any]]:
        """The results of each record's steps, in the order of the records."""
        return [
            [self._step(batch, record, step) for step in record.program]
            for batch in batches
            for record in batch.records
        ]

    def _step(self, batch: MicroBatch, record: RowProgram, step: Step) -> Any:
        kind = KINDS[step.state]
        event = kind.ttl == "event"
        now = batch.watermark if event else batch.processing_time
        stamp = max(record.time, batch.watermark) if event else batch.processing_time
        if step.method == "merge_namespaces":
            return self._merge(record.key, step)
        state = self._state(record.key, step.state, step.namespace)
        state.forget_expired(now)
        return state.run(step.state, step.method, step.arguments, stamp)

    def _merge(self, key: int, step: Step) -> None:
        target_namespace, namespaces = step.arguments
        target = self._state(key, step.state, target_namespace)
        for namespace in namespaces:
            source = self._state(key, step.state, namespace)
            target.elements += source.elements
            if source.single is not None:
                mine = (0, 0) if target.single is None else target.single.value
                target.single = Entry(tuple(a + b for a, b in zip(mine, source.single.value, strict=True)))
            source.elements, source.single = [], None

    def _state(self, key: int, name: str, namespace: int) -> StateModel:
        return self._states.setdefault((key, name, namespace), StateModel(KINDS[name]))


# -- the states -----------------------------------------------------------------------------------------------


class Mean(AggregateFunction[int, dict[str, int], float]):
    """Sum and count of what was added."""

    def create_accumulator(self) -> dict[str, int]:
        return {"total": 0, "count": 0}

    def add(self, value: int, accumulator: dict[str, int]) -> dict[str, int]:
        return {"total": accumulator["total"] + value, "count": accumulator["count"] + 1}

    def get_result(self, accumulator: dict[str, int]) -> float:
        return accumulator["total"] / accumulator["count"]

    def merge(self, a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {name: a[name] + b[name] for name in a}


_MEAN_TYPE = pa.struct([("total", pa.int64()), ("count", pa.int64())])


def add(a: int, b: int) -> int:
    return a + b


def descriptor(name: str) -> Any:
    """The declaration of the state called ``name`` in ``KINDS``."""
    kind = KINDS[name]
    stored_name = name.replace(" ", "_")
    options: dict[str, Any] = {"namespaced": kind.namespaced, "ttl": kind.state_ttl}
    if kind.methods is _VALUE:
        return ValueStateDescriptor(stored_name, pa.int64(), **options)
    if kind.methods is _MAP:
        return MapStateDescriptor(stored_name, pa.int64(), pa.string(), **options)
    if "add_all" in kind.methods:
        return ListStateDescriptor(stored_name, pa.string(), **options)
    if _is_mean(name):
        return AggregatingStateDescriptor(stored_name, Mean(), _MEAN_TYPE, **options)
    return ReducingStateDescriptor(stored_name, add, pa.int64(), **options)


class ProgramRunner:
    """Runs programs over states that ``context`` binds."""

    def __init__(self, context: OperatorContext, kinds: Sequence[str] = tuple(KINDS)) -> None:
        self._states = {name: context.get_state(descriptor(name)) for name in kinds}

    def run(self, program: Program, all_sync: bool, results: list[Any]) -> StateFuture[Any]:
        """Put the result of each step into ``results``; the future is there when all are."""
        results.extend([None] * len(program))
        return self._go_on(iter(enumerate(program)), all_sync, results, {})

    def _go_on(
        self,
        program: Iterator[tuple[int, Step]],
        all_sync: bool,
        results: list[Any],
        late: dict[int, Iterator[Any]],
    ) -> StateFuture[Any]:
        """Ask for steps until one waits; iterators of plain calls that do not wait are read at the end."""
        asked: list[StateFuture[Any]] = []
        for index, step in program:
            outcome = self._ask(step, all_sync)
            if isinstance(outcome, StateFuture):
                kept = outcome.then_compose(partial(_keep, results, index))
                if step.waits:
                    return combine_all(
                        [*asked, kept.then_compose(lambda _: self._go_on(program, all_sync, results, late))]
                    )
                asked.append(kept)
            elif isinstance(outcome, Iterator) and not step.waits:
                late[index] = outcome
            else:
                results[index] = list(outcome) if isinstance(outcome, Iterator) else outcome
        for index, iterator in late.items():
            results[index] = list(iterator)
        return combine_all(asked)

    def _ask(self, step: Step, all_sync: bool) -> Any:
        state = self._states[step.state]
        if KINDS[step.state].namespaced and step.method != "merge_namespaces":
            state = state.at(step.namespace)
        prefix = "" if step.sync or all_sync else "async_"
        return getattr(state, prefix + step.method)(*step.arguments)


def _keep(results: list[Any], index: int, value: Any) -> StateFuture[Any]:
    if isinstance(value, StateIterator):
        return value.to_list().then_accept(partial(results.__setitem__, index))
    results[index] = value
    return completed_void_future()
