"""What Spark's UI says of the jobs of a micro-batch: which operator runs, and what those before it have left.

Owns: ``JobTexts``.
Invariant: when a micro-batch is over the description is as it was; nothing here can make it fail.
Must not import storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

    from asyncstate.dataflow import NodeFigures

_DESCRIPTION: Final = "spark.job.description"
_LINES_MAX: Final = 8  # of operators; a page shows a description in full


class JobTexts:
    """The description of Spark's jobs, which the tabs "Jobs" and "SQL / DataFrame" show: Spark's own text of the
    micro-batch, and a line for each operator that has run. Each change is a call into the JVM, of a millisecond at
    most."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._before: str | None = None
        self._lines: list[str] = []
        self.running: str | None = None
        """The operator that runs."""

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Around a micro-batch."""
        self._lines, self._before = [], None
        with suppress(Exception):
            self._before = self._context.getLocalProperty(_DESCRIPTION)
        try:
            yield
        finally:
            self.running = None
            with suppress(Exception):
                self._context.setLocalProperty(_DESCRIPTION, self._before)  # type: ignore[arg-type]  # None: take it out

    @contextmanager
    def stage(self, uids: str, operator: str) -> Iterator[None]:
        """Around the stage of an operator, or of several in one task."""
        self.running = uids
        self._set(f"operator '{uids}' ({operator})")
        try:
            yield
        finally:
            self.running = None

    def ran(self, figures: Mapping[str, NodeFigures]) -> None:
        """Say what operators have done, of the jobs that follow."""
        self._lines += [f"{uid}: {one.text}, {one.state_text}" for uid, one in figures.items()]
        self._set(*self._lines[-_LINES_MAX:])

    def _set(self, *lines: str) -> None:
        with suppress(Exception):
            self._context.setJobDescription("\n".join([*filter(None, [self._before]), *lines]))
