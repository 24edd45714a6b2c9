"""The blocks that a scan will read, loaded beforehand by list gets: the one read of rocksdict beside which others run.

Owns: RangeBlocks. Invariant: it shows the files of a store as they were when it was opened, so whoever changes the
content closes it first; a compaction changes files but no content, and the old ones stay open here.
Must not import checkpoint, lease or anything above.

An iterator of rocksdict holds the interpreter lock while it waits for a device. A list get does not, but where the keys
of a range are not known the filters of the table files let it read nothing. So the files are opened a second time, read
only, without their filters, over the same block cache: a get of any key then reads, in each sorted run, the block in
which the key would be, and that is where an iterator begins that seeks the key.
"""

from __future__ import annotations

from typing import Any, Final, cast

from rocksdict import AccessType, Options, Rdict

_OPENING_ATTEMPTS: Final = 3


class RangeBlocks:
    """Which blocks of a store are in memory, by position: a key that is not stored. Several threads may ``warm``.

    ``options`` are those of the store without filters. Raises what rocksdict raises; an ``Exception`` if the files
    cannot be opened, which a compaction can be the cause of that ended meanwhile several times.
    """

    def __init__(self, path: str, options: Options) -> None:
        self.db = _opened(path, options)

    def cold(self, positions: list[bytes]) -> list[bytes]:
        """Those of ``positions`` for which a block would have to be read from a device now."""
        # Without a filter only blocks can tell that the key does not exist; none is read for the answer.
        return list(filter(self.db.key_may_exist, positions))

    def warm(self, positions: list[bytes]) -> None:
        """Have the blocks at ``positions`` (sorted) in memory; lets go of the interpreter lock while it reads."""
        cast(Any, self.db.get)(positions)

    @property
    def reader_bytes(self) -> int:
        """What the files' indexes take in memory."""
        return self.db.property_int_value("rocksdb.estimate-table-readers-mem") or 0

    def close(self) -> None:
        """Close the files."""
        self.db.close()


def _opened(path: str, options: Options) -> Rdict:
    # A compaction may delete a file between the reading of the list of files and the opening of all of them.
    for _ in range(_OPENING_ATTEMPTS - 1):
        try:
            return _open(path, options)
        except Exception:  # rocksdict raises nothing narrower
            continue
    return _open(path, options)


def _open(path: str, options: Options) -> Rdict:
    return Rdict(
        path,
        options,
        column_families={"default": options},
        access_type=AccessType.read_only(False),
    )
