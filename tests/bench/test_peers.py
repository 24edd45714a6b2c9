"""Every engine of the comparison does the work right; the comparison runs, tiny, and says what it compares.

No figure is checked.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bench.__main__ import app
from bench.options import made
from bench.peers import measure, modes
from bench.peers.child import Turns, run_ours, run_spark
from bench.peers.inputs import check, write_input
from bench.peers.itself import Task, measure_itself, raw
from bench.peers.parts import PARTS
from bench.peers.peers import PEERS
from bench.peers.protocol import Run, Start, Timed
from bench.peers.report import itself_table, peers_table, write_plots
from bench.peers.results import Figure, Throughput, compare_all, interval_of_median
from bench.peers.spark_plans import spark_conf
from bench.peers.turns import PeerError, take_turns
from bench.peers.works import WORKS, Scale, Tables, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL = Scale(rows=400, keys=120, warm_up=0, counted=1)


class AtOnce(Turns):
    """Nobody else is waiting."""

    def __init__(self) -> None:
        self.waited: dict[int, float] = {}
        self.cpu: dict[int, dict[int, float] | None] = {}

    def wait(self, batch_id: int) -> None:
        self.waited[batch_id] = 0.0


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, since state stores are chosen by its settings."""
    return spark.newSession()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("work_name", "peer_name"),
    [
        (work.name, peer)
        for work in WORKS.values()
        for peer in work.peers
        if work.name == "a"
        or peer not in ("spark-changelog", "spark-snapshot")  # differ from heap in settings
    ],
)
def test_every_peer_does_the_work_right(
    work_name: str, peer_name: str, session: SparkSession, tmp_path: Path
) -> None:
    work, peer = WORKS[work_name], PEERS[peer_name]
    if peer.missing:
        pytest.skip(peer.missing)
    for key, value in spark_conf(peer.store).items():
        if key != "spark.driver.memory":  # that of the session
            session.conf.set(key, value)
    given = write_input(work, _SMALL, tmp_path / "input", files=2)
    batches = _SMALL.micro_batches(work)
    first = 1  # what is kept begins inside the run, as when measured
    run = Run(input=given, folder=str(tmp_path / "run"), first_kept=first)
    start = Start(peer=peer_name, work=work_name, folder=str(tmp_path), cores=2)
    timed = (run_ours if peer.ours else run_spark)(session, start, run, AtOnce())
    outcome = check(
        given, work.results[peer.result if peer.ours else ""], tmp_path / "run" / "sink", first, cores=1
    )
    assert outcome.ok, (outcome.problems, outcome.examples)
    assert outcome.expected_rows > 0
    assert len(timed.seconds) == batches
    assert all(seconds > 0 for seconds in timed.seconds)
    if peer.ours:
        assert [set(parts) for parts in timed.parts] == [set(PARTS)] * batches


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_comparison_runs_tiny(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["peers", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = msgspec.json.decode((tmp_path / "peers.json").read_bytes())
    results = msgspec.convert(document["results"], list[Throughput])
    assert [(result.work, result.peer) for result in results] == [
        ("a, 500 keys", "ours-sync"),
        ("a, 500 keys", "spark-changelog"),
    ]
    assert all(result.checked and result.expected_rows > 0 and result.rate > 0 for result in results)
    assert [(each["ours"], each["peer"], each["aim"]) for each in document["comparisons"]] == [
        ("ours-sync", "spark-changelog", 5.0)
    ]
    assert [figure["group"] for figure in document["itself"]] == ["growth"] * 4
    assert all(figure["cpu_points"].keys() == figure["points"].keys() for figure in document["itself"])
    assert {"trigger", "sink", "output_mode", "conf_of_spark"} <= set(document["fairness"])
    assert "asyncstate, sync" in done.output
    assert "Spark, RocksDB, changelog" in done.output
    for name in ("throughput", "growth", "parts"):
        assert (tmp_path / f"peers-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_query_is_refused_with_those_there_are() -> None:
    done = CliRunner().invoke(app, ["peers", "--work", "f", "--queries", "q4,q99"])
    assert done.exit_code == 2
    assert "q99: choose from q3, q4, q5" in done.output


def test_a_folder_that_is_missing_is_made_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    assert made(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert (tmp_path / "new" / "folder").is_dir()
    assert made(None) is None
    (tmp_path / "file").touch()
    with pytest.raises(typer.BadParameter, match="can be written to"):
        made(tmp_path / "file" / "below")


def test_a_wrong_result_fails_the_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = _result("ours-sync", [1.0], checked=False, problems=("3 expected rows are missing",))
    right = _result("spark-changelog", [1.0])
    monkeypatch.setattr(measure, "measure", lambda *_: [wrong, right])
    done = CliRunner().invoke(app, ["peers", "--tiny", "--work", "a", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "3 expected rows are missing" in done.output
    assert msgspec.json.decode((tmp_path / "peers.json").read_bytes())["comparisons"] == []


def test_a_peer_that_fails_is_told_from_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = _result("spark-changelog", [], checked=False, failed="peer spark-changelog: it has ended")
    monkeypatch.setattr(measure, "measure", lambda *_: [failed])
    done = CliRunner().invoke(app, ["peers", "--tiny", "--work", "a"])
    assert done.exit_code == 2
    assert "it has ended" in done.output


@pytest.mark.parametrize("arguments", [["--work", "z"], ["--peers", "nobody"], ["--keys", "many"]])
def test_what_is_not_known_is_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["peers", *arguments])
    assert done.exit_code == 2
    assert arguments[1] in done.output


def _result(peer: str, seconds: list[float], work: str = "a, 500 keys", **more: object) -> Throughput:
    base = Throughput(
        work=work,
        title="counting",
        peer=peer,
        peer_title=PEERS[peer].title,
        keys=500,
        rows=100,
        seconds=seconds,
        checked=True,
    )
    return msgspec.structs.replace(base, **more)


def test_a_ratio_is_the_median_over_pairs_and_the_aim_stands_with_the_quickest_peer() -> None:
    results = [
        _result("ours-sync", [1.0, 2.0, 1.0]),
        _result("spark-changelog", [6.0, 10.0, 8.0]),
        _result("spark-snapshot", [12.0, 12.0, 12.0]),
        _result("ours-async", [1.0, 1.0, 1.0], checked=False),
    ]
    quick, slow = compare_all(results)
    assert (quick.ours, quick.peer, quick.ratio, quick.low, quick.high) == (
        "ours-sync",
        "spark-changelog",
        6.0,
        5.0,
        8.0,
    )
    assert (quick.aim, quick.met) == (5.0, True)
    assert (slow.peer, slow.aim, slow.met) == ("spark-snapshot", None, None)


def test_each_way_of_ours_has_an_aim_of_its_own_with_the_best_python_peer() -> None:
    results = [
        _result(peer, [seconds], work="d")
        for peer, seconds in (
            ("ours-sync", 1.0),
            ("bundle-sync", 0.25),
            ("tws-row", 20.0),
            ("apply-pandas", 12.0),
        )
    ]
    aims = {(each.ours, each.peer): (each.ratio, each.aim, each.met) for each in compare_all(results)}
    assert aims == {
        ("ours-sync", "tws-row"): (20.0, None, None),
        ("ours-sync", "apply-pandas"): (12.0, 15.0, False),
        ("bundle-sync", "tws-row"): (80.0, None, None),
        ("bundle-sync", "apply-pandas"): (48.0, 60.0, False),
    }


def test_nobody_works_before_the_one_before_has_ended_and_who_fails_is_out() -> None:
    order: list[str] = []

    class Fake:
        timed: Timed | None = None

        def __init__(self, name: str, fails_at: int = 99) -> None:
            self._name, self._left = name, fails_at

        def step(self) -> None:
            order.append(self._name)
            self._left -= 1
            if not self._left:
                raise PeerError(f"{self._name} is gone")

    failed = take_turns(
        {"a": Fake("a"), "b": Fake("b", fails_at=2), "c": Fake("c")},
        alone={"a": 2, "b": 0, "c": 1},
        together=3,
        tell=lambda _: None,
    )
    assert "".join(order) == "aac" + "abc" + "abc" + "ac"
    assert failed == {"b": "b is gone"}


@pytest.mark.timeout(300)
def test_every_built_in_operator_runs_in_both_modes(tmp_path: Path) -> None:
    task = Task(
        measurement="modes", folder=str(tmp_path), rows=200, state_keys=100, pairs=1, sizes=(100, 200)
    )
    figures = measure_itself(task)
    assert [figure.name for figure in figures] == list(modes.CASES)
    assert all(figure.ratio > 0 and figure.aim == 1.0 and not figure.at_most for figure in figures)
    assert all(list(figure.cpu_points) == ["sync", "async"] for figure in figures)


def test_what_a_row_costs_by_hand_and_ours_is_told_by_both_clocks(tmp_path: Path) -> None:
    task = Task(measurement="raw", folder=str(tmp_path), rows=50, state_keys=100, pairs=1, sizes=())
    for figure in raw(task):
        assert list(figure.points) == list(figure.cpu_points) == ["by hand", "ours"]
        assert figure.ratio == pytest.approx(figure.points["ours"] / figure.points["by hand"])
        assert all(cost > 0 for cost in figure.cpu_points.values())


def test_figures_of_itself_are_shown_with_their_aims(tmp_path: Path) -> None:
    figures = [
        Figure(
            group="growth",
            name="20 keys by 1, sync",
            ratio=1.504,
            low=1.2,
            high=1.9,
            aim=1.5,
            at_most=True,
            points={"1": 2.0, "20": 3.0},
            cpu_points={"1": 1.5, "20": 0.25},
        ),
        Figure(
            group="modes", name="Join", ratio=0.94, low=0.9, high=0.99, aim=1.0, at_most=False, interval=True
        ),
    ]
    even = msgspec.structs.replace(figures[1], name="Rank", high=1.01)
    figures.append(msgspec.structs.replace(figures[0], name="20 keys by 1, by hand", aim=None))
    assert [figure.met for figure in figures] == [True, False, None]
    table = itself_table(figures, "itself")
    assert [next(iter(column.cells)) for column in table.columns[1:3]] == ["2.0 3.0", "1.5 0.25"]
    shown = list(itself_table([figures[1], even], "itself").columns[-1].cells)
    assert shown == ["[red]no[/red]", "even"]
    assert [path.name for path in write_plots([], figures, tmp_path, "title")] == ["peers-growth.png"]


@pytest.mark.parametrize(
    ("count", "rank"),
    # the critical value of the sign test (two-sided, 5%), as tables have it, and one
    [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (60, 22)],
)
def test_the_interval_of_a_median_goes_by_ranks(count: int, rank: int) -> None:
    values = [float(number) for number in range(1, count + 1)]
    assert interval_of_median(values[::-1]) == (rank, count + 1 - rank)


def test_the_interval_of_a_median_holds_it_in_19_of_20_cases() -> None:
    drawn = np.random.default_rng(5).exponential(size=(2_000, 40))
    held = sum(low <= np.log(2) <= high for low, high in map(interval_of_median, drawn.tolist()))
    assert 0.94 <= held / 2_000 <= 0.98


def test_a_peer_that_was_left_out_stands_in_the_table() -> None:
    results = [_result("tws-row", [], checked=False, skipped="it needs protobuf", work="d")]
    assert peers_table(results, "title").row_count == 4  # both ways, a heading each


def test_rows_are_the_same_each_time_and_no_two_micro_batches_share_a_time() -> None:
    scale = Scale(rows=500, keys=100, warm_up=1, counted=1)
    for work in WORKS.values():
        batches = [work.tables(scale, number) for number in range(scale.micro_batches(work))]
        assert batches == [work.tables(scale, number) for number in range(scale.micro_batches(work))]
        assert all(
            sum(table.num_rows for table in tables.values()) == 500 for tables in batches[scale.fill(work) :]
        )
        _check_times(work, batches)


def _check_times(work: Work, batches: list[Tables]) -> None:
    spans = []
    for tables in batches:
        columns = [
            table.column(name) for table in tables.values() for name in table.column_names if "time" in name
        ]
        times = [time for column in columns for time in column.to_pylist()]
        spans += [(min(times), max(times))] if times else []
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans)), work.name
