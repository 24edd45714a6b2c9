"""DEFINE: the conditions of the variables of a pattern.

Owns: ``Definitions``: which conditions read only the row, evaluated for all rows of a bundle at once, and which look
back, called for one row after the other.
Invariant: a variable without conditions takes any row; null is not true.
Must not know of state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.errors import SchemaError

from ..core.arrays import Int64Array
from ..core.condition import ConditionLike, RowCondition
from .automaton import Automaton
from .partial_match import Looking

VariableCondition: TypeAlias = ConditionLike | Looking
"""A pyarrow expression over the columns, a function of a batch of rows to one boolean a row, or a function of the
current row and the match so far."""

Define: TypeAlias = Mapping[str, VariableCondition | Sequence[VariableCondition]]
"""For each variable its condition, or several that must all be met."""

_COLUMNS, _LOOKING = 1, 2  # arguments of the two forms of functions


class Definitions:
    """The conditions of an automaton's variables. Raises SchemaError naming ``owner`` for invalid ones."""

    def __init__(self, define: Define, automaton: Automaton, owner: str) -> None:
        self._owner = owner
        self._variables = automaton.variables
        self._by_row: dict[int, list[ConditionLike]] = {}
        self.looking: dict[int, list[Looking]] = {}
        """The conditions that look back, by the index of their variable."""
        if not isinstance(define, Mapping):
            raise SchemaError(f"{owner}: define is {define!r}; give a dict of conditions by variable")
        for variable, given in define.items():
            if variable not in automaton.variables:
                raise SchemaError(
                    f"{owner}: define has a condition of '{variable}', but pattern '{automaton.pattern}' has no such "
                    f"variable; its variables are: {', '.join(automaton.variables)}"
                )
            conditions = given if isinstance(given, list | tuple) else [given]
            for condition in conditions:
                self._add(automaton.variables.index(variable), condition)

    def _add(self, variable: int, condition: Any) -> None:
        if isinstance(condition, pc.Expression) or _arguments(condition) == _COLUMNS:
            self._by_row.setdefault(variable, []).append(condition)
        elif _arguments(condition) == _LOOKING:
            self.looking.setdefault(variable, []).append(condition)
        else:
            raise SchemaError(
                f"{self._owner}: the condition of '{self._variables[variable]}' is {condition!r}; give a pyarrow "
                "expression, a function of a batch of rows, a function of a row and the match so far, or a list of "
                "these"
            )

    def bind(self, schema: pa.Schema) -> Callable[[pa.RecordBatch], Int64Array]:
        """A function from a batch of n rows of ``schema`` to their masks (n): the bits of the variables whose
        conditions of the row alone each row meets. Raises SchemaError for an expression that does not fit."""
        bound = []
        for variable, conditions in self._by_row.items():
            owner = f"{self._owner}, define of '{self._variables[variable]}'"
            for condition in conditions:
                rows = RowCondition(condition, schema, owner)
                rows.check()
                bound.append((1 << variable, rows))
        everything = (1 << len(self._variables)) - 1

        def masks(batch: pa.RecordBatch) -> Int64Array:
            found = np.full(batch.num_rows, everything, np.int64)
            for bit, condition in bound:
                found[~condition.mask(batch.columns)] &= ~bit
            return found

        return masks


def _arguments(function: Any) -> int | None:
    """How many arguments a function needs; None for anything else, or where this cannot be determined."""
    if not callable(function):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is inspect.Parameter.empty for one in parameters)
