"""What the nine paradigms have in common: their input, their forms, and how one is chosen.

Owns: ``Paradigm``, ``Form`` and ``Rejected``.
Invariant: all forms of a paradigm that are not rejected give the same rows and store the same bytes.
Must not import execution, storage or Spark.

Source: the appendix of FLIP-473.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from asyncstate.operator import InputSpec, RecordContext, RecordOperator, Row

ROWS = pa.schema([("key", pa.int64()), ("x", pa.int64()), ("y", pa.int64())])
"""What the paradigms read: the key and two small numbers. The key may be of any type."""


class Form(enum.StrEnum):
    """How an operator is written; each runs with sync and with async state."""

    CALLS = "with_calls"
    FUTURES = "with_futures"
    AWAIT = "with_await"


@dataclass(frozen=True)
class Rejected:
    """A form not to imitate: the method's name, and whether its results are right all the same."""

    method: str
    right: bool


class Paradigm(RecordOperator):
    """One way of using state, in the form that ``form`` names (a ``Form``, or the method of a rejected one).

    ``with_calls`` is the sync form, plain calls of which each waits for its answer; ``with_futures`` the async form, a
    chain of StateFutures; ``with_await`` the same as a coroutine, where there is one.
    """

    number: ClassVar[int]
    title: ClassVar[str]
    reads: ClassVar[int]
    """Values that a record asks for, iterations left out."""
    scans: ClassVar[int]
    """Iterations over entries of the store."""
    rejected: ClassVar[tuple[Rejected, ...]] = ()
    output: ClassVar[tuple[tuple[str, pa.DataType], ...]]
    """The output's columns after the key."""

    def __init__(self, form: str = Form.FUTURES) -> None:
        self.form = form

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([inputs[0].column("key"), *self.output])

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return getattr(self, self.form)(row, ctx)
