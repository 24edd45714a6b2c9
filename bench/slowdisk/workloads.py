"""What runs on the slow device: operators, their rows, and a state larger than every cache.

Owns: ``WORKLOADS`` and ``Workload``, ``INPUT``, ``rows`` and ``fill_batches``.
Invariant: keys are long and random, so that two keys of a micro-batch seldom share a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from asyncstate.operator import InputSpec, Operator
from bench.paradigms import PARADIGMS, Form, Paradigm
from operators import Deduplicate, GroupAggregate, count, sum_

_KEY_WORDS = 12
_FILL_ROWS = 100_000
INPUT = InputSpec(pa.schema([("key", pa.binary()), ("x", pa.int64()), ("y", pa.int64())]), ("key",))


@dataclass(frozen=True)
class Workload:
    """One line of the table: ``make(asynchronous)`` gives the operator; ``rows_a_key`` fill the state.

    ``by_hand``: the operator only makes the state, which is then read without it. ``block_cache_bytes``: RocksDB's, in
    both modes, where the state is to be on the device; pages of iterations that overlap want some blocks of it each.
    """

    name: str
    make: Callable[[bool], Operator]
    bundles: bool = False
    rows_a_key: int = 1
    by_hand: bool = False
    block_cache_bytes: int = 1 << 20


def _paradigm(paradigm: type[Paradigm]) -> Workload:
    return Workload(
        f"{paradigm.number} {paradigm.__name__}",
        lambda asynchronous: paradigm(Form.FUTURES if asynchronous else Form.CALLS),
        rows_a_key=2 if paradigm.number in (5, 6, 9) else 1,  # those iterate
        block_cache_bytes=(16 if paradigm.scans else 1) << 20,
    )


def _count_and_sum(_: bool) -> Operator:
    return GroupAggregate([count().alias("n"), sum_("x").alias("total")])


WORKLOADS: dict[str, Workload] = {f"p{paradigm.number}": _paradigm(paradigm) for paradigm in PARADIGMS} | {
    "by-hand": Workload("rocksdict by hand", _count_and_sum, by_hand=True),
    "aggregate": Workload("GroupAggregate", _count_and_sum, bundles=True),
    "deduplicate": Workload(
        "Deduplicate", lambda _: Deduplicate(keep="last", time="processing"), bundles=True
    ),
}
"""By the name of the command line."""


def rows(keys: np.ndarray, x: int = 1) -> pa.RecordBatch:
    """A row a key number, with ``x`` and y = 2."""
    numbers = keys.astype(np.uint64)[:, None] * np.uint64(_KEY_WORDS) + np.arange(_KEY_WORDS, dtype=np.uint64)
    # Splitmix64: as good as random, the same for the same number.
    z: np.ndarray = numbers * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words = (z ^ (z >> np.uint64(31))).astype(">u8")
    offsets = np.arange(0, words.nbytes + 1, 8 * _KEY_WORDS, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(words.tobytes())]
    columns = [pa.Array.from_buffers(pa.binary(), len(keys), buffers)]
    columns += [pa.array(np.full(len(keys), value)) for value in (x, 2)]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT.schema)


def fill_batches(workload: Workload, state_keys: int) -> list[pa.RecordBatch]:
    """The rows that make the state: each key ``rows_a_key`` times, with an x of its own each time."""
    return [
        rows(np.arange(start, min(start + _FILL_ROWS, state_keys)), x)
        for x in range(1, workload.rows_a_key + 1)
        for start in range(0, state_keys, _FILL_ROWS)
    ]
