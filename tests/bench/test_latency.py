"""The comparison of small micro-batches runs, tiny, with what came out checked; no figure is."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.frame import Report, Row, serving
from bench.latency import command
from bench.latency.command import ENGINES, KEYED, Plan, problems_of, serve
from bench.peers.works import PEERS
from bench.processor_time import Spent


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_runs_tiny(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["latency", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = msgspec.json.decode((tmp_path / "latency.json").read_bytes())
    rows = msgspec.convert(document["results"], list[Row])
    costs, late = rows[:2], rows[2:]
    assert [(row.facts["engine"], len(row.facts["seconds_10"])) for row in costs] == [
        ("ours-sync", 1),
        ("spark", 1),
    ]
    assert [row.facts["engine"] for row in late] == ["ours-sync", "spark"]
    for row in late:
        assert row.facts["events"] == 50  # half of a second at 100 a second
        assert 0 < row.facts["p50_ms"] <= row.facts["p95_ms"] <= row.facts["max_ms"]
    assert "Traceback" not in done.output


class _Engine:
    """An engine that fails at micro-batches of so many rows."""

    def __init__(self, name: str) -> None:
        self.name = self.title = name


def test_an_engine_that_fails_keeps_what_it_had_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turn(spark: object, work: str, engine: _Engine, plan: Plan, size: int, *_: int) -> list[Spent]:
        if (engine.name, size) == ("bad", 20):
            raise RuntimeError("it broke")
        return [Spent(0.5, 0.1), Spent(0.7, 0.1)]

    monkeypatch.setattr(command, "_turn", turn)
    monkeypatch.setattr(command, "able", lambda *_: [_Engine("bad"), _Engine("good")])
    report = Report("latency", tmp_path)
    plan = Plan(tmp_path, (), keys=5, steady_keys=5, sizes=(10, 20), batches=2)
    command.fixed_costs(None, "a", plan, report)  # type: ignore[arg-type]
    report.folder.rmdir()
    bad, good = report.rows
    assert (bad.failed, bad.facts["ms_10"], "ms_20" in bad.facts) == ("RuntimeError: it broke", 600.0, False)
    assert (good.failed, good.facts["ms_10"], good.facts["ms_20"]) == ("", 600.0, 600.0)


@pytest.mark.parametrize(
    "arguments", [("--work", "z"), ("--engines", "nobody"), ("--rows", "few"), ("--rows", "0")]
)
def test_what_is_not_known_is_refused(arguments: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["latency", *arguments])
    assert done.exit_code == 2
    assert arguments[1] in done.output


def test_every_work_has_ours_and_a_way_from_numbers_to_keys_and_back() -> None:
    assert set(ENGINES) == set(KEYED)
    for engines in ENGINES.values():
        ours = [engine for engine in engines if PEERS[engine.peer].ours]
        assert [engine.name for engine in ours[:3]] == ["ours-sync", "ours-async", "ours-function"]
        assert not any(engine.direct for engine in ours)


@pytest.mark.parametrize(
    ("numbers", "each", "said"),
    [
        ([[0, 1, 2], [3, 4, 5]], True, ()),
        ([[0, 1, 2], [3, 5]], True, ("1 events are missing in the output",)),
        ([[0, 1, 2], [2, 3, 4, 5]], True, ("1 events are in the output more than once",)),
        ([[0, 1, 2, 3, 4, 5, 9]], True, ("1 rows belong to no event",)),
        ([[1], [4, 5]], False, ()),  # of two keys the last each; others may have been put together
        ([[1], [5]], False, ("1 events are missing in the output",)),
    ],
)
def test_what_came_out_is_checked(numbers: list[list[int]], each: bool, said: tuple[str, ...]) -> None:
    plan = Plan(Path(), (), keys=2, steady_keys=2, rate=6, seconds=1.0)
    assert problems_of([np.array(batch) for batch in numbers], plan, each) == list(said)


def test_events_come_in_order_each_with_its_time() -> None:
    with (
        serving(serve, 10_000, 500) as line,
        socket.create_connection(("127.0.0.1", line.recv())) as source,
    ):
        times = line.recv()
        text = b""
        while text.count(b"\n") < 500:
            text += source.recv(1 << 16)
    assert [int(line) for line in text.split()] == list(range(500))
    assert len(times) == 500
    assert (np.diff(times) >= 0).all()
    assert times[-1] > times[0] > 0
