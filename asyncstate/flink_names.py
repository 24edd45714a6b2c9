"""What Flink calls otherwise: hints for those who write its names from memory.

Owns: the names of contexts and methods, ``hint_for`` and ``NameHints``.
Invariant: a hint stands in an error that would be raised anyway; no name of Flink's works.
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
    "get_runtime_context": "the context that open(context) gets",
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


def hint_for(owner: str, name: str) -> str:
    """The text of an AttributeError for ``name``, which the context ``owner`` has not."""
    found = _OF_CONTEXT.get(name)
    return f"{owner} has no '{name}'" + (f"; it is {found} here" if found else "")


class NameHints:
    """Base of abstract classes whose methods Flink calls otherwise: an error for one that is missing says so."""

    if not TYPE_CHECKING:  # a checker would take every argument for right

        def __new__(cls, *args, **settings):
            try:
                return super().__new__(cls)
            except TypeError as error:  # it is abstract
                for name, ours in _OF_CLASS.items():
                    if hasattr(cls, name):
                        error.add_note(f"{cls.__name__}.{name} is Flink's name; here the method is {ours}")
                raise
