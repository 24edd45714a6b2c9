"""The initial state of a new operator: rows, or values of its states.

Owns: ``InitialValues``, which writes values into the states that an operator declares; ``report_of_both``; the checks
of the initial state, which drivers and harnesses share.
Invariant: the written values are those that the operator itself would write; the operator does not run.
Must not import Spark.

Source: the ``initialState`` of Spark's ``transformWithState``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec
import pyarrow as pa

from asyncstate.errors import JobError, SchemaError, StateDeclarationError
from asyncstate.metrics import max_metrics
from asyncstate.operator import (
    InputSpec,
    Operator,
    OperatorContext,
    OutputSpec,
    RecordContext,
    RecordOperator,
    Row,
    StateDescriptor,
)
from asyncstate.runtime.statistics import sums_of_both
from asyncstate.runtime.task_spec import CommitRecord

VALUE: Final = "value"
USER_KEY: Final = "user_key"
FIRST_ARRIVAL: Final = 1 << 31
"""Buffered rows are numbered by micro-batch and arrival; rows after initial rows are numbered from here."""
_PUT: Final[dict[str, Callable[[Any, Row], Any]]] = {
    "value": lambda state, row: state.async_update(row[VALUE]),
    "list": lambda state, row: state.async_update(row[VALUE]),
    "map": lambda state, row: state.async_put(row[USER_KEY], row[VALUE]),
    "reducing": lambda state, row: state.async_add(row[VALUE]),
}
"""How a row is written into a state, by the state's kind."""


class InitialValues(RecordOperator):
    """Writes rows into one state of ``operator``: the key's columns, ``value``, and for a map ``user_key``.

    ``state`` is the name of that state. Raises StateDeclarationError if it is not declared, or if rows cannot give its
    values: states of bundle-grain operators, aggregating and broadcast state.
    """

    def __init__(self, operator: Operator, inputs: Sequence[InputSpec], state: str) -> None:
        self.operator = operator
        self.inputs = tuple(inputs)
        self.state = state

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The operator's outputs; nothing is emitted to them."""
        return OutputSpec.of(self.operator.bind(self.inputs))

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> None:
        """None: the operator itself declares the meaning of its state."""

    def open(self, context: OperatorContext) -> None:
        """Let the operator declare its states, and keep the one to write."""
        watched = _Watched(context, self.inputs)
        self.operator.open(watched)
        if self.state not in watched.states:
            known = ", ".join(map(repr, watched.states)) or "none"
            raise StateDeclarationError(
                f"operator '{context.uid}': initial_state names a state {self.state!r} that it does not declare; it "
                f"has {known}"
            )
        kind, state = watched.states[self.state]
        if kind not in _PUT or not isinstance(self.operator, RecordOperator):
            raise StateDeclarationError(
                f"operator '{context.uid}': state {self.state!r} ({kind}) does not accept initial values; only value, "
                "list, map and reducing states of a RecordOperator do. Give initial_state the rows that produce the "
                "state"
            )
        self._put = _PUT[kind]
        self._kept = state

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Write one value."""
        return self._put(self._kept, row)


class _Watched:
    """A context that records the states declared with it."""

    def __init__(self, context: OperatorContext, inputs: tuple[InputSpec, ...]) -> None:
        self._context = context
        self.inputs = inputs
        self.states: dict[str, tuple[str, Any]] = {}

    def get_state(self, descriptor: StateDescriptor[Any]) -> Any:
        state = self._context.get_state(descriptor)
        self.states[descriptor.name] = descriptor.kind, state
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def report_of_both(first: CommitRecord, then: CommitRecord) -> CommitRecord:
    """The report of a partition that ran twice in a micro-batch, ``then`` on the state that ``first`` had left."""
    # The run that writes values of states has other inputs, and no event times.
    seen = first.max_event_times if len(first.max_event_times) == len(then.max_event_times) else []
    times = [
        max((time for time in both if time is not None), default=None)
        for both in zip_longest(seen, then.max_event_times)
    ]
    return msgspec.structs.replace(
        then,
        max_event_times=times,
        missing_row=then.missing_row or first.missing_row,
        statistics=sums_of_both(first.statistics, then.statistics),
        peaks=max_metrics([first.peaks, then.peaks]),
    )


def check_keeps(uid: str, given: object) -> None:
    """Raise JobError if a stateless operator has an initial state."""
    if given is not None:
        raise JobError(
            f"operator '{uid}' is stateless, so it has no initial_state; give it to the operator downstream"
        )


def check_columns(what: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise SchemaError unless initial rows have exactly the columns ``wanted`` (name to type)."""
    if wanted != found:
        differing = sorted({name for name, _ in wanted.items() ^ found.items()})
        raise SchemaError(
            f"{what}: its initial rows differ from its input in {', '.join(differing)}: they have {_text(found)}, the "
            f"input has {_text(wanted)}; select and cast them"
        )


def _text(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def check_values(uid: str, state: str, schema: pa.Schema, key: pa.Schema) -> None:
    """Raise StateDeclarationError unless rows of ``schema`` have the key's columns and a value."""
    wanted = [*key.names, VALUE]
    missing = [name for name in wanted if name not in schema.names]
    surplus = [name for name in schema.names if name not in (*wanted, USER_KEY)]
    if missing or surplus:
        raise StateDeclarationError(
            f"operator '{uid}': the initial values of state {state!r} have the columns {', '.join(schema.names)}; give "
            f"those of the key and the value: {', '.join(wanted)} (of a map also {USER_KEY})"
        )
    for field in key:
        if schema.field(field.name).type != field.type:
            raise StateDeclarationError(
                f"operator '{uid}': the initial values of state {state!r} have the key column '{field.name}' as "
                f"{schema.field(field.name).type}, but it is {field.type}; cast it"
            )
