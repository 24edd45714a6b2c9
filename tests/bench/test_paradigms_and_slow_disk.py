"""The benchmarks of paradigms and slow disks run, tiny, and say what they compare; no figure is checked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench import compare
from bench.__main__ import app
from bench.paradigms import PARADIGMS
from bench.slowdisk import shim

needs_shim = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="reads are delayed by a C library, on Linux"
)


@pytest.mark.long
@needs_shim
@pytest.mark.timeout(300)
def test_the_paradigms_run_tiny_and_the_iterating_ones_on_a_slow_device(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["paradigms", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "paradigms.json").read_bytes())["results"]
    quick, slow = results[: 2 * len(PARADIGMS)], results[2 * len(PARADIGMS) :]
    assert [result["group"] for result in quick[::2]] == [f"{one.number} {one.title}" for one in PARADIGMS]
    for form in ("calls", "futures", "async"):
        assert all(result["facts"][form] > 0 for result in quick)
    names = [name for result in results for name in result.get("figures", ())]
    assert names == list(compare.read_baseline("paradigms").figures)
    assert all(paradigm.title in done.output for paradigm in PARADIGMS)
    assert all(len(line) <= 80 for line in done.output.splitlines() if not line.startswith("written"))
    assert [(result["name"], result["facts"]["workload"]) for result in slow] == [
        ("+ 1 ms", workload) for workload in ("p5", "p6", "p9")
    ]
    assert all(result["facts"]["sync_reads"] is not None for result in slow), "the shim is loaded"


@pytest.mark.long
@needs_shim
@pytest.mark.timeout(300)
def test_slow_disk_runs_tiny_and_draws_a_picture(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["slow-disk", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "slow-disk.json").read_bytes())["results"]
    facts = [result["facts"] for result in results]
    assert [(each["workload"], each["latency_us"]) for each in facts] == [
        (workload, latency) for workload in ("p1", "by-hand", "aggregate") for latency in (0, 1_000)
    ]
    (by_hand,) = (each for each in facts if each["workload"] == "by-hand" and each["latency_us"])
    for mode in ("sync", "async"):
        assert by_hand[f"{mode}_us"] > 0
        assert by_hand[f"{mode}_reads"] is not None, "the shim is loaded"
    assert (tmp_path / "slow-disk.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_without_a_compiler_the_rows_with_latency_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim.shutil, "which", lambda _: None)
    few = ["--workloads", "by-hand", "--state-keys", "1000", "--records", "100", "--rounds", "1"]
    arguments = ["slow-disk", *few, "--devices", "disk,1ms", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "no rows with added latency: delaying reads needs a C compiler" in " ".join(done.output.split())
    results = msgspec.json.decode((tmp_path / "slow-disk.json").read_bytes())["results"]
    assert {result["facts"]["latency_us"] for result in results} == {0}


def test_an_unknown_workload_is_refused() -> None:
    done = CliRunner().invoke(app, ["slow-disk", "--workloads", "p1,p77"])
    assert done.exit_code == 2
    assert "p77" in done.output


_READER = """
import os, sys
from bench.slowdisk import shim

table, other = sys.argv[1:]
for path in (table, other):
    for flags in (os.O_RDONLY, os.O_RDONLY):
        file = os.open(path, flags)
        os.pread(file, 4, 0)
        os.pread(file, 4, 2)
        os.close(file)
print(shim.reads())
"""


@needs_shim
def test_the_shim_counts_reads_of_tables_under_its_folder_alone(tmp_path: Path) -> None:
    library = shim.build(tmp_path)
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        for name in ("1.sst", "MANIFEST-000001"):
            (folder / name).write_bytes(bytes(8))
    counts = {}
    for table in (inside / "1.sst", outside / "1.sst"):
        command = [sys.executable, "-c", _READER, str(table), str(inside / "MANIFEST-000001")]
        done = subprocess.run(
            command,
            env=shim.environment(library, inside, 100),
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        counts[table] = int(done.stdout)
    assert counts == {inside / "1.sst": 4, outside / "1.sst": 0}


def test_nothing_is_counted_without_the_shim() -> None:
    assert shim.reads() is None
