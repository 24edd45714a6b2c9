"""A controller with real states over a store of the test's choice.

Owns: ``Rig``, the four ways in which reads run, and ``threads_end``.
Invariant: a rig runs records as ``run_partitions`` does, but its store may be made to fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from asyncstate.codec import KeyCodec
from asyncstate.execution import (
    AsyncLimits,
    BatchFrame,
    CallLimits,
    ExecutionController,
    OutsideCalls,
    Pacer,
    Record,
)
from asyncstate.operator import MIN_WATERMARK, Counter, InputSpec, StateDescriptor
from asyncstate.storage import KeyedStore, MemTable
from tests.memory_store import MemoryStore

MODES = ["sync", "hot", "batched", "threads"]
ASYNC_MODES = MODES[1:]

_OUTPUT = pa.schema({"key": pa.int64(), "value": pa.int64()})
_BATCHED = AsyncLimits(in_flight=50, buffer_size=8, io_parallelism=2, batch_hot_reads=True)


@dataclass
class _Context:
    """An OperatorContext that binds states to the controller, one after the other from id 8."""

    sink: ExecutionController
    uid: str = "op"
    page_size: int = 4
    inputs: Sequence[InputSpec] = ()
    output_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    max_parallelism: int = 4
    key_groups: range = range(4)
    key_schema: pa.Schema = field(default_factory=lambda: pa.schema([("k", pa.int64())]))
    watermark: int = MIN_WATERMARK
    previous_watermark: int = MIN_WATERMARK
    processing_time: int = 0
    previous_processing_time: int = 0

    @property
    def key_codec(self) -> KeyCodec:
        return KeyCodec(self.key_schema.types, self.key_schema.names, self.max_parallelism)

    def get_state(self, descriptor: StateDescriptor[Any]) -> Any:
        names = dict(self.sink.failures.state_names)
        state_id = 8 + len(names)
        self.sink.failures.state_names = {**names, state_id: descriptor.name}
        return descriptor.bind(self.sink, state_id, self, None)

    def counter(self, name: str) -> Counter:
        return Counter(name)


class Rig:
    """Records with a key (an int) and a piece of work, run in one of the ``MODES``. A context manager.

    ``store`` is what earlier micro-batches committed; ``commit`` adds to it what this one has written.
    ``clock``: by which some reads are made on this thread, to measure, while others are on threads.
    """

    def __init__(
        self,
        mode: str,
        *,
        store: KeyedStore | None = None,
        limits: AsyncLimits = _BATCHED,
        calls: CallLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store if store is not None else MemoryStore()
        self.overlay = MemTable(self.store, 0)
        outside = OutsideCalls("op", calls)
        self.controller: ExecutionController
        if mode == "sync":
            self.controller = ExecutionController(self.overlay, "op", {}, calls=outside)
        else:
            pacer = Pacer(clock)
            if mode == "threads":
                pacer.measured(1, 1.0)
            limits = replace(limits, batch_hot_reads=mode != "hot")
            self.controller = ExecutionController(self.overlay, "op", {}, limits, pacer, outside)
        self.context = _Context(self.controller)
        self._frame = BatchFrame(0, 0, None, _OUTPUT, self.controller)  # type: ignore[arg-type]

    def state(self, descriptor: StateDescriptor[Any]) -> Any:
        """Bind a state."""
        return self.context.get_state(descriptor)

    def submit(self, key: int, work: Callable[[Any, Any], Any], item: Any = None) -> None:
        """Take a record."""
        encoded = b"\x01" + (key + 2**63).to_bytes(8, "big")
        self.controller.submit(Record(self._frame, b"\0\0", encoded, (key,), work, item))

    def without_key(self, work: Callable[[Any, Any], Any]) -> None:
        """Run ``work`` as ``on_watermark`` is run."""
        self.controller.run_without_key(Record(self._frame, b"", b"", (), work, None))

    def run(self, keys: Sequence[int], work: Callable[[Any, Any], Any]) -> list[tuple[Any, ...]]:
        """Records of ``keys``, each with its position as its item, to the end; the values of their rows."""
        for item, key in enumerate(keys):
            self.submit(key, work, item)
        self.controller.drain()
        return [values for _, values, *_ in self.controller.take_outputs()]

    def commit(self) -> None:
        """End of the micro-batch."""
        self.store.apply(self.overlay.changes(), self.store.version + 1)

    def __enter__(self) -> Self:
        self.controller.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.controller.__exit__(kind, error, traceback)


@contextmanager
def threads_end() -> Iterator[None]:
    """Fails unless every thread that was started inside ends."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), f"{thread.name} keeps running"
