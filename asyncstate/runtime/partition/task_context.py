"""The context of ``open``: state ids, declarations checked against the checkpoint, counters; and the call of ``close``.

Owns: ``TaskContext`` and ``closed_at_the_end``.
Invariants: a state keeps its id, and every version of its types, for the life of the checkpoint; a declaration that
does not fit stored values is refused before any row is read. ``close`` is called once for each ``open``, even if that
fails, and never hides an earlier failure.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from asyncstate.config import Config
from asyncstate.errors import OperatorError, StateDeclarationError
from asyncstate.execution import note_changes
from asyncstate.flink_names import hint_for
from asyncstate.locations import redact
from asyncstate.operator import MIN_WATERMARK, Counter, InputSpec, Operator, OutputSpec, StateDescriptor
from asyncstate.runtime.partition.unmatched_retractions import COUNTER, UnmatchedRetractions
from asyncstate.runtime.partition.worker_memory import CachedColumns, CachedValues
from asyncstate.runtime.rows.sequence_filter import SequenceFilter
from asyncstate.runtime.rows.sorted_inputs import ordered_states
from asyncstate.state import (
    ColumnState,
    ColumnStateDescriptor,
    ExpiringState,
    StateTtl,
    with_decoded_cache,
)
from asyncstate.state.versions import evolved, wrong_kind
from asyncstate.state_backend import StateBackend
from asyncstate.storage import StateSpec

S = TypeVar("S")

FIRST_STATE_ID: Final = 8
MAX_STATE_ID: Final = 254

_NOT_BY_KEY: Final = frozenset(
    {"broadcast", "column", "list-column", "column-map"}
)  # kinds of the bundle grain, and without a key


class TaskContext:
    """The implementation of ``operator.OperatorContext``."""

    def __init__(
        self,
        uid: str,
        inputs: Sequence[InputSpec],
        output: OutputSpec,
        config: Config,
        sink: StateBackend,
        stored: Sequence[StateSpec],
        key_groups: range | None = None,
        watermark: int = MIN_WATERMARK,
        processing_time: int = 0,
        previous_watermark: int = MIN_WATERMARK,
        values: CachedValues | None = None,
        columns: CachedColumns | None = None,
        notes_changes: bool = False,
    ) -> None:
        """``notes_changes``: states note in a GuardedRecord that it has changed them."""
        self.uid = uid
        self.notes_changes = notes_changes
        self.inputs = tuple(inputs)
        self.output = output
        self.output_schema = output.schema
        self.side_outputs = output.side_outputs
        self.page_size = config.iterate_response_batch_size
        self.max_parallelism = config.max_parallelism
        self.key_groups = range(config.max_parallelism) if key_groups is None else key_groups
        keyed = next(spec for spec in inputs if not spec.broadcast)
        self.key_schema = keyed.key_schema
        self.key_codec = keyed.key_codec(config.max_parallelism)
        self.watermark = watermark
        self.processing_time = processing_time
        self.previous_watermark = previous_watermark
        self.counters: dict[str, Counter] = {}
        self.missing: UnmatchedRetractions | None = None
        self.seen: dict[int, SequenceFilter] = {}
        self.states: list[StateSpec] = []
        self._config = config
        self.expiring: list[tuple[StateTtl, ExpiringState]] = []
        self._sink = sink
        self._values = values
        self._columns = columns
        self._stored = {spec.name: spec for spec in stored}
        self.ordered = ordered_states(uid, inputs, stored)
        self._declared: dict[str, StateSpec] = {spec.name: spec for spec in self.ordered}
        self._open = True

    def get_state(self, descriptor: StateDescriptor[S]) -> S:
        """The state that ``descriptor`` declares."""
        if not isinstance(descriptor, StateDescriptor):
            raise StateDeclarationError(
                f"operator '{self.uid}': get_state got {descriptor!r}, which declares no state; give a descriptor, "
                "such as ValueStateDescriptor('name', pa.int64())"
            )
        name = descriptor.name
        if not self._open:
            raise StateDeclarationError(
                f"operator '{self.uid}': state '{name}' is declared after open(); declare all states in open()"
            )
        if name in self._declared:
            raise StateDeclarationError(
                f"operator '{self.uid}': two states have the name '{name}'; give each state of an operator its own "
                "name"
            )
        stored = self._stored.get(name)
        spec = self._spec(descriptor, stored)
        self._declared[name] = spec
        state = descriptor.bind(self._sink, spec.id, self, spec.types)
        # Range reads need the order of the store.
        if isinstance(descriptor, ColumnStateDescriptor) and not descriptor.time_first:
            cached = None if self._columns is None else self._columns.open()
            if self._columns is not None and cached is not None:
                cast(ColumnState, state).use_cache(cached, self._columns.is_empty or stored is None)
        if self._values is not None:
            state = with_decoded_cache(state, self._values.open, tuple(spec.types.items()))
        ttl: StateTtl | None = getattr(descriptor, "ttl", None)
        if ttl is not None:
            self.expiring.append((ttl, cast(ExpiringState, state)))
        if self.notes_changes:
            note_changes(state)
        return state

    if not TYPE_CHECKING:  # a type checker should report missing attributes

        def __getattr__(self, name):
            raise AttributeError(hint_for("the context of open()", name))

    def counter(self, name: str) -> Counter:
        """A counter that is summed over partitions and shown in the batch's statistics."""
        return self.counters.setdefault(name, Counter(name))

    def missing_rows(self) -> UnmatchedRetractions:
        """Reports retractions whose row does not exist."""
        if self.missing is None:
            self.missing = UnmatchedRetractions(self.uid, self.counter(COUNTER), self._config)
        return self.missing

    @property
    def missing_row(self) -> str | None:
        """An example of the unmatched retractions, None if there are none."""
        return None if self.missing is None else self.missing.example

    @property
    def keyed_state_ids(self) -> list[int]:
        """Ids of the record-grain, keyed states that ``open`` has declared."""
        declared = [spec for spec in self._declared.values() if spec.id >= FIRST_STATE_ID]
        return [spec.id for spec in declared if spec.kind not in _NOT_BY_KEY]

    def opened(self) -> list[StateSpec]:
        """End ``open``: no more declarations are allowed. Returns all ``states``, including stored, undeclared ones."""
        for index, spec in enumerate(self.inputs):
            if spec.drop_stale:
                self.seen[index] = SequenceFilter(self, spec, index)
        self._open = False
        self.states = [
            *self._declared.values(),
            *(spec for name, spec in self._stored.items() if name not in self._declared),
        ]
        return self.states

    def _spec(self, descriptor: StateDescriptor[S], stored: StateSpec | None) -> StateSpec:
        types = descriptor.type_texts()
        if stored is not None and (stored.kind, stored.types) == (descriptor.kind, types):
            return stored
        if stored is None:
            used = [spec.id for spec in (*self._stored.values(), *self._declared.values())]
            state_id = max([FIRST_STATE_ID - 1, *used]) + 1
            if state_id > MAX_STATE_ID:
                raise StateDeclarationError(
                    f"operator '{self.uid}': too many states (at most {MAX_STATE_ID - FIRST_STATE_ID + 1})"
                )
            return StateSpec(id=state_id, name=descriptor.name, kind=descriptor.kind, types=types)
        place = redact(self._config.checkpoint_dir or "")
        if stored.kind != descriptor.kind:
            raise wrong_kind(self.uid, descriptor.name, stored.kind, descriptor.kind, place)
        fixed = getattr(descriptor, "fixed_fields", False)
        may_add: frozenset[str] | None = getattr(descriptor, "may_lack", frozenset()) if fixed else None
        types = evolved(self.uid, descriptor.name, types, stored.types, place=place, may_add=may_add)
        return msgspec.structs.replace(stored, types=types)


@contextmanager
def closed_at_the_end(uid: str, operator: Operator) -> Iterator[None]:
    """Call ``operator.close()`` after the block, in which the operator is opened and run.

    Raises OperatorError if ``close`` fails; if the block has failed, the failure is added to its error as a note.
    """
    try:
        yield
    except BaseException as error:
        try:
            operator.close()
        except Exception as closing:
            error.add_note(f"operator '{uid}': close() failed as well: {type(closing).__name__}: {closing}")
        raise
    try:
        operator.close()
    except Exception as closing:
        raise OperatorError(
            f"operator '{uid}' ({type(operator).__name__}): close() failed: {type(closing).__name__}: {closing}. The "
            "micro-batch is not committed; fix the operator and restart the query"
        ) from closing
