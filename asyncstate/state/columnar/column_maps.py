"""Declaration of the column states of rows by key and user key.

Owns: ``ColumnMapStateDescriptor``, and ``TtlColumnMapState``, which puts the two halves of its work together; the state
itself is in ``column_map_state``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from asyncstate.codec import KeyCodec, RowCodec, check_key_type, read_schema, schema_to_text
from asyncstate.errors import StateDeclarationError
from asyncstate.operator import BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import StateSink
from asyncstate.state.columnar.column_map_state import ColumnMapState, MapEntries, MapTimeRange
from asyncstate.state.columnar.columns import row_codec
from asyncstate.state.expiring.column_expiry import ColumnExpiry, column_expiry_of
from asyncstate.state.expiring.ttl import Ttl, as_ttl, ttl_texts
from asyncstate.state.expiring.ttl_columns import TtlColumnState

__all__ = ["ColumnMapState", "ColumnMapStateDescriptor", "MapEntries", "MapTimeRange", "TtlColumnMapState"]


@dataclass(frozen=True)
class ColumnMapStateDescriptor(StateDescriptor["ColumnMapState"]):
    """Declares a ColumnMapState: ``key_schema`` has the parts of the user key, ``schema`` one row's fields.

    A schema without fields makes a set of user keys. ``time_first``, ``fixed_fields``, ``ttl`` and ``belongs_to`` are
    as in ``ColumnStateDescriptor``; entries expire each by itself. The user key of a stored state cannot change.
    Raises SchemaError for a user key of a type that cannot be a key.
    """

    name: str
    key_schema: pa.Schema
    schema: pa.Schema
    time_first: bool = False
    fixed_fields: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    kind: ClassVar[str] = "column-map"

    def __post_init__(self) -> None:
        for name in ("key_schema", "schema"):
            object.__setattr__(self, name, read_schema(getattr(self, name), f"state '{self.name}', {name}"))
        object.__setattr__(self, "ttl", as_ttl(f"state '{self.name}'", self.ttl))
        if not len(self.key_schema):
            raise StateDeclarationError(
                f"state '{self.name}' is declared with a user key of no columns; give the columns of the user key, or "
                "use a ColumnState"
            )
        for field in self.key_schema:
            check_key_type(f"{self.name}.{field.name}", field.type)

    def type_texts(self) -> dict[str, str]:
        """User key, schema, layout and what the ttl is measured in."""
        return {
            "key": schema_to_text(self.key_schema),
            "value": schema_to_text(self.schema),
            "layout": "time-first" if self.time_first else "key",
            **ttl_texts(self.ttl),
            **dict([self.belongs_to] if self.belongs_to else []),
        }

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> ColumnMapState:
        """See ``StateDescriptor``."""
        codec = row_codec(context.uid, self.name, self.schema, self.type_texts(), stored)
        names = [f"{self.name}.{name}" for name in self.key_schema.names]
        user_keys = KeyCodec(self.key_schema.types, names, 1)
        owner = f"state '{self.name}' of operator '{context.uid}'"
        ttl = as_ttl("state", self.ttl)
        if ttl is None:
            return ColumnMapState(sink, state_id, codec, context, user_keys, self.time_first, owner)
        expiry = column_expiry_of(ttl, context, f"operator '{context.uid}', state '{self.name}'")
        return TtlColumnMapState(sink, state_id, codec, context, user_keys, self.time_first, owner, expiry)


class TtlColumnMapState(TtlColumnState, ColumnMapState):
    """A ColumnMapState each of whose entries expires by itself. Reads of ranges, and of all entries of keys, renew what
    they show, too."""

    def __init__(
        self,
        sink: StateSink,
        state_id: int,
        codec: RowCodec,
        context: OperatorContext,
        user_keys: KeyCodec,
        time_first: bool,
        owner: str,
        expiry: ColumnExpiry,
    ) -> None:
        ColumnMapState.__init__(self, sink, state_id, codec, context, user_keys, time_first, owner)
        self._expire_by(expiry)
