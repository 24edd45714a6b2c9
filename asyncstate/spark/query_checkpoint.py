"""Spark's own checkpoint of a streaming query: rewinding it to a batch.

Owns: ``QueryCheckpoint`` and ``Rewind``: which of Spark's files to delete so that it runs a batch again.
Invariant: the files to delete are determined, and found to be sufficient, before anything is deleted. An interrupted
rewind can be repeated, and a query that is started before that is refused by its job.
Must not import pyspark: the command line uses this module.

Source: Spark's ``HDFSMetadataLog``, ``OffsetSeqLog`` and ``FileStreamSource``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from asyncstate.errors import CheckpointError
from asyncstate.storage import CheckpointFiles, existing_files

COMMITS: Final = "commits"
OFFSETS: Final = "offsets"
SOURCES: Final = "sources"
_NUMBERED: Final = re.compile(r"(.+)/\.?(\d+)(\.compact)?(\.crc)?")
_NAMED_OFFSET: Final = re.compile(r"(\w+):(.*)", re.DOTALL)


class _File(NamedTuple):
    """A file of one of Spark's logs: files of the same folder and number belong together."""

    folder: str
    number: int
    is_compact: bool
    is_checksum: bool
    name: str


class Rewind(NamedTuple):
    """What a query's checkpoint loses: ``files`` in the order of deletion; ``numbers`` by folder, for display;
    ``batch`` will be the next that Spark runs."""

    batch: int
    files: list[str]
    numbers: dict[str, list[int]]


class QueryCheckpoint:
    """The folder or URI that a query was given as ``checkpointLocation``.

    Raises CheckpointError if it is not there, or is no checkpoint of a query.
    """

    def __init__(self, place: str) -> None:
        hint = (
            "give the query's own checkpoint, its checkpointLocation: job.start() puts it next to the job's "
            "checkpoint, with '-query' appended to the name"
        )
        self._files: CheckpointFiles = existing_files(place, "folder", hint)
        self._logs = [
            found
            for folder in (COMMITS, OFFSETS, SOURCES)
            for name in self._files.list(f"{folder}/")
            if (found := _file(name)) is not None
        ]
        if not self._numbers(OFFSETS):
            raise CheckpointError(
                f"{self._files.shown} has no folder '{OFFSETS}' with files in it, so it is not a query's "
                "checkpoint; give the query's checkpointLocation, not the job's checkpoint"
            )

    def rewind_to(self, version: int) -> Rewind:
        """The files to delete so that batch ``version + 1`` is the next one, with the rows that it had.

        Raises CheckpointError if Spark no longer has what it needs for that.
        """
        self._check(version)
        kept = {COMMITS: version, OFFSETS: version + 1, **self._kept_of_sources(version)}
        going = [file for file in self._logs if file.folder in kept and file.number > kept[file.folder]]
        # Commits first, the newest first: as long as one is left, Spark continues after it, and the job refuses that.
        # The offsets last: they say what to delete from the sources. A checksum before its file: a missing one is not
        # compared.
        order = {COMMITS: 0, OFFSETS: 2}
        going.sort(key=lambda file: (order.get(file.folder, 1), -file.number, not file.is_checksum))
        numbers: dict[str, set[int]] = {}
        for file in going:
            numbers.setdefault(file.folder, set()).add(file.number)
        shown = {folder: sorted(found) for folder, found in numbers.items()}
        return Rewind(version + 1, [file.name for file in going], shown)

    def apply(self, rewind: Rewind) -> None:
        """Delete the files, one after the other."""
        for name in rewind.files:
            self._files.delete(name)

    def _check(self, version: int) -> None:
        commits, offsets = self._numbers(COMMITS), self._numbers(OFFSETS)
        newest = max(commits, default=-1)
        where = f"the query's checkpoint {self._files.shown}"
        if newest < version - 1:
            raise CheckpointError(
                f"{where} is at batch {newest}, before version {version} of the state; give the one that belongs to "
                "this job"
            )
        if newest >= version and version not in commits & offsets:
            raise CheckpointError(
                f"{where} no longer has batch {version}: it keeps {min(offsets)} to {max(offsets)} "
                "(spark.sql.streaming.minBatchesToRetain). Roll back to one of these, or restart query and job from "
                "new checkpoints"
            )
        if max(newest, *offsets) > version and version + 1 not in offsets:
            raise CheckpointError(
                f"{where} no longer has {OFFSETS}/{version + 1}, which lists the rows of batch {version + 1}; restore "
                "it from a copy, or roll back to another version"
            )

    def _kept_of_sources(self, version: int) -> dict[str, int]:
        """The newest file list entry that batch ``version + 1`` has, for each source that keeps such a list.

        Such a list is numbered separately: a batch without new files adds nothing to it.
        """
        batch = max(number for number in self._numbers(OFFSETS) if number <= version + 1)
        kept = {}
        for name, entry in self._entries_of(batch).items():
            if entry is not None:
                kept[f"{SOURCES}/{name}"] = entry
                self._check_list(f"{SOURCES}/{name}", entry, version)
        return kept

    def _entries_of(self, batch: int) -> dict[str, int | None]:
        """The newest list entry that the offsets of ``batch`` name for each source; None for a source without a
        list."""
        name = f"{OFFSETS}/{batch}"
        try:
            offsets = _offsets(self._files.get_bytes(name))
            return {source: _entry(offset) for source, offset in offsets.items()}
        except ValueError as error:
            raise CheckpointError(
                f"the query's checkpoint {self._files.shown}: {name} cannot be read: {error}. Restore it from a copy, "
                "or roll back to another version"
            ) from error

    def _check_list(self, folder: str, entry: int, version: int) -> None:
        have = {file.number: file.is_compact for file in self._logs if file.folder == folder}
        start = max((number for number, compact in have.items() if compact and number <= entry), default=0)
        lost = [number for number in range(start, entry + 1) if number not in have]
        if lost:
            raise CheckpointError(
                f"the query's checkpoint {self._files.shown} no longer has {folder}/{lost[0]}, which lists the files "
                f"of batch {version + 1} and earlier ones; roll back to a newer version, or start both from new "
                "checkpoints"
            )

    def _numbers(self, folder: str) -> set[int]:
        return {file.number for file in self._logs if file.folder == folder and not file.is_checksum}


def _file(name: str) -> _File | None:
    found = _NUMBERED.fullmatch(name)
    if found is None:
        return None
    return _File(found[1], int(found[2]), found[3] is not None, found[4] is not None, name)


def _offsets(data: bytes) -> dict[str, str]:
    """The content of a file of offsets for each source: by number, or by name where sources have names. Raises
    ValueError."""
    version, *rest = data.decode().splitlines() or [""]
    if not rest:
        raise ValueError("it is cut off")
    version, offsets = version.strip(), rest[1:]  # the second line concerns the whole batch
    if version == "v1":
        return {str(number): line for number, line in enumerate(offsets)}
    if version != "v2":
        raise ValueError(f"it has version {version}, which this release does not know")
    named = [_NAMED_OFFSET.fullmatch(line) for line in offsets]
    return {found[1]: found[2] for found in named if found is not None}


def _entry(offset: str) -> int | None:
    """The number of the newest list entry, for a source of files; None for any other source, or without an offset."""
    try:
        decoded = msgspec.json.decode(offset)
    except msgspec.DecodeError:
        if offset.startswith("{"):
            raise
        return None  # a source may use another format
    if not isinstance(decoded, dict) or set(decoded) != {"logOffset"}:
        return None
    return msgspec.convert(decoded["logOffset"], int)
