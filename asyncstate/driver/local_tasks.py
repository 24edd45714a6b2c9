"""The tasks of a stage in this process, one after the other, over rows that are here.

Owns: ``TaskPlan``, ``run_locally`` and what it returns.
Invariant: a partition gets the rows that an exchange of the cluster would send it, in the order in which they are
here; a task is the one that the cluster runs, but for several partitions, so that rows and state bytes are the same.
Must not import Spark.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from asyncstate.codec import key_groups, partitions_of
from asyncstate.driver.chain import Link, RunPartitions, run_chain
from asyncstate.driver.executor import Feed, Prepared
from asyncstate.driver.sent_columns import payload_of
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import (
    CommitRecord,
    InputBatch,
    SideBatch,
    TaskSpec,
    aggregated_before,
    pack_broadcast,
    pack_records,
    unpack_records,
)
from asyncstate.storage import deltas_together

TOGETHER_MAX: Final = 16
"""How many partitions a task runs: their stores are open at the same time."""

TaskRows = tuple[range, list[InputBatch]]
"""The partitions of a task, and its rows in order of arrival."""

CopiesOf = Callable[[Operator], Callable[[], Operator]]
"""Maps an operator to a function that makes copies of it, as each task of a cluster has one."""


@dataclass(frozen=True)
class TaskPlan:
    """A stage to run: the operators of ``chain`` over ``inputs``, rows or a ``Feed``. ``done``: the first operator's
    partial aggregation has run upstream."""

    chain: Sequence[Prepared]
    inputs: Sequence[Any]
    done: bool

    @property
    def plan_seconds(self) -> float:
        """The seconds that planning took."""
        return 0.0

    @property
    def uid(self) -> str:
        """The uid of its first operator, which names the stage."""
        return self.chain[0].spec.uid

    @property
    def all(self) -> list[Self]:
        """The stages that run with it, in execution order."""
        feeds = [one.stage for one in self.inputs if isinstance(one, Feed)]
        return [*itertools.chain.from_iterable(feed.all for feed in feeds), self]


class TooLargeError(Exception):
    """The stages have emitted more bytes than this process may hold; nothing of them is visible to anyone."""


class LocalOutput(NamedTuple):
    """``rows`` with ``row_kind`` and those of the side outputs, in the order of the partitions; for each operator, also
    of the stages that feed it, the reports of its partitions."""

    rows: list[pa.RecordBatch]
    sides: Mapping[str, list[pa.RecordBatch]]
    reports: list[tuple[Prepared, list[CommitRecord]]]


def run_locally(
    plan: TaskPlan,
    rows_of: Callable[[Any], Sequence[pa.RecordBatch]],
    run: RunPartitions,
    copies_of: CopiesOf,
    limit_bytes: int | None = None,
    together: int = TOGETHER_MAX,
) -> LocalOutput:
    """Run ``plan`` and the stages that feed it. ``rows_of`` returns the rows of an input, with ``row_kind`` where it is
    a changelog. ``together``: how many partitions a task runs. Raises TooLargeError as soon as a stage has emitted more
    than ``limit_bytes``; nothing is stored then."""
    with deltas_together():
        return _run_plan(plan, rows_of, run, copies_of, limit_bytes, together)


def _run_plan(
    plan: TaskPlan,
    rows_of: Callable[[Any], Sequence[pa.RecordBatch]],
    run: RunPartitions,
    copies_of: CopiesOf,
    limit_bytes: int | None,
    together: int,
) -> LocalOutput:
    reports: list[tuple[Prepared, list[CommitRecord]]] = []
    inputs: list[Sequence[pa.RecordBatch]] = []
    for one in plan.inputs:
        if isinstance(one, Feed):
            fed = _run_plan(one.stage, rows_of, run, copies_of, limit_bytes, together)
            reports += fed.reports
            inputs.append(fed.rows)
        else:
            inputs.append(rows_of(one))
    made = _run_stage(plan.chain, inputs, plan.done, run, copies_of, limit_bytes, together)
    return made._replace(reports=[*reports, *made.reports])


def _run_stage(
    chain: Sequence[Prepared],
    inputs: Sequence[Sequence[pa.RecordBatch]],
    done: bool,
    run: RunPartitions,
    copies_of: CopiesOf,
    limit_bytes: int | None,
    together: int,
) -> LocalOutput:
    copies = [copies_of(one.spec.operator) for one in chain]
    first = _with_broadcast(chain[0].spec, inputs)
    specs = [first, *(one.spec for one in chain[1:])]
    rows: list[pa.RecordBatch] = []
    sides: dict[str, list[pa.RecordBatch]] = {name: [] for name in chain[-1].sent.side_outputs}
    records: list[list[CommitRecord]] = [[] for _ in chain]
    size_bytes = 0
    for partitions, given in _exchanged(first, inputs, done, together):
        links = [
            Link(with_copy(spec, copied), one.after)
            for spec, copied, one in zip(specs, copies, chain, strict=True)
        ]
        number = itertools.count()
        with closing(run_chain(links, partitions, iter(given), run)) as outs:
            for out in outs:
                if isinstance(out, CommitRecord):
                    records[next(number) // len(partitions)] += unpack_records(pack_records([out]))
                    continue
                batch = out.batch if isinstance(out, SideBatch) else out
                size_bytes += batch.nbytes
                if limit_bytes is not None and size_bytes > limit_bytes:
                    raise TooLargeError
                if isinstance(out, SideBatch):
                    sides[out.output].append(batch)
                elif batch.num_rows:
                    rows.append(batch)
    return LocalOutput(rows, sides, list(zip(chain, records, strict=True)))


def with_copy(spec: TaskSpec, copies: Callable[[], Operator]) -> TaskSpec:
    """The spec with its own copy of the operator, as each task has."""
    shipped = copy.copy(spec)
    object.__setattr__(shipped, "operator", copies())
    return shipped


def _exchanged(
    spec: TaskSpec, inputs: Sequence[Sequence[pa.RecordBatch]], done: bool, together: int
) -> list[TaskRows]:
    """The partitions of each task, and its rows."""
    tasks = no_rows_of(spec.parallelism, together)
    for index, (given, rows) in enumerate(zip(spec.inputs, inputs, strict=True)):
        if given.broadcast:
            continue
        # Together: partial aggregation makes one of more rows, and a task's rows are in the order of its partitions.
        for batch in [pa.concat_batches(rows)] if len(rows) > 1 else rows:
            one = _input_batch(spec, given, batch, index, done)
            for task, part in routed(given, one, spec.parallelism, spec.max_parallelism, together):
                tasks[task][1].append(part)
    return tasks


def no_rows_of(parallelism: int, together: int) -> list[TaskRows]:
    """The tasks for ``together`` partitions each, without rows so far."""
    firsts = range(0, parallelism, together)
    return [(range(first, min(first + together, parallelism)), []) for first in firsts]


def _input_batch(
    spec: TaskSpec, given: InputSpec, batch: pa.RecordBatch, index: int, done: bool
) -> InputBatch:
    if given.local is None or done:
        return InputBatch(*payload_of(given, batch), index)
    rows = InputBatch(*payload_of(replace(given, local=None), batch), index)
    return aggregated_before(spec.operator, given, rows)


def routed(
    given: InputSpec, rows: InputBatch, parallelism: int, max_parallelism: int, together: int = 1
) -> Iterator[tuple[int, InputBatch]]:
    """The rows of each partition, or of each task for ``together`` of them, by partition and in their order; without a
    key all rows go to the first one."""
    if parallelism == 1:
        yield 0, rows
        return
    key = [rows.batch.column(name) for name in given.route]
    count = rows.batch.num_rows
    groups = key_groups(key, max_parallelism, count) if key else np.zeros(count, np.int32)
    owners = partitions_of(groups, parallelism, max_parallelism)
    order = np.argsort(owners, kind="stable")
    batch, kinds = rows.batch.take(pa.array(order)), None if rows.kinds is None else rows.kinds[order]
    tasks, starts = np.unique(owners[order] // together, return_index=True)
    for task, start, end in zip(tasks.tolist(), starts, [*starts[1:], count], strict=True):
        own = None if kinds is None else kinds[start:end]
        yield task, InputBatch(batch.slice(start, end - start), own, rows.input_index)


def _with_broadcast(spec: TaskSpec, inputs: Sequence[Sequence[pa.RecordBatch]]) -> TaskSpec:
    index = spec.operator.broadcast_input
    if index is None:
        return spec
    given = spec.inputs[index]
    sent = [InputBatch(*payload_of(given, batch), index) for batch in inputs[index]]
    limit = spec.config.shares.broadcast
    return replace(spec, broadcast=pack_broadcast(spec.uid, given, iter(sent), limit))
