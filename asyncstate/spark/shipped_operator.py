"""Copies of operators as Spark's tasks get them.

Owns: ``shipped_copy``.
Invariant: an operator that cannot be sent to tasks is an error before any task runs.
Must not import runtime or storage.
"""

from __future__ import annotations

import pickle

from pyspark import cloudpickle

from asyncstate.errors import JobError
from asyncstate.operator import Operator


def shipped_copy(uid: str, operator: Operator) -> Operator:
    """A copy of ``operator``. Raises JobError, before any task does, if it cannot be shipped."""
    try:
        pickled = cloudpickle.dumps(operator)  # type: ignore[no-untyped-call]
    except Exception as error:  # any error of the objects that it holds
        raise JobError(
            f"operator '{uid}' ({type(operator).__name__}) cannot be sent to tasks: {type(error).__name__}: {error}. "
            "Create objects that cannot be pickled (clients, locks, open files) in open()"
        ) from error
    copied: Operator = pickle.loads(pickled)
    return copied
