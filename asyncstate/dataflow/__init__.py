"""A job as a graph: declared once, the same on Spark and in tests."""

from asyncstate.dataflow.graph import Dataflow, Stream
from asyncstate.dataflow.nodes import Apply, Node, Output, Sink, Source, Transform, Union, check_one_start
from asyncstate.dataflow.picture import NodeMetrics, draw, explain

__all__ = [
    "Apply",
    "Dataflow",
    "Node",
    "NodeMetrics",
    "Output",
    "Sink",
    "Source",
    "Stream",
    "Transform",
    "Union",
    "check_one_start",
    "draw",
    "explain",
]
