"""Rolling reduce: the rows of each key so far, as one row.

Owns: ``KeyedReduce``.
Invariant: the stored row of a key is what the function made of all its rows, in order of arrival.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``functions``, ``operator``, ``state``.

Source: ``KeyedStream.reduce`` of Flink's DataStream API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from asyncstate.changelog import RowKind
from asyncstate.codec.times import microsecond_struct
from asyncstate.functions import Function, ReduceFunction
from asyncstate.operator import OperatorContext, RecordContext, Row, row_type
from asyncstate.state import ValueState, ValueStateDescriptor

from .operator import FunctionOperator
from .results import resolved

REDUCED_STATE = "_reduced"


class KeyedReduce(FunctionOperator):
    """The first row of a key as it is, then ``function(what the rows so far gave, next row)`` for each further row.

    ``function`` is a ReduceFunction or a plain function of two rows. Output: the input's columns, and for each row of
    the input one row ``+I`` with the value then reached. With ``changelog=True`` the value is kept up to date instead:
    ``+I`` first, then ``-U`` of the old and ``+U`` of the new value; nothing when they are equal. The input must be
    insert-only: what has been reduced cannot be taken apart.

    State: ``_reduced``, a row of the input's columns for each key, kept for ever.

    >>> import pyarrow as pa
    >>> from asyncstate.testing import OperatorHarness
    >>> sales = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
    >>> totals = KeyedReduce(lambda a, b: (a.shop, a.amount + b.amount))
    >>> with OperatorHarness(totals, sales, ["shop"]) as harness:
    ...     harness.push([("ann", 3), ("bob", 1), ("ann", 4)])
    ...     harness.end_batch()
    [('+I', 'ann', 3), ('+I', 'bob', 1), ('+I', 'ann', 7)]
    """

    function_type: ClassVar[type[Function]] = ReduceFunction
    plain_method = "reduce"
    takes_rows_back = False

    def __init__(
        self, function: ReduceFunction | Callable[[Row, Row], Any], *, changelog: bool = False
    ) -> None:
        super().__init__(function, None)
        self.changelog = changelog

    def open(self, context: OperatorContext) -> None:
        """See ``FunctionOperator``."""
        super().open(context)
        schema = context.inputs[0].schema
        self._names: Sequence[str] = schema.names
        self._row = row_type(schema)
        self._reduce: Callable[[Row, Row], Any] = self._method()
        self._reduced: ValueState[dict[str, Any]] = context.get_state(
            ValueStateDescriptor(REDUCED_STATE, microsecond_struct(schema))
        )

    async def process(self, row: Row, ctx: RecordContext) -> None:
        """See ``RecordOperator``."""
        stored = await self._reduced.async_value()
        if stored is None:
            before, after = None, tuple(row)
        else:
            before = self._row(stored.values())
            after = self._shape.values(await resolved(self._reduce(before, row)))
        self._reduced.update(dict(zip(self._names, after, strict=True)))
        if before is None or not self.changelog:
            ctx.emit(*after)
        elif tuple(before) != tuple(after):
            ctx.emit(*before, kind=RowKind.UPDATE_BEFORE)
            ctx.emit(*after, kind=RowKind.UPDATE_AFTER)
