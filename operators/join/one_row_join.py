"""OneRowJoin: each row with the columns of the only row of another input.

Owns: the operator.
Invariant: after every micro-batch the netted output is the join of the rows with the one row.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors`` and ``operator``.

Source: SQL's scalar subqueries, and Flink's broadcast of their result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.operator import InputSpec, OperatorContext, OutputSpec

from ..core.arrays import BoolArray, Int64Array
from ..core.operator_checks import check_choice
from ..core.state_meaning import meaning
from .join_inputs import joined_schema
from .one_row_input import EVERYTHING, OneRow, OneRowInput

OneRowJoinKind = Literal["left", "inner"]


class OneRowJoin(OneRowInput):
    """The rows of the first input, each with the columns of the second input, which has one row at most.

    The second input is broadcast: every partition gets its row, so the first input keeps its key and its partitions.
    ``kind``: without a row in the second input, "left" emits nulls for its columns and "inner" no rows. ``suffixes``
    are appended to column names that both inputs have. Example, each product's share of all sales::

        OneRowJoin()  # key=["product", None], then a select of sales / total

    Output: left columns, then right columns. A change of the one row retracts all rows, and emits them again: if it
    is only compared with, use DynamicFilter. Retractions of rows that are not there are dropped and counted
    (``retractions_without_state``).

    State: ``rows``, all rows of the first input; ``one_row``.

    Raises SchemaError for names that occur twice, and OperatorError if the second input has several rows.
    """

    def __init__(self, kind: OneRowJoinKind = "left", *, suffixes: tuple[str, str] = ("", "_right")) -> None:
        check_choice(kind, get_args(OneRowJoinKind), "kind", self.owner)
        self.kind: OneRowJoinKind = kind
        self.suffixes = suffixes

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Left columns, then right columns."""
        schema = joined_schema(self.kind, inputs, self.suffixes, self.owner)
        unique = [self._shown_names(inputs, key) for key in inputs[0].changes.unique_keys]
        return OutputSpec(schema, changes=Changelog.retract(*unique))

    def keyed_output(self, inputs: Sequence[InputSpec]) -> Sequence[tuple[str, ...]]:
        """The output columns that contain, in each row, the values of the key for which it was emitted, in the key's
        order: none, or several where columns are equal."""
        return [self._shown_names(inputs, inputs[0].key)]

    def _shown_names(self, inputs: Sequence[InputSpec], columns: Sequence[str]) -> tuple[str, ...]:
        """The names in the output of ``columns`` of the first input."""
        names = joined_schema(self.kind, inputs, self.suffixes, self.owner).names
        return tuple(names[inputs[0].schema.get_field_index(name)] for name in columns)

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows were emitted."""
        return meaning(self, kind=self.kind)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        super().open(context)
        self._right_types = context.inputs[1].schema.types

    def one_row_columns(self, spec: InputSpec) -> Sequence[str]:
        """The columns of the second input that matter."""
        return list(spec.schema.names)

    def counted(self, columns: Sequence[pa.Array]) -> BoolArray | None:
        """Which rows (n) can ever be emitted; None: all."""
        return None

    def codes(self, columns: Sequence[pa.Array]) -> Int64Array:
        """See ``OneRowInput``: every change affects all rows."""
        return np.zeros(len(columns[0]), np.int64)

    def affected(self, old: OneRow, new: OneRow) -> Sequence[tuple[int, int]]:
        """The ranges of codes, ends included, whose rows may be emitted differently with another one row."""
        return EVERYTHING

    def shown(self, columns: Sequence[pa.Array], one: OneRow) -> tuple[BoolArray | None, list[pa.Array]]:
        """Which rows (n) are emitted, None: all; and the columns of all rows as they are emitted."""
        count = len(columns[0])
        if one is None:
            padded = [*columns, *(pa.nulls(count, kind) for kind in self._right_types)]
            return (np.zeros(count, np.bool_) if self.kind == "inner" else None), padded
        same = pa.array(np.zeros(count, np.int64))
        return None, [*columns, *(column.take(same) for column in one)]
