"""The comparison of small micro-batches runs, tiny, with what came out checked; no figure is."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.latency.engines import ENGINES, KEYED
from bench.latency.events import Events
from bench.latency.fixed import FixedCost
from bench.latency.steady import Latency, SteadyPlan, problems_of


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_runs_tiny(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["latency", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = msgspec.json.decode((tmp_path / "latency.json").read_bytes())
    costs = msgspec.convert(document["results"], list[FixedCost])
    late = msgspec.convert(document["latencies"], list[Latency])
    assert [(each.engine, each.rows, len(each.seconds)) for each in costs] == [
        ("ours-sync", 10, 1),
        ("spark", 10, 1),
    ]
    assert [each.engine for each in late] == ["ours-sync", "spark-changelog"]
    assert all(each.events == 50 for each in late)  # half of a second at 100 a second
    assert all(0 < each.p50_ms <= each.p95_ms <= each.max_ms for each in late)


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
        assert [engine.peer for engine in engines if engine.ours] == ["ours-sync", "ours-async"]
        assert not any(engine.direct for engine in engines if engine.ours)


@pytest.mark.parametrize(
    ("numbers", "each", "said"),
    [
        ([[0, 1, 2], [3, 4, 5]], True, ()),
        ([[0, 1, 2], [3, 5]], True, ("1 events have not come out",)),
        ([[0, 1, 2], [2, 3, 4, 5]], True, ("1 events have come out more than once",)),
        ([[0, 1, 2, 3, 4, 5, 9]], True, ("1 rows are of no event",)),
        ([[1], [4, 5]], False, ()),  # of two keys the last each; others may have been put together
        ([[1], [5]], False, ("1 events have not come out",)),
    ],
)
def test_what_came_out_is_checked(numbers: list[list[int]], each: bool, said: tuple[str, ...]) -> None:
    plan = SteadyPlan(Path(), rate=6, seconds=1.0, warm_up=0.0, keys=2, engines=())
    assert problems_of([np.array(batch) for batch in numbers], plan, each) == said


def test_events_come_in_order_each_with_its_time(tmp_path: Path) -> None:
    with (
        Events(10_000, 500, tmp_path) as events,
        socket.create_connection(("127.0.0.1", events.port)) as source,
    ):
        times = events.times()
        text = b""
        while text.count(b"\n") < 500:
            text += source.recv(1 << 16)
    assert [int(line) for line in text.split()] == list(range(500))
    assert len(times) == 500
    assert (np.diff(times) >= 0).all()
    assert times[-1] > times[0] > 0
