"""State: what an operator declares in ``open`` and uses in ``process``, ``on_timer`` and ``process_bundle``.

Owns: the state kinds of both grains and the timers. Must not import storage, execution or operators.
"""

from asyncstate.state.broadcast import (
    BroadcastList,
    BroadcastState,
    BroadcastStateDescriptor,
    BroadcastValue,
)
from asyncstate.state.column_cache import ColumnCache, ColumnCacheStatistics, with_column_cache
from asyncstate.state.columnar.column_maps import (
    ColumnMapState,
    ColumnMapStateDescriptor,
    MapEntries,
    MapTimeRange,
)
from asyncstate.state.columnar.columns import Columns, ColumnState, ColumnStateDescriptor, TimeRange
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from asyncstate.state.expiring.expiry import time_of
from asyncstate.state.expiring.ttl import ExpiringState, StateTtl, TtlTime, TtlUpdate, TtlVisibility
from asyncstate.state.keyed.aggregating import AggregateFunction, AggregatingState
from asyncstate.state.keyed.binding import with_known_values
from asyncstate.state.keyed.listing import ListState
from asyncstate.state.keyed.mapping import MapState
from asyncstate.state.keyed.reducing import ReducingState
from asyncstate.state.keyed.trials import Trial, Trials
from asyncstate.state.keyed.value import ValueState
from asyncstate.state.ranges import merged_entries, pages_of
from asyncstate.state.timers import (
    NAMED_TIMERS,
    TIMERS_BY_TIME,
    DueTimer,
    KeyedTimers,
    TimersBetweenRows,
    turn_of,
)
from asyncstate.state.views.views import ListView, MapView, ValueView

__all__ = [
    "NAMED_TIMERS",
    "TIMERS_BY_TIME",
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
    "TimersBetweenRows",
    "Trial",
    "Trials",
    "TtlTime",
    "TtlUpdate",
    "TtlVisibility",
    "ValueState",
    "ValueStateDescriptor",
    "ValueView",
    "merged_entries",
    "pages_of",
    "time_of",
    "turn_of",
    "with_column_cache",
    "with_known_values",
]
