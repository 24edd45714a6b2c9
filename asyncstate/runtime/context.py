"""What ``open`` gets: state ids, declarations checked against the checkpoint, counters.

Owns: ``TaskContext`` and ``check_operator``, the driver's dry run of ``bind`` and ``open``.
Invariant: a state keeps its id, and every version of its types, for the life of the checkpoint; a declaration that
stored values do not fit is refused before any row is read.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from asyncstate.codec import check_key_type
from asyncstate.config import Config
from asyncstate.errors import JobError, SchemaError, StateAccessError, StateDeclarationError
from asyncstate.flink_names import hint_for
from asyncstate.futures import StateFuture
from asyncstate.operator import MIN_WATERMARK, Counter, InputSpec, Operator, OutputSpec, StateDescriptor
from asyncstate.places import masked
from asyncstate.requests import Decoder, LevelOne, Page, StateSink
from asyncstate.runtime.broadcast_checks import check_broadcast
from asyncstate.runtime.closing import closed_at_the_end
from asyncstate.runtime.missing_rows import COUNTER, MissingRows
from asyncstate.runtime.ordering import check_ordered, ordered_states
from asyncstate.runtime.outputs import bound, late_outputs
from asyncstate.runtime.sequencing import SeenSequence, check_sequences, seen_states
from asyncstate.runtime.stateless_checks import check_keeps_nothing
from asyncstate.state import (
    ColumnCache,
    ExpiringState,
    StateTtl,
    Trial,
    with_column_cache,
    with_known_values,
)
from asyncstate.state.versions import evolved, wrong_kind
from asyncstate.storage import StateSpec

S = TypeVar("S")
T = TypeVar("T")

FIRST_STATE_ID: Final = 8
MAX_STATE_ID: Final = 254

_NOT_BY_KEY: Final = frozenset(
    {"broadcast", "column", "list-column", "column-map"}
)  # kinds of other grains and of no key


class CachedColumns(NamedTuple):
    """Where the column states of a partition are cached; ``is_empty``: nothing is stored of the partition."""

    cache: ColumnCache
    is_empty: bool


class TaskContext:
    """The implementation of ``operator.OperatorContext``."""

    def __init__(
        self,
        uid: str,
        inputs: Sequence[InputSpec],
        output: OutputSpec,
        config: Config,
        max_parallelism: int,
        key_groups: range,
        sink: StateSink,
        stored: Sequence[StateSpec],
        watermark: int = MIN_WATERMARK,
        processing_time: int = 0,
        previous_watermark: int = MIN_WATERMARK,
        trial_of: Callable[[str], Trial] | None = None,
        columns: CachedColumns | None = None,
    ) -> None:
        self.uid = uid
        self.inputs = tuple(inputs)
        self.output_schema = output.schema
        self.side_outputs = output.side_outputs
        self.page_size = config.iterate_response_batch_size
        self.max_parallelism = max_parallelism
        self.key_groups = key_groups
        keyed = next(spec for spec in inputs if not spec.broadcast)
        self.key_schema = keyed.key_schema
        self.key_codec = keyed.key_codec(max_parallelism)
        self.watermark = watermark
        self.processing_time = processing_time
        self.previous_watermark = previous_watermark
        self.counters: dict[str, Counter] = {}
        self.missing: MissingRows | None = None
        self.seen: dict[int, SeenSequence] = {}
        self._config = config
        self.expiring: list[tuple[StateTtl, ExpiringState]] = []
        self._sink = sink
        self._trial_of = trial_of
        self._columns = columns
        # That option is for waiting reads: whatever is answered without the sink would hide one. Writes that state
        # objects hold back are bounded by the cache of writes, too.
        self._known_bytes = (
            0 if config.batch_hot_reads else min(config.read_cache_size_bytes, config.write_cache_size_bytes)
        )
        self._place = masked(config.checkpoint_dir or "")
        self._stored = {spec.name: spec for spec in stored}
        self.ordered = ordered_states(uid, inputs, stored)
        self._declared: dict[str, StateSpec] = {spec.name: spec for spec in self.ordered}
        self._open = True

    def get_state(self, descriptor: StateDescriptor[S]) -> S:
        """See ``OperatorContext``."""
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
                f"operator '{self.uid}': two states are called '{name}'; give each state of an operator its own name"
            )
        stored = self._stored.get(name)
        spec = self._spec(descriptor, stored)
        self._declared[name] = spec
        state = descriptor.bind(self._sink, spec.id, self, spec.types)
        if self._columns is not None:
            is_new = self._columns.is_empty or stored is None
            state = with_column_cache(state, descriptor, self, self._columns.cache, is_new)
        if self._trial_of is not None:
            state = with_known_values(state, self._known_bytes, self._trial_of(name))
        ttl: StateTtl | None = getattr(descriptor, "ttl", None)
        if ttl is not None:
            self.expiring.append((ttl, cast(ExpiringState, state)))
        return state

    if not TYPE_CHECKING:  # a checker is to see what is not there

        def __getattr__(self, name):
            raise AttributeError(hint_for("the context of open()", name))

    def counter(self, name: str) -> Counter:
        """See ``OperatorContext``."""
        return self.counters.setdefault(name, Counter(name))

    def missing_rows(self) -> MissingRows:
        """See ``OperatorContext``."""
        if self.missing is None:
            self.missing = MissingRows(self.uid, self.counter(COUNTER), self._config)
        return self.missing

    @property
    def keyed_state_ids(self) -> list[int]:
        """Ids of the record-grain states that ``open`` has declared and that belong to a key."""
        declared = [spec for spec in self._declared.values() if spec.id >= FIRST_STATE_ID]
        return [spec.id for spec in declared if spec.kind not in _NOT_BY_KEY]

    def opened(self) -> list[StateSpec]:
        """End of ``open``: no more declarations. Returns all states, stored ones that are no longer declared too."""
        self.seen = seen_states(self)
        self._open = False
        return [
            *self._declared.values(),
            *(spec for name, spec in self._stored.items() if name not in self._declared),
        ]

    def _spec(self, descriptor: StateDescriptor[S], stored: StateSpec | None) -> StateSpec:
        types = descriptor.type_texts()
        if stored is None:
            used = [spec.id for spec in (*self._stored.values(), *self._declared.values())]
            state_id = max([FIRST_STATE_ID - 1, *used]) + 1
            if state_id > MAX_STATE_ID:
                raise StateDeclarationError(
                    f"operator '{self.uid}': too many states (at most {MAX_STATE_ID - FIRST_STATE_ID + 1})"
                )
            return StateSpec(id=state_id, name=descriptor.name, kind=descriptor.kind, types=types)
        if stored.kind != descriptor.kind:
            raise wrong_kind(self.uid, descriptor.name, stored.kind, descriptor.kind, self._place)
        fixed = getattr(descriptor, "fixed_fields", False)
        may_add: frozenset[str] | None = getattr(descriptor, "may_lack", frozenset()) if fixed else None
        types = evolved(self.uid, descriptor.name, types, stored.types, place=self._place, may_add=may_add)
        return msgspec.structs.replace(stored, types=types)


class _NoState(StateSink):
    """The sink of the driver's dry run: any access is an error."""

    current = None

    def _refuse(self) -> NoReturn:
        raise StateAccessError(
            "state was accessed inside open(); open() only declares state, use it in process()"
        )

    def get(self, key: bytes) -> bytes | None:
        self._refuse()

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        self._refuse()

    def put(self, key: bytes, value: bytes) -> None:
        self._refuse()

    def delete(self, key: bytes) -> None:
        self._refuse()

    def scan(self, start: bytes, end: bytes, limit: int) -> Page:
        self._refuse()

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        self._refuse()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self._refuse()

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        self._refuse()

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._refuse()

    def delete_many(self, keys: Sequence[bytes]) -> None:
        self._refuse()

    def prefetch(self, keys: list[bytes]) -> None:
        self._refuse()

    def finish_many(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> None:
        self._refuse()

    def attach(self, level_one: LevelOne) -> None:
        pass


def check_operator(
    uid: str,
    operator: Operator,
    inputs: Sequence[InputSpec],
    config: Config,
    max_parallelism: int,
    stored: Sequence[StateSpec],
    copied: Callable[[Operator], Operator],
) -> tuple[OutputSpec, list[StateSpec]]:
    """The outputs and the states of ``operator``, checked on the driver before any data is touched.

    The operator itself stays as it is, to be pickled for the tasks: a copy, made by ``copied`` as tasks get theirs, is
    bound and opened.
    Raises SchemaError for its inputs and StateDeclarationError where states disagree with ``stored``.
    """
    operator = copied(operator)
    check_broadcast(uid, operator, inputs)
    _check_keys(uid, [spec for spec in inputs if not spec.broadcast])
    check_ordered(uid, operator, inputs)
    check_sequences(uid, inputs)
    for spec in inputs:
        if spec.changelog and not operator.accepts_changelog:
            raise SchemaError(
                f"operator '{uid}' ({type(operator).__name__}) cannot take rows back, but {spec.name} is a changelog "
                "(it has a row_kind column); drop that column if every row is an insert, or put an operator that "
                "accepts changelogs here"
            )
    output = bound(uid, operator, inputs)
    late_outputs(uid, operator, inputs, output)
    context = TaskContext(
        uid, inputs, output, config, max_parallelism, range(max_parallelism), _NoState(), stored
    )
    with closed_at_the_end(uid, operator):
        operator.open(context)
    states = context.opened()
    check_keeps_nothing(uid, operator, states, stored)
    return output, states


def check_is_operator(uid: str, operator: object) -> None:
    """Raise JobError unless ``operator`` is an Operator object."""
    if isinstance(operator, type) and issubclass(operator, Operator):
        raise JobError(
            f"operator '{uid}': {operator.__name__} is a class; give an object of it: {operator.__name__}(...)"
        )
    if not isinstance(operator, Operator):
        raise JobError(f"operator '{uid}': {operator!r} is no Operator; give an object of one")


def _check_keys(uid: str, inputs: Sequence[InputSpec]) -> None:
    for spec in inputs:
        for field in spec.key_schema:
            try:
                check_key_type(field.name, field.type)
            except SchemaError as error:
                raise SchemaError(f"operator '{uid}', {spec.name}: {error}") from error
    types = [[field.type for field in spec.key_schema] for spec in inputs]
    for spec, own in zip(inputs[1:], types[1:], strict=True):
        if own != types[0]:
            raise SchemaError(
                f"operator '{uid}': the keys of its inputs differ in type: {inputs[0].name} "
                f"({', '.join(map(str, types[0]))}) and {spec.name} ({', '.join(map(str, own))}); cast one side"
            )
