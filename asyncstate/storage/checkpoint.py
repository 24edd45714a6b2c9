"""The driver's side of a checkpoint: which versions there are, committing one, fencing, retention, rollback.

Owns: Checkpoint. Invariants: a version exists when its manifest does, and not before; a manifest names all
files of its version; only the newest claimant commits. Must not import stores or leases.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConcurrentJobError
from asyncstate.storage.contract import EMPTY_VERSION
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.manifest import Manifest, batch_of, decode_manifest, encode_manifest, manifest_name

_OWNERS = "owners/epoch-"
_OWNERS_KEPT = 3


class Owner(msgspec.Struct, frozen=True):
    """Who claimed a checkpoint, for messages."""

    epoch: int
    job_id: str
    host: str
    process: int
    claimed_at: float


class Checkpoint:
    """Versions of one job's state in a CheckpointFiles.

    Reading needs no claim. ``claim`` makes this object the owner; ``commit``, ``rollback`` and ``retain`` are
    the owner's alone and raise ConcurrentJobError once somebody else has claimed.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files
        self.epoch = 0
        self._decoded: dict[int, Manifest] = {}

    def versions(self) -> list[int]:
        """Return the batch ids that have a manifest, ascending."""
        names = (
            name.removeprefix("manifests/").removesuffix(".json") for name in self.files.list("manifests/")
        )
        return sorted(int(name) for name in names if name.isdigit())

    def latest(self) -> Manifest | None:
        """Return the newest manifest, None before the first commit; a damaged one is an error."""
        versions = self.versions()
        return self.read(versions[-1]) if versions else None

    def read(self, batch_id: int) -> Manifest:
        """Return a version's manifest.

        Raises CheckpointCorruptionError naming the file and the newest older version whose files are all
        there.
        """
        name = manifest_name(batch_id)
        try:
            manifest = decode_manifest(self.files.get_bytes(name), name)
            if manifest.batch_id != batch_id:
                raise CheckpointCorruptionError(f"{name} holds batch {manifest.batch_id}")
        except CheckpointCorruptionError as error:
            raise CheckpointCorruptionError(f"{error}. {self.way_back(batch_id)}") from error
        return manifest

    def way_back(self, batch_id: int, damaged: str | None = None) -> str:
        """Say which older version can be used instead of ``batch_id``: one without the ``damaged`` file."""
        for version in reversed([v for v in self.versions() if v < batch_id]):
            if not self.problems(version, damaged):
                return f"The newest older version whose files are all present is {version}: roll back to it"
        return "No older version is usable: start with a new checkpoint folder"

    def problems(self, batch_id: int, damaged: str | None = None) -> list[str]:
        """List what is wrong with a version: its manifest, its files' sizes, use of a ``damaged`` one."""
        name = manifest_name(batch_id)
        try:
            manifest = decode_manifest(self.files.get_bytes(name), name)
        except CheckpointError as error:
            return [str(error)]
        found = []
        for file in manifest.files():
            size_bytes = self.files.size_bytes(file.name)
            if file.name == damaged:
                found.append(f"checkpoint file {file.name} is damaged")
            elif size_bytes != file.size_bytes:
                what = "is missing" if size_bytes is None else f"has {size_bytes} bytes"
                found.append(f"checkpoint file {file.name} {what}, expected {file.size_bytes} bytes")
        return found

    def claim(self, job_id: str = "") -> int:
        """Become the owner: every earlier claimant's next commit fails. Returns the epoch, from 1 on."""
        while True:
            epoch = self._newest_epoch() + 1
            owner = Owner(epoch, job_id, socket.gethostname(), os.getpid(), time.time())
            if self.files.create_exclusive(_owner_name(epoch), msgspec.json.encode(owner)):
                break
        self.epoch = epoch
        for name in self.files.list(_OWNERS)[:-_OWNERS_KEPT]:
            self.files.delete(name)
        return epoch

    def commit(self, manifest: Manifest) -> None:
        """Make the version visible, atomically. A version that is replayed from the same base is replaced.

        Raises ConcurrentJobError when another driver has claimed or committed, CheckpointError when the
        manifest does not follow from what is stored.
        """
        self._check_owner()
        manifest = msgspec.structs.replace(manifest, epoch=self.epoch)
        versions = self.versions()
        self._check_order(manifest, versions)
        name, data = manifest_name(manifest.batch_id), encode_manifest(manifest)
        if manifest.batch_id in versions:
            self._check_replay(manifest.batch_id)
            self.files.put_bytes(name, data)
        elif not self.files.create_exclusive(name, data):
            raise ConcurrentJobError(
                self._fenced(f"batch {manifest.batch_id} was committed by another driver")
            )
        # A claim between the first look and the write: the new owner sees this version or replays it, both
        # are right, but this driver must not go on to tell a sink that it is the one.
        self._check_owner()
        self._decoded[manifest.batch_id] = manifest

    def _check_order(self, manifest: Manifest, versions: list[int]) -> None:
        batch_id, base = manifest.batch_id, manifest.base
        if base >= batch_id:
            raise CheckpointError(f"batch {batch_id} cannot be based on version {base}, which is not older")
        if base != EMPTY_VERSION and base not in versions:
            raise CheckpointError(
                f"batch {batch_id} is based on version {base}, which the checkpoint does not hold; "
                f"versions are {versions}: raise the number of versions to keep, or roll back"
            )
        between = [version for version in versions if version > base and version != batch_id]
        if between:
            raise CheckpointError(
                f"batch {batch_id} is based on version {base}, but the checkpoint already holds {between}; "
                f"roll it back to version {base}, or start the query with the query checkpoint that belongs "
                f"to this state"
            )

    def _check_replay(self, batch_id: int) -> None:
        try:
            stored = self.read(batch_id)
        except CheckpointCorruptionError:
            return  # replacing a damaged manifest by its replay is a repair
        if stored.epoch > self.epoch:
            raise ConcurrentJobError(self._fenced(f"batch {batch_id} was committed by epoch {stored.epoch}"))

    def rollback(self, batch_id: int) -> list[int]:
        """Forget all versions after ``batch_id`` (-1: all); return them. Their files go with ``retain``."""
        self._check_owner()
        versions = self.versions()
        if batch_id != EMPTY_VERSION and batch_id not in versions:
            raise CheckpointError(f"cannot roll back to version {batch_id}: the checkpoint holds {versions}")
        dropped = [version for version in reversed(versions) if version > batch_id]
        for version in dropped:  # newest first: a crash in between leaves a shorter rollback, never a gap
            self.files.delete(manifest_name(version))
            self._decoded.pop(version, None)
        return dropped

    def retain(self, keep_versions: int) -> int:
        """Delete manifests beyond the newest ``keep_versions`` and files that none needs; return how many.

        Only files of batches before the newest are deleted: those of running attempts belong to it or come
        after. Call it between batches.
        """
        if keep_versions < 1:
            raise CheckpointError(f"keep_versions must be at least 1, not {keep_versions}")
        self._check_owner()
        versions = self.versions()
        if not versions:
            return 0
        kept = versions[-keep_versions:]
        # Read before deleting anything: with an unreadable manifest nobody knows which files are needed.
        needed = {file.name for version in kept for file in self._decode(version).files()}
        expired = [manifest_name(version) for version in versions if version not in kept]
        orphans = [
            name for name in self.files.list("state/") if name not in needed and _older(name, kept[-1])
        ]
        for name in [*expired, *orphans]:
            self.files.delete(name)
        self._decoded = {version: self._decoded[version] for version in kept}
        return len(expired) + len(orphans)

    def _decode(self, version: int) -> Manifest:
        if version not in self._decoded:
            self._decoded[version] = self.read(version)
        return self._decoded[version]

    def _newest_epoch(self) -> int:
        names = self.files.list(_OWNERS)
        return int(names[-1].removeprefix(_OWNERS).removesuffix(".json")) if names else 0

    def _check_owner(self) -> None:
        newest = self._newest_epoch()
        if not self.epoch:
            raise CheckpointError("this checkpoint was not claimed; call claim() before writing to it")
        if newest != self.epoch:
            raise ConcurrentJobError(self._fenced(self._describe_owner(newest)))

    def _describe_owner(self, epoch: int) -> str:
        try:
            owner = msgspec.json.decode(self.files.get_bytes(_owner_name(epoch)), type=Owner)
        except (CheckpointError, msgspec.MsgspecError):
            return f"epoch {epoch} has claimed it"
        return (
            f"job {owner.job_id!r} on {owner.host}, process {owner.process}, has claimed it (epoch {epoch})"
        )

    def _fenced(self, reason: str) -> str:
        return (
            f"this driver (epoch {self.epoch}) no longer owns the checkpoint: {reason}. Stop this query; to "
            f"run it here instead, stop the other one first and start again"
        )


def _owner_name(epoch: int) -> str:
    return f"{_OWNERS}{epoch:010d}.json"


def _older(name: str, batch_id: int) -> bool:
    written_in = batch_of(name)
    return written_in is not None and written_in < batch_id
