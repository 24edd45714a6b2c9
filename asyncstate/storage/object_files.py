"""Checkpoint files in an object store, or in any other file system that pyarrow supports.

Owns: ObjectFiles, ``checkpoint_files``, which opens any location, ``existing_files``, which creates none, and Retries:
which failures are transient, and trying again. Invariants: an object appears whole: the stores of ``_WHOLE_OBJECTS``
show an upload when it is complete, elsewhere a temporary file is renamed; no message shows the location's credentials;
attempts and total time are bounded, and only operations that can be repeated without harm are retried: reads, deletes,
and writes of a whole object under its own name. Must not interpret the files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import stamina
from pyarrow import fs

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConfigurationError
from asyncstate.locations import is_uri, local_path, redact, redact_in
from asyncstate.storage.files import (
    TEMPORARY_PREFIX,
    TRANSFERS_MAX,
    CheckpointFiles,
    LocalFiles,
    at_once,
    checked_name,
)

T = TypeVar("T")

_WHOLE_OBJECTS: Final = frozenset({"s3", "gcs", "abfs"})
_DELETES_MAX: Final = 16
_CHUNK_BYTES: Final = 8 << 20
_SMALL_BYTES_MAX: Final = 4 << 20
_S3_SCHEMES: Final = ("s3", "s3a", "s3n")  # the latter two are Hadoop's names, which Spark's users know
_WAIT_FIRST_SECONDS: Final = 0.1
_WAIT_MAX_SECONDS: Final = 10.0
_LASTING_KINDS: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
# An error number comes from this machine: the network may recover, a full or read-only disk does not.
_PASSING_NUMBERS: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("EAGAIN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EINTR", "EIO"),
        *("ENETDOWN", "ENETUNREACH", "EPIPE", "ETIMEDOUT"),
    )
)
# Names in pyarrow's texts by which S3, GCS and Azure report errors that a retry cannot fix.
_LASTING_TEXTS: Final = re.compile(
    r"ACCESS_DENIED|PERMISSION_DENIED|UNAUTHENTICATED|MISSING_AUTHENTICATION|SIGNATURE_DOES_NOT_MATCH|"
    r"INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE|UNRECOGNIZED_CLIENT|OPT_IN_REQUIRED|"
    r"NO_SUCH_|NOT_FOUND|INVALID_ARGUMENT|VALIDATION|HTTP status 4(?!08|29)\d\d|"
    r"Authentication\w*Failed|Authorization\w*(Failure|Mismatch)|ContainerNotFound|\b40[134]\b"
)


def is_passing(error: BaseException) -> bool:
    """Whether trying again may help: a timeout, throttling, a failing server or connection."""
    if not isinstance(error, OSError) or isinstance(error, _LASTING_KINDS):
        return False
    if error.errno is not None:
        return error.errno in _PASSING_NUMBERS
    return _LASTING_TEXTS.search(str(error)) is None


@dataclass(frozen=True, slots=True)
class Retries:
    """At most ``attempts`` tries, none begun later than ``timeout_seconds`` after the first.

    The waits between them grow from 0.1 to 10 seconds, with jitter.
    """

    attempts: int = 5
    timeout_seconds: float = 60.0

    def call(self, action: Callable[[], T]) -> T:
        """Return the result of the first try that succeeds; raises what the last one raised."""
        again = stamina.RetryingCaller(
            attempts=self.attempts,
            timeout=self.timeout_seconds,
            wait_initial=_WAIT_FIRST_SECONDS,
            wait_max=_WAIT_MAX_SECONDS,
        )
        return again(is_passing, action)


def checkpoint_files(place: str, retries: Retries | None = None) -> CheckpointFiles:
    """Open the checkpoint at ``place``: a path or ``file:`` URI is a folder, any other URI goes to pyarrow.

    Credentials that the URI does not hold come from the environment, as for the store's own tools. Raises
    ConfigurationError for a URI that cannot be used, CheckpointError when the location cannot be reached.
    """
    if "\0" in place:
        raise ConfigurationError(
            f"async-state.checkpoint-dir is {redact(place)!r}; a path cannot contain NUL"
        )
    if not is_uri(place):
        return LocalFiles(local_path(place))
    retries = retries or Retries()
    try:
        file_system, small_objects, base = retries.call(lambda: _file_systems(place))
    except (pa.ArrowException, ValueError, TypeError) as error:
        # Not chained, here and below: error texts of pyarrow and the stores may repeat the URI.
        raise ConfigurationError(
            f"async-state.checkpoint-dir is {redact(place)}, which pyarrow cannot use: "
            f"{redact_in(str(error), place)}. Give a path, or the URI of a store that pyarrow supports, such as "
            "s3://bucket/folder; in credentials write %2F for a slash, %3F for ?, %23 for #"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {redact(place)} cannot be reached: {redact_in(str(error), place)}. Check the network, "
            f"the credentials and the bucket's region (option region of the URI)"
        ) from None
    if not base.strip("/"):
        raise ConfigurationError(
            f"async-state.checkpoint-dir is {redact(place)}, which names no bucket or folder; write s3://bucket/folder"
        )
    return ObjectFiles(file_system, base, place, retries, small_objects)


def existing_files(place: str, what: str, hint: str) -> CheckpointFiles:
    """``checkpoint_files`` of a location that is only read at first: a missing folder is an error and is not created.

    ``what`` is expected there, ``hint`` says what to pass instead. Raises CheckpointError, and as ``checkpoint_files``.
    """
    if not is_uri(place):
        try:
            there = Path(local_path(place)).is_dir()
        except OSError as error:
            raise CheckpointError(
                f"the {what} {place} cannot be read: {error}. Check its permissions"
            ) from error
        if not there:
            raise CheckpointError(f"there is no {what} {place}; {hint}")
    return checkpoint_files(place)


@functools.lru_cache(maxsize=16)
def _file_systems(place: str) -> tuple[fs.FileSystem, fs.FileSystem, str]:
    # Once per process: they hold connections, and without a region they request the bucket's from the store.
    scheme = urlsplit(place).scheme
    if scheme not in _S3_SCHEMES:
        file_system, base = fs.FileSystem.from_uri(place)
        return file_system, file_system, base
    file_system, base = fs.FileSystem.from_uri(_s3_uri(place, delayed_open=False))
    return file_system, fs.FileSystem.from_uri(_s3_uri(place, delayed_open=True))[0], base


def _s3_uri(place: str, delayed_open: bool) -> str:
    parts = urlsplit(place)
    given = [option for option in parse_qsl(parts.query, True) if option[0] != "allow_delayed_open"]
    query = urlencode([*given, ("allow_delayed_open", str(delayed_open).lower())])
    return urlunsplit(("s3", parts.netloc, parts.path, query, ""))


class ObjectFiles(CheckpointFiles):
    """Files below ``base`` of a pyarrow file system; ``small_objects`` is the same store, opened for few requests.

    Needs a store that lists an object as soon as it is written, as S3, GCS, Azure, HDFS and MinIO do. An object without
    content does not count: it marks a folder, or an upload that has begun.
    """

    def __init__(
        self,
        file_system: fs.FileSystem,
        base: str,
        place: str,
        retries: Retries | None = None,
        small_objects: fs.FileSystem | None = None,
    ) -> None:
        self.place = place
        self.shown = redact(place)
        self._fs = file_system
        self._small_objects = small_objects or file_system
        self._base = base.rstrip("/")
        self._retries = retries or Retries()

    def put_file(self, local: str | Path, name: str) -> None:
        """Upload a local file, a large one in several parts at a time."""

        def upload() -> None:
            # Mapped, so that one write passes the whole content: the object is complete or fails.
            with pa.memory_map(str(local)) as source:
                self._upload(self._path(name), source.read_buffer())

        self._try("write", name, upload)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Upload bytes. Where files are renamed into place, a reader may briefly find none."""
        self._try("write", name, lambda: self._upload(self._path(name), data))

    def put_files(self, files: Iterable[tuple[Path, str]]) -> None:
        """Upload several files at a time."""
        at_once(TRANSFERS_MAX, lambda file: self.put_file(*file), files)

    def get_file(self, name: str, local: str | Path) -> None:
        """Download a file; after an error there is none at the local path."""
        self._try("fetch", name, lambda: self._download(self._path(name), Path(local)))

    def get_bytes(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Download bytes."""

        def read() -> bytes:
            with self._fs.open_input_file(self._path(name)) as source:
                source.seek(start)
                content: bytes = source.read(None if size < 0 else size)
            return content

        return self._try("read", name, read)

    def size_bytes(self, name: str) -> int | None:
        """Return an object's size, None when absent."""
        info = self._try("look at", name, lambda: self._fs.get_file_info(self._path(name)))
        return info.size if _counts(info) else None

    def list(self, prefix: str) -> list[str]:
        """List everything below the folder that ``prefix`` begins with."""
        folder = "/".join(part for part in (self._base, prefix.rpartition("/")[0]) if part)
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        found = self._try("list", prefix, lambda: self._fs.get_file_info(selector))
        names = (info.path.removeprefix(f"{self._base}/") for info in found if _counts(info))
        return sorted(name for name in names if name.startswith(prefix) and not _is_temporary(name))

    def delete(self, name: str) -> None:
        """Delete an object."""

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._path(name))

        self._try("delete", name, delete)

    def delete_files(self, names: Iterable[str]) -> None:
        """Delete several objects at a time."""
        at_once(_DELETES_MAX, self.delete, names)

    def sweep(self, older_than_seconds: float = 3600.0) -> int:
        """Remove temporary files of killed writers; stores of whole objects have none."""
        if self._fs.type_name in _WHOLE_OBJECTS:
            return 0
        selector = fs.FileSelector(self._base, allow_not_found=True, recursive=True)
        found = self._try("list", "", lambda: self._fs.get_file_info(selector))
        limit_ns = (time.time() - older_than_seconds) * 1e9
        stale = [
            info.path.removeprefix(f"{self._base}/")
            for info in found
            if info.type == fs.FileType.File and _is_temporary(info.path) and (info.mtime_ns or 0) < limit_ns
        ]
        self.delete_files(stale)
        return len(stale)

    def _path(self, name: str) -> str:
        return f"{self._base}/{checked_name(name)}"

    def _upload(self, path: str, data: Any) -> None:
        if self._fs.type_name in _WHOLE_OBJECTS:
            # With a delayed open S3 takes a small object in one request instead of three. Not a large one: when its
            # upload fails at the start, pyarrow stores what it has in memory once the stream is garbage.
            small = len(data) <= _SMALL_BYTES_MAX
            _write(self._small_objects if small else self._fs, path, data)
            return
        folder = path.rpartition("/")[0]
        temporary = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        self._fs.create_dir(folder, recursive=True)
        try:
            _write(self._fs, temporary, data)
            if self._fs.get_file_info(path).type != fs.FileType.NotFound:
                self._fs.delete_file(path)  # HDFS does not rename onto a file
            self._fs.move(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.delete_file(temporary)
            raise

    def _download(self, path: str, local: Path) -> None:
        try:
            with self._fs.open_input_file(path) as source, open(local, "wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
        except BaseException:
            local.unlink(missing_ok=True)
            raise

    def _try(self, action: str, name: str, call: Callable[[], T]) -> T:
        try:
            return self._retries.call(call)
        except FileNotFoundError as error:
            if action in ("fetch", "read") and error.filename is None:  # else the local folder is gone
                raise CheckpointCorruptionError(f"checkpoint file {name} is missing ({self.shown})") from None
            raise self._failed(action, name, error) from None
        except (OSError, pa.ArrowException) as error:
            raise self._failed(action, name, error) from None

    def _failed(self, action: str, name: str, error: BaseException) -> CheckpointError:
        return CheckpointError(
            f"could not {action} {name} in the checkpoint {self.shown}: {redact_in(str(error), self.place)}. Check "
            "the store and its credentials, then restart the query: it continues from the last stored version"
        )


def _write(file_system: fs.FileSystem, path: str, data: Any) -> None:
    # No `with`: closing after a failed write would complete the upload of the bytes that arrived.
    stream = file_system.open_output_stream(path)
    stream.write(data)
    stream.close()


def _counts(info: fs.FileInfo) -> bool:
    return bool(info.type == fs.FileType.File and info.size)


def _is_temporary(name: str) -> bool:
    return name.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
