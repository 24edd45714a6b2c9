"""Late rows and their side output.

Owns: ``LateRows``, which counts and emits them, and the declaration and checks of their output.
Invariant: a late row is counted whether it is emitted or dropped, and is emitted once, with its kind.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors`` and ``operator``.

Source: ``sideOutputLateData`` of Flink's ``WindowedStream``.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.errors import SchemaError
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec

from .arrays import BoolArray
from .operator_checks import TimeDomain

LATE_ROWS = "late_rows"
"""The counter of rows that arrive too late for their windows."""


def check_late_output(late_output: object, time: TimeDomain, owner: str) -> None:
    """Check that the parameter ``late_output`` is a name or None, and that rows can be late."""
    if late_output is None:
        return
    if not isinstance(late_output, str):
        raise SchemaError(
            f"{owner}: late_output is {late_output!r}; give the name of a side output, such as 'late'"
        )
    if time == "processing":
        raise SchemaError(
            f"{owner}: late_output has no effect in processing time, where no row is late; leave it out"
        )


def check_not_own(late_output: str | None, side_outputs: Collection[str], owner: str) -> None:
    """Check that ``late_output``, which has rows of the input, is not a side output of the function."""
    if late_output in side_outputs:
        raise SchemaError(
            f"{owner}: '{late_output}' is both a side output of the function and the output of late rows, whose rows "
            "differ in kind; rename one of them"
        )


def check_late_pair(late_outputs: object, owner: str) -> None:
    """Check that the parameter ``late_outputs`` is a pair of names or None, for the left and the right input."""
    if not isinstance(late_outputs, tuple) or len(late_outputs) != 2:
        raise SchemaError(
            f"{owner}: late_outputs is {late_outputs!r}; give a pair: for the left and the right input, the name of a "
            "side output or None"
        )
    for name in late_outputs:
        check_late_output(name, "event", owner)


def with_late_output(
    schema: pa.Schema, late_output: str | None, spec: InputSpec, changes: Changelog
) -> OutputSpec:
    """The result of ``bind``: ``schema``, whose rows are ``changes``, and the side output for late rows of ``spec`` if
    requested."""
    return OutputSpec(schema, changes=changes).with_late_rows(late_output, spec)


class LateRows:
    """Late rows of one input, at bundle grain."""

    def __init__(self, output: str | None, context: OperatorContext) -> None:
        """``output``: the side output for late rows; None: they are dropped."""
        self._output = output
        self._counter = context.counter(LATE_ROWS)

    def add(self, bundle: Bundle, late: BoolArray, rows: int, ctx: BundleContext) -> None:
        """Count and emit the rows of ``bundle`` where ``late`` (n) is true, ``rows`` rows of the input."""
        self._counter.add(rows)
        if self._output is not None and rows:
            ctx.emit(bundle.batch.filter(pa.array(late)).columns, bundle.kinds[late], output=self._output)
