"""The content of a committed micro-batch: the manifest and its parts, and their JSON form.

Owns: Manifest, OperatorManifest, GraphManifest, StateSpec, PartitionManifest, SnapshotRef, DeltaRef, FileRef,
EpochStart, their encoding, and the names of files in the checkpoint. Invariant: a manifest is self-contained (all
files of a version are named in it) and self-checked (a checksum over its exact bytes). Must not import files, stores
or anything that does I/O.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

import msgspec
import xxhash

from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.metrics import Metrics, sum_metrics

FORMAT_VERSION: Final = 2
EMPTY_LINEAGE: Final = ""
MANIFESTS: Final = "manifests/"
STATE: Final = "state/"
_DELTAS: Final = "deltas-"
PARALLELISM_MAX: Final = 32_768
_TYPE_DEPTH_MAX: Final = 200
_SIZE_BYTES_MAX: Final = (1 << 63) - 1
_LOCAL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MANIFEST: Final = re.compile(r"manifests/(\d+)\.e(\d+)\.(\d+)\.json")
_MANIFEST_1: Final = re.compile(r"manifests/\d+\.json")

T = TypeVar("T")


class FileRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A checkpoint file: name below the root, size, xxh3-128 of the content in hex, entries (0: unknown).

    With an ``offset`` it is the part of that file which begins there; size and checksum are those of the part.
    """

    name: str
    size_bytes: int
    checksum: str
    num_entries: int = 0
    offset: int | None = None

    @property
    def base_name(self) -> str:
        """The name without folders, under which a worker may keep the file."""
        return self.name.rpartition("/")[2]


class DeltaRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The change of one partition in one micro-batch; ``lineage`` names the content after it."""

    batch_id: int
    file: FileRef
    lineage: str


class SnapshotRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A full copy of a partition at ``version``; ``files``: checkpoint files by local RocksDB name."""

    version: int
    lineage: str
    files: dict[str, FileRef]


class PartitionManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of one partition: a snapshot (None: empty) plus the deltas after it, oldest first.

    ``statistics`` holds metrics of the batch that committed it, for reports.
    """

    partition: int
    snapshot: SnapshotRef | None = None
    deltas: list[DeltaRef] = []
    statistics: dict[str, float] = {}

    @property
    def lineage(self) -> str:
        """Name of the content: equal lineages mean equal content."""
        if self.deltas:
            return self.deltas[-1].lineage
        return self.snapshot.lineage if self.snapshot else EMPTY_LINEAGE

    def files(self) -> list[FileRef]:
        """All checkpoint files this partition needs."""
        snapshot = list(self.snapshot.files.values()) if self.snapshot else []
        return snapshot + [delta.file for delta in self.deltas]


class StateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One declared state of an operator; ``types`` holds type texts by role (key, value, namespace, ...)."""

    id: int
    name: str
    kind: str
    types: dict[str, str] = {}
    options: dict[str, str] = {}


class AppliedTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The times (microseconds) of the last micro-batch that has applied an operator."""

    watermark: int | None
    processing_time: int | None


class OperatorManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator: its class, its parallelism, its schema at the time, its states and partitions.

    ``route``: the positions of the key columns that decide a key's group; empty: all of them. ``applied``: when the
    operator was last applied, if later micro-batches have left it out; else that was in the manifest's own micro-batch.
    ``meaning``: what the operator's states depend on, as names and texts; empty: nothing is known.
    """

    uid: str
    operator: str
    parallelism: int
    partitions: list[PartitionManifest]
    schema: dict[str, str] = {}
    states: list[StateSpec] = []
    route: list[int] = []
    applied: AppliedTimes | None = None
    meaning: dict[str, str] = {}

    @property
    def has_state(self) -> bool:
        """Whether it keeps anything: declared states, or entries of the engine such as timers."""
        return bool(self.states) or any(one.snapshot is not None or one.deltas for one in self.partitions)

    def summed_statistics(self) -> Metrics:
        """Metrics of the micro-batch that committed it, summed over the partitions."""
        return sum_metrics(partition.statistics for partition in self.partitions)

    def total(self, name: str) -> float:
        """One metric of that micro-batch, summed over the partitions: each task asks, so it must not sum all."""
        return sum(partition.statistics.get(name, 0) for partition in self.partitions)

    def partition(self, number: int) -> PartitionManifest:
        """Return a partition by its number; an absent one is empty."""
        return next((p for p in self.partitions if p.partition == number), PartitionManifest(number))


class SinkManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the rows of a sink were: ``changes`` of earlier rows or insertions only; the conditions and the computed
    columns on their way; ``inputs``, where they came from: ``uid`` or ``uid:side output`` of an operator, ``:name`` of
    a source. None: the next program decides."""

    changes: bool
    filters: str | None = None
    columns: str | None = None
    inputs: list[str] | None = None


class GraphManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The graph of a job: its sources so far, each with whether it began with initial rows, and its sinks.
    ``streams``: the sources of the last micro-batch that stream, in the order by which Spark knows them; None: not
    known."""

    sources: dict[str, bool] = {}
    sinks: dict[str, SinkManifest] = {}
    streams: list[str] | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One committed version of a job's state. Times are microseconds since the epoch.

    ``base`` is the version it was computed from; ``sources`` holds, per watermark source, its highest event time seen
    minus its delay; ``processing_time`` is when the micro-batch started; ``final`` says that the input had ended.
    ``heard``: for each source that can be idle, the start of the last micro-batch with an event of it; ``idle``: those
    that do not hold back the watermark. ``graph``: None where no graph has run.
    """

    job_id: str
    batch_id: int
    base: int
    max_parallelism: int
    operators: dict[str, OperatorManifest] = {}
    watermark: int | None = None
    processing_time: int | None = None
    sources: dict[str, int] = {}
    heard: dict[str, int] = {}
    idle: list[str] = []
    final: bool = False
    graph: GraphManifest | None = None
    epoch: int = 0
    format_version: int = FORMAT_VERSION

    def files(self) -> list[FileRef]:
        """All checkpoint files this version needs."""
        return [
            file
            for operator in self.operators.values()
            for partition in operator.partitions
            for file in partition.files()
        ]


class Owner(msgspec.Struct, frozen=True):
    """The claimant of a checkpoint, for messages."""

    epoch: int
    job_id: str
    host: str
    process: int
    claimed_at: float


class EpochStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an owner's epoch begins: ``versions`` are the names of the manifests that it takes over.

    ``checkpoint_id`` is made with the first epoch and stays. ``driver`` is this epoch's own id, and ``earlier`` has the
    ids of the epochs before it, each with the last version that a target may have from it.
    """

    epoch: int
    owner: Owner
    versions: list[str]
    format_version: int = FORMAT_VERSION
    checkpoint_id: str = ""
    driver: str = ""
    earlier: dict[str, int] = {}


class ManifestKey(NamedTuple):
    """The parts of a manifest's name: ``commit`` counts the commits of its epoch, from 0 on."""

    batch_id: int
    epoch: int
    commit: int


class _Envelope(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


class _Versioned(msgspec.Struct):
    format_version: int = 0


def extend_lineage(lineage: str, file: FileRef) -> str:
    """Name the content that results from applying a delta file to the content named ``lineage``."""
    return xxhash.xxh3_128_hexdigest(f"{lineage}|{file.name}|{file.checksum}".encode())


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON in an envelope with its checksum."""
    return _sealed(msgspec.json.encode(manifest))


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Read what ``encode_manifest`` wrote; ``name`` is the file, for messages.

    Raises CheckpointCorruptionError when bytes were changed or the content is impossible, CheckpointError when another
    release wrote them.
    """
    manifest = _unsealed(data, name, "a manifest", Manifest)
    wrong = next(_impossible(manifest), None)
    if wrong is not None:
        raise CheckpointCorruptionError(f"{name} {wrong}: it was damaged or edited")
    return manifest


def _impossible(manifest: Manifest) -> Iterator[str]:
    """Well-formed content that no release writes: it would lead out of a folder or never end."""
    counts = [("max_parallelism", manifest.max_parallelism)]
    counts += [(f"parallelism of operator {o.uid!r}", o.parallelism) for o in manifest.operators.values()]
    for what, count in counts:
        if not 1 <= count <= PARALLELISM_MAX:
            yield f"has {count} as {what}, which is 1 to {PARALLELISM_MAX}"
    for file in manifest.files():
        if not 0 <= file.size_bytes <= _SIZE_BYTES_MAX:
            yield f"gives the checkpoint file {file.name!r} {file.size_bytes} bytes"
        if not 0 <= (file.offset or 0) <= _SIZE_BYTES_MAX:
            yield f"lets a part of the checkpoint file {file.name!r} begin at byte {file.offset}"
        if not is_file_name(file.name):
            yield f"names the checkpoint file {file.name!r}, which may be outside the checkpoint"
    for operator in manifest.operators.values():
        for partition in operator.partitions:
            for local_name in partition.snapshot.files if partition.snapshot else ():
                if not _LOCAL_NAME.fullmatch(local_name):
                    yield (
                        f"has a snapshot with the local file {local_name!r}, which is not the name of a RocksDB "
                        "file"
                    )
        for spec in operator.states:
            if not spec.types:
                yield f"has no types of state {spec.name!r} of operator {operator.uid!r}"
        for text in [
            *operator.schema.values(),
            *(t for spec in operator.states for t in spec.types.values()),
        ]:
            if text.count("<") > _TYPE_DEPTH_MAX and _depth(text) > _TYPE_DEPTH_MAX:
                yield f"has a type nested deeper than {_TYPE_DEPTH_MAX} levels"


def _depth(text: str) -> int:
    depths = itertools.accumulate((character == "<") - (character == ">") for character in text)
    return max(depths, default=0)


def is_file_name(name: str) -> bool:
    """Whether the name can be that of a file below the root of a checkpoint, and nowhere else."""
    return "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def encode_start(start: EpochStart) -> bytes:
    """Return the start of an epoch, as ``encode_manifest``."""
    return _sealed(msgspec.json.encode(start))


def decode_start(data: bytes, name: str) -> EpochStart:
    """Read what ``encode_start`` wrote, as ``decode_manifest``."""
    return _unsealed(data, name, "the start of an epoch", EpochStart)


def _sealed(payload: bytes) -> bytes:
    return msgspec.json.encode(_Envelope(xxhash.xxh3_128_hexdigest(payload), msgspec.Raw(payload)))


def _unsealed(data: bytes, name: str, what: str, kind: type[T]) -> T:
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptionError(f"{name} is not {what}: {error}") from error
    payload = bytes(envelope.manifest)
    if xxhash.xxh3_128_hexdigest(payload) != envelope.checksum:
        raise CheckpointCorruptionError(f"{name} is damaged: its checksum does not match its content")
    found = _format_of(payload, name, what)
    if found != FORMAT_VERSION:
        raise other_format(name, found)
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptionError(f"{name} does not fit checkpoint format {found}: {error}") from error


def _format_of(payload: bytes, name: str, what: str) -> int:
    try:
        return msgspec.json.decode(payload, type=_Versioned).format_version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointCorruptionError(
            f"{name} is not {what}: it does not say its format ({error})"
        ) from error


def other_format(name: str, found: int) -> CheckpointError:
    """The error for a file that another release wrote."""
    return CheckpointError(
        f"{name} has checkpoint format {found}, this release reads format {FORMAT_VERSION}; use the "
        f"release of asyncstate that wrote it, or start with a new checkpoint folder"
    )


def manifest_name(batch_id: int, epoch: int, commit: int) -> str:
    """Name of a version's manifest; no two commits of any drivers have the same."""
    return f"{MANIFESTS}{batch_id:010d}.e{epoch}.{commit}.json"


def manifest_key(name: str) -> ManifestKey | None:
    """The inverse of ``manifest_name``, None for a file that is no manifest.

    Raises CheckpointError for a manifest as format 1 named it.
    """
    if found := _MANIFEST.fullmatch(name):
        return ManifestKey(*map(int, found.groups()))
    if _MANIFEST_1.fullmatch(name):
        raise other_format(name, 1)
    return None


def partition_folder(uid: str, partition: int) -> str:
    """Folder of a partition's files."""
    return f"{STATE}{uid}/{partition}"


def delta_name(uid: str, partition: int, batch_id: int, attempt: str) -> str:
    """Name of the delta that one attempt of a batch writes."""
    return f"{partition_folder(uid, partition)}/delta-{batch_id:010d}-{attempt}.sst"


def deltas_name(batch_id: int, attempt: str) -> str:
    """Name of a file of small deltas that one attempt of a batch writes."""
    return f"{STATE}{_DELTAS}{batch_id:010d}-{attempt}"


def snapshot_folder(uid: str, partition: int, batch_id: int, attempt: str) -> str:
    """Folder of the new files of a snapshot that one attempt of a batch takes."""
    return f"{partition_folder(uid, partition)}/snap/{batch_id:010d}-{attempt}"


def is_of_operator(name: str, uid: str) -> bool:
    """Whether a state file may have been written by the operator ``uid``."""
    return name.startswith((f"{STATE}{uid}/", f"{STATE}{_DELTAS}"))


def batch_of(name: str) -> int | None:
    """Return the batch in which a state file was written, None for a name of another form."""
    parts = name.split("/")
    if len(parts) == 2 and parts[1].startswith(_DELTAS):
        digits = parts[1].split("-")[1]
    elif len(parts) == 4 and parts[3].startswith("delta-"):
        digits = parts[3].split("-")[1]
    elif len(parts) == 6 and parts[3] == "snap":
        digits = parts[4].split("-")[0]
    else:
        return None
    return int(digits) if digits.isdigit() else None
