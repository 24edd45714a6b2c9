"""Cost of an operator's state path, compared with the same reads and writes by hand.

Invariant: the floor repeats the gets and scans of the operator, and writes the same entries, in one sorted file, from
arrays and into arrays; it decides nothing. Two metrics: the whole micro-batch, from Arrow rows to Arrow rows and the
uploaded delta; and of that the state path, which is the time in calls of state objects and of sorted input buffers, and
the commit. It and its counterpart are processor time of the thread: all work is on one thread, and with other load on
the machine the noise in ratios of wall times exceeded the effect. By hand no value is decoded: the bytes become one
array with offsets.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import operators as ops
from asyncstate.changelog import RETRACT
from asyncstate.execution import ExecutionController
from asyncstate.operator import InputSpec, Operator, OperatorContext
from asyncstate.runtime import InputBatch, read_state
from asyncstate.runtime.partition.restore_plans import TaskStores
from asyncstate.runtime.rows.sorted_inputs import OrderedInputs
from asyncstate.storage import KeyedStore, MemTable, SortedChanges, StoreStatistics
from bench.frame.measure import Side
from bench.job import batches, sliced
from bench.micro.sides import ByHand, Case, Place, Size
from bench.processor_time import Spent

_WINDOW = 1_000_000
_TUMBLE = ops.tumble(_WINDOW)
_NUMBER, _TIME = pa.int64(), pa.timestamp("us")
_SCHEMA = pa.schema([("key", _NUMBER), ("value", _NUMBER), ("at", _TIME), ("id", _NUMBER)])
_BATCH_ROWS = 100_000

Batch = tuple[list[InputBatch], int]  # the rows of a micro-batch and its watermark
Draw = Callable[[int, np.random.Generator], Iterator[Batch]]  # micro-batches of so many rows, forever


class RecordingStore(KeyedStore):
    """Notes what is read of the store beneath."""

    def __init__(self, store: KeyedStore) -> None:
        self._store, self.version = store, store.version
        self.gets: list[list[bytes]] = []
        self.scans: list[tuple[bytes, bytes | None, int]] = []

    def get(self, key: bytes) -> bytes | None:
        self.gets.append([key])
        return self._store.get(key)

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        self.gets.append(keys)
        return self._store.get_many(keys, piece_keys)

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        self.scans.append((start, end, limit))
        return self._store.scan(start, end, limit)

    def apply(self, changes: SortedChanges, version: int) -> None:
        self._store.apply(changes, version)

    def statistics(self) -> StoreStatistics:
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()


class Replay(ByHand):
    """The same entries by hand, asked for the same."""

    _entries: dict[bytes, bytes] | None = None

    def run(self, reads: RecordingStore, after: dict[bytes, bytes]) -> Spent:
        """Replay ``reads``, and write the entries that lead to ``after``."""
        before, changes = self._entries or {}, list[tuple[bytes, bytes | None]]()
        changes += [(key, value) for key, value in after.items() if before.get(key) != value]
        changes += [(key, None) for key in before if key not in after]
        changes.sort()
        gc.collect()
        started = time.perf_counter(), time.thread_time()
        for keys in reads.gets:
            _unpacked(self.get_list(_packed(keys)))
        for scan in reads.scans:
            _unpacked([part for entry in self.range(*scan) for part in entry])
        path = self._write(changes) if changes else None
        spent = Spent(time.perf_counter() - started[0], time.thread_time() - started[1])
        if path is not None:
            self.ingest(path)
        self._entries = after
        return spent

    def _write(self, changes: list[tuple[bytes, bytes | None]]) -> str:
        writer, path = self.new_file()
        keys = _packed([key for key, _ in changes])
        values = iter(_packed([value for _, value in changes if value is not None]))
        for key, (_, value) in zip(keys, changes, strict=True):
            if value is None:
                del writer[key]
            else:
                writer[key] = next(values)
        writer.finish()
        return path


class Stopwatch:
    """Adds up the seconds of processor time inside the calls that it has wrapped, the outermost ones."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with its time added up, and that of the steps of an iterator that it returns."""

        def call(*arguments: Any, **named: Any) -> Any:
            result = self._run(lambda: function(*arguments, **named))
            return self._steps(result) if isinstance(result, Iterator) else result

        return call

    def _steps(self, iterator: Iterator[Any]) -> Iterator[Any]:
        end = object()
        while (step := self._run(lambda: next(iterator, end))) is not end:
            yield step

    def _run(self, work: Callable[[], Any]) -> Any:
        if self._inside:
            return work()
        self._inside, started = True, time.thread_time()
        try:
            return work()
        finally:
            self._inside = False
            self.seconds += time.thread_time() - started


class _Timed:
    def __init__(self, under: Any, watch: Stopwatch) -> None:
        self._under, self._watch = under, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._under, name)
        return self._watch.timed(found) if callable(found) else found


class _TimedStates:
    def __init__(self, context: OperatorContext, watch: Stopwatch) -> None:
        self._context, self._watch = context, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        return (lambda wanted: _Timed(found(wanted), self._watch)) if name == "get_state" else found


_ENGINE_PARTS: Final[list[tuple[type[Any], str]]] = [
    (OrderedInputs, "add"),
    (OrderedInputs, "due_parts"),
    (ExecutionController, "finish_states"),
    (MemTable, "changes"),
    (TaskStores, "commit"),
    (TaskStores, "settle"),
]


@contextmanager
def _timed(operator: Operator, watch: Stopwatch) -> Iterator[Operator]:
    """The operator's states are timed; the waiting rows of ordered inputs and the commit, too."""
    opened = operator.open
    operator.open = lambda context: opened(_TimedStates(context, watch))  # type: ignore[method-assign]
    with ExitStack() as patched:
        for owner, name in _ENGINE_PARTS:
            patched.enter_context(patch.object(owner, name, watch.timed(getattr(owner, name))))
        yield operator


def _packed(parts: list[bytes]) -> list[bytes]:
    """The same bytes rebuilt from one array, as columns are encoded into keys and values."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    whole = np.frombuffer(b"".join(parts), np.uint8).copy()
    if len(parts) and (lengths == lengths[0]).all():
        packed: list[bytes] = whole.view(f"V{lengths[0]}").tolist() if lengths[0] else parts
        return packed
    ends = np.cumsum(lengths).tolist()
    data = whole.tobytes()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _unpacked(parts: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray]:
    """The bytes as one array, and where each part ends, as columns are made from values."""
    there = [part for part in parts if part is not None]
    ends = np.cumsum(np.fromiter(map(len, there), np.int64, len(there)))
    return np.frombuffer(b"".join(there), np.uint8).copy(), ends


def _spec(index: int, **settings: Any) -> InputSpec:
    return InputSpec(_SCHEMA, **{"key": ("key",), "name": f"input {index}", **settings})


def _batch(columns: list[np.ndarray], index: int = 0, kinds: np.ndarray | None = None) -> list[InputBatch]:
    starts = range(0, len(columns[0]), _BATCH_ROWS)
    of_each = [None if kinds is None else kinds[start : start + _BATCH_ROWS] for start in starts]
    rows = sliced(_SCHEMA, *(column.astype(np.int64) for column in columns), rows=_BATCH_ROWS)
    return [InputBatch(batch, each, index) for batch, each in zip(rows, of_each, strict=True)]


def _windows(inputs: int) -> Callable[[int, np.random.Generator], Iterator[Batch]]:
    """Each micro-batch brings the rows of a window, four a key, and ends the window before."""

    def draw(rows: int, random: np.random.Generator) -> Iterator[Batch]:
        for number in count():
            given: list[InputBatch] = []
            for index in range(inputs):
                size = rows // inputs
                keys = random.integers(0, max(rows // 4, 1), size)
                times = number * _WINDOW + random.integers(0, _WINDOW, size)
                columns = [keys, random.integers(0, 1_000_000, size), times, np.arange(size)]
                given += _batch(columns, index)
            yield given, number * _WINDOW - 1

    return draw


def _upserts(rows: int, random: np.random.Generator) -> Iterator[Batch]:
    """A new row for ``rows`` of five times as many keys; at first one for each key."""
    keys = np.arange(5 * rows)
    while True:
        count = len(keys)
        values = random.integers(0, 1_000_000, count)
        yield _batch([keys, values, np.zeros(count), keys], kinds=np.full(count, 2, np.int8)), 0
        keys = random.choice(5 * rows, rows, replace=False)


def _retractions(rows: int, random: np.random.Generator) -> Iterator[Batch]:
    """As many rows come as go, of five times as many of a hundred keys; at first they come."""
    ids, values = np.arange(5 * rows), random.integers(0, 1 << 40, 5 * rows)
    yield _batch([ids % 100, values, np.zeros(len(ids)), ids]), 0
    while True:
        gone = random.choice(len(ids), rows // 2, replace=False)
        old = [ids[gone] % 100, values[gone], np.zeros(len(gone)), ids[gone]]
        values[gone] = random.integers(0, 1 << 40, len(gone))
        both = [np.append(*pair) for pair in zip(old, [old[0], values[gone], *old[2:]], strict=True)]
        yield _batch(both, kinds=np.repeat(np.array([3, 0], np.int8), len(gone))), 0


def _inserts(rows: int, random: np.random.Generator) -> Iterator[Batch]:
    while True:
        columns = [np.zeros(rows), random.integers(0, 1 << 40, rows), np.zeros(rows), np.arange(rows)]
        yield _batch(columns), 0


def timed_side(place: Place, operator: Operator, state: int) -> Side:
    """As ``Place.filled``, with the processor time of the state path noted."""
    side = _side(place, operator)
    side((batches(np.arange(state, dtype=np.int64)), None))
    place.state_cpu.clear()
    return lambda keys: side((batches(keys), None))


def _side(place: Place, operator: Operator, **how: Any) -> Side:
    """Over rows and watermarks; the processor time of the state path is noted."""
    watch = Stopwatch()
    job = place.job(place.enter_context(_timed(operator, watch)), **how)

    def run(batch: Any) -> Spent:
        rows, watermark = batch
        if watermark is not None:
            job.watermark = watermark
        watch.seconds = 0.0
        spent = job.timed(rows)
        place.state_cpu.append(watch.seconds)
        return spent

    return run


def _recorded(make: Callable[[], Operator], inputs: Sequence[InputSpec], place: Place, _: Size) -> Side:
    def record(store: KeyedStore) -> KeyedStore:
        place.recorded = recording = RecordingStore(store)
        return recording

    return _side(place, make(), specs=inputs, wrap_store=record)


def _replayed(place: Place, _: Size) -> Side:
    replay = Replay(place.folder)

    def run(_: object) -> Spent:
        (job,) = place.jobs
        return replay.run(place.recorded, dict(read_state(job.spec(), 1, job.stores)))

    return run


def _case(name: str, make: Callable[[], Operator], inputs: Sequence[InputSpec], draw: Draw) -> Case:
    return Case(
        name,
        2.0,
        _replayed,
        partial(_recorded, make, inputs),
        given=lambda size: draw(size.unique, np.random.default_rng(size.seed)),
        path_aim=1.5,
        repeats=True,
    )


_TIMED, _TWO = [_spec(0, event_time="at")], [_spec(index, event_time="at") for index in range(2)]
_CHANGES = [_spec(0, changes=RETRACT)]
CASES: Final = [
    _case("WindowJoin", lambda: ops.WindowJoin(window=_TUMBLE), _TWO, _windows(2)),
    _case("WindowRank", lambda: ops.WindowRank(ops.desc("value"), 3, window=_TUMBLE), _TIMED, _windows(1)),
    _case("WindowDeduplicate", lambda: ops.WindowDeduplicate(window=_TUMBLE), _TIMED, _windows(1)),
    _case("TemporalSort", lambda: ops.TemporalSort(ops.asc("value")), _TIMED, _windows(1)),
    _case("TemporalJoin", ops.TemporalJoin, _TWO, _windows(2)),
    _case("ChangelogNormalize", ops.ChangelogNormalize, _CHANGES, _upserts),
    _case("UpsertMaterialize", lambda: ops.UpsertMaterialize(["id"]), _CHANGES, _upserts),
    _case("Rank, all rows", lambda: ops.Rank(ops.desc("value"), 10), _CHANGES, _retractions),
    _case("SortLimit", lambda: ops.SortLimit(ops.desc("value"), 20_000), [_spec(0, key=())], _inserts),
]
"""A micro-batch of other built-in operators against their reads and writes by hand; in the order of the table."""
