"""Fast keyed state for Spark Structured Streaming, driven by StateFutures.

What an operator author needs. The Spark job is in ``asyncstate.spark``, the test harness in
``asyncstate.testing``, ready-made operators in ``operators``. Importing this package starts nothing and loads
neither Spark nor RocksDB.
"""

from asyncstate.changelog import RowKind
from asyncstate.config import Config
from asyncstate.errors import AsyncStateError
from asyncstate.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    ReduceFunction,
    TimeWindow,
    WindowContext,
    WindowFunction,
)
from asyncstate.futures import (
    StateFuture,
    StateIterator,
    combine_all,
    completed_future,
    completed_void_future,
    to_iterable,
)
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    SortKey,
    TimeDomain,
    Timer,
)
from asyncstate.state import (
    BroadcastState,
    BroadcastStateDescriptor,
    ColumnState,
    ColumnStateDescriptor,
    ListColumnState,
    ListColumnStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "AsyncStateError",
    "BroadcastState",
    "BroadcastStateDescriptor",
    "Bundle",
    "BundleContext",
    "BundleOperator",
    "CoFlatMapFunction",
    "CoMapFunction",
    "ColumnState",
    "ColumnStateDescriptor",
    "Config",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "InputSpec",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "ListColumnState",
    "ListColumnStateDescriptor",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "OperatorContext",
    "ProcessWindowFunction",
    "RecordContext",
    "RecordOperator",
    "ReduceFunction",
    "Row",
    "RowKind",
    "SortKey",
    "StateFuture",
    "StateIterator",
    "TimeDomain",
    "TimeWindow",
    "Timer",
    "ValueState",
    "ValueStateDescriptor",
    "WindowContext",
    "WindowFunction",
    "combine_all",
    "completed_future",
    "completed_void_future",
    "to_iterable",
]
