"""Commands for whole operators: what they do, and that a kill at any moment leaves all or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from asyncstate.cli.app import app
from asyncstate.errors import StateDeclarationError
from asyncstate.offline.operator_changes import (
    AcceptChange,
    DropOperator,
    OperatorChange,
    RenameOperator,
    change_operator,
)
from asyncstate.storage import (
    Checkpoint,
    GraphManifest,
    LocalFiles,
    Manifest,
    OperatorManifest,
    SinkManifest,
)
from asyncstate.testing import OperatorHarness
from operators import Rank, desc

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def harness(folder: Path, uid: str = "top", n: int = 1, enabled: bool = False) -> OperatorHarness:
    operator = Rank(desc("v"), n)
    return OperatorHarness(
        operator, SCHEMA, ["k"], uid=uid, folder=folder, changelog=False, async_enabled=enabled, parallelism=2
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with harness(tmp_path) as first:
        first.push([("x", 1), ("y", 5)])
        first.end_batch()
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["state", "migrate", *arguments])
    assert done.exit_code == code, done.output
    return re.sub(r"\s+", " ", done.output)


@pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])
def test_a_renamed_operator_goes_on_under_its_new_uid(folder: Path, enabled: bool) -> None:
    place = str(folder / "checkpoint")
    assert "nothing was changed" in run("rename-operator", place, "top", "best", "--dry-run")
    run("rename-operator", place, "top", "best", "--yes")
    with harness(folder, "best", enabled=enabled) as renamed:
        renamed.push([("x", 2), ("y", 4)])
        assert renamed.end_batch() == [("-D", "x", 1), ("+I", "x", 2)]
    assert "no operator 'top'; its operators are 'best'" in run(
        "rename-operator", place, "top", "best", "--yes", code=2
    )


def test_a_dropped_operator_starts_empty(folder: Path) -> None:
    run("drop-operator", str(folder / "checkpoint"), "top", "--yes")
    with harness(folder) as again:
        again.push([("x", 0)])
        assert again.end_batch() == [("+I", "x", 0)]


def test_what_is_refused_can_be_taken_for_right(folder: Path) -> None:
    with pytest.raises(StateDeclarationError, match="ranking was row_number 1 from 1") as refused:
        harness(folder, n=2)
    command = re.search(r"state migrate (accept-change) CHECKPOINT (\S+)", str(refused.value))
    assert command
    run(command[1], str(folder / "checkpoint"), command[2], "--yes")
    with harness(folder, n=2) as accepted:
        accepted.push([("x", 0)])
        assert accepted.end_batch() == [("+I", "x", 0)]
    with pytest.raises(StateDeclarationError, match="ranking was row_number 2 from 1"):
        harness(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rename-operator", "nobody", "best"), "no operator 'nobody'; its operators are 'top'"),
        (("rename-operator", "top", "top"), "already has an operator 'top'"),
        (("rename-operator", "top", "a/b"), "a/b"),
        (("drop-operator", "nobody"), "no operator 'nobody'"),
    ],
)
def test_what_is_not_possible_is_said_before_the_job_is_stopped(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    command, *rest = arguments
    with harness(folder) as running:
        assert message in run(command, str(folder / "checkpoint"), *rest, "--yes", code=2)
        running.push([("x", 3)])
        running.end_batch()  # it still owns the checkpoint


def _killed(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Fail the write after so many, as if the process was killed there."""
    left = [writes]

    def counted(wrapped: Any) -> Any:
        def write(self: LocalFiles, *arguments: Any) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return wrapped(self, *arguments)

        return write

    for name in ("put_bytes", "put_file", "delete"):
        monkeypatch.setattr(LocalFiles, name, counted(getattr(LocalFiles, name)))


def _moments() -> Iterator[int]:
    yield from range(20)


@pytest.mark.parametrize("change", [RenameOperator("best"), DropOperator(), AcceptChange()], ids=str)
def test_killed_anywhere_it_is_given_again(folder: Path, change: OperatorChange) -> None:
    place = str(folder / "checkpoint")
    before = Checkpoint(LocalFiles(folder / "checkpoint")).latest()
    assert before is not None
    kills = 0
    for writes in _moments():
        with pytest.MonkeyPatch.context() as patch:
            _killed(patch, writes)
            try:
                change_operator(place, "top", change)
                break
            except KeyboardInterrupt:
                kills += 1
            except StateDeclarationError:  # killed behind its commit: the operator is not there any more
                break
        found = Checkpoint(LocalFiles(folder / "checkpoint")).latest()
        assert found is not None
        assert found.batch_id == before.batch_id
    assert kills, "the command writes"
    found = Checkpoint(LocalFiles(folder / "checkpoint")).latest()
    assert found is not None
    if isinstance(change, AcceptChange):
        assert found.operators["top"].meaning == {}
        assert found.operators["top"].partitions == before.operators["top"].partitions
    else:
        kept = {change.to: before.operators["top"].partitions} if isinstance(change, RenameOperator) else {}
        assert {uid: one.partitions for uid, one in found.operators.items()} == kept


def test_a_sink_is_taken_for_right_and_follows_its_operator(tmp_path: Path) -> None:
    """What the manifest has of a sink's rows: their operator under its new name, no more operator, nothing."""
    checkpoint = Checkpoint(LocalFiles(tmp_path))
    checkpoint.claim("job")
    rows = {
        "table": SinkManifest(True, "n > 1", "none", ["top"]),
        "late": SinkManifest(False, "none", "none", ["top:late"]),
    }
    operators = {"top": OperatorManifest("top", "Rank", 1, [])}
    checkpoint.commit(Manifest("job", 0, -1, 128, operators, graph=GraphManifest({"rows": False}, rows)))

    def sinks() -> dict[str, SinkManifest]:
        manifest = Checkpoint(LocalFiles(tmp_path)).latest()
        assert manifest is not None
        assert manifest.graph is not None
        return manifest.graph.sinks

    run("rename-operator", str(tmp_path), "top", "best", "--yes")
    assert [one.inputs for one in sinks().values()] == [["best"], ["best:late"]]
    run("drop-operator", str(tmp_path), "best", "--yes")
    assert sinks()["table"].inputs == ["(state dropped)"]
    run("accept-sink", str(tmp_path), "table", "--yes")
    assert sinks()["table"] == SinkManifest(True)
    assert sinks()["late"].filters == "none"
    assert "no sink 'tables'; its sinks are 'table', 'late'" in run(
        "accept-sink", str(tmp_path), "tables", "--yes", code=2
    )


def test_the_watermark_of_a_source_that_has_a_colon_stays(tmp_path: Path) -> None:
    """An input of an operator is ``uid:number``; sources may have any name."""
    checkpoint = Checkpoint(LocalFiles(tmp_path))
    checkpoint.claim("job")
    operators = {"top": OperatorManifest("top", "Rank", 1, [])}
    times = {"top:0": 1, "top:eu": 2, "other:0": 3}
    checkpoint.commit(
        Manifest("job", 0, -1, 128, operators, sources=times, heard={"top:eu": 5}, idle=["top:eu"])
    )

    def sources() -> tuple[dict[str, int], dict[str, int], list[str]]:
        manifest = Checkpoint(LocalFiles(tmp_path)).latest()
        assert manifest is not None
        return manifest.sources, manifest.heard, manifest.idle

    run("rename-operator", str(tmp_path), "top", "best", "--yes")
    assert sources() == ({"best:0": 1, "top:eu": 2, "other:0": 3}, {"top:eu": 5}, ["top:eu"])
    run("rename-operator", str(tmp_path), "best", "top", "--yes")
    run("drop-operator", str(tmp_path), "top", "--yes")
    assert sources() == ({"top:eu": 2, "other:0": 3}, {"top:eu": 5}, ["top:eu"])
