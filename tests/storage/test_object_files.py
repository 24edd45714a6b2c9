"""Checkpoints on a real S3 interface: what requests fail with, what is retried, what is never half there."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from asyncstate.config import Config
from asyncstate.errors import (
    AsyncStateError,
    CheckpointCorruptionError,
    CheckpointError,
    ConfigurationError,
)
from asyncstate.locations import is_uri, redact, redact_in
from asyncstate.storage import (
    Checkpoint,
    CheckpointFiles,
    LocalFiles,
    Manifest,
    ObjectFiles,
    Retries,
    StorePool,
    checkpoint_files,
)
from asyncstate.storage.object_files import is_passing
from tests.s3_server import ACCESS_KEY, SECRET_KEY, Fault, FaultyProxy, S3Server, faulty_proxy
from tests.storage.minijob import MiniJob, key

TWO_TRIES = Retries(2, 30.0)
"""Of our own: the tests' S3 makes none besides, as pyarrow's would."""


@pytest.fixture(scope="module")
def proxy_of_module(s3: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3) as proxy:
        yield proxy


@pytest.fixture
def proxy(proxy_of_module: FaultyProxy) -> FaultyProxy:
    proxy_of_module.heal()
    return proxy_of_module


@pytest.fixture
def files(s3: S3Server, proxy: FaultyProxy) -> CheckpointFiles:
    """A bucket behind the proxy, and requests that are tried twice."""
    place = s3.place(proxy.port)
    bucket = place.split("@")[1].split("?")[0]
    plain, small = (
        fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            scheme="http",
            endpoint_override=f"127.0.0.1:{proxy.port}",
            region="us-east-1",
            allow_delayed_open=delayed,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
        for delayed in (False, True)
    )
    return ObjectFiles(plain, bucket, place, TWO_TRIES, small)


def manifest(batch_id: int) -> Manifest:
    return Manifest("job", batch_id, batch_id - 1, 128)


# places


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/data/state", "/data/state"),
        ("state@home", "state@home"),
        ("file:///data/a@b", "file:///data/a@b"),
        ("s3://bucket/state", "s3://bucket/state"),
        (
            "s3://key:sec%2Fret@bucket/state?scheme=http&endpoint_override=127.0.0.1%3A9000&region=r&token=abc",
            "s3://***@bucket/state?scheme=http&endpoint_override=127.0.0.1:9000&region=r&token=***",
        ),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://***@account.dfs.core.windows.net/x"),
    ],
)
def test_masked_places(place: str, shown: str) -> None:
    assert redact(place) == shown


def test_errors_of_libraries_are_scrubbed() -> None:
    place = "s3://key:sec%2Fret@bucket/state?token=abc"
    text = f"no {place}, nor key, sec%2Fret, sec/ret, key:sec%2Fret, abc"
    assert redact_in(text, place) == "no s3://***@bucket/state?token=***, nor ***, ***, ***, ***, ***"
    assert redact_in("anything", "/a/path") == "anything"


def test_paths_are_folders_and_uris_are_stores(tmp_path: Path, s3: S3Server) -> None:
    for place in (str(tmp_path / "x"), f"file://{tmp_path}/x"):
        assert isinstance(checkpoint_files(place), LocalFiles)
        assert checkpoint_files(place).place == str(tmp_path / "x")
    uri = s3.place()
    for place in (uri, uri.replace("s3://", "s3a://")):
        assert is_uri(place)
        opened = checkpoint_files(place)
        opened.put_bytes("a", b"1")
        assert opened.place == place
    assert isinstance(opened, ObjectFiles)


def test_tries_are_those_of_the_configuration(s3: S3Server, proxy: FaultyProxy) -> None:
    """Opened as a job does it; pyarrow makes three tries of its own in each of ours."""
    files = checkpoint_files(s3.place(proxy.port), TWO_TRIES)
    proxy.fail("PUT", "one", "403", times=1)
    with pytest.raises(CheckpointError, match="could not write one"):
        files.put_bytes("one", b"1")
    proxy.fail("PUT", "one", "reset", times=4)
    files.put_bytes("one", b"1")
    assert files.get_bytes("one") == b"1"


def test_configuration_does_not_show_credentials(s3: S3Server) -> None:
    shown = repr(Config(checkpoint_dir=s3.place()))
    assert "s3://***@bucket-" in shown
    assert SECRET_KEY not in shown
    assert SECRET_KEY.replace("/", "%2F") not in shown


# failing requests


@pytest.mark.long
@pytest.mark.parametrize("fault", ["503", "throttle", "reset"])
def test_what_passes_is_tried_again(
    files: CheckpointFiles, proxy: FaultyProxy, fault: Fault, tmp_path: Path
) -> None:
    (tmp_path / "local").write_bytes(b"file")
    proxy.fail("PUT", "one", fault, times=1)
    files.put_bytes("state/one", b"1")
    proxy.fail("PUT", "two", fault, times=1)
    files.put_file(tmp_path / "local", "state/two")
    proxy.fail("HEAD", "one", fault, times=1)
    assert files.size_bytes("state/one") == 1
    proxy.fail("GET", "list-type", fault, times=1)
    assert files.list("state/") == ["state/one", "state/two"]
    proxy.fail("GET", "two", fault, times=1)
    files.get_file("state/two", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"file"
    proxy.fail("DELETE", "one", fault, times=1)
    files.delete("state/one")
    assert files.list("") == ["state/two"]


@pytest.mark.long
def test_a_server_that_does_not_answer_is_given_up_and_asked_again(
    files: CheckpointFiles, proxy: FaultyProxy
) -> None:
    files.put_bytes("state/one", b"1")
    proxy.fail("GET", "one", "hang", times=1)
    assert files.get_bytes("state/one") == b"1"


def test_refusals_are_not_tried_again(files: CheckpointFiles, proxy: FaultyProxy) -> None:
    files.put_bytes("one", b"1")
    proxy.heal()
    proxy.fail("HEAD", "one", "403", times=100)
    with pytest.raises(CheckpointError, match="could not read one in the checkpoint s3://"):
        files.get_bytes("one")
    assert proxy.counts() == {"HEAD": 1}
    proxy.heal()
    proxy.fail("PUT", "two", "403", times=100)
    with pytest.raises(CheckpointError, match=r"could not write two .*on purpose"):
        files.put_bytes("two", b"2")
    assert proxy.counts() == {"PUT": 1}
    proxy.heal()
    with pytest.raises(CheckpointCorruptionError, match="checkpoint file gone is missing"):
        files.get_bytes("gone")
    assert proxy.counts() == {"HEAD": 1}


def test_exhausted_tries_name_the_file_and_nothing_is_committed(
    files: CheckpointFiles, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(files)
    checkpoint.claim("job")
    checkpoint.commit(manifest(0))
    proxy.fail("PUT", "manifests/", "503", times=100)
    with caplog.at_level(logging.DEBUG), pytest.raises(CheckpointError) as raised:
        checkpoint.commit(manifest(1))
    assert re.search(
        r"could not write manifests/0000000001\.e1\.1\.json in the checkpoint s3://\*\*\*@bucket-\d+/some/job.*503",
        str(raised.value),
    )
    assert "restart the query" in str(raised.value)
    assert "stamina.retry_scheduled" in caplog.text
    for text in (str(raised.value), caplog.text):
        assert SECRET_KEY not in text
        assert SECRET_KEY.replace("/", "%2F") not in text
    assert Checkpoint(files).versions() == [0]
    proxy.heal()
    checkpoint.commit(manifest(1))
    assert Checkpoint(files).versions() == [0, 1]


def test_a_write_that_fails_after_it_arrived_does_not_replace_a_later_one(
    files: CheckpointFiles, proxy: FaultyProxy
) -> None:
    """The answers to a commit are lost, the batch runs again, and only then the first upload comes through."""
    checkpoint = Checkpoint(files)
    checkpoint.claim("job")
    proxy.fail("PUT", "manifests/", "503", times=100)
    with pytest.raises(CheckpointError):
        checkpoint.commit(manifest(0))
    lost = next(path for method, path in proxy.requests if method == "PUT" and "manifests/" in path)
    proxy.heal()
    checkpoint.commit(manifest(0))
    name = lost[lost.index("manifests/") :]
    kept = files.list("manifests/")
    assert name not in kept
    files.put_bytes(name, b"late")
    latest = Checkpoint(files).latest()
    assert latest is not None
    assert latest.batch_id == 0


@pytest.mark.long
@pytest.mark.parametrize("part", ["uploads", "partNumber=2", "uploadId="])
def test_an_upload_in_parts_that_fails_leaves_nothing(
    files: CheckpointFiles, proxy: FaultyProxy, tmp_path: Path, part: str
) -> None:
    local = tmp_path / "large"
    local.write_bytes(bytes(range(256)) * (100 << 10))  # 25 MB, three parts
    proxy.fail("PUT" if "part" in part else "POST", part, "503", times=2)
    with pytest.raises(CheckpointError, match="could not write state/large"):
        files.put_file(local, "state/large")
    assert files.list("") == []
    assert files.size_bytes("state/large") is None
    proxy.heal()
    proxy.fail("PUT" if "part" in part else "POST", part, "reset", times=1)
    files.put_file(local, "state/large")
    files.get_file("state/large", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == local.read_bytes()


def test_a_download_that_fails_leaves_no_local_file(
    files: CheckpointFiles, proxy: FaultyProxy, tmp_path: Path
) -> None:
    files.put_bytes("state/one", b"1" * 100)
    proxy.fail("GET", "one", "503", times=100)
    with pytest.raises(CheckpointError, match="could not fetch state/one"):
        files.get_file("state/one", tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []


def test_one_of_several_uploads_fails(files: CheckpointFiles, proxy: FaultyProxy, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"x")
    proxy.fail("PUT", "state/7", "403", times=1)
    with pytest.raises(CheckpointError, match="could not write state/7 "):
        files.put_files((tmp_path / "local", f"state/{number}") for number in range(30))


def test_a_bucket_that_is_not_there(s3: S3Server) -> None:
    place = re.sub(r"@bucket-\d+", "@no-such-bucket", s3.place())
    with pytest.raises(CheckpointError, match=r"s3://\*\*\*@no-such-bucket.*NO_SUCH_BUCKET"):
        Checkpoint(checkpoint_files(place)).claim("job")


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 28, Timeout"), True),
        (OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate"), True),
        (OSError("AWS Error UNKNOWN (HTTP status 500) during PutObject operation"), True),
        (OSError("AWS Error UNKNOWN (HTTP status 429) during PutObject operation"), True),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), False),
        (OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"), False),
        (OSError("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation"), False),
        (TimeoutError(), True),
        (ConnectionResetError(104, "reset"), True),
        (FileNotFoundError(2, "no such file"), False),
        (PermissionError(13, "denied"), False),
        (OSError(28, "No space left on device"), False),
        (ValueError("a mistake"), False),
    ],
)
def test_what_is_tried_again(error: Exception, passing: bool) -> None:
    assert is_passing(error) is passing


# other file systems of pyarrow


@pytest.fixture
def elsewhere(tmp_path: Path) -> ObjectFiles:
    """A file system that shows a file while it is being written, as HDFS does."""
    return ObjectFiles(fs.LocalFileSystem(), str(tmp_path / "store"), "hdfs://host/store")


def test_where_uploads_show_early_files_are_renamed(
    elsewhere: ObjectFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.put_bytes("a/b", b"1")
    elsewhere.put_bytes("a/b", b"22")
    assert elsewhere.get_bytes("a/b") == b"22"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]
    (tmp_path / "store" / "a" / ".tmp-killed").write_bytes(b"half")
    assert elsewhere.list("") == ["a/b"]
    assert elsewhere.sweep(older_than_seconds=3600) == 0
    assert elsewhere.sweep(older_than_seconds=-60) == 1
    assert elsewhere.list("") == ["a/b"]
    assert len(list((tmp_path / "store" / "a").iterdir())) == 1


def test_a_write_that_breaks_off_shows_nothing(
    elsewhere: ObjectFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("asyncstate.storage.object_files._write", full)
    with pytest.raises(CheckpointError, match="could not write a/b .*No space"):
        elsewhere.put_bytes("a/b", b"1")
    assert elsewhere.list("") == []


def test_a_checkpoint_on_such_a_file_system(elsewhere: ObjectFiles) -> None:
    checkpoint = Checkpoint(elsewhere)
    checkpoint.claim("job")
    for batch_id in range(4):
        checkpoint.commit(manifest(batch_id))
    checkpoint.commit(manifest(3))
    assert checkpoint.retain(2) == 3
    assert checkpoint.rollback(2) == [3]
    assert Checkpoint(elsewhere).versions() == [2]


# whole checkpoints


def test_damaged_and_missing_objects_are_named(tmp_path: Path, s3: S3Server) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=100, place=s3.place())
    for batch_id in range(3):
        job.batch({key(0, "a"): b"%d" % batch_id})
    newest = job.checkpoint.latest()
    assert newest is not None
    name = newest.operators["op"].partitions[0].deltas[-1].file.name
    content = job.files.get_bytes(name)
    for damage in (lambda: job.files.put_bytes(name, content[:-1] + b"x"), lambda: job.files.delete(name)):
        damage()
        fresh = MiniJob(tmp_path / "fresh")
        fresh.stores._files = job.files
        with pytest.raises(CheckpointCorruptionError, match=rf"{name}.*whose files are all present is 1"):
            fresh.content(newest)
    assert isinstance(CheckpointCorruptionError(), AsyncStateError)


def test_snapshots_and_rescaling(tmp_path: Path, s3: S3Server) -> None:
    job = MiniJob(tmp_path, snapshot_every_deltas=2, place=s3.place())
    expected: dict[bytes, bytes] = {}
    for batch_id, parallelism in enumerate([1, 1, 1, 3, 3, 2]):
        writes = {key(n, f"{batch_id % 2}"): b"%d" % batch_id for n in range(16)}
        job.batch(writes, parallelism)
        expected |= writes
        job.checkpoint.retain(2)
    newest = job.checkpoint.latest()
    assert newest is not None
    fresh = MiniJob(tmp_path / "fresh")
    fresh.stores._files = job.files
    assert fresh.content(newest, 2) == expected
    assert all(job.checkpoint.problems(version) == [] for version in job.checkpoint.versions())


def test_requests_of_a_driver_in_a_micro_batch(files: CheckpointFiles, proxy: FaultyProxy) -> None:
    """The figures of docs/checkpoints.md: what it does besides the deletes of retention."""
    checkpoint = Checkpoint(files)
    checkpoint.claim("job")
    checkpoint.commit(manifest(0))
    checkpoint.retain(10)
    proxy.heal()
    latest = checkpoint.latest()
    assert latest is not None
    assert proxy.counts() == {"GET": 3, "HEAD": 1}
    proxy.heal()
    checkpoint.commit(manifest(1))
    assert proxy.counts() == {"GET": 3, "PUT": 1}
    proxy.heal()
    checkpoint.retain(10)
    assert proxy.counts() == {"GET": 2}
    proxy.heal()
    checkpoint.retain(1)
    assert proxy.counts() == {"DELETE": 1, "GET": 2, "HEAD": 1, "PUT": 1}


@pytest.mark.parametrize(("together", "puts"), [(True, 1), (False, 16)])
def test_requests_of_the_tasks_of_a_micro_batch(
    tmp_path: Path, files: CheckpointFiles, proxy: FaultyProxy, together: bool, puts: int
) -> None:
    """The figures of docs/checkpoints.md: few changes of 16 partitions, in the driver and on executors."""
    pool = StorePool()
    job = MiniJob(tmp_path, snapshot_every_deltas=None, open_stores=pool, together=together)
    job.files, job.stores._files = files, files
    base = None
    for batch_id in range(3):
        proxy.heal()
        base = job.attempt(base, batch_id, {key(group, "a"): b"1" for group in range(16)}, 16)
        assert proxy.counts() == {"PUT": puts}
    pool.close()
    proxy.heal()
    with job.lease(base, 3, 16) as lease:
        assert dict(lease.store.iterate()) == {key(3, "a"): b"1"}
    fetched = {"GET": 1, "HEAD": 1} if together else {}
    assert proxy.counts() == fetched


def test_place_must_be_usable() -> None:
    for place in ("s3://", "s3://?region=us-east-1"):
        with pytest.raises(ConfigurationError, match=r"is s3:.*names no bucket"):
            checkpoint_files(place)
