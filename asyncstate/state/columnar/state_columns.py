"""Declarations of the column states with one row per key, and the base of all column state declarations.

Owns: ``ColumnStateDescriptor`` and ``ColumnsDescriptor``, the base of this and of the descriptors of lists and maps;
the state itself is in ``column_state``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from asyncstate.codec import RowCodec, read_schema, schema_from_text, schema_to_text
from asyncstate.operator import BelongsTo, OperatorContext, StateDescriptor
from asyncstate.state.columnar.column_state import ColumnState
from asyncstate.state.columnar.results import Columns, TimeRange
from asyncstate.state.expiring.expiry import Lifetime
from asyncstate.state.expiring.stamped_codec import StampedCodec
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl, ttl_texts
from asyncstate.state.versions import evolved, older_values
from asyncstate.state_backend import StateBackend

__all__ = ["ColumnState", "ColumnStateDescriptor", "Columns", "ColumnsDescriptor", "TimeRange"]

S_co = TypeVar("S_co", covariant=True)


@functools.lru_cache(maxsize=1_000)  # each micro-batch asks for the same ones
def _row_codec(schema: pa.Schema, older: tuple[str, ...], owner: str) -> RowCodec:
    return RowCodec(schema, list(map(schema_from_text, older)), owner=owner)


class ColumnsDescriptor(StateDescriptor[S_co]):
    """Base of the declarations of column states; ``_layouts``: not time-first, and time-first."""

    schema: pa.Schema
    time_first: bool
    ttl: Ttl
    belongs_to: BelongsTo | None
    _layouts: ClassVar[tuple[str, str]] = "key", "time-first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, f"state '{self.name}'"))
        if self.ttl is not None:
            object.__setattr__(self, "ttl", as_bundle_ttl(f"state '{self.name}'", self.ttl))

    def type_texts(self) -> dict[str, str]:
        """Schema, layout and the time domain of the ttl."""
        return {
            "value": schema_to_text(self.schema),
            "layout": self._layouts[self.time_first],
            **({} if self.ttl is None else ttl_texts(self.ttl)),
            **dict([self.belongs_to] if self.belongs_to else []),
        }

    def bind(
        self, sink: StateBackend, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> S_co:
        types, uid = self.type_texts(), context.uid
        older: tuple[str, ...] = ()
        if stored is not None and stored != types:
            older = tuple(older_values(evolved(uid, self.name, types, stored)))
        codec = _row_codec(self.schema, older, f"state '{self.name}' of operator '{uid}'")
        ttl = None if self.ttl is None else as_bundle_ttl("state", self.ttl)
        if ttl is None:
            return self._state(sink, state_id, codec, context, self.time_first)
        lifetime = Lifetime(ttl, context, f"operator '{uid}', state '{self.name}'")
        return self._state(sink, state_id, StampedCodec(codec), context, self.time_first, lifetime)

    @abstractmethod
    def _state(self, *bound: Any) -> S_co:
        """The state; ``bound``: the arguments of a BundleState."""


@dataclass(frozen=True)
class ColumnStateDescriptor(ColumnsDescriptor[ColumnState]):
    """Declares a ColumnState: ``schema`` has the fields of a row.

    ``time_first``: the state has a namespace (int64, a window end or a time in microseconds) that is ordered before the
    key, so that all entries up to a time can be read as ranges. ``fixed_fields``: no field may be added to a stored
    state, not even a nullable one, because a row written without it would mean something else. Those of ``may_lack``
    are the exception: their null has no other meaning. ``ttl``: rows expire separately. ``belongs_to``: see
    ``BelongsTo``.
    """

    name: str
    schema: pa.Schema
    time_first: bool = False
    fixed_fields: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    may_lack: frozenset[str] = frozenset()
    kind: ClassVar[str] = "column"

    def _state(self, *bound: Any) -> ColumnState:
        return ColumnState(*bound)
