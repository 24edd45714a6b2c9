"""Names that differ in Flink and Spark: hints for users who write them from memory.

Owns: the names of contexts, methods and streams, ``hint_for``, ``stream_hint`` and ``NameHints``.
Invariant: a hint is part of an error that would be raised anyway; no such name works.
Must not import anything of the project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

_OF_CONTEXT: Final = {
    "timer_service": "ctx.timers: ctx.timers.register_event_time(time_us)",
    "register_event_time_timer": "ctx.timers.register_event_time(time_us)",
    "register_processing_time_timer": "ctx.timers.register_processing_time(time_us)",
    "delete_event_time_timer": "ctx.timers.delete_event_time(time_us)",
    "delete_processing_time_timer": "ctx.timers.delete_processing_time(time_us)",
    "get_current_key": "ctx.key",
    "current_key": "ctx.key",
    "current_watermark": "ctx.watermark",
    "current_processing_time": "ctx.processing_time",
    "collect": "ctx.emit(...)",
    "output": "ctx.emit(..., output=name)",
    "get_runtime_context": "the context passed to open(context)",
    "get_broadcast_state": "a BroadcastStateDescriptor, given to context.get_state in open()",
    "get_list_state": "context.get_state(ListStateDescriptor(...))",
    "get_map_state": "context.get_state(MapStateDescriptor(...))",
    "get_reducing_state": "context.get_state(ReducingStateDescriptor(...))",
    "get_aggregating_state": "context.get_state(AggregatingStateDescriptor(...))",
    "get_metrics_group": "context.counter(name)",
    "get_metric_group": "context.counter(name)",
}
_OF_CLASS: Final = {
    "process_element": "process(row, ctx)",
    "process_element1": "process1(row, ctx)",
    "process_element2": "process2(row, ctx)",
    "process_broadcast_element": "process_broadcast(row, ctx)",
    "flatMap": "flat_map(row)",
}


_OF_STREAM: Final = {
    "filter": "where(condition)",
    "withColumn": "with_columns(name=expression)",
    "with_column": "with_columns(name=expression)",
    "withColumns": "with_columns(name=expression)",
    "map": "select(name=function), or apply of a RecordOperator",
    "flatMap": "apply of a RecordOperator",
    "flat_map": "apply of a RecordOperator",
    "process": "apply of a RecordOperator",
    "groupBy": "group_by(...).agg(...)",
    "groupby": "group_by(...).agg(...)",
    "agg": "group_by(...).agg(...)",
    "count": "group_by(...).agg(n=count())",
    "keyBy": "group_by(...), or key= of apply(...)",
    "key_by": "group_by(...), or key= of apply(...)",
    "window": "group_by(...).window(tumble(...)).agg(...)",
    "withWatermark": "event_time= and watermark_delay= of the source",
    "assign_timestamps_and_watermarks": "event_time= and watermark_delay= of the source",
    "dropDuplicates": "apply(Deduplicate(...), key=..., uid=...)",
    "drop_duplicates": "apply(Deduplicate(...), key=..., uid=...)",
    "orderBy": "top(n, by=...), apply(TemporalSort(), ...), or order_by= of apply(...)",
    "sort": "top(n, by=...), apply(TemporalSort(), ...), or order_by= of apply(...)",
    "limit": "apply(Limit(n), ...)",
    "unionAll": "union(...)",
    "unionByName": "union(...)",
    "unionAllByName": "union(...)",
    "get_side_output": "output(name)",
    "getSideOutput": "output(name)",
    "alias": "select('column AS name')",
    "withColumnRenamed": "select('column AS name')",
    "selectExpr": "select('SQL text')",
    "foreachBatch": "to(function of rows and batch id)",
    "writeStream": "to(sink)",
    "write": "to(sink)",
    "sink_to": "to(sink)",
    "add_sink": "to(sink)",
    "print": "to(print)",
    "collect": "show() for some rows, or push rows and end_batch() of a PipelineHarness",
    "schema": "columns",
    "dtypes": "columns",
    "printSchema": "columns",
}


def stream_hint(name: str) -> str:
    """The text of an AttributeError for ``name``, which a stream does not have."""
    found = _OF_STREAM.get(name)
    return f"a stream has no '{name}'" + (f"; use {found}" if found else "")


def hint_for(owner: str, name: str) -> str:
    """The text of an AttributeError for ``name``, which the context ``owner`` does not have."""
    found = _OF_CONTEXT.get(name)
    return f"{owner} has no '{name}'" + (f"; use {found}" if found else "")


class NameHints:
    """Base of abstract classes whose methods have other names in Flink: an error for a missing method says so."""

    if not TYPE_CHECKING:  # a type checker would accept any arguments

        def __new__(cls, *args, **settings):
            try:
                return super().__new__(cls)
            except TypeError as error:  # it is abstract
                for name, ours in _OF_CLASS.items():
                    if hasattr(cls, name):
                        error.add_note(f"{cls.__name__}.{name} is Flink's name; here the method is {ours}")
                raise
