"""Operators of one task: rows on their way from one to the next, in memory and in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.changelog import RETRACT
from asyncstate.driver.chain import Link, run_chain
from asyncstate.errors import JobError, StoreError
from asyncstate.operator import InputSpec
from asyncstate.runtime import CommitRecord, InputBatch, SideBatch
from asyncstate.storage import PartitionManifest

SCHEMA = pa.schema([("n", pa.int64())])


def link(uid: str, folder: Path | None = None, memory: int = 1 << 20) -> Link:
    config = SimpleNamespace(shares=SimpleNamespace(gathered=memory))
    spec = InputSpec(SCHEMA, ("n",), changes=RETRACT)
    local_dir = None if folder is None else str(folder)
    return Link(SimpleNamespace(uid=uid, inputs=(spec,), config=config, local_dir=local_dir))  # type: ignore[arg-type]


def rows(first: int, number: int) -> pa.RecordBatch:
    numbers = list(range(first, first + number))
    kinds = ["-D" if n % 3 == 0 else "+I" for n in numbers]
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int32()), "row_kind": kinds})


class Doubling:
    """Stands for ``run_partitions``: the first operator makes rows, the others double and tell what they got."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.got: dict[str, list[tuple[int, int]]] = {}
        self.running: list[str] = []
        self.order: list[str] = []

    def __call__(self, spec: Any, partitions: range, given: Iterator[InputBatch]) -> Iterator[Any]:
        assert not self.running  # the one before has ended
        self.running.append(spec.uid)
        self.order.append(spec.uid)
        if spec.uid == "a":
            yield from (rows(10 * number, 10) for number in range(self.batches))
        else:
            got = self.got[spec.uid] = []
            for batch in given:
                assert batch.batch.schema == SCHEMA
                assert batch.kinds is not None
                got += zip(batch.batch.column("n").to_pylist(), batch.kinds.tolist(), strict=True)
                yield pa.RecordBatch.from_pydict(
                    {
                        "n": [2 * n for n in batch.batch.column("n").to_pylist()],
                        "row_kind": ["+I"] * batch.batch.num_rows,
                    }
                )
        yield CommitRecord(partition=partitions[0], content=CONTENT, states=[], max_event_times=[None])
        self.running.clear()


CONTENT = PartitionManifest(0)


@pytest.mark.parametrize("memory", [1, 300, 1 << 20])
def test_each_operator_gets_what_the_one_before_put_out_in_its_order(tmp_path: Path, memory: int) -> None:
    run = Doubling(batches=7)
    links = [link(uid, tmp_path / "new", memory) for uid in "abc"]
    out = list(run_chain(links, range(3, 4), iter(()), run))
    left = [n for batch in out if isinstance(batch, pa.RecordBatch) for n in batch.column("n").to_pylist()]
    assert [type(one) for one in out[-3:]] == [CommitRecord] * 3
    assert run.got["b"] == [(n, 3 if n % 3 == 0 else 0) for n in range(70)]
    assert run.got["c"] == [(2 * n, 0) for n in range(70)]
    assert left == [4 * n for n in range(70)]
    assert run.order == ["a", "b", "c"]
    assert not list(tmp_path.rglob("asyncstate-chain*"))


def test_side_outputs_of_the_last_one_pass() -> None:
    def run(spec: Any, partitions: range, given: Iterator[InputBatch]) -> Iterator[Any]:
        yield from (SideBatch("late", rows(0, 2)) for _ in given)
        yield CommitRecord(partition=partitions[0], content=CONTENT, states=[], max_event_times=[None])

    out = list(run_chain([link("a")], range(1), iter([InputBatch(rows(0, 1))]), run))
    assert isinstance(out[0], SideBatch)


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    def silent(spec: Any, partitions: range, given: Iterator[InputBatch]) -> Iterator[Any]:
        yield from ()

    with pytest.raises(JobError, match="operator 'a': 0 commit records of the partitions 5 to 5"):
        list(run_chain([link("a"), link("b")], range(5, 6), iter(()), silent))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        StoreError, match="operator 'b': cannot create a file for input rows that exceed memory"
    ):
        list(run_chain([link("a"), link("b", file, 1)], range(1), iter(()), Doubling(2)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room is simulated by Linux")
@pytest.mark.parametrize("batches", [2, 2_000], ids=["at the end", "at once"])
def test_a_full_disk_names_the_operator_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "r+b"))  # noqa: SIM115
    links = [link("a"), link("b", tmp_path, 1)]
    message = (
        f"input rows of operator 'b' could not be spilled to {tmp_path}: .*No space left.* Free space on that"
    )
    with pytest.raises(StoreError, match=message):
        list(run_chain(links, range(1), iter(()), Doubling(batches)))
