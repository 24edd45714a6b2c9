"""A state sink in memory, with a controller small enough to trust.

Owns: ``FakeSink`` (immediate, or deferred with answers in random order), ``run_records`` and ``FakeContext``.
Invariant: a deferred read answers with what was there when it was asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from asyncstate.codec import KeyCodec
from asyncstate.futures import StateFuture, completed_future, failed_future
from asyncstate.operator import MIN_WATERMARK, Counter, InputSpec, StateDescriptor
from asyncstate.state_backend import Decoder, Page, StateBackend, WriteBackCache


@dataclass
class FakeRecord:
    """A key in flight; ``pending`` counts its reads that wait."""

    group: bytes
    encoded_key: bytes
    work: Callable[[], object] = lambda: None
    timestamp: int | None = None
    pending: int = 0
    may_write_broadcast: bool = False


class FakeSink(StateBackend):
    """``base``: what earlier micro-batches committed; ``written``: what this one changed (None: deleted)."""

    def __init__(self, deferred: bool = False, seed: int = 0) -> None:
        self.current = None
        self.base: dict[bytes, bytes] = {}
        self.written: dict[bytes, bytes | None] = {}
        self.deferred = deferred
        self.reads = 0
        self.scans = 0
        self.caches: list[WriteBackCache] = []
        self._random = random.Random(seed)
        self._pending: list[tuple[FakeRecord, StateFuture[Any], Callable[[], Any]]] = []

    def commit(self) -> None:
        """End of a micro-batch."""
        for cache in self.caches:
            cache.finish()
        self.caches = []
        self.base = self.contents()
        self.written = {}

    def contents(self) -> dict[bytes, bytes]:
        """All entries, this micro-batch's writes among them, in order."""
        merged: dict[bytes, bytes | None] = {**self.base, **self.written}
        return {key: value for key, value in sorted(merged.items()) if value is not None}

    def answer_one(self) -> FakeRecord:
        """Complete one waiting read, picked at random; returns its record."""
        record, future, result = self._pending.pop(self._random.randrange(len(self._pending)))
        self.current = record
        try:
            value = result()
        except Exception as error:
            future.fail(error)
        else:
            future.complete(value)
        record.pending -= 1
        return record

    @property
    def waiting(self) -> bool:
        return bool(self._pending)

    def _answer(self, result: Callable[[], Any], now: bool) -> StateFuture[Any]:
        if now or not self.deferred:
            try:
                return completed_future(result())
            except Exception as error:
                return failed_future(error)
        assert isinstance(self.current, FakeRecord)
        future: StateFuture[Any] = StateFuture()
        self.current.pending += 1
        self._pending.append((self.current, future, result))
        return future

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self.written[key] if key in self.written else self.base.get(key)

    def async_get(self, key: bytes, decode: Decoder[Any]) -> StateFuture[Any]:
        raw = self.get(key)
        return self._answer(lambda: decode(raw), now=key in self.written)

    def put(self, key: bytes, value: bytes) -> None:
        assert type(key) is bytes
        assert type(value) is bytes
        self.written[key] = value

    def delete(self, key: bytes) -> None:
        assert type(key) is bytes
        self.written[key] = None

    def scan(self, start: bytes, end: bytes, limit: int) -> Page:
        self.scans += 1
        for cache in self.caches:
            cache.write_back()
        return [(key, value) for key, value in self.contents().items() if start <= key < end][:limit]

    def async_scan(self, start: bytes, end: bytes, limit: int) -> StateFuture[Page]:
        page = self.scan(start, end, limit)
        return self._answer(lambda: page, now=False)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        assert keys == sorted(set(keys))
        return [self.get(key) for key in keys]

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        values = self.get_many(keys)
        return self._answer(lambda: values, now=False)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.put(key, value)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.delete(key)

    def append_final(self, keys: Sequence[bytes], values: Sequence[bytes | None], size_bytes: int) -> None:
        assert size_bytes == sum(map(len, keys)) + sum(map(len, filter(None, values)))
        self.written.update(zip(keys, values, strict=True))

    def prefetch(self, keys: list[bytes]) -> None:
        pass

    def attach(self, cache: WriteBackCache) -> None:
        self.caches.append(cache)


def run_records(sink: FakeSink, records: Iterable[FakeRecord]) -> None:
    """Run records as the controllers do: of one key in order and one at a time, of different keys mixed."""
    queues: dict[tuple[bytes, bytes], list[FakeRecord]] = {}
    for record in records:
        queues.setdefault((record.group, record.encoded_key), []).append(record)
    for queue in queues.values():
        _start(sink, queue)
    while sink.waiting:
        record = sink.answer_one()
        if record.pending == 0:
            queue = queues[record.group, record.encoded_key]
            queue.pop(0)
            _start(sink, queue)
    sink.current = None
    assert not any(queues.values())


def _start(sink: FakeSink, queue: list[FakeRecord]) -> None:
    while queue:
        sink.current = queue[0]
        queue[0].work()
        if queue[0].pending:
            return
        queue.pop(0)


def record(key: int, work: Callable[[], object] = lambda: None, timestamp: int | None = None) -> FakeRecord:
    """A record of a key that is one int64 column; key group 0 to 3."""
    encoded_key = b"\x01" + (key + 2**63).to_bytes(8, "big")
    return FakeRecord((key % 4).to_bytes(2, "big"), encoded_key, work, timestamp)


@dataclass
class FakeContext:
    """An OperatorContext that binds states one after the other from id 8."""

    sink: FakeSink
    page_size: int = 3
    uid: str = "op"
    inputs: Sequence[InputSpec] = ()
    output_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    max_parallelism: int = 4
    key_groups: range = range(4)
    key_schema: pa.Schema = field(default_factory=lambda: pa.schema([("k", pa.int64())]))
    watermark: int = MIN_WATERMARK
    processing_time: int = 0
    _next_id: int = 8

    @property
    def key_codec(self) -> KeyCodec:
        return KeyCodec(self.key_schema.types, self.key_schema.names, self.max_parallelism)

    def get_state(self, descriptor: StateDescriptor[Any]) -> Any:
        self._next_id += 1
        return descriptor.bind(self.sink, self._next_id - 1, self, None)

    def counter(self, name: str) -> Counter:
        return Counter(name)
