"""Inspecting a checkpoint without running its job: versions, states, decoded entries, damaged files.

Owns: ``Inspection``, ``read_partition``, ``partition_sizes`` and ``scratch_folder``.
Invariant: nothing is claimed, written or deleted in the checkpoint, and no folder of the job's own stores is touched: a
running job is not affected.
Must not import Spark.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from asyncstate.codec import schema_from_text
from asyncstate.config import Config
from asyncstate.errors import CheckpointCorruptionError, CheckpointError, StateDeclarationError, StoreError
from asyncstate.locations import redact
from asyncstate.offline import TIMERS, TIMERS_STATE, StateDecoder, StateSize, state_size
from asyncstate.runtime.partition.restore_plans import rocksdb_options
from asyncstate.state.columnar.column_maps import BY_ROW
from asyncstate.state.versions import COMPUTED_KEY
from asyncstate.storage import (
    Checkpoint,
    CheckpointFiles,
    Fetcher,
    FileRef,
    KeyedStore,
    Manifest,
    OperatorManifest,
    StateSpec,
    build_store,
    checkpoint_files,
    existing_files,
    group_range,
    partition_restore_plan,
)

_KEY_OF_INPUT = (
    "key"  # prefix of an input's key columns in an operator's schema texts; the input's number follows
)


@dataclass(frozen=True)
class Problem:
    """A damaged or missing file, and the versions that need it."""

    file: str
    versions: tuple[int, ...]
    message: str


@dataclass(frozen=True)
class StatePartition:
    """The input of a reading task: some states of one operator in one partition at one version.

    ``checkpoint`` is the checkpoint's location (not in the repr: it may hold credentials).
    """

    uid: str
    partition: int
    version: int
    states: tuple[StateSpec, ...]
    keys: tuple[pa.Schema, ...]
    manifest: Manifest = field(repr=False)
    checkpoint: str = field(repr=False)
    config: Config = field(repr=False)
    unpickle: bool = False

    @property
    def groups(self) -> range:
        """Its key groups."""
        parallelism = self.manifest.operators[self.uid].parallelism
        return range(*group_range(self.partition, parallelism, self.manifest.max_parallelism))


class Inspection:
    """The versions in the checkpoint at ``place``, a folder or URI.

    Raises CheckpointError where there is none, CheckpointCorruptionError naming a damaged file.
    """

    def __init__(self, place: str, config: Config | None = None) -> None:
        self.config = config if config is not None else Config()
        self.files: CheckpointFiles = existing_files(
            place, "checkpoint folder", "give the checkpoint's folder or URI"
        )
        self.checkpoint = Checkpoint(self.files)
        self.versions = self.checkpoint.versions()
        if not self.versions:
            raise CheckpointError(
                f"{redact(place)} holds no version of any job's state; give the job's own checkpoint folder (not "
                "Spark's checkpoint)"
            )

    def manifest(self, version: int | None = None) -> Manifest:
        """The contents of ``version``, by default the newest one."""
        version = self.versions[-1] if version is None else version
        if version not in self.versions:
            raise CheckpointError(
                f"the checkpoint holds no version {version}; its versions are {self.versions}"
            )
        return self.checkpoint.read(version)

    def partitions(
        self,
        manifest: Manifest,
        uid: str | None = None,
        state: str | None = None,
        *,
        unpickle: bool = False,
        timers: bool = True,
    ) -> list[StatePartition]:
        """The pieces to read for the requested states: one for each operator and partition.

        Without ``state`` all states of the operator, with its timers unless ``timers`` is False; without ``uid`` those
        of all operators that have it. Raises StateDeclarationError that lists the existing ones.
        """
        pieces = []
        for operator in _chosen_operators(manifest, uid):
            states = _chosen_states(operator, state, timers)
            pieces += [
                StatePartition(
                    uid=operator.uid,
                    partition=partition,
                    version=manifest.batch_id,
                    states=tuple(states),
                    keys=key_schemas(operator),
                    manifest=manifest,
                    checkpoint=self.files.place,
                    config=self.config,
                    unpickle=unpickle,
                )
                for partition in range(operator.parallelism)
                if states
            ]
        if state is not None and not pieces:
            raise StateDeclarationError(_no_state(manifest, uid, state))
        return pieces

    def problems(self) -> Iterator[Problem]:
        """Read every file of every version and compare size and checksum; returns the problems.

        A manifest that cannot be read is a problem of its version. Versions that a running job has deleted meanwhile
        are no problem.
        """
        needed: dict[FileRef, list[int]] = {}
        for version in self.versions:
            try:
                manifest = self.checkpoint.read(version)
            except CheckpointError as error:
                if version in self.checkpoint.versions():
                    yield Problem(f"manifest of version {version}", (version,), str(error))
                continue
            for ref in manifest.files():
                versions = needed.setdefault(ref, [])
                if version not in versions:
                    versions.append(version)
        with scratch_folder() as folder:
            for ref, versions in sorted(needed.items(), key=lambda one: (one[0].name, one[0].offset or 0)):
                message = self._damage(ref, folder / "file")
                affected = self._still_needed(ref, versions) if message else ()
                if message and affected:
                    yield Problem(ref.name, affected, message)

    def _still_needed(self, ref: FileRef, versions: Sequence[int]) -> tuple[int, ...]:
        return tuple(version for version in versions if self._needs(version, ref))

    def _needs(self, version: int, ref: FileRef) -> bool:
        try:
            return ref in self.checkpoint.read(version).files()
        except CheckpointError:
            return version in self.checkpoint.versions()  # else the running job has deleted it meanwhile

    def num_files(self) -> int:
        """The number of files that the readable versions need."""
        found = set()
        for version in self.versions:
            try:
                found |= {ref.name for ref in self.checkpoint.read(version).files()}
            except CheckpointError:
                continue  # ``problems`` reports it
        return len(found)

    def _damage(self, ref: FileRef, local: Path) -> str | None:
        try:
            self.files.fetch(ref, local)
        except CheckpointCorruptionError as error:
            return str(error)
        finally:
            local.unlink(missing_ok=True)
        return None


def key_schemas(operator: OperatorManifest) -> tuple[pa.Schema, ...]:
    """The key columns of each input, as stored in the checkpoint.

    Raises CheckpointError where they are missing: such a checkpoint was written without a Spark job.
    """
    found: list[pa.Schema] = []
    while (name := f"{_KEY_OF_INPUT}{len(found)}") in operator.schema:
        found.append(schema_from_text(operator.schema[name]))
    if not found:
        raise CheckpointError(
            f"operator '{operator.uid}': the checkpoint does not name its key columns; only checkpoints written by a "
            "StreamingJob or an OperatorHarness of this release can be read"
        )
    return tuple(found)


def states_of(operator: OperatorManifest) -> list[StateSpec]:
    """The declared states, including the rows buffered for ordering, and the timers."""
    return [*operator.states, TIMERS_STATE]


def decoders(piece: StatePartition) -> list[StateDecoder]:
    """One decoder for each state of ``piece``."""
    operator = piece.manifest.operators[piece.uid]
    return [
        StateDecoder(
            piece.uid, state, piece.keys, unpickle=piece.unpickle, by_row=_long_lists_of(operator, state)
        )
        for state in piece.states
    ]


def with_long_lists(operator: OperatorManifest, state: StateSpec) -> list[StateSpec]:
    """``state``; if it has lists, or the rows of the longest of them, the states of both, the lists first."""
    known = {spec.name: spec for spec in operator.states}
    lists = known.get(state.name.removesuffix(BY_ROW))
    by_row = None if lists is None else known.get(f"{lists.name}{BY_ROW}")
    if lists is None or by_row is None or lists.kind != "list-column" or COMPUTED_KEY not in by_row.types:
        return [state]
    return [lists, by_row]


def _long_lists_of(operator: OperatorManifest, state: StateSpec) -> StateSpec | None:
    lists, *by_row = with_long_lists(operator, state)
    return by_row[0] if by_row and state == lists else None


def read_partition(
    piece: StatePartition, local_dir: str | None = None
) -> Iterator[tuple[StateDecoder, pa.RecordBatch]]:
    """The rows of ``piece``, state by state; see ``StateDecoder`` for the columns.

    The partition is restored into a separate folder below ``local_dir`` (by default the machine's temporary directory),
    which is deleted at the end. Raises CheckpointCorruptionError for a damaged file, and for one that the job has
    meanwhile deleted with its version.
    """
    with restored(piece, local_dir) as store:
        for decoder in decoders(piece):
            for batch in decoder.read(store, piece.groups, broadcast=piece.partition == 0):
                yield decoder, batch


@contextmanager
def restored(piece: StatePartition, local_dir: str | None = None) -> Iterator[KeyedStore]:
    """The partition's store at its version, in a separate folder."""
    config = piece.config
    files = checkpoint_files(piece.checkpoint)
    parallelism = piece.manifest.operators[piece.uid].parallelism
    base = partition_restore_plan(piece.manifest, piece.uid, piece.partition, parallelism)
    with scratch_folder(local_dir) as folder:
        fetcher = Fetcher(files, piece.version)
        store = build_store(folder / "db", base, fetcher, rocksdb_options(config))
        try:
            yield store
        finally:
            store.close()


def partition_sizes(
    piece: StatePartition, local_dir: str | None = None
) -> Iterator[tuple[StateDecoder, StateSize]]:
    """The stored size of each state of ``piece``; restores it as ``read_partition`` does."""
    with restored(piece, local_dir) as store:
        for decoder in decoders(piece):
            yield decoder, state_size(decoder, store, piece.groups, broadcast=piece.partition == 0)


@contextmanager
def scratch_folder(local_dir: str | None = None) -> Iterator[Path]:
    """A folder below ``local_dir``, by default the temporary one; deleted at the end. Raises StoreError."""
    try:
        if local_dir is not None:
            Path(local_dir).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="asyncstate-offline-", dir=local_dir))
    except OSError as error:
        raise StoreError(
            f"cannot create a scratch folder in {local_dir or tempfile.gettempdir()}: {error}. Check the disk's space "
            "and permissions, or choose another local directory"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def operator_of(manifest: Manifest, uid: str) -> OperatorManifest:
    """The operator ``uid``. Raises StateDeclarationError that lists the existing ones."""
    if uid not in manifest.operators:
        there = ", ".join(f"'{name}'" for name in manifest.operators) or "none"
        raise StateDeclarationError(
            f"version {manifest.batch_id} has no operator '{uid}'; its operators are {there}"
        )
    return manifest.operators[uid]


def _chosen_operators(manifest: Manifest, uid: str | None) -> list[OperatorManifest]:
    return list(manifest.operators.values()) if uid is None else [operator_of(manifest, uid)]


def _chosen_states(operator: OperatorManifest, state: str | None, timers: bool) -> Sequence[StateSpec]:
    if state is None:
        return states_of(operator) if timers else operator.states
    return [spec for spec in states_of(operator) if spec.name == state]


def _no_state(manifest: Manifest, uid: str | None, state: str) -> str:
    known = {
        operator.uid: [spec.name for spec in states_of(operator)]
        for operator in _chosen_operators(manifest, uid)
    }
    where = "no operator" if uid is None else f"operator '{uid}'"
    verb = "has" if uid is None else "does not have"
    return f"version {manifest.batch_id}: {where} {verb} a state '{state}'; there are {known}; {TIMERS} are the timers"
