"""State: an operator declares it in ``open`` and uses it in ``process``, ``on_timer`` and ``process_bundle``.

Owns: the state kinds of both grains and the timers. Must not import storage, execution or operators.
"""

from asyncstate.state.broadcast_state import (
    BroadcastList,
    BroadcastState,
    BroadcastStateDescriptor,
    BroadcastValue,
)
from asyncstate.state.column_cache import ColumnCache, ColumnCacheStatistics
from asyncstate.state.columnar.column_maps import (
    ColumnMapState,
    ColumnMapStateDescriptor,
    MapEntries,
    MapTimeRange,
)
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor, TimeRange
from asyncstate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from asyncstate.state.expiring.expiry import time_of
from asyncstate.state.expiring.ttl import ExpiringState, StateTtl, TtlTime, TtlUpdate, TtlVisibility
from asyncstate.state.keyed.aggregating_state import AggregateFunction, AggregatingState
from asyncstate.state.keyed.decoded_cache import DecodedCache
from asyncstate.state.keyed.list_state import ListState
from asyncstate.state.keyed.map_state import MapState
from asyncstate.state.keyed.reducing_state import ReducingState
from asyncstate.state.keyed.state_context import with_decoded_cache
from asyncstate.state.keyed.value_state import ValueState
from asyncstate.state.timers import DueTimer, KeyedTimers, turn_of
from asyncstate.state.views.views import ListView, MapView, ValueView

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastList",
    "BroadcastState",
    "BroadcastStateDescriptor",
    "BroadcastValue",
    "ColumnCache",
    "ColumnCacheStatistics",
    "ColumnMapState",
    "ColumnMapStateDescriptor",
    "ColumnState",
    "ColumnStateDescriptor",
    "Columns",
    "DecodedCache",
    "DueTimer",
    "ExpiringState",
    "KeyedTimers",
    "ListColumnState",
    "ListColumnStateDescriptor",
    "ListColumns",
    "ListState",
    "ListStateDescriptor",
    "ListView",
    "MapEntries",
    "MapState",
    "MapStateDescriptor",
    "MapTimeRange",
    "MapView",
    "ReducingState",
    "ReducingStateDescriptor",
    "StateTtl",
    "TimeRange",
    "TtlTime",
    "TtlUpdate",
    "TtlVisibility",
    "ValueState",
    "ValueStateDescriptor",
    "ValueView",
    "time_of",
    "turn_of",
    "with_decoded_cache",
]
