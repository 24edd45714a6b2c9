"""Declarations of the column states of one row a key, and what both column states share.

Owns: ``ColumnStateDescriptor`` and ``row_codec``; the state itself is in ``column_state``, with a time to live in
``ttl_columns``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from asyncstate.codec import RowCodec, read_schema, schema_from_text, schema_to_text
from asyncstate.operator import BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import StateSink
from asyncstate.state.columnar.column_state import Columns, ColumnState, TimeRange
from asyncstate.state.expiring.column_expiry import column_expiry_of
from asyncstate.state.expiring.ttl import Ttl, as_ttl, ttl_texts
from asyncstate.state.expiring.ttl_columns import TtlColumnState
from asyncstate.state.versions import evolved, older_values

__all__ = ["ColumnState", "ColumnStateDescriptor", "Columns", "TimeRange", "row_codec"]


@dataclass(frozen=True)
class ColumnStateDescriptor(StateDescriptor["ColumnState"]):
    """Declares a ColumnState: ``schema`` is one row's fields.

    ``time_first``: the state has a namespace (int64, a window end or a time in microseconds) that is ordered
    before the key, so that all entries up to a time can be read as ranges. ``fixed_fields``: no field may be added to
    a stored state, not even a nullable one, because a row that was written without it would tell something else;
    but for those of ``may_lack``, whose null tells nothing else.
    ``ttl``: rows expire, each by itself. ``belongs_to``: see ``BelongsTo``.
    """

    name: str
    schema: pa.Schema
    time_first: bool = False
    fixed_fields: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    may_lack: frozenset[str] = frozenset()
    kind: ClassVar[str] = "column"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, f"state '{self.name}'"))
        object.__setattr__(self, "ttl", as_ttl(f"state '{self.name}'", self.ttl))

    def type_texts(self) -> dict[str, str]:
        """Schema, layout and what the ttl is measured in."""
        layout = "time-first" if self.time_first else "key"
        made_for = dict([self.belongs_to] if self.belongs_to else [])
        return {"value": schema_to_text(self.schema), "layout": layout, **ttl_texts(self.ttl), **made_for}

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ColumnState:
        """See ``StateDescriptor``."""
        codec = row_codec(context.uid, self.name, self.schema, self.type_texts(), stored)
        ttl = as_ttl("state", self.ttl)
        if ttl is None:
            return ColumnState(sink, state_id, codec, context)
        owner = f"operator '{context.uid}', state '{self.name}'"
        return TtlColumnState(sink, state_id, codec, context, column_expiry_of(ttl, context, owner))


def row_codec(
    uid: str, name: str, schema: pa.Schema, types: dict[str, str], stored: dict[str, str] | None
) -> RowCodec:
    """The codec of the rows of a state that is declared with ``types``; reads those of all versions before, too."""
    kept = types if stored is None else evolved(uid, name, types, stored)
    older = [schema_from_text(text) for text in older_values(kept)]
    return RowCodec(schema, older, owner=f"state '{name}' of operator '{uid}'")
