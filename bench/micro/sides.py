"""The two sides of a case: a job of an operator, and the same work by hand."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from rocksdict import Rdict, ReadOptions, SstFileWriter

from asyncstate.operator import InputSpec, Operator
from asyncstate.storage import LIST_GET_KEYS, RocksDBOptions
from asyncstate.storage.rocksdb_options import rocksdb_options
from bench.frame import Figure, Row, Side, columns, figure, medians, ratio, turns
from bench.job import INPUT, MODES, Job, batches, config_of, draws
from bench.processor_time import Clocks, Spent

COLUMNS = columns("""
    by hand: floor_us; CPU: floor_cpu_us; ours us: ours_us; CPU us: ours_cpu_us; ratio: ratio drawn low high
    spread: low high; aim: aim as {:.1f}
""")
_COUNT = struct.Struct("<Bq")
_ROW = np.dtype([("head", "u1"), ("count", "<i8"), ("sum", "<i8")])

Keys = np.ndarray[Any, Any]
Rows = Callable[[Keys], list[Any]]
Specs = InputSpec | Sequence[InputSpec]


class Size(NamedTuple):
    """Keys in the state, and unique keys (or rows) a micro-batch."""

    state: int
    unique: int
    seed: int

    def drawn(self) -> Iterator[Keys]:
        return draws(*self)


class Place(ExitStack):
    """Where both sides of one mode are; what they open is closed at its end. ``state_cpu``: processor seconds in the
    state path of each of our runs, where a case measures them; ``recorded``: what our last run has read, where the
    floor repeats it."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.config = mode, config_of(mode)
        self.state_cpu: list[float] = []
        self.recorded: Any = None
        self.jobs: list[Job] = []
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="asyncstate-micro-")))

    def job(self, operator: Operator, specs: Specs = INPUT, **settings: Any) -> Job:
        """A job whose store is closed at the end: what is kept of it would take the next one's room."""
        self.jobs.append(Job(self.folder / f"job-{len(self.jobs)}", operator, self.config, specs, **settings))
        self.callback(self.jobs[-1].close)
        return self.jobs[-1]

    def filled(self, operator: Operator, state: int = 0, rows: Rows = batches, specs: Specs = INPUT) -> Side:
        """A job's side, with a row for each of ``state`` keys in its state."""
        job = self.job(operator, specs)
        if state:
            job.run(rows(np.arange(state, dtype=np.int64)))
        return lambda keys: job.timed(rows(keys))


class Case(NamedTuple):
    """What is measured of ``group``: ``floor`` and ``ours`` make the sides, with their states, in a place of each mode.
    ``given`` are the micro-batches of ``units``; ``path_aim``: the state path has a row, too. ``repeats``: the floor
    repeats what ours has done, so that ours is first and the order does not turn."""

    group: str
    aim: float
    floor: Callable[[Place, Size], Side]
    ours: Callable[[Place, Size], Side]
    label: str = ""
    given: Callable[[Size], Iterator[Any]] = Size.drawn
    units: Callable[[Size], int] = lambda size: size.unique
    path_aim: float = 0.0
    repeats: bool = False

    def rows(self, size: Size, rounds: int) -> list[Row]:
        """A row per mode, and one of the state path, in processor time, in sync mode: in async mode reads run in
        parallel to the calls that request them."""
        rows = []
        for mode in MODES:
            with Place(mode) as place:
                sides = {"by hand": self.floor(place, size), "ours": self.ours(place, size)}
                if self.repeats:
                    sides = dict(reversed(sides.items()))
                warm_up, turned = (2, False) if self.repeats else (1, True)
                spent = turns(sides, rounds, self.given(size), warm_up=warm_up, turned=turned)
            floors, mine, units = spent["by hand"], spent["ours"], self.units(size)
            if place.state_cpu and mode == "sync":
                path = [Spent(cpu, cpu) for cpu in place.state_cpu[-rounds:]]
                cpu = [Spent(each.cpu_seconds or 0.0, each.cpu_seconds) for each in floors]
                rows.append(self._row("state path", units, cpu, path, self.path_aim))
            rows.append(self._row(f"{mode}{self.label and ', '}{self.label}", units, floors, mine, self.aim))
        return rows

    def _row(self, name: str, units: int, floors: Sequence[Spent], ours: Sequence[Spent], aim: float) -> Row:
        """Microseconds a unit of both sides, and our time by that by hand."""
        found = ratio(ours, floors)
        assert found is not None
        facts: dict[str, Any] = {**figure(found), "aim": aim}
        for side, spent in (("floor", floors), ("ours", ours)):
            facts[f"{side}_us"], facts[f"{side}_cpu_us"] = medians(spent, units)
        row = Row(name=name, group=self.group, facts=facts)
        row.figures = {row.title: Figure(*found)}
        return row


class ByHand:
    """A RocksDB of the same options, for what a user would write by hand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = rocksdb_options(RocksDBOptions())
        self.db: Any = Rdict(str(folder / "by-hand"), self._options)
        self._files = 0

    def new_file(self) -> tuple[SstFileWriter, str]:
        """A sorted file to be written, and its path, which ``ingest`` takes."""
        self._files += 1
        path = str(self._folder / f"by-hand-{self._files}.sst")
        writer = SstFileWriter(self._options)
        writer.open(path)
        return writer, path

    def write(self, entries: Iterable[tuple[bytes, bytes]]) -> str:
        """A sorted file of these entries, in their order; its path, which ``ingest`` takes."""
        writer, path = self.new_file()
        for key, value in entries:
            writer[key] = value
        writer.finish()
        return path

    def ingest(self, path: str) -> None:
        self.db.ingest_external_file([path])

    def get_list(self, keys: list[bytes]) -> list[bytes | None]:
        """In pieces that stay in the processor's caches: by hand, too, one would find that out."""
        values: list[bytes | None] = []
        for first in range(0, len(keys), LIST_GET_KEYS):
            values += self.db.get(keys[first : first + LIST_GET_KEYS])
        return values

    def range(self, start: bytes, end: bytes | None, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        options = ReadOptions()
        if end is not None:  # RocksDB keeps a pointer: ``end`` has to outlive the iterator
            options.set_iterate_upper_bound(end)
        return list(islice(self.db.items(from_key=start, read_opt=options), limit))


def packed(*columns: Keys) -> list[bytes]:
    """Keys of a store: three bytes for group and state, and the numbers."""
    matrix = np.zeros(len(columns[0]), [("head", "V3"), *((str(at), ">i8") for at in range(len(columns)))])
    for at, column in enumerate(columns):
        matrix[str(at)] = column
    keys: list[bytes] = matrix.view(f"V{matrix.itemsize}").tolist()
    return keys


class Floor(ByHand):
    """Count and sum a key: 11-byte keys, 17-byte values. ``pack`` makes the store keys of ascending keys."""

    def __init__(self, folder: Path, pack: Callable[[Keys], list[bytes]] = packed) -> None:
        super().__init__(folder)
        self._pack = pack

    def fill(self, state: int) -> Self:
        keys = self._pack(np.arange(state, dtype=np.int64))
        self.ingest(self.write((key, bytes(17)) for key in keys))
        return self

    def bundle(self, keys: Keys) -> Spent:
        """Sorted list get, add with numpy, sorted SST file: the least a bundle can cost."""
        packed = self._pack(np.sort(keys))
        clocks = Clocks()
        values = self.get_list(packed)
        rows = np.frombuffer(b"".join([value or bytes(17) for value in values]), _ROW).copy()
        rows["count"] += 1
        rows["sum"] += 7
        path = self.write(zip(packed, rows.view("V17").tolist(), strict=True))
        spent = clocks.spent()
        self.ingest(path)
        return spent

    def records(self, keys: Keys) -> Spent:
        """A get and a put for each record, as a user would write it."""
        db, pack, unpack, records = self.db, struct.Struct(">q").pack, _COUNT.unpack, keys.tolist()
        clocks = Clocks()
        for key in records:
            encoded = pack(key)
            raw = db.get(encoded)
            total = 0 if raw is None else unpack(raw)[1]
            db[encoded] = _COUNT.pack(0, total + 1)
        return clocks.spent()
