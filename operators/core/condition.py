"""User conditions: a function or a pyarrow expression, evaluated to a mask of rows.

Owns: ``RowCondition``, its accepted forms (``ConditionLike``) and the check of a parameter that takes one.
Invariant: null is not true.
Must not know of state or of operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from asyncstate.errors import OperatorError, SchemaError

from .arrays import BoolArray

ConditionLike: TypeAlias = Callable[[pa.RecordBatch], Any] | pc.Expression
"""A function of a batch of rows to one boolean per row, or a pyarrow expression over their columns."""

# Columns that reference the bytes of a message start where its header ends. Acero copies those that are not aligned; by
# default it also writes a line to stderr for each of them. It reads this variable once, with its first plan.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def check_condition(condition: object, owner: str) -> None:
    """SchemaError if ``condition`` is neither a ``ConditionLike`` nor None."""
    if condition is not None and not callable(condition) and not isinstance(condition, pc.Expression):
        raise SchemaError(f"{owner}: condition is {condition!r}; give a pyarrow expression or a function")


class RowCondition:
    """Evaluates ``condition`` over rows of ``schema``.

    Errors name the operator ``owner`` and call the inputs of the condition ``columns``.
    """

    def __init__(
        self, condition: ConditionLike, schema: pa.Schema, owner: str, columns: str = "columns"
    ) -> None:
        self._condition = condition
        self._schema = schema
        self._owner = owner
        self._columns = columns

    def check(self) -> None:
        """SchemaError if an expression does not fit the columns (a callable is not called without rows)."""
        if not isinstance(self._condition, pc.Expression):
            return
        try:
            self.mask([pa.array([], field.type) for field in self._schema])
        except (pa.ArrowException, KeyError, OperatorError) as error:
            raise SchemaError(
                f"{self._owner}: the condition {self._condition} does not fit the {self._columns} "
                f"({', '.join(self._schema.names)}): {error}"
            ) from error

    def mask(self, columns: Sequence[pa.Array]) -> BoolArray:
        """True (n) for the rows that meet the condition; ``columns`` are those of the schema, of n rows each."""
        return _mask(self._results(columns).fill_null(False))

    def nulls(self, columns: Sequence[pa.Array]) -> BoolArray:
        """True (n) for the rows of which the condition is null."""
        return _mask(self._results(columns).is_null())

    def _results(self, columns: Sequence[pa.Array]) -> pa.Array:
        batch = pa.RecordBatch.from_arrays(list(columns), schema=self._schema)
        expression = isinstance(self._condition, pc.Expression)
        result = self._evaluated(batch) if expression else self._condition(batch)
        return _checked(result, batch.num_rows, self._owner)

    def _evaluated(self, batch: pa.RecordBatch) -> pa.ChunkedArray:
        source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        project = acero.ProjectNodeOptions([self._condition], ["passed"])
        plan = acero.Declaration.from_sequence(
            [acero.Declaration("table_source", source), acero.Declaration("project", project)]
        )
        # One thread: rows must stay in order.
        return plan.to_table(use_threads=False).column(0)


def _checked(result: Any, num_rows: int, owner: str) -> pa.Array:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    array = result if isinstance(result, pa.Array) else pa.array(result)
    if not pa.types.is_boolean(array.type) or len(array) != num_rows:
        raise OperatorError(
            f"{owner}: the condition returned {len(array)} values of type {array.type} for {num_rows} rows; return "
            "one boolean per row"
        )
    return array


def _mask(column: pa.Array) -> BoolArray:
    mask: BoolArray = column.to_numpy(zero_copy_only=False)
    return mask
