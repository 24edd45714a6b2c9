"""State: what an operator declares in ``open`` and uses in ``process``, ``on_timer`` and ``process_bundle``.

Owns: the state kinds of both grains and the timers. Must not import storage, execution or operators.
"""

from asyncstate.state.aggregating import AggregateFunction, AggregatingState
from asyncstate.state.binding import with_known_values
from asyncstate.state.broadcast import BroadcastState, BroadcastStateDescriptor
from asyncstate.state.column_cache import ColumnCache, ColumnCacheStatistics, with_column_cache
from asyncstate.state.column_maps import ColumnMapState, ColumnMapStateDescriptor, MapEntries, MapTimeRange
from asyncstate.state.columns import Columns, ColumnState, ColumnStateDescriptor, TimeRange
from asyncstate.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from asyncstate.state.expiry import time_of
from asyncstate.state.fold_descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from asyncstate.state.inspect import TIMERS, StateDecoder, TimersState
from asyncstate.state.inspect_sizes import StateSize, state_size
from asyncstate.state.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.listing import ListState
from asyncstate.state.mapping import MapState
from asyncstate.state.ranges import merged_entries, pages_of
from asyncstate.state.reducing import ReducingState
from asyncstate.state.timers import (
    NAMED_TIMERS,
    TIMERS_BY_TIME,
    DueTimer,
    KeyedTimers,
    TimersBetweenRows,
    turn_of,
)
from asyncstate.state.trials import Trial, Trials
from asyncstate.state.ttl import ExpiringState, StateTtl, TtlTime, TtlUpdate, TtlVisibility
from asyncstate.state.value import ValueState
from asyncstate.state.views import ListView, MapView, ValueView

__all__ = [
    "NAMED_TIMERS",
    "TIMERS",
    "TIMERS_BY_TIME",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastState",
    "BroadcastStateDescriptor",
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
    "StateDecoder",
    "StateSize",
    "StateTtl",
    "TimeRange",
    "TimersBetweenRows",
    "TimersState",
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
    "state_size",
    "time_of",
    "turn_of",
    "with_column_cache",
    "with_known_values",
]
