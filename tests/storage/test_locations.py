"""Places that are no well-formed URI or path: refused by name, their secrets never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncstate.errors import AsyncStateError, ConfigurationError
from asyncstate.locations import local_path, redact, redact_in
from asyncstate.offline.inspection import Inspection
from asyncstate.storage import Retries, checkpoint_files

MALFORMED = [
    "s3://KEY:top/secret@bucket/x",
    "s3://KEY:top#secret@bucket/x",
    "s3://KEY:top?secret@bucket/x",
    "s3://KEY:to@p/secret@bucket/x",
    "s3://KEY:to@p?secret@bucket/x",
    "s3://KEY:80/secret@bucket/x?region=r",
]


@pytest.mark.parametrize("place", MALFORMED)
def test_secrets_that_were_not_escaped_are_masked(place: str) -> None:
    shown = redact(place)
    assert shown.startswith("s3://***@bucket/x")
    text = redact_in(f"Cannot parse {place}: invalid port of KEY, /secret", place)
    assert text == f"Cannot parse {shown}: invalid port of ***, /***"


@pytest.mark.long
@pytest.mark.parametrize("place", [*MALFORMED[:4], "gs://key:secret@[bad/x", "gs://[bad/x"])
def test_such_a_uri_is_refused_without_its_secret(place: str) -> None:
    with pytest.raises(AsyncStateError) as raised:
        checkpoint_files(place, Retries(1, 1.0))
    for secret in ("KEY", "top", "secret", "key:"):
        assert secret not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("place", ["s3:KEY:secret@bucket/x", "S3a:bucket", "file:folder", "hdfs:name"])
def test_a_uri_that_lacks_its_slashes_is_no_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opened in (checkpoint_files, Inspection):
        with pytest.raises(ConfigurationError, match="and no slash; write ") as raised:
            opened(place)
        assert "secret" not in str(raised.value)
    assert not list(tmp_path.iterdir())
    checkpoint_files("./s3:bucket")
    assert [folder.name for folder in tmp_path.iterdir()] == ["s3:bucket"]


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("s3://bucket/a@b/x", "s3://bucket/a@b/x"),  # no colon before it
        ("hdfs://host:8020/x?token=a@b", "hdfs://host:8020/x?token=***"),
        ("s3://bucket/x?endpoint_override=http://u:p@h", "s3://bucket/x?endpoint_override=http://***%40h"),
        ("S3://bucket/x#part", "s3://bucket/x"),
    ],
)
def test_what_is_no_secret_is_shown(place: str, shown: str) -> None:
    assert redact(place) == shown


@pytest.mark.parametrize("place", ["/tmp/a\0b", "file:///tmp/a\0b", "s3://bucket/a\0b"])
def test_a_place_with_a_nul_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot contain NUL"):
        checkpoint_files(place)


@pytest.mark.parametrize("place", ["file://user:secret@[bad/x", "file://user:secret@host/x"])
def test_file_uris_that_cannot_be_read_are_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="write file:///path") as raised:
        local_path(place)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("place", ["~", "~/checkpoints", "~ada/checkpoints"])
def test_a_home_is_not_a_folder_of_that_name(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"begins with ~, which is not expanded; write the full path"
    ):
        checkpoint_files(place)
    assert not list(tmp_path.iterdir())
    checkpoint_files("./~/checkpoints")
    assert [folder.name for folder in tmp_path.iterdir()] == ["~"]
