"""Copies of an operator, as its tasks have them.

Owns: ``copies_of`` and ``with_copy``.
Invariant: an operator runs once; each partition and micro-batch has a copy of what it was when it was given.
Must not import Spark.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable

from asyncstate.errors import JobError
from asyncstate.operator import Operator
from asyncstate.runtime import TaskSpec

__tracebackhide__ = True  # pytest shows the test's own line


def copies_of(operator: Operator) -> Callable[[], Operator]:
    """Makes copies of ``operator`` as it is now.

    Pickled where that is possible. Spark's pickler also takes modules, lambdas and classes that stand in functions;
    where plain pickle refuses them the operator is copied. Raises JobError if that cannot be done either.
    """
    try:
        pickled = pickle.dumps(operator)
    except (pickle.PicklingError, AttributeError, TypeError):
        kept = _deep_copy(operator)
        return lambda: _deep_copy(kept)
    return lambda: pickle.loads(pickled)


def _deep_copy(operator: Operator) -> Operator:
    try:
        return copy.deepcopy(operator, {id(module): module for module in sys.modules.values()})
    except TypeError as error:
        raise JobError(
            f"{type(operator).__name__} cannot be sent to tasks: {error}. Make what cannot be pickled (clients, locks, "
            "open files) in open()"
        ) from error


def with_copy(spec: TaskSpec, copies: Callable[[], Operator]) -> TaskSpec:
    """The spec with its own copy of the operator, as each Spark task has."""
    shipped = copy.copy(spec)
    object.__setattr__(shipped, "operator", copies())
    return shipped
