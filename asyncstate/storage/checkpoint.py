"""The driver's side of a checkpoint: its versions, commit, fencing, retention, rollback.

Owns: Checkpoint. Invariants: a version exists when its manifest does, and not before; a manifest names all files of its
version and is never overwritten; only the newest epoch's commits, and the versions that it took over at its start, are
versions. Later writes of a fenced driver are therefore never seen. Must not import stores or leases.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConcurrentJobError
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.keyed_store import EMPTY_VERSION
from asyncstate.storage.manifest import (
    MANIFESTS,
    STATE,
    EpochStart,
    Manifest,
    Owner,
    batch_of,
    decode_manifest,
    encode_manifest,
    manifest_key,
    manifest_name,
)
from asyncstate.storage.ownership import Epochs, Listed, wait_at_random

_LOOKS_MAX: Final = 3
# Remembered drivers with writes into a target; the oldest go first. A sink that had no rows keeps its mark for long.
_EARLIER_MAX: Final = 10_000
_ANY_VERSION: Final = 2**63 - 1
LISTED_EVERY: Final = 50
"""All files are listed once in so many calls of ``retain``."""


class Checkpoint:
    """Versions of one job's state in a CheckpointFiles.

    Reading needs no claim. ``claim`` makes this object the owner; only the owner may call ``commit``, ``rollback`` and
    ``retain``, which raise ConcurrentJobError once another driver has claimed. ``wait`` is called by a claimant that
    has met a rival.
    """

    def __init__(self, files: CheckpointFiles, wait: Callable[[int], None] = wait_at_random) -> None:
        self.files = files
        self.epoch = 0
        self._epochs = Epochs(files, wait)
        self._job_id = ""
        self._commits = 0
        self._decoded: dict[str, Manifest] = {}
        self._retained = 0
        self._start: EpochStart | None = None

    def versions(self) -> list[int]:
        """Return the batch ids that have a manifest, ascending."""
        return sorted(self._view())

    def latest(self) -> Manifest | None:
        """Return the newest manifest, None before the first commit; a damaged one is an error."""
        view = self._view()
        return self._read(max(view), view) if view else None

    def read(self, batch_id: int) -> Manifest:
        """Return a version's manifest.

        Raises CheckpointCorruptionError naming the file and the newest older version whose files all exist.
        """
        return self._read(batch_id, self._view())

    def _read(self, batch_id: int, view: dict[int, str]) -> Manifest:
        if batch_id not in view:
            raise CheckpointCorruptionError(
                f"the checkpoint holds no version {batch_id}; versions are {sorted(view)}: read one of these"
            )
        try:
            return self._fetch(view[batch_id])
        except CheckpointCorruptionError as error:
            now = self._view().get(batch_id)
            if now not in (None, view[batch_id]):  # the running job has replaced it, and deleted this one
                return self._fetch(now)
            raise CheckpointCorruptionError(f"{error}. {self.recovery_hint(batch_id)}") from error

    def _fetch(self, name: str) -> Manifest:
        manifest = decode_manifest(self.files.get_bytes(name), name)
        key = manifest_key(name)
        if key is None or (manifest.batch_id, manifest.epoch) != key[:2]:
            raise CheckpointCorruptionError(
                f"{name} holds batch {manifest.batch_id} of epoch {manifest.epoch}"
            )
        return manifest

    def recovery_hint(self, batch_id: int, damaged: str | None = None) -> str:
        """Name an older version to use instead of ``batch_id``: one without the ``damaged`` file."""
        versions = self.versions()
        if batch_id not in versions:  # the running job has deleted it, which is no damage
            return (
                f"Version {batch_id} was dropped with its files; versions are {versions}: read one of these"
            )
        if damaged is not None and not self._names(batch_id, damaged):
            return f"Version {batch_id} was written again meanwhile, without this file: read it again"
        for version in reversed([v for v in versions if v < batch_id]):
            if not self.problems(version, damaged):
                return f"The newest older version whose files are all present is {version}: roll back to it"
        return "No older version is usable: start with a new checkpoint folder"

    def _names(self, batch_id: int, file: str) -> bool:
        """Whether the version needs the file; also if that is not known."""
        try:
            return any(one.name == file for one in self._fetch(self._view()[batch_id]).files())
        except (CheckpointError, KeyError):
            return True

    def problems(self, batch_id: int, damaged: str | None = None) -> list[str]:
        """List what is wrong with a version: its manifest, its files' sizes, use of a ``damaged`` one."""
        name = self._view().get(batch_id)
        if name is None:
            return [f"the checkpoint holds no version {batch_id}"]
        try:
            manifest = self._fetch(name)
        except CheckpointError as error:
            return [str(error)]
        files = manifest.files()
        sizes = {name: self.files.size_bytes(name) for name in {file.name for file in files}}
        found = []
        for file in files:
            size_bytes, expected = sizes[file.name], (file.offset or 0) + file.size_bytes
            if file.name == damaged:
                found.append(f"checkpoint file {file.name} is damaged")
            elif (
                size_bytes is None or size_bytes < expected or (size_bytes > expected and file.offset is None)
            ):
                what = "is missing" if size_bytes is None else f"has {size_bytes} bytes"
                at_least = "" if file.offset is None else "at least "
                found.append(f"checkpoint file {file.name} {what}, expected {at_least}{expected} bytes")
        return found

    def claim(self, job_id: str = "") -> int:
        """Become the owner: every earlier claimant's next commit fails. Returns the epoch, from 1 on.

        Raises ConcurrentJobError when others keep claiming at the same time, or another driver has taken over before
        this one has begun.
        """
        self._begin(self._epochs.claim(job_id), None)
        return self.epoch

    def _begin(self, owner: Owner, view: dict[int, str] | None) -> None:
        # Listed after the claim: no later commit of an earlier owner succeeds, so none can be overlooked.
        taken_over = self._view() if view is None else view
        names = [taken_over[version] for version in sorted(taken_over)]
        before = self._epochs.started(self._epochs.look())
        self._start = EpochStart(
            owner.epoch,
            owner,
            names,
            checkpoint_id=(before and before.checkpoint_id) or uuid.uuid4().hex,
            driver=uuid.uuid4().hex,
            earlier=_earlier(before, max(taken_over, default=EMPTY_VERSION), is_rollback=view is not None),
        )
        self._epochs.begin(self._start)
        self.epoch, self._job_id, self._commits = owner.epoch, owner.job_id, 0
        self._retained = 0
        # A driver that has claimed before it could read this start has another id of the checkpoint, and none of its
        # targets knows this driver: it must not write to them.
        self._checked_owner()

    @property
    def start(self) -> EpochStart:
        """The start of this object's epoch. Raises CheckpointError before ``claim``."""
        if self._start is None:
            raise CheckpointError("this checkpoint was not claimed; call claim() before asking who owns it")
        return self._start

    def check_owner(self) -> None:
        """Raise ConcurrentJobError if another driver has claimed, and CheckpointError before ``claim``."""
        self._checked_owner()

    def commit(self, manifest: Manifest) -> None:
        """Make the version visible, atomically. A version that is replayed from the same base is replaced.

        Raises ConcurrentJobError when another driver has claimed, CheckpointError when the manifest does not follow
        from what is stored.
        """
        listed = self._checked_owner()
        manifest = msgspec.structs.replace(manifest, epoch=self.epoch)
        self._check_order(manifest, sorted(self._view(listed)))
        name = manifest_name(manifest.batch_id, self.epoch, self._commits)
        self._commits += 1  # also for a failed write: it may still arrive, and must not replace a later one
        self.files.put_bytes(name, encode_manifest(manifest))
        # A claim between the first check and the write: the new owner has taken this version over or replays it, both
        # are right, but this driver must not report to a sink that it is the owner.
        self._checked_owner()
        self._decoded[name] = manifest

    def _check_order(self, manifest: Manifest, versions: list[int]) -> None:
        batch_id, base = manifest.batch_id, manifest.base
        if base >= batch_id:
            raise CheckpointError(f"batch {batch_id} cannot be based on version {base}, which is not older")
        # A driver that replaces a version has the version's base, or has changed its content: after a rollback to the
        # oldest kept version, its base is gone.
        if base != EMPTY_VERSION and base not in versions and batch_id not in versions:
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

    def rollback(self, batch_id: int) -> list[int]:
        """Forget all versions after ``batch_id`` (-1: all), atomically; return them. ``retain`` deletes their files.

        The owner begins a new epoch, which takes over the others only.
        """
        view = self._view(self._checked_owner())
        if batch_id != EMPTY_VERSION and batch_id not in view:
            raise CheckpointError(
                f"cannot roll back to version {batch_id}: the checkpoint holds {sorted(view)}"
            )
        owner = self._epochs.try_claim(self.epoch + 1, self._job_id)
        if owner is None:
            raise ConcurrentJobError(self._fenced(self._epochs.describe(self._epochs.look())))
        self._begin(owner, {version: name for version, name in view.items() if version <= batch_id})
        return sorted((version for version in view if version > batch_id), reverse=True)

    def retain(self, keep_versions: int) -> int:
        """Delete manifests beyond the newest ``keep_versions`` and files that none needs; return how many.

        Only files of batches before the newest are deleted: those of running attempts belong to it or come after. Call
        it between batches. Files that no manifest has named, of failed attempts, are searched at the first call and in
        every ``LISTED_EVERY``-th one, since that lists all files.
        """
        if keep_versions < 1:
            raise CheckpointError(f"keep_versions must be at least 1, not {keep_versions}")
        # Listed before the check of the owner: files that a later owner writes cannot be among those deleted.
        manifests = self.files.list(MANIFESTS)
        state = self._listed_state(manifests)
        view = _visible(manifests, self._epochs.started(self._checked_owner()))
        if not view:
            return 0
        kept = sorted(view)[-keep_versions:]
        # Read before deleting anything: with an unreadable manifest it is unknown which files are needed.
        decoded = {view[version]: self._decode(version, view) for version in kept}
        needed = {file.name for manifest in decoded.values() for file in manifest.files()}
        expired = [name for name in manifests if name not in decoded and manifest_key(name)]
        if state is None:  # a deleted manifest named every file that may be deleted
            state = sorted({file.name for name in expired for file in self._decoded[name].files()})
        orphans = [name for name in state if name not in needed and _older(name, kept[-1])]
        self.files.delete_files([*expired, *orphans])
        self._decoded = decoded
        return len(expired) + len(orphans)

    def _listed_state(self, manifests: Iterable[str]) -> list[str] | None:
        """All state files; None if manifests that this object knows name all that may be deleted."""
        is_due = self._retained % LISTED_EVERY == 0
        self._retained += 1
        known = all(name in self._decoded for name in manifests if manifest_key(name))
        return None if known and not is_due else self.files.list(STATE)

    def _decode(self, version: int, view: dict[int, str]) -> Manifest:
        return self._decoded.get(view[version]) or self._read(version, view)

    def _view(self, listed: Listed | None = None) -> dict[int, str]:
        """The manifest's name for each version. ``listed`` is what the owner has just seen."""
        if listed is not None:
            return _visible(self.files.list(MANIFESTS), self._epochs.started(listed))
        # Between the two listings new owners may begin, whose versions do not count for the epoch that a reader has
        # seen first, and epochs long past are removed: list again.
        for _ in range(_LOOKS_MAX - 1):
            with suppress(CheckpointCorruptionError):
                view, stray = self._look()
                if not stray:
                    return view
        view, stray = self._look()
        if stray and not self._epochs.look().starts:
            raise CheckpointCorruptionError(
                f"{self.files.shown} has {stray}, but no owners/*.start.json, which records the valid versions; copy "
                "the whole checkpoint, or start with a new checkpoint folder"
            )
        return view

    def _look(self) -> tuple[dict[int, str], str]:
        """The manifest's name for each version; if there is none, a manifest that does not count."""
        start = self._epochs.started(self._epochs.look())
        names = self.files.list(MANIFESTS)
        view = _visible(names, start)
        return view, "" if view else next(filter(manifest_key, names), "")

    def _checked_owner(self) -> Listed:
        if not self.epoch:
            raise CheckpointError("this checkpoint was not claimed; call claim() before writing to it")
        listed = self._epochs.look()
        if listed.newest < self.epoch:
            raise CheckpointCorruptionError(
                f"the checkpoint {self.files.shown} no longer has the claim of this driver (epoch {self.epoch}): "
                "somebody deletes files of it, such as a lifecycle rule. Nothing was committed; restore the checkpoint "
                "from a copy, or start query and job from new checkpoints"
            )
        if listed.newest != self.epoch:
            raise ConcurrentJobError(self._fenced(self._epochs.describe(listed)))
        return listed

    def _fenced(self, reason: str) -> str:
        return (
            f"this driver (epoch {self.epoch}) no longer owns the checkpoint: {reason}. Stop this query; to run it "
            "here, stop the other one first and restart this one"
        )


def _earlier(before: EpochStart | None, newest: int, is_rollback: bool) -> dict[str, int]:
    """What a target may have from the previous drivers: of the last one also the micro-batch after ``newest``, which it
    may have written without a commit; after a rollback nothing beyond ``newest``."""
    if before is None:
        return {}
    last = newest + 1 if newest != EMPTY_VERSION else _ANY_VERSION
    found = {**before.earlier, before.driver: last}
    if is_rollback:
        found = {driver: min(version, newest) for driver, version in found.items()}
    return dict(list(found.items())[-_EARLIER_MAX:])


def _visible(names: Iterable[str], start: EpochStart | None) -> dict[int, str]:
    """The manifests that are versions: taken over by the epoch or committed in it, the last commit first."""
    taken_over = frozenset(start.versions if start else ())
    found: dict[int, tuple[int, int, str]] = {}
    for name in names:
        key = manifest_key(name)
        if key and (name in taken_over or (start and key.epoch == start.epoch)):
            entry = (key.epoch, key.commit, name)
            found[key.batch_id] = max(found.get(key.batch_id, entry), entry)
    return {batch_id: name for batch_id, (_, _, name) in found.items()}


def _older(name: str, batch_id: int) -> bool:
    written_in = batch_of(name)
    return written_in is not None and written_in < batch_id
