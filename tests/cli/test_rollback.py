"""``state rollback --spark-checkpoint``: which of Spark's own files go, and when nothing does."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("typer")

import typer
from typer.testing import CliRunner, Result

from asyncstate.cli.app import app
from asyncstate.errors import CheckpointError
from asyncstate.offline.inspection import Inspection
from asyncstate.spark.query_checkpoint import QueryCheckpoint
from asyncstate.storage import LocalFiles, checkpoint_files
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, count
from tests.s3_server import S3Server


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A checkpoint with the versions 0, 1 and 2."""
    with OperatorHarness(
        GroupAggregate([count()]), pa.schema([("k", pa.int64())]), ["k"], folder=tmp_path
    ) as harness:
        for key in range(3):
            harness.push([(key,)])
            harness.end_batch()
    return str(tmp_path / "checkpoint")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["state", *arguments])


def spark_checkpoint(
    folder: Path, offsets: list[str], entries: list[int], compact: Collection[int] = ()
) -> Path:
    """A query's checkpoint with the ``offsets`` of its batches, all committed; ``entries``: a file source's list."""
    files = {f"offsets/{number}": text for number, text in enumerate(offsets)}
    files |= {f"commits/{number}": "v1\n{}" for number in range(len(offsets))}
    files |= {f"sources/0/{number}{'.compact' if number in compact else ''}": "v1\n" for number in entries}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_text("sum")
    return folder


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_rollback_takes_files_of_spark_by_what_the_offsets_say(place: str, tmp_path: Path) -> None:
    """Two batches had the same files: entry 1 of the list is of batches 1 and 2. The other source is no list."""
    kafka = '{"topic":{"0":17}}'
    offsets = [f'v1\n{{}}\n{{"logOffset":{entry}}}\n{kafka}' for entry in (0, 1, 1)]
    query = spark_checkpoint(tmp_path / "query", offsets, [0, 1, 2])
    (query / "sources" / "1").mkdir()
    (query / "sources" / "1" / "0").write_text("v1\nstart")
    before = names_in(query)
    assert run("rollback", place, "0", "--dry-run", "--spark-checkpoint", str(query)).exit_code == 0
    assert names_in(query) == before
    assert run("rollback", place, "0", "--yes", "--spark-checkpoint", str(query)).exit_code == 0
    gone = {("commits", 1), ("commits", 2), ("offsets", 2), ("sources/0", 2)}
    assert before - names_in(query) == {
        name for folder, number in gone for name in (f"{folder}/{number}", f"{folder}/.{number}.crc")
    }
    # A second time there is nothing to do, for the state and for Spark.
    again = run("rollback", place, "0", "--yes", "--spark-checkpoint", str(query))
    assert again.stdout.startswith("version 0 is the newest")


@pytest.mark.parametrize(
    ("offsets", "entries", "what"),
    [
        (None, [], "there is no folder"),
        ([], [], "is not a query's checkpoint"),
        (["v2\n{}\na:-"] * 3, [], ""),
        (['v1\n{}\n{"logOffset":5}'] * 3, [4, 5], "no longer has sources/0/0"),
        (["", "", ""], [0, 1, 2], "offsets/1 cannot be read"),
        (["v1"] * 3, [0, 1, 2], "offsets/1 cannot be read"),
        (['v1\n{}\n{"logOff'] * 3, [0, 1, 2], "offsets/1 cannot be read"),
        (['v1\n{}\n{"logOffset":null}'] * 3, [0, 1, 2], "offsets/1 cannot be read"),
        (['v1\n{}\n{"logOffset":"x"}'] * 3, [0, 1, 2], "offsets/1 cannot be read"),
        (["v3\n{}\nsomething"] * 3, [0, 1, 2], "offsets/1 cannot be read: it has version v3"),
    ],
)
def test_rollback_changes_nothing_if_spark_cannot_follow(
    place: str,
    tmp_path: Path,
    offsets: list[str] | None,
    entries: list[int],
    what: str,
) -> None:
    query = tmp_path / "query"
    if offsets is not None:
        query.mkdir()
        spark_checkpoint(query, offsets, entries)
    done = run("rollback", place, "0", "--yes", "--spark-checkpoint", str(query))
    if what:
        assert (done.exit_code, what in done.stderr) == (2, True), done.stderr
        assert Inspection(place).versions == [0, 1, 2]
    else:
        assert done.exit_code == 0


def test_rollback_needs_the_offsets_of_the_batch_that_runs_again(place: str, tmp_path: Path) -> None:
    """Without them Spark would plan it anew, with other rows."""
    query = spark_checkpoint(tmp_path / "query", ['v1\n{}\n{"logOffset":0}'] * 3, [0])
    (query / "offsets" / "1").unlink()
    done = run("rollback", place, "0", "--yes", "--spark-checkpoint", str(query))
    assert (done.exit_code, "no longer has offsets/1" in done.stderr) == (2, True)
    assert Inspection(place).versions == [0, 1, 2]


def test_rollback_to_a_version_that_is_not_whole_loses_no_other(place: str) -> None:
    (file,) = Inspection(place).manifest(0).files()
    (Path(place) / file.name).unlink()
    for ask in ("--yes", "--dry-run"):
        done = run("rollback", place, "0", ask)
        assert done.exit_code == 2
        assert f"version 0 is damaged: checkpoint file {file.name} is missing" in done.stderr
    assert Inspection(place).versions == [0, 1, 2]


def test_rollback_that_stops_at_spark_s_files_says_how_far_it_came(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = spark_checkpoint(tmp_path / "query", ['v1\n{}\n{"logOffset":0}'] * 3, [0])

    def refused(files: LocalFiles, name: str) -> None:
        raise CheckpointError(f"could not delete {name}")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "delete", refused)
        done = run("rollback", place, "0", "--yes", "--spark-checkpoint", str(query))
    assert done.exit_code == 2
    assert "the state of job 'harness' is back at version 0, but Spark's checkpoint is not" in done.stderr
    assert "could not delete commits/.2.crc" in done.stderr
    assert "Fix that and run this command again before you start the query" in done.stderr
    assert run("rollback", place, "0", "--yes", "--spark-checkpoint", str(query)).exit_code == 0
    assert "commits/1" not in names_in(query)


def test_rollback_reads_lists_behind_a_compaction_and_sources_with_names(tmp_path: Path) -> None:
    named = [f'v2\n{{}}\nb:{{"logOffset":{n}}}\na:-' for n in range(12)]
    query = spark_checkpoint(tmp_path / "query", named, [])
    source = spark_checkpoint(tmp_path / "other", [], [9, 10, 11], compact=[9]) / "sources" / "0"
    source.rename(query / "sources-of-b")
    (query / "sources").mkdir()
    (query / "sources-of-b").rename(query / "sources" / "b")
    rewind = QueryCheckpoint(str(query)).rewind_to(9)
    assert rewind.numbers == {"commits": [10, 11], "sources/b": [11], "offsets": [11]}
    # Broken off at any point, a query goes on behind the newest commit, and its job refuses that: so the newest first.
    order = ["commits/.11.crc", "commits/11", "commits/.10.crc", "commits/10"]
    assert rewind.files == [*order, "sources/b/.11.crc", "sources/b/11", "offsets/.11.crc", "offsets/11"]
    with pytest.raises(CheckpointError, match="no longer has sources/b/0"):
        QueryCheckpoint(str(query)).rewind_to(7)
    with pytest.raises(CheckpointError, match="is at batch 11"):
        QueryCheckpoint(str(query)).rewind_to(13)


def test_rollback_of_spark_s_checkpoint_in_an_object_store(tmp_path: Path, s3: S3Server) -> None:
    """Where Hadoop writes no checksum files, and URIs may be Hadoop's."""
    offsets = [f'v1\n{{}}\n{{"logOffset":{entry}}}' for entry in (0, 1, 2)]
    query = spark_checkpoint(tmp_path / "query", offsets, [0, 1, 2])
    place = s3.place()
    files = checkpoint_files(place)
    for name in names_in(query):
        if not name.endswith(".crc"):
            files.put_file(query / name, name)
    checkpoint = QueryCheckpoint(place.replace("s3://", "s3a://"))
    checkpoint.apply(checkpoint.rewind_to(0))
    left = ["commits/0", "offsets/0", "offsets/1", "sources/0/0", "sources/0/1"]
    assert files.list("") == left
    with pytest.raises(CheckpointError, match="is not a query's checkpoint"):
        QueryCheckpoint(s3.place())


def test_rollback_takes_back_what_was_committed_while_it_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of Spark's files: the job ran on until it was fenced off."""
    operator, schema = GroupAggregate([count()]), pa.schema([("k", pa.int64())])
    query = spark_checkpoint(tmp_path / "query", ["v1\n{}\n{}"] * 3, [])
    with OperatorHarness(operator, schema, ["k"], folder=tmp_path) as running:
        for key in range(3):
            running.push([(key,)])
            running.end_batch()

        def answered(*_: object, **__: object) -> bool:
            running.push([(9,)])
            running.end_batch()
            spark_checkpoint(query, ["v1\n{}\n{}"] * 5, [])
            return True

        monkeypatch.setattr(typer, "confirm", answered)
        done = run("rollback", str(tmp_path / "checkpoint"), "1", "--spark-checkpoint", str(query))
    assert (done.exit_code, "back at version 1; dropped: 2, 3" in done.stdout) == (0, True)
    assert Inspection(str(tmp_path / "checkpoint")).versions == [0, 1]
    assert {one for one in names_in(query) if "crc" not in one} == {
        *(f"commits/{number}" for number in range(2)),
        *(f"offsets/{number}" for number in range(3)),
    }
