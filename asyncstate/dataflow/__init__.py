"""A job as a graph: declared once, the same on Spark and in tests."""

from asyncstate.dataflow.graph import Dataflow, Stream
from asyncstate.dataflow.nodes import Apply, Node, Output, Sink, Source, Transform, Union, check_one_start
from asyncstate.dataflow.picture import NodeFigures, draw, explain

__all__ = [
    "Apply",
    "Dataflow",
    "Node",
    "NodeFigures",
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
