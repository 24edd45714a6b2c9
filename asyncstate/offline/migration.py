"""Rewriting one state of a checkpoint offline, for a change after which stored values could not be read.

Owns: ``migrate`` and ``DropState``, ``RenameState``.
Invariant: nothing is visible before the new manifest is; it replaces the newest version, so that the job continues with
the same micro-batch. A job that still runs cannot commit any more.
Must not import Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec

from asyncstate.codec import BROADCAST_GROUP, GROUP_BYTES, KeyCodec, prefix_end, schema_from_text
from asyncstate.config import Config
from asyncstate.errors import StateDeclarationError
from asyncstate.offline.field_migrations import CastField, DropField, FieldEdit, RenameField
from asyncstate.offline.inspection import Inspection, operator_of, scratch_folder, with_long_lists
from asyncstate.offline.rewriting import StateRewriter
from asyncstate.runtime.partition.restore_plans import rocksdb_options
from asyncstate.state.descriptors import check_state_name
from asyncstate.storage import (
    Change,
    Checkpoint,
    Fetcher,
    Manifest,
    OperatorManifest,
    PartitionManifest,
    RocksDBStore,
    StateSpec,
    build_store,
    group_range,
    partition_restore_plan,
)
from asyncstate.storage.manifest import snapshot_folder
from asyncstate.storage.snapshot import create_snapshot

__all__ = [
    "CastField",
    "DropField",
    "DropState",
    "Migrated",
    "Migration",
    "RenameField",
    "RenameState",
    "migrate",
]

_APPLIED_AT_ONCE: Final = 50_000
_ORDERED: Final = "ordered"


@dataclass(frozen=True)
class DropState:
    """Forget the state and all its entries; declared again it starts empty, and may then have any kind and types. Lists
    whose long ones are in another state go with it, and it with them: neither is right without the other."""


@dataclass(frozen=True)
class RenameState:
    """Rename the state to ``to``; nothing is rewritten."""

    to: str


Migration = DropState | RenameState | FieldEdit


@dataclass(frozen=True)
class Migrated:
    """The result of a migration: the version that it replaced, and how many entries it wrote or deleted."""

    version: int
    entries: int


def migrate(
    place: str,
    uid: str,
    state: str,
    change: Migration,
    *,
    config: Config | None = None,
    local_dir: str | None = None,
) -> Migrated:
    """Apply ``change`` to the state ``state`` of the operator ``uid`` in the checkpoint at ``place``, a folder or URI.

    Stop the query first. The newest version is replaced by one with the change; older versions stay as they are, so
    rolling back to one undoes it. ``local_dir`` is where partitions are restored for it, one at a time; a key group's
    entries of the state are held in memory at once.

    Raises CheckpointError and StateDeclarationError for what does not exist or is not possible, CodecError naming the
    key for a value that a cast would change; then nothing was changed.
    """
    inspection = Inspection(place, config)
    checkpoint = inspection.checkpoint
    before = _Migration(
        inspection.manifest(), uid, state, change
    ).manifest  # refused before the job is stopped
    checkpoint.claim(before.job_id)
    newest = checkpoint.latest()  # the job may have committed before it was fenced off
    assert newest is not None, "a claim keeps all versions"
    migration = _Migration(newest, uid, state, change)
    manifest = migration.run(checkpoint, inspection.config, local_dir)
    checkpoint.commit(manifest)
    return Migrated(manifest.batch_id, migration.entries)


def check_migration(place: str, uid: str, state: str, change: Migration) -> list[str]:
    """The names of the states that ``migrate`` would change. Raises its errors for what does not exist or is not
    possible, as far as no value has to be read for it."""
    return [spec.name for spec in _Migration(Inspection(place).manifest(), uid, state, change).states]


class _Migration:
    """One change of one state, checked against the manifest."""

    def __init__(self, manifest: Manifest, uid: str, state: str, change: Migration) -> None:
        self.manifest = manifest
        self._operator = operator_of(manifest, uid)
        self._state = _state_of(self._operator, state)
        self.states = [self._state]
        """Those that are changed."""
        self._change = change
        self._rewriter: StateRewriter | None = None
        self.entries = 0
        self._after = self._spec_after()

    def _spec_after(self) -> StateSpec | None:
        state, change = self._state, self._change
        owner = f"operator '{self._operator.uid}', state '{state.name}'"
        together = with_long_lists(self._operator, state)
        if isinstance(change, DropState):
            self.states = together
            return None
        if state.kind == _ORDERED:
            raise StateDeclarationError(f"{owner}: buffered rows of an ordered input can only be dropped")
        if isinstance(change, RenameState):
            if len(together) > 1:
                raise StateDeclarationError(
                    f"{owner}: the rows of a key are in '{together[0].name}' or in '{together[1].name}', which the "
                    "operator finds by these names; neither can be renamed"
                )
            check_state_name(change.to)
            if any(other.name == change.to for other in self._operator.states):
                raise StateDeclarationError(
                    f"{owner}: the operator already has a state '{change.to}'; drop that first"
                )
            return msgspec.structs.replace(state, name=change.to)
        self._rewriter = StateRewriter(
            owner, state.kind, state.types, change, _shown_key(self._operator, state)
        )
        return msgspec.structs.replace(state, types=self._rewriter.types)

    def run(self, checkpoint: Checkpoint, config: Config, local_dir: str | None) -> Manifest:
        """Write the files of the changed partitions; the new manifest turns them into a version."""
        operator = self._operator
        partitions = operator.partitions
        if not isinstance(self._change, RenameState):
            partitions = [
                self._partition(checkpoint, config, local_dir, number)
                for number in range(operator.parallelism)
            ]
        states = [self._after if spec in self.states else spec for spec in operator.states]
        operator = msgspec.structs.replace(
            operator,
            partitions=partitions,
            states=[spec for spec in states if spec is not None],
            # The fitting columns have changed; the states determine which ones.
            schema={what: text for what, text in operator.schema.items() if not what.startswith("input")},
        )
        return msgspec.structs.replace(
            self.manifest, operators={**self.manifest.operators, operator.uid: operator}
        )

    def _partition(
        self, checkpoint: Checkpoint, config: Config, local_dir: str | None, number: int
    ) -> PartitionManifest:
        manifest, uid = self.manifest, self._operator.uid
        base = partition_restore_plan(manifest, uid, number, self._operator.parallelism)
        fetcher = Fetcher(checkpoint.files, manifest.batch_id)
        with (
            scratch_folder(local_dir) as scratch,
            closing(build_store(scratch / "db", base, fetcher, rocksdb_options(config))) as store,
        ):
            changed = 0
            for changes in self._changes_of_all(store, number):
                store.apply(changes, manifest.batch_id)
                changed += len(changes)
            self.entries += changed
            if not changed:
                return self._operator.partition(number)
            attempt = uuid.uuid4().hex
            folder = snapshot_folder(uid, number, manifest.batch_id, attempt)
            store.settle()
            present = self._operator.partition(number).files()
            snapshot = create_snapshot(store, attempt, checkpoint.files, folder, present)
            return PartitionManifest(number, snapshot)

    def _changes_of_all(self, store: RocksDBStore, number: int) -> Iterator[list[Change]]:
        for state in self.states:
            yield from self._changes(store, number, state)

    def _changes(self, store: RocksDBStore, number: int, state: StateSpec) -> Iterator[list[Change]]:
        """The sorted changes of a partition, whole key groups at a time."""
        first, end = group_range(number, self._operator.parallelism, self.manifest.max_parallelism)
        prefixes = [group.to_bytes(GROUP_BYTES, "big") for group in range(first, end)]
        if state.kind == "broadcast":
            prefixes = [BROADCAST_GROUP]
        elif state.kind == _ORDERED:  # rows of a broadcast input
            prefixes.append(BROADCAST_GROUP)
        changes: list[Change] = []
        for prefix in prefixes:
            start = prefix + bytes([state.id])
            entries = store.iterate(start, prefix_end(start))
            if self._rewriter is None:
                changes.extend((key, None) for key, _ in entries)
            else:
                changes.extend(self._rewriter.rewritten(entries))
            if len(changes) >= _APPLIED_AT_ONCE:
                yield changes
                changes = []
        if changes:
            yield changes


def _state_of(operator: OperatorManifest, state: str) -> StateSpec:
    for spec in operator.states:
        if spec.name == state:
            return spec
    there = ", ".join(f"'{spec.name}'" for spec in operator.states) or "none"
    raise StateDeclarationError(f"operator '{operator.uid}' has no state '{state}'; its states are {there}")


def _shown_key(operator: OperatorManifest, state: StateSpec) -> Callable[[bytes], str]:
    """Shows a store key by its key columns, or its bytes where the checkpoint does not describe them."""
    schemas = [text for name, text in operator.schema.items() if name.startswith("key") and text]
    skip = 3 + (8 if state.types.get("layout", "").startswith("time-first") else 0)
    if not schemas or state.kind == "broadcast":
        return lambda key: key[skip:].hex()
    schema = schema_from_text(schemas[0])
    codec = KeyCodec(schema.types, schema.names, 1)

    def shown(key: bytes) -> str:
        values = codec.decode_one(key, skip)[0]
        return ", ".join(f"{name}={value!r}" for name, value in zip(schema.names, values, strict=True))

    return shown
