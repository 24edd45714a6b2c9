"""The broadcast input: rows that every partition processes before its own rows of the micro-batch.

Owns: the serialized form of those rows in a ``TaskSpec``; ``broadcast_rows``, the rows of a micro-batch;
``stored_keys``, the keys that are notified of them; and the check that all partitions have made the same changes to
broadcast state: ``broadcast_digest`` in the task, ``check_digests`` on the driver.
Invariants: every partition runs the same rows in the same order. The committed broadcast state is the same in every
partition, so any partition can supply it when the parallelism changes.
Must not import Spark.

Source: Flink's ``BroadcastProcessFunction`` and ``applyToKeyedState``; the notifications are FLIP's
``NOTIFY_STATEFUL_SETS``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec import BROADCAST_GROUP, GROUP_BYTES, STATE_ID_AT, KeyCodec, prefix_end
from asyncstate.errors import JobError
from asyncstate.operator import InputSpec
from asyncstate.runtime.partition.runner import Runner
from asyncstate.runtime.rows.prepared_rows import PreparedBatch, prepare
from asyncstate.runtime.task_spec import CommitRecord, InputBatch, OutBatch
from asyncstate.state.versions import PICKLED
from asyncstate.state_backend import StateBackend
from asyncstate.storage import SortedChanges, StateSpec, changes_from

_FIRST_PAGE: Final = 16


def pack_broadcast(
    uid: str, spec: InputSpec, batches: Iterable[InputBatch], limit_bytes: int
) -> bytes | None:
    """Serialize the rows of the broadcast input ``spec`` for ``TaskSpec.broadcast``; None if there are none.

    The result is an Arrow stream: the payload columns, then the kinds as int8 codes in the column ``row_kind``. Raises
    JobError if it becomes longer than ``limit_bytes``.
    """
    schema = spec.schema.append(pa.field(ROW_KIND_COLUMN, pa.int8()))
    sink = pa.BufferOutputStream()
    rows = 0
    with pa.ipc.new_stream(sink, schema) as stream:
        for given in batches:
            rows += given.batch.num_rows
            kinds = given.kinds if given.kinds is not None else np.zeros(given.batch.num_rows, np.int8)
            columns = [*given.batch.columns, pa.array(kinds, pa.int8())]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            if sink.tell() > limit_bytes:
                raise JobError(
                    f"operator '{uid}': {rows} rows of {spec.name} have {sink.tell()} bytes, more than the "
                    f"{limit_bytes} that async-state.memory leaves for broadcast rows (a sixteenth), and every task "
                    "gets all of them. Send fewer rows or columns per micro-batch, raise async-state.memory, or join "
                    "them as an ordinary keyed input"
                )
    return sink.getvalue().to_pybytes() if rows else None


def unpack_broadcast(packed: bytes, input_index: int) -> Iterator[InputBatch]:
    """The inverse of ``pack_broadcast``."""
    with pa.ipc.open_stream(packed) as stream:
        for batch in stream:
            kinds = batch.column(ROW_KIND_COLUMN).to_numpy()
            yield InputBatch(batch.select(batch.schema.names[:-1]), kinds, input_index)


def broadcast_rows(runner: Runner, index: int) -> Iterator[PreparedBatch | OutBatch]:
    """The rows of the broadcast input ``index`` in one micro-batch; of an ordered input, the rows that are due, and
    late rows as output.

    Only the first partition counts the rows, so that sums over the partitions equal the input.
    """
    spec, context = runner.spec, runner.context
    first, ordered = context.key_groups.start == 0, runner.ordered
    for given in () if spec.broadcast is None else unpack_broadcast(spec.broadcast, index):
        prepared = prepare(spec.uid, spec.inputs[index], given)
        runner.count(prepared, first)
        if index in ordered:
            yield from runner.buffer_rows(prepared, first)
        else:
            yield prepared
    if index in ordered:
        yield from ordered.due_broadcast(index, context.page_size)


class StoredKey(NamedTuple):
    """A key with state: its key group and its bytes as in a KeyContext, and the values of its columns."""

    group: bytes
    encoded_key: bytes
    values: tuple[Any, ...]


def stored_keys(
    sink: StateBackend, state_ids: Sequence[int], groups: range, codec: KeyCodec, page_size: int
) -> Iterator[StoredKey]:
    """The keys in ``groups`` that have an entry in one of the states, each once, in the order of the store.

    This batch's writes are included; a write to a key that was already returned does not return it again. The keys' own
    state may be written and deleted during the iteration. ``page_size`` bounds the entries read at a time.

    Reading every entry would cost as much as reading the whole state, and a key may have a map of a million entries.
    Therefore pages are short where a key has many entries, and after a page that ends inside a key's entries the scan
    skips the rest of them.
    """
    for group in _groups_with_entries(sink, groups):
        of_states = [
            _keys_below(sink, group + bytes([state_id]), codec, page_size) for state_id in sorted(state_ids)
        ]
        last: bytes | None = None
        for key, values in heapq.merge(*of_states, key=_encoded):
            if key != last:
                last = key
                yield StoredKey(group, key, values)


def _groups_with_entries(sink: StateBackend, groups: Iterable[int]) -> Iterator[bytes]:
    """The key groups that have any entry; a run of empty groups costs one scan."""
    reached = b""
    for number in groups:
        group = number.to_bytes(GROUP_BYTES, "big")
        if group < reached:
            continue
        if group > reached:
            page = sink.scan(group, BROADCAST_GROUP, 1)
            if not page:
                return
            reached = page[0][0][:GROUP_BYTES]
        if group == reached:
            yield group


def _keys_below(
    sink: StateBackend, prefix: bytes, codec: KeyCodec, page_size: int
) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    """The keys of one state in one key group, ascending."""
    start, end, skip = prefix, prefix_end(prefix), len(prefix)
    limit = min(_FIRST_PAGE, page_size)
    while True:
        page = sink.scan(start, end, limit)
        found = 0
        last = b""
        for entry, _ in page:
            if last and entry.startswith(last):
                continue
            values, key_end = codec.decode_one(entry, skip)
            last = entry[:key_end]
            found += 1
            yield last[skip:], values
        if len(page) < limit:
            return
        start = prefix_end(last)
        limit = min(2 * limit, page_size) if found == limit else found


def _encoded(key: tuple[bytes, tuple[Any, ...]]) -> bytes:
    return key[0]


def broadcast_digest(changes: SortedChanges, states: Sequence[StateSpec]) -> str:
    """A digest of the effect of sorted ``changes`` on broadcast state; empty if there is none.

    For pickled states only the keys count: equal objects may have different pickles in different processes.
    """
    pickled = {state.id for state in states if state.types.get("value") == PICKLED}
    digest = None
    for key, value in changes_from(changes, BROADCAST_GROUP):
        digest = digest or xxhash.xxh3_128()
        shown = b"" if value is not None and key[STATE_ID_AT] in pickled else value
        for part in (key, shown):
            digest.update(b"\x00" if part is None else b"\x01" + len(part).to_bytes(8, "big") + part)
    return digest.hexdigest() if digest else ""


def check_digests(uid: str, records: Sequence[CommitRecord]) -> None:
    """Raise JobError unless all partitions report the same digest."""
    for record in records[1:]:
        if record.broadcast_digest != records[0].broadcast_digest:
            raise JobError(
                f"operator '{uid}': partitions {records[0].partition} and {record.partition} made different changes "
                "to broadcast state; process_broadcast must depend on its row and on broadcast state alone, not on "
                "the clock, on random numbers or on context.key_groups. Nothing was committed"
            )
