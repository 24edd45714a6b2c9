"""asyncstate beside itself and beside rocksdict by hand: the program ``python -m bench.peers.itself``.

Owns: ``Task``, ``measure_itself``, and the three measurements: raw, growth and modes.
Invariant: no Spark: one operator on one partition and one core, from the Arrow batch to the uploaded delta, in a
process of its own with the garbage collector set as in Spark's workers.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from asyncstate.config import Config, Tuning, resolve
from asyncstate.operator import InputSpec
from asyncstate.runtime import InputBatch
from asyncstate.spark.task import settle_worker
from bench.job import Job
from bench.micro import Floor, bundle_grain
from bench.peers.modes import CASES, Case, rows, watermark
from bench.peers.results import GROWTH_AIM, MODES_AIM, RAW_AIM, Figure, interval_of_median
from bench.peers.turns import PeerError
from bench.processor_time import Spent
from operators import GroupAggregate, count, max_, sum_

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENTS = ("raw", "growth", "modes")
_ARROW_ROWS = 100_000
_MODES = (False, True)
_PIECES = 4
"""For each micro-batch that is to be counted ``modes`` runs so many smaller ones, in pairs of their own: the machine's
speed changes within seconds."""

_GROWING: Mapping[str, Config] = {
    "sync": Config(),
    "async": Config(enabled=True),
    "sync with a block cache of 2gb": Config(tuning=Tuning(blocks_bytes=2 << 30)),
}
"""Settings under which the growing state is measured; 2gb hold all of it."""
_BY_HAND = "rocksdict by hand"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """``rows`` a micro-batch, ``pairs`` counted ones of each; ``sizes`` of the growing state, in keys."""

    measurement: str
    folder: str
    rows: int
    state_keys: int
    pairs: int
    sizes: tuple[int, ...]
    seed: int = 1


def measure_itself(task: Task) -> list[Figure]:
    """The figures of one measurement, made in a process of its own. Raises PeerError if it fails."""
    command = [sys.executable, "-m", "bench.peers.itself", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(
            f"measuring {task.measurement} failed; the end of what it said:\n{done.stderr[-2000:]}"
        )
    return msgspec.json.decode(done.stdout, type=list[Figure])


def raw(task: Task) -> list[Figure]:
    """Bundle grain beside the same loop in plain rocksdict: what ``python -m bench micro`` measures."""
    return [
        Figure(
            group="raw",
            name=f"{result.name}, time by that of {result.floor}",
            ratio=result.ratio,
            low=result.ratio_min,
            high=result.ratio_max,
            aim=RAW_AIM,
            at_most=True,
            points={"by hand": result.floor_us, "ours": result.ours_us},
            cpu_points={"by hand": result.floor_cpu_us, "ours": result.ours_cpu_us},
        )
        for result in bundle_grain(task.state_keys, task.rows, task.pairs, task.seed)
    ]


def growth(task: Task) -> list[Figure]:
    """The cost of a row while the state grows, under all settings by turns; keys uniform over all of the state.

    Beside it the same by hand: what RocksDB itself takes longer, no framework can take back.
    """
    random = np.random.default_rng(task.seed)
    jobs: dict[str, _Growing] = {
        name: _GrowingState(Path(task.folder) / str(number), config)
        for number, (name, config) in enumerate(_GROWING.items())
    }
    jobs[_BY_HAND] = _GrowingByHand(Path(task.folder))
    spent: dict[str, dict[int, list[Spent]]] = {name: {} for name in jobs}
    for size in sorted(task.sizes):
        for job in jobs.values():
            job.grow(size)
        for number in range(task.pairs + 1):
            keys = random.integers(0, size, task.rows)
            for name, job in jobs.items():
                once = job.update(keys)
                if number:
                    spent[name].setdefault(size, []).append(once)
    small, large = _compared_sizes(task.sizes)
    return [
        _growth_figure(name, _costs(each, 0, task.rows), _costs(each, 1, task.rows), small, large)
        for name, each in spent.items()
    ]


def _costs(spent: Mapping[int, Sequence[Spent]], clock: int, rows: int) -> dict[int, list[float]]:
    """Microseconds a row by size, of the wall (0) or of processors (1)."""
    return {size: [each[clock] / rows * 1e6 for each in of_size] for size, of_size in spent.items()}


def _compared_sizes(sizes: Sequence[int]) -> tuple[int, int]:
    """1M keys and the largest; without 1M the smallest."""
    return (1_000_000 if 1_000_000 in sizes else min(sizes)), max(sizes)


def _growth_figure(
    name: str, costs: dict[int, list[float]], cpu: dict[int, list[float]], small: int, large: int
) -> Figure:
    base = statistics.median(costs[small])
    return Figure(
        group="growth",
        name=f"{large:,} keys by {small:,}, {name}",
        ratio=statistics.median(costs[large]) / base,
        low=min(costs[large]) / base,
        high=max(costs[large]) / base,
        aim=None if name == _BY_HAND else GROWTH_AIM,
        at_most=True,
        points={str(size): statistics.median(each) for size, each in costs.items()},
        cpu_points={str(size): statistics.median(each) for size, each in cpu.items()},
    )


class _Growing(ABC):
    """A state that grows."""

    _keys = 0

    def grow(self, keys: int) -> None:
        """Add keys up to this number, each with a row."""
        for first in range(self._keys, keys, 1_000_000):
            self._add(np.arange(first, min(first + 1_000_000, keys)))
        self._keys = keys

    @abstractmethod
    def _add(self, keys: np.ndarray) -> None:
        """Store a row for each of ``keys``, which are new."""

    @abstractmethod
    def update(self, keys: np.ndarray) -> Spent:
        """One micro-batch."""


class _GrowingState(_Growing):
    """Count, sum and max a key."""

    def __init__(self, folder: Path, config: Config) -> None:
        operator = GroupAggregate(
            [count().alias("n"), sum_("value").alias("total"), max_("value").alias("highest")],
            emit_update_before=False,
        )
        schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])
        self._job = Job(folder, operator, config, InputSpec(schema, ("key",)))
        self._number = 0

    def _add(self, keys: np.ndarray) -> None:
        self.update(keys)

    def update(self, keys: np.ndarray) -> Spent:
        """See ``_Growing``."""
        self._number += 1
        values = (keys * 31 + self._number) % 1_000_003
        whole = pa.RecordBatch.from_pydict({"key": pa.array(keys), "value": pa.array(values)})
        gc.collect()
        return self._job.timed(
            [whole.slice(start, _ARROW_ROWS) for start in range(0, len(keys), _ARROW_ROWS)]
        )


class _GrowingByHand(_Growing):
    """Count and sum a key by list get, numpy and a sorted file, in one RocksDB that stays open."""

    def __init__(self, folder: Path) -> None:
        self._floor = Floor(folder)

    def _add(self, keys: np.ndarray) -> None:
        self._floor.fill(keys)

    def update(self, keys: np.ndarray) -> Spent:
        """See ``_Growing``; finding the distinct keys is not counted."""
        distinct = np.unique(keys)
        gc.collect()
        return self._floor.bundle(distinct)


def modes(task: Task) -> list[Figure]:
    """Throughput of async by that of sync for each built-in operator, on the same micro-batches by turns.

    By processor time: nothing waits here, and what other processes take away would be larger than what is looked for.
    """
    figures: list[Figure] = []
    for name, case in CASES.items():
        ratios, costs = _mode_ratios(case, task, Path(task.folder) / str(len(figures)))
        low, high = interval_of_median(ratios)
        figures.append(
            Figure(
                group="modes",
                name=name,
                ratio=statistics.median(ratios),
                low=low,
                high=high,
                aim=MODES_AIM,
                at_most=False,
                interval=True,
                cpu_points=costs,
            )
        )
    return figures


def _mode_ratios(case: Case, task: Task, folder: Path) -> tuple[list[float], dict[str, float]]:
    """Sync processor seconds by async ones of each counted pair, and the medians of both in microseconds a row; who
    goes first turns round each time."""
    count_of_rows = max(10, int(task.rows * case.share / _PIECES))
    keys = max(10, int(task.state_keys * (case.share if case.keys_share is None else case.keys_share)))
    jobs = {mode: Job(folder / str(mode), case.make(), _config(mode), case.specs) for mode in _MODES}
    random = np.random.default_rng(task.seed)
    pairs: list[dict[bool, float]] = []
    for number in range(task.pairs * _PIECES + 2):  # the first fills the state, the second warms up
        chosen = np.arange(keys) if number == 0 else random.integers(0, keys, count_of_rows)
        given = rows(chosen, number)
        seconds = {}
        for mode in _MODES if number % 2 else _MODES[::-1]:
            job = jobs[mode]
            job.watermark = watermark(number)
            gc.collect()
            seconds[mode] = job.timed(
                InputBatch(given, None, index) for index in range(case.inputs)
            ).cpu_seconds
        if number > 1:
            pairs.append(seconds)
    in_all = case.inputs * count_of_rows
    costs = {
        name: statistics.median(pair[mode] for pair in pairs) / in_all * 1e6
        for name, mode in (("sync", False), ("async", True))
    }
    return [pair[False] / pair[True] for pair in pairs], costs


def _config(asynchronous: bool) -> Config:
    return resolve({"async-state.enabled": asynchronous}, {})


_MEASURED: dict[str, Callable[[Task], list[Figure]]] = {"raw": raw, "growth": growth, "modes": modes}


def main() -> None:
    """Read a Task from the first argument; print its figures as JSON."""
    settle_worker()
    task = msgspec.json.decode(sys.argv[1], type=Task)
    with tempfile.TemporaryDirectory(dir=task.folder) as scratch:
        figures = _MEASURED[task.measurement](msgspec.structs.replace(task, folder=scratch))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
