"""Cost of iterating a map or a list, compared with rocksdict's own iteration over the same entries.

Owns: the iterating operators, and the hand-written scans that are the floors. Invariant: both sides give the same
entries as Python objects in a list, page by page, from state that is in memory, and are measured in processor time:
nothing waits, and other load on the machine does not count. Two floors each. *scan*: rocksdict's entries as they are,
bytes; an entry is a map entry or a list element with a key of its own. *decode*: also decoded into Python numbers by
``struct``; for the list, from chunks of many elements, which is the fastest layout to write by hand.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from asyncstate.futures import to_iterable
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator
from asyncstate.operator import Row as InputRow
from asyncstate.state import ListStateDescriptor, MapStateDescriptor
from bench.frame.measure import Side
from bench.job import sliced
from bench.micro.sides import ByHand, Case, Place, Size
from bench.processor_time import Spent

ENTRIES: Final = 1000
_FILL, _ITERATE = 0, 1
_SCHEMA: Final = pa.schema([("key", pa.int64()), ("what", pa.int64())])
_KEY: Final = struct.Struct(">HBq")
_MAP_ENTRY: Final = struct.Struct(">HBqq")
_NUMBER: Final = struct.Struct("<q")
_CHUNK_NUMBERS: Final = 512


class Iterate(RecordOperator):
    """Fills the state of a key with ENTRIES numbers, or makes a list of them, by the functions that ``open`` sets;
    ``seconds`` is what the lists took."""

    seconds, entries = 0.0, 0
    fill: Callable[[], Any]
    get: Callable[[], Any]
    async_get: Callable[[], Any]

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return _SCHEMA

    def process(self, row: InputRow, ctx: RecordContext) -> Any:
        if row.what == _FILL:
            return self.fill()
        started = time.thread_time()

        def listed(entries: list[Any]) -> None:
            self.seconds += time.thread_time() - started
            self.entries += len(entries)

        if self.asynchronous:
            return to_iterable(self.async_get()).then_accept(listed)
        return listed(list(self.get()))


class MapEntries(Iterate):
    """``MapState.entries`` of an int64 to int64 map."""

    def open(self, context: OperatorContext) -> None:
        state: Any = context.get_state(MapStateDescriptor("map", int, int))
        self.fill = lambda: state.put_all((number, 3 * number) for number in range(ENTRIES))
        self.get, self.async_get = state.entries, state.async_entries


class ListElements(Iterate):
    """``ListState.get`` of a list of int64."""

    def open(self, context: OperatorContext) -> None:
        state: Any = context.get_state(ListStateDescriptor("list", int))
        self.fill = lambda: state.add_all(range(ENTRIES))
        self.get, self.async_get = state.get, state.async_get


class HandIterations(ByHand):
    """The same by hand: entries of maps and elements of lists under keys of their own, and lists in chunks."""

    def __init__(self, folder: Path, keys: int) -> None:
        super().__init__(folder)
        self._keys = own = range(keys)
        numbers, entry, value = range(ENTRIES), _MAP_ENTRY.pack, _NUMBER.pack
        parts = [numbers[first : first + _CHUNK_NUMBERS] for first in numbers[::_CHUNK_NUMBERS]]
        maps = ((entry(0, 1, key, at), value(3 * at)) for key in own for at in numbers)
        lists = ((entry(0, 2, key, part[0]), b"".join(map(value, part))) for key in own for part in parts)
        self.ingest(self.write(chain(maps, lists)))

    def scan(self, key: int, state: int = 1) -> list[tuple[bytes, bytes]]:
        return self.range(_KEY.pack(0, state, key), _KEY.pack(0, state, key + 1))

    def decode_map(self, key: int) -> list[tuple[int, int]]:
        user_key, number = _MAP_ENTRY.unpack, _NUMBER.unpack
        return [(user_key(raw)[3], number(value)[0]) for raw, value in self.scan(key)]

    def decode_list(self, key: int) -> list[int]:
        """The elements of a key as numbers, out of chunks."""
        return [number for _, chunk in self.scan(key, 2) for (number,) in _NUMBER.iter_unpack(chunk)]

    def side(self, entries_of: Callable[[int], list[Any]]) -> Side:
        def run(_: object) -> Spent:
            started = time.thread_time()
            for key in self._keys:
                assert len(entries_of(key)) == ENTRIES
            spent = time.thread_time() - started
            return Spent(spent, spent)

        return run


def _keys(size: Size) -> int:
    return max(1, size.unique // ENTRIES)


def _by_hand(what: str, place: Place, size: Size) -> Side:
    hand = HandIterations(place.folder, _keys(size))
    return hand.side(getattr(hand, what))


def _ours(make: Callable[[bool], Iterate], place: Place, size: Size) -> Side:
    keys, operator = _keys(size), make(place.mode == "async")
    job = place.job(operator, InputSpec(_SCHEMA, ("key",)))
    job.run(sliced(_SCHEMA, range(keys), [_FILL] * keys))
    given = sliced(_SCHEMA, range(keys), [_ITERATE] * keys)

    def run(_: object) -> Spent:
        operator.seconds, operator.entries = 0.0, 0
        job.run(given)
        assert operator.entries == keys * ENTRIES
        return Spent(operator.seconds, operator.seconds)

    return run


_LISTED = (("MapState.entries", MapEntries, "decode_map"), ("ListState.get", ListElements, "decode_list"))
CASES = [
    Case(
        group,
        2.0,
        partial(_by_hand, floor),
        partial(_ours, make),
        label=label,
        given=lambda _: repeat(None),
        units=lambda size: _keys(size) * ENTRIES,
    )
    for group, make, decode in _LISTED
    for label, floor in (("scan", "scan"), ("decode", decode))
]
"""Iterating maps and lists of 1,000 entries against rocksdict's own iteration, bare and with decoding."""
