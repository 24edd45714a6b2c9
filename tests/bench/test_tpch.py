"""The benchmark of TPC-H runs, small; no figure is checked. Each query equals Spark's batch engine there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import msgspec
import pytest

from bench.tpch.data import KEYS, write_changes

ROOT = Path(__file__).resolve().parents[2]
SIGN = "CASE WHEN row_kind IN ('+I', '+U') THEN 1 ELSE -1 END"


def _run(tmp_path: Path, *options: str) -> list[dict[str, object]]:
    """In a process of its own: its Spark session is not that of the tests."""
    command = [sys.executable, "-m", "bench", "tpch", "--tiny", *options, "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, object]] = msgspec.json.decode((tmp_path / "tpch.json").read_bytes())["results"]
    return found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_queries_are_kept_right_on_spark(tmp_path: Path) -> None:
    assert [row["name"] for row in _run(tmp_path)] == ["q1", "q4", "q22"]


@pytest.mark.long
def test_changes_net_to_the_last_rows(tmp_path: Path) -> None:
    files = write_changes(tmp_path, scale=0.002, batches=3, share=0.05, threads=1)
    assert files.micro_batches == 4
    assert files.changed > 0.05 * 0.5 * files.rows
    for table, keys in KEYS.items():
        names = ", ".join(keys)
        changes, last = f"'{files.changes}/{table}/*.parquet'", f"'{files.last}/{table}.parquet'"
        with duckdb.connect() as connection:
            net = f"SELECT * EXCLUDE (row_kind), sum({SIGN}) AS n FROM {changes} GROUP BY ALL HAVING n <> 0"
            columns = "n::INTEGER AS n, * EXCLUDE (n)"
            one = f"SELECT {columns} FROM ({net})"
            two = f"SELECT 1::INTEGER AS n, * FROM {last}"
            for given, other in ((one, two), (two, one)):
                assert connection.execute(f"{given} EXCEPT {other}").fetchall() == []
            assert (
                connection.execute(f"SELECT count(*), count(DISTINCT ({names})) FROM {last}").fetchall()
                == connection.execute(f"SELECT count(*), count(*) FROM {last}").fetchall()
            )
