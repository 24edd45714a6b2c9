"""Cost of iterating a map or a list, compared with rocksdict's own iteration over the same entries.

Owns: the iterating operators, and the hand-written scans that are the floors.
Invariant: both sides give the same entries as Python objects in a list, page by page, from state that is in memory, and
are measured in processor time: nothing waits, and other load on the machine does not count.

Two floors each. *scan*: rocksdict's entries as they are, bytes; an entry is a map entry or a list element with a key
of its own. *decode*: also decoded into Python numbers by ``struct``; for the list, from chunks of many elements, which
is the fastest layout to write by hand.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rocksdict import Rdict, ReadOptions, SstFileWriter

from asyncstate.futures import to_iterable
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator
from asyncstate.operator import Row as InputRow
from asyncstate.state import ListState, ListStateDescriptor, MapState, MapStateDescriptor
from asyncstate.storage import RocksDBOptions
from asyncstate.storage.rocksdb_options import rocksdb_options
from bench.frame import Row, turns
from bench.micro.sides import MODES, Place, cpu_alone, pair_row
from bench.processor_time import Spent

ENTRIES: Final = 1000
_FILL, _ITERATE = 0, 1
_SCHEMA: Final = pa.schema([("key", pa.int64()), ("what", pa.int64())])
_KEY: Final = struct.Struct(">HBq")
_MAP_ENTRY: Final = struct.Struct(">HBqq")
_NUMBER: Final = struct.Struct("<q")
_CHUNK_NUMBERS: Final = 512


class Iterate(RecordOperator):
    """Fills the state of a key with ENTRIES numbers, or makes a list of them; ``seconds`` is what the lists took."""

    seconds = 0.0
    entries = 0

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return _SCHEMA

    def process(self, row: InputRow, ctx: RecordContext) -> Any:
        """Fill or iterate, as the row says."""
        if row.what == _FILL:
            self.fill()
            return None
        started = time.thread_time()

        def listed(entries: list[Any]) -> None:
            self.seconds += time.thread_time() - started
            self.entries += len(entries)

        return self.iterate(listed)

    def fill(self) -> None:
        """Write the entries of the current key."""
        raise NotImplementedError

    def iterate(self, listed: Callable[[list[Any]], None]) -> Any:
        """Give all entries of the current key to ``listed``; a future in async form."""
        raise NotImplementedError


class MapEntries(Iterate):
    """``MapState.entries`` of an int64 to int64 map."""

    def __init__(self, asynchronous: bool) -> None:
        self._asynchronous = asynchronous

    def open(self, context: OperatorContext) -> None:
        self._map: MapState[int, int] = context.get_state(MapStateDescriptor("map", int, int))

    def fill(self) -> None:
        self._map.put_all((number, 3 * number) for number in range(ENTRIES))

    def iterate(self, listed: Callable[[list[Any]], None]) -> Any:
        if self._asynchronous:
            return to_iterable(self._map.async_entries()).then_accept(listed)
        return listed(list(self._map.entries()))


class ListElements(Iterate):
    """``ListState.get`` of a list of int64."""

    def __init__(self, asynchronous: bool) -> None:
        self._asynchronous = asynchronous

    def open(self, context: OperatorContext) -> None:
        self._list: ListState[int] = context.get_state(ListStateDescriptor("list", int))

    def fill(self) -> None:
        self._list.add_all(range(ENTRIES))

    def iterate(self, listed: Callable[[list[Any]], None]) -> Any:
        if self._asynchronous:
            return to_iterable(self._list.async_get()).then_accept(listed)
        return listed(list(self._list.get()))


class HandIterations:
    """The same by hand: entries of maps and elements of lists under keys of their own, and lists in chunks."""

    def __init__(self, folder: Path, keys: int) -> None:
        options = rocksdb_options(RocksDBOptions())
        self._db = Rdict(str(folder / "by-hand"), options)
        self._keys = range(keys)
        path = str(folder / "by-hand.sst")
        writer = SstFileWriter(options)
        writer.open(path)
        for key in self._keys:
            for number in range(ENTRIES):
                writer[_MAP_ENTRY.pack(0, 1, key, number)] = _NUMBER.pack(3 * number)
        for key in self._keys:
            for first in range(0, ENTRIES, _CHUNK_NUMBERS):
                numbers = range(first, min(first + _CHUNK_NUMBERS, ENTRIES))
                writer[_MAP_ENTRY.pack(0, 2, key, first)] = b"".join(map(_NUMBER.pack, numbers))
        writer.finish()
        self._db.ingest_external_file([path])

    def scan(self) -> Spent:
        """For the entries of all keys as bytes."""
        return self._timed(self._entries)

    def decode_map(self) -> Spent:
        """For the entries of all keys as numbers."""

        def decoded(key: int) -> list[tuple[int, int]]:
            user_key, number = _MAP_ENTRY.unpack, _NUMBER.unpack
            return [(user_key(raw)[3], number(value)[0]) for raw, value in self._entries(key)]

        return self._timed(decoded)

    def decode_list(self) -> Spent:
        """For the elements of all keys as numbers, out of chunks."""

        def decoded(key: int) -> list[int]:
            chunks = [chunk for _, chunk in self._range(_KEY.pack(0, 2, key), _KEY.pack(0, 2, key + 1))]
            return [number for chunk in chunks for (number,) in _NUMBER.iter_unpack(chunk)]

        return self._timed(decoded)

    def _entries(self, key: int) -> list[tuple[bytes, bytes]]:
        return self._range(_KEY.pack(0, 1, key), _KEY.pack(0, 1, key + 1))

    def _range(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)  # RocksDB keeps a pointer: ``end`` has to outlive the iterator
        entries: Any = self._db.items(from_key=start, read_opt=options)
        return list(entries)

    def _timed(self, entries_of: Callable[[int], list[Any]]) -> Spent:
        started = time.thread_time()
        for key in self._keys:
            assert len(entries_of(key)) == ENTRIES
        spent = time.thread_time() - started
        return Spent(spent, spent)


def iterations(_state: int, entries: int, rounds: int, _seed: int) -> list[Row]:
    """Iterating maps and lists of 1,000 entries against rocksdict's own iteration, bare and with decoding."""
    keys = max(1, entries // ENTRIES)
    rows = []
    for name, make in (("MapState.entries", MapEntries), ("ListState.get", ListElements)):
        for mode in MODES:
            with Place(mode) as place:
                hand, operator = HandIterations(place.folder, keys), make(mode == "async")
                decode = hand.decode_map if make is MapEntries else hand.decode_list
                given = {what: _rows(keys, what) for what in (_FILL, _ITERATE)}
                job = place.job(operator, InputSpec(_SCHEMA, ("key",)))
                job.run([given[_FILL]])

                def ours(_: Any, operator: Iterate = operator, job: Any = job, given: Any = given) -> Spent:
                    operator.seconds, operator.entries = 0.0, 0
                    job.run([given[_ITERATE]])
                    assert operator.entries == keys * ENTRIES
                    return Spent(operator.seconds, operator.seconds)

                by_hand = {"scan": lambda _: hand.scan(), "decode": lambda _: decode()}  # noqa: B023
                spent = turns(by_hand | {"ours": ours}, rounds)
            for floor in by_hand:
                floors, mine = cpu_alone(spent[floor]), cpu_alone(spent["ours"])
                rows.append(pair_row(name, f"{mode}, {floor}", keys * ENTRIES, floors, mine, 2.0))
    return rows


def _rows(keys: int, what: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(keys), pa.int64()), pa.array([what] * keys, pa.int64())], schema=_SCHEMA
    )
