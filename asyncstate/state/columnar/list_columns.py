"""Declaration of the column states of many rows a key.

Owns: ``ListColumnStateDescriptor``; the state itself is in ``list_column_state``, with a time to live in
``ttl_list_columns``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from asyncstate.codec import read_schema, schema_to_text
from asyncstate.operator import BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import StateSink
from asyncstate.state.columnar.columns import row_codec
from asyncstate.state.columnar.list_column_state import ListColumns, ListColumnState
from asyncstate.state.expiring.column_expiry import column_expiry_of
from asyncstate.state.expiring.ttl import Ttl, as_ttl, ttl_texts
from asyncstate.state.expiring.ttl_list_columns import TtlListColumnState

__all__ = ["ListColumnState", "ListColumnStateDescriptor", "ListColumns"]


@dataclass(frozen=True)
class ListColumnStateDescriptor(StateDescriptor["ListColumnState"]):
    """Declares a ListColumnState: ``schema`` is one row's fields; ``fixed_fields`` and ``may_lack`` as in
    ``ColumnStateDescriptor``.

    ``time_first``: the key batches that it is used with have namespaces, which stand before the key. ``ttl``: rows
    expire, each by itself. ``belongs_to``: see ``BelongsTo``.
    """

    name: str
    schema: pa.Schema
    fixed_fields: bool = False
    time_first: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    may_lack: frozenset[str] = frozenset()
    kind: ClassVar[str] = "list-column"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, f"state '{self.name}'"))
        object.__setattr__(self, "ttl", as_ttl(f"state '{self.name}'", self.ttl))

    def type_texts(self) -> dict[str, str]:
        """Schema, layout and what the ttl is measured in."""
        return {
            "value": schema_to_text(self.schema),
            "layout": "time-first blocks" if self.time_first else "blocks",
            **ttl_texts(self.ttl),
            **dict([self.belongs_to] if self.belongs_to else []),
        }

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ListColumnState:
        """See ``StateDescriptor``."""
        codec = row_codec(context.uid, self.name, self.schema, self.type_texts(), stored)
        owner = f"state '{self.name}' of operator '{context.uid}'"
        ttl = as_ttl("state", self.ttl)
        if ttl is None:
            return ListColumnState(sink, state_id, codec, owner)
        expiry = column_expiry_of(ttl, context, f"operator '{context.uid}', state '{self.name}'")
        return TtlListColumnState(sink, state_id, codec, owner, expiry, context.page_size)
