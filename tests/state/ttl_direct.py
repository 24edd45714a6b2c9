"""A bundle operator with a time to live run by hand over a fake sink: quick enough for many generated stories.

Owns: ``ExpiringRunner``, ``Stored`` and ``rows_of``.
Invariant: states are bound anew and the clean-up runs in every micro-batch, as in a task; what is stored is looked at
with ``StateDecoder``, as the command line does, and not with code of the states.
"""

from __future__ import annotations

import functools
import pickle
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa

from asyncstate.offline import StateDecoder
from asyncstate.operator import MIN_WATERMARK, BundleOperator, InputSpec, OutputSpec, StateDescriptor
from asyncstate.runtime.partition.runner import clean_up
from tests.operators.direct import CollectingContext, CountingContext, make_bundle, settle
from tests.state.fakes import FakeSink

MS = 1_000


class Stored(NamedTuple):
    """One stored row: key, values, stamp in milliseconds (None: no time was known)."""

    key: tuple[Any, ...]
    values: tuple[Any, ...]
    stamp: int | None


class _Entries:
    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self._entries = sorted(entries.items())

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found = dict(self._entries)
        return [found.get(key) for key in keys]

    def iterate(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        first = bisect_left(self._entries, (start,))
        last = len(self._entries) if end is None else bisect_left(self._entries, (end,))
        return iter(self._entries[first:last])


def rows_of(entries: dict[bytes, bytes], state: Any, key: pa.Schema, groups: int = 128) -> list[Stored]:
    """All rows of ``state`` (id, name, kind, types) in stored ``entries``, lists in their order."""
    return [
        Stored(
            tuple(row["key"].values()),
            tuple(row["value"].values()),
            None if row["ttl_stamp"] is None else row["ttl_stamp"] // MS,
        )
        for batch in StateDecoder("op", state, [key]).read(_Entries(entries), range(groups))
        for row in batch.to_pylist()
    ]


@dataclass
class _Context(CountingContext):
    expiring: list[Any] = field(default_factory=list)
    specs: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)

    def get_state(self, descriptor: StateDescriptor[Any]) -> Any:
        types = self.stored[descriptor.name].types if descriptor.name in self.stored else None
        state = descriptor.bind(self.sink, self._next_id, self, types)
        spec = SimpleNamespace(
            id=self._next_id, name=descriptor.name, kind=descriptor.kind, types=descriptor.type_texts()
        )
        self.specs[descriptor.name] = spec
        self._next_id += 1
        ttl = getattr(descriptor, "ttl", None)
        if ttl is not None:
            self.expiring.append((ttl, state))
        return state


class ExpiringRunner:
    """Micro-batches at given times, milliseconds: of their start, and of the watermark."""

    def __init__(
        self, operator: BundleOperator, inputs: Sequence[InputSpec], deferred: bool = False, groups: int = 2
    ) -> None:
        self.sink = FakeSink(deferred)
        self.counters: dict[str, int] = {}
        self._operator = pickle.dumps(operator)
        self._inputs = tuple(inputs)
        self._groups = groups
        self._before: int | None = None
        self._states: dict[str, Any] = {}

    def batch(
        self, now: int, *bundles: tuple[int, Sequence[Sequence[Any]], Sequence[str]]
    ) -> list[list[tuple[Any, ...]]]:
        """One micro-batch at ``now`` of bundles: input, rows, kinds. The output of each."""
        operator: BundleOperator = pickle.loads(self._operator)
        before = MIN_WATERMARK if self._before is None else self._before * MS
        context = _Context(
            self.sink,
            page_size=2,
            inputs=self._inputs,
            max_parallelism=self._groups,
            key_groups=range(self._groups),
            key_schema=self._inputs[0].key_schema,
            watermark=now * MS,
            processing_time=now * MS,
            previous_watermark=before,
            stored=self._states,
        )
        context.output_schema = OutputSpec.of(operator.bind(self._inputs)).schema
        operator.open(context)  # type: ignore[arg-type]
        out = []
        for index, rows, kinds in bundles:
            ctx = CollectingContext(now * MS, before, now * MS)
            bundle = make_bundle(self._inputs[index], index, rows, kinds, self._groups)
            settle(self.sink, functools.partial(operator.process_bundle, bundle, ctx))
            out.append(ctx.rows)
        spec: Any = SimpleNamespace(
            base=None if self._before is None else object(),
            previous_watermark=before,
            previous_processing_time=before,
            max_parallelism=self._groups,
        )
        clean_up(spec, context, lambda _: None)  # type: ignore[arg-type]
        operator.close()
        self.sink.commit()
        self._before = now
        self._states = context.specs
        self.counters = {name: counter.value for name, counter in context.counters.items()}
        return out

    @property
    def entries(self) -> dict[bytes, bytes]:
        """What is stored."""
        return self.sink.base

    def stored(self, state: str) -> list[Stored]:
        """The rows of a state."""
        return rows_of(self.entries, self._states[state], self._inputs[0].key_schema, self._groups)
