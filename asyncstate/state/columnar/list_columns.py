"""Declaration of the column states with many rows per key.

Owns: ``ListColumnStateDescriptor``; the state itself is in ``list_column_state``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from asyncstate.operator import BelongsTo
from asyncstate.state.columnar.list_column_state import ListColumnState
from asyncstate.state.columnar.results import ListColumns, ListRange
from asyncstate.state.columnar.state_columns import ColumnsDescriptor
from asyncstate.state.expiring.ttl import Ttl

__all__ = ["ListColumnState", "ListColumnStateDescriptor", "ListColumns", "ListRange"]


@dataclass(frozen=True)
class ListColumnStateDescriptor(ColumnsDescriptor[ListColumnState]):
    """Declares a ListColumnState: ``schema`` has the fields of a row; ``fixed_fields`` and ``may_lack`` as in
    ``ColumnStateDescriptor``.

    ``time_first``: its key batches have namespaces (int64, such as times in microseconds), which precede the key in the
    order of the store, so that all lists up to a time can be read as ranges. ``ttl``: rows expire separately.
    ``belongs_to``: see ``BelongsTo``.
    """

    name: str
    schema: pa.Schema
    fixed_fields: bool = False
    time_first: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    may_lack: frozenset[str] = frozenset()
    kind: ClassVar[str] = "list-column"
    _layouts = "blocks", "time-first blocks"

    def _state(self, *bound: Any) -> ListColumnState:
        return ListColumnState(*bound)
