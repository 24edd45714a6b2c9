"""The benchmark of sinks runs, tiny, and finds both tables alike; no figure is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.sinks import postgres

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.since_spark("4.0", "DataFrames of Arrow tables")
@pytest.mark.skipif(postgres.INITDB is None, reason=postgres.MISSING)
def test_sinks_run_tiny(tmp_path: Path) -> None:
    """In a process of its own: its Spark session is not that of the tests."""
    pytest.importorskip("psycopg")
    with postgres.server(tmp_path / "pg") as place:
        options = ["--conninfo", place, "--keys", "500", "--rounds", "1", "--output", str(tmp_path)]
        command = [sys.executable, "-m", "bench", "sinks", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "only what the benchmark itself says"
    results = msgspec.json.decode((tmp_path / "sinks.json").read_bytes())["results"]
    assert [result["name"] for result in results] == ["write_upserts", "COPY and merge by hand"]
    assert all(result["facts"]["ratio"] > 0 for result in results)
