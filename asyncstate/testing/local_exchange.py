"""The exchange between driver and tasks, in this process: copies of the operator, and rows routed to partitions.

Owns: ``copies_of``; ``exchanged``.
Invariant: an operator runs once; each partition and micro-batch has a copy of it as it was when it was passed. A row
goes to the partition of its key's group, and rows of a partition keep their order; rows of a broadcast input take
another path.
Must not import Spark.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from asyncstate.driver.local_tasks import TaskRows, no_rows_of, routed
from asyncstate.errors import JobError
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import InputBatch

__tracebackhide__ = True  # pytest shows the test's own line


def copies_of(operator: Operator) -> Callable[[], Operator]:
    """Makes copies of ``operator`` as it is now.

    Pickled where that is possible. Spark's pickler also takes modules, lambdas and classes defined in functions; where
    plain pickle refuses them the operator is copied. Raises JobError if that fails as well.
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
            f"{type(operator).__name__} cannot be sent to tasks: {error}. Create objects that cannot be pickled "
            "(clients, locks, open files) in open()"
        ) from error


def exchanged(
    inputs: Sequence[InputSpec],
    rows: Sequence[InputBatch],
    parallelism: int,
    max_parallelism: int,
    together: int = 1,
) -> list[TaskRows]:
    """The rows by task, as the exchange of a Spark job would deliver them; ``together``: partitions of a task."""
    tasks = no_rows_of(parallelism, together)
    for pushed in rows:
        spec = inputs[pushed.input_index]
        if spec.broadcast:
            continue
        sent = replace(pushed, batch=pushed.batch.select(spec.row_schema.names))
        for task, part in routed(spec, sent, parallelism, max_parallelism, together):
            tasks[task][1].append(part)
    return tasks
