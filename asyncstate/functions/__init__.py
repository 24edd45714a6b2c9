"""Functions of a keyed stream: what a user writes where a whole operator would be too much.

Two rooms: ``process``, functions of rows, timers and windows; ``aggregate``, what becomes of many values. ``operators``
runs both.
Must not import storage, execution, runtime or Spark.
"""

from asyncstate.functions.aggregate import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegment,
    KeySegmentApplied,
    KeySegments,
    MutableRow,
    RetractableCollector,
    SegmentRow,
    SegmentsApplied,
    TableAggregateFunction,
    list_view,
    map_view,
    value_view,
    view_of,
)
from asyncstate.functions.process import (
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

__all__ = [
    "AggregateFunction",
    "BundledAggregateFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySegment",
    "KeySegmentApplied",
    "KeySegments",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "MapFunction",
    "MutableRow",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RetractableCollector",
    "SegmentRow",
    "SegmentsApplied",
    "TableAggregateFunction",
    "TimeWindow",
    "WindowContext",
    "WindowFunction",
    "list_view",
    "map_view",
    "value_view",
    "view_of",
]
