"""``bit_and``, ``bit_or`` and ``bit_xor``.

Owns: ``Bits`` and the aggregates that use it.
Must not import anything of ``asyncstate``.

Source: Spark SQL's functions of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from ..core.arrays import Int64Array, int64_values
from ..core.segments import Groups
from .aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .aggregates import counts_of, null_where
from .aggregator import State
from .bag import Counted, Reader, retractable

Function = Literal["bit_and", "bit_or", "bit_xor"]
_FUNCTIONS = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}


def bit_and(column: str) -> Aggregate:
    """The bits that are set in all values of an integer column, of the column's type; null without a value. Over a
    changelog, all distinct values are stored."""
    return Aggregate(_Bits("bit_and"), (column,))


def bit_or(column: str) -> Aggregate:
    """The bits that are set in any value; otherwise as ``bit_and``."""
    return Aggregate(_Bits("bit_or"), (column,))


def bit_xor(column: str) -> Aggregate:
    """The bits that are set in an odd number of values, of the column's type; null without a value."""
    return Aggregate(_Bits("bit_xor"), (column,))


class Bits(Counted):
    """One int64 per key. An exclusive or retracts a value by adding it again; the other functions cannot."""

    def __init__(
        self, owner: str, function: Function, column: str, condition: str | None, distinct: bool
    ) -> None:
        super().__init__(owner, function, column, condition, distinct)
        self.fields = (pa.field(self.name, pa.int64()),)
        self.retracts = function == "bit_xor"
        self._function = _FUNCTIONS[function]
        self._neutral = -1 if function == "bit_and" else 0

    def of_counts(self, columns: Sequence[pa.Array], counts: Int64Array) -> State:
        """The states of n values that occur ``counts`` (n) times each; 0: no value."""
        counted = counts % 2 != 0 if self.retracts else counts > 0
        return [pa.array(np.where(counted, int64_values(columns[0]), self._neutral))]

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        return [pa.array(self._function.reduceat(self._values(state)[groups.order], groups.starts))]

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        return [pa.array(self._function(self._values(state), self._values(partial)))]

    def _values(self, state: State) -> Int64Array:
        return np.asarray(state[0].fill_null(self._neutral).to_numpy(), np.int64)


@dataclass(frozen=True)
class _Bits(AggregateKind):
    name: Function

    def keeps_values(self, retract: bool) -> bool:
        """Whether its accumulator keeps a value per row; ``retract``: the input retracts rows."""
        return retract and self.name != "bit_xor"

    def bind(self, binding: InputBinding) -> AggregateOutput:
        kind = binding.input_type
        if not pa.types.is_signed_integer(kind):
            raise binding.wrong_type("an integer")
        is_xor = self.name == "bit_xor"  # of the others DISTINCT changes nothing
        distinct = is_xor and binding.aggregate.is_distinct
        bits = Bits(binding.owner, self.name, binding.column, binding.condition, distinct)
        counter = binding.counter() if is_xor else binding.plain_counter()
        if is_xor:
            index = binding.part(bits)
            return self._output(binding, counter, lambda states: states[index])
        return self._output(binding, counter, retractable(binding, bits, distinct=False))

    def _output(self, binding: InputBinding, counter: int, read: Reader) -> AggregateOutput:
        kind = binding.input_type
        return AggregateOutput(
            pa.field(binding.aggregate.name, kind),
            lambda states: null_where(read(states)[0].cast(kind), counts_of(states[counter]) == 0),
        )
