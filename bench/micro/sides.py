"""The two sides of a case: a job of an operator, and the same work by hand.

Owns: ``Place``, ``compared`` and ``Floor``.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rocksdict import Rdict, SstFileWriter

from asyncstate.config import Config, resolve
from asyncstate.operator import InputSpec, Operator
from asyncstate.storage import LIST_GET_KEYS, RocksDBOptions
from asyncstate.storage.rocksdb_options import rocksdb_options
from bench.frame import Column, Figure, Row, medians, ratio, turns
from bench.frame.measure import Side
from bench.frame.report import figure
from bench.job import Job
from bench.processor_time import Clocks, Spent
from bench.rows import INPUT, batches

MODES = ("sync", "async")
COLUMNS = (
    Column("by hand", "floor_us"),
    Column("CPU", "floor_cpu_us"),
    Column("ours us", "ours_us"),
    Column("CPU us", "ours_cpu_us"),
    Column("ratio", "ratio"),
    Column("spread", "low high"),
    Column("aim", "aim", lambda aim: f"{aim:.1f}"),
)
_ARROW_ROWS = 100_000
_COUNT = struct.Struct("<Bq")
_ROW = np.dtype([("head", "u1"), ("count", "<i8"), ("sum", "<i8")])

Keys = np.ndarray[Any, Any]
Made = Callable[["Place"], Side]
"""Makes a side, with its state, in a place of its own mode."""


def config_of(mode: str) -> Config:
    """No snapshots: they are no part of what is measured."""
    return resolve({"async-state.enabled": mode == "async", "async-state.snapshot-interval": 1000}, {})


class Place(ExitStack):
    """Where both sides of one mode are; what they open is closed at its end."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.config = config_of(mode)
        self.state_cpu: list[float] = []
        """Processor seconds in the state path of each of our runs, where a case measures them."""
        self.jobs: list[Job] = []
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="asyncstate-micro-")))

    def job(self, operator: Operator, specs: InputSpec | Sequence[InputSpec] = INPUT, **settings: Any) -> Job:
        """A job whose store is closed at the end: what is kept of it would take the next one's room."""
        self.jobs.append(Job(self.folder / f"job-{len(self.jobs)}", operator, self.config, specs, **settings))
        self.callback(self.jobs[-1].close)
        return self.jobs[-1]

    def filled(
        self,
        operator: Operator,
        state: int = 0,
        rows: Callable[[Keys], list[Any]] = lambda keys: batches(keys, _ARROW_ROWS),
        specs: InputSpec | Sequence[InputSpec] = INPUT,
    ) -> Side:
        """A job's side, with a row for each of ``state`` keys in its state."""
        job = self.job(operator, specs)
        if state:
            job.run(rows(np.arange(state, dtype=np.int64)))
        return lambda keys: job.timed(rows(keys))


def compared(
    group: str,
    aim: float,
    given: Callable[[], Iterator[Any]],
    units: int,
    rounds: int,
    floor: Made,
    ours: Made,
    *,
    path_aim: float = 0.0,
    **how: Any,
) -> list[Row]:
    """One row per mode, and one of the state path, in processor time, in sync mode: in async mode reads run in parallel
    to the calls that request them."""
    rows = []
    for mode in MODES:
        with Place(mode) as place:
            sides = {"by hand": floor(place), "ours": ours(place)}
            if not how.get("turned", True):  # the floor repeats what ours has done
                sides = dict(reversed(sides.items()))
            spent = turns(sides, rounds, given(), **how)
        floors, mine = spent["by hand"], spent["ours"]
        if place.state_cpu and mode == "sync":
            path = [Spent(cpu, cpu) for cpu in place.state_cpu[-rounds:]]
            rows.append(pair_row(group, "state path", units, cpu_alone(floors), path, path_aim))
        rows.append(pair_row(group, mode, units, floors, mine, aim))
    return rows


def cpu_alone(spent: Sequence[Spent]) -> list[Spent]:
    """Processor time as both."""
    return [Spent(each.cpu_seconds or 0.0, each.cpu_seconds) for each in spent]


def pair_row(
    group: str, name: str, units: int, floors: Sequence[Spent], ours: Sequence[Spent], aim: float
) -> Row:
    """Microseconds a unit of both sides, and our time by that by hand."""
    found = ratio(ours, floors)
    (floor_us, floor_cpu_us), (ours_us, ours_cpu_us) = (medians(each, units) for each in (floors, ours))
    assert found is not None
    facts = {
        "floor_us": floor_us,
        "floor_cpu_us": floor_cpu_us,
        "ours_us": ours_us,
        "ours_cpu_us": ours_cpu_us,
        **figure(found),
        "aim": aim,
    }
    row = Row(name=name, group=group, facts=facts)
    row.figures = {row.title: Figure(*found)}
    return row


def list_get(db: Any, keys: list[bytes]) -> list[bytes | None]:
    """In pieces that stay in the processor's caches: by hand, too, one would find that out."""
    values: list[bytes | None] = []
    for first in range(0, len(keys), LIST_GET_KEYS):
        values += db.get(keys[first : first + LIST_GET_KEYS])
    return values


class Floor:
    """The same work by hand: a RocksDB of the same options, 11-byte keys, 17-byte values. ``pack`` makes the store keys
    of ascending keys."""

    def __init__(self, folder: Path, pack: Callable[[Keys], list[bytes]] | None = None) -> None:
        self._pack = _packed if pack is None else pack
        self._folder = folder
        self._options = rocksdb_options(RocksDBOptions())
        self._db = Rdict(str(folder / "floor"), self._options)
        self._round = 0

    def fill(self, state: int) -> Floor:
        """Store a row for each of so many keys."""
        keys = self._pack(np.arange(state, dtype=np.int64))
        self._ingest(self._write(keys, [bytes(17)] * len(keys)))
        return self

    def bundle(self, keys: Keys) -> Spent:
        """Sorted list get, add with numpy, sorted SST file: the least a bundle can cost."""
        packed = self._pack(np.sort(keys))
        clocks = Clocks()
        values = list_get(self._db, packed)
        rows = np.frombuffer(b"".join([value or bytes(17) for value in values]), _ROW).copy()
        rows["count"] += 1
        rows["sum"] += 7
        path = self._write(packed, rows.view("V17").tolist())
        spent = clocks.spent()
        self._ingest(path)
        return spent

    def records(self, keys: Keys) -> Spent:
        """A get and a put for each record, as a user would write it."""
        db, pack, unpack, records = self._db, struct.Struct(">q").pack, _COUNT.unpack, keys.tolist()
        clocks = Clocks()
        for key in records:
            encoded = pack(key)
            raw = db.get(encoded)
            total = 0 if raw is None else unpack(raw)[1]
            db[encoded] = _COUNT.pack(0, total + 1)
        return clocks.spent()

    def _ingest(self, path: str) -> None:
        self._db.ingest_external_file([path])

    def _write(self, keys: list[bytes], values: list[bytes]) -> str:
        self._round += 1
        path = str(self._folder / f"floor-{self._round}.sst")
        writer = SstFileWriter(self._options)
        writer.open(path)
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
        writer.finish()
        return path


def _packed(keys: Keys) -> list[bytes]:
    matrix = np.zeros(len(keys), np.dtype([("group", ">u2"), ("state", "u1"), ("key", ">i8")]))
    matrix["key"] = keys
    packed: list[bytes] = matrix.view("V11").tolist()
    return packed
