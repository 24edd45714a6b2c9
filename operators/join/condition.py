"""The condition of a join beside its keys.

Owns: ``Condition``: a condition over the columns of both inputs, made into a mask of candidate pairs.
Invariant: null is not true.
Must not know of state or of join types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from ..core.arrays import BoolArray
from ..core.condition import ConditionLike, RowCondition

JoinCondition: TypeAlias = ConditionLike
"""A function of a batch of joined candidate rows to booleans, or a pyarrow expression over their columns."""


class Condition(RowCondition):
    """Evaluates ``condition`` over pairs of rows; ``schema`` has the left, then the right columns."""

    def __init__(self, condition: JoinCondition, schema: pa.Schema, owner: str) -> None:
        super().__init__(condition, schema, owner, "joined columns")

    def __call__(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> BoolArray:
        """True (n) for the pairs that match; ``left`` and ``right`` are columns of n rows each."""
        return self.mask([*left, *right])
