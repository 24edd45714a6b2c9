"""Every engine of the comparison does the work right; the comparison runs, tiny, and says what it compares.

No figure is checked.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.frame import CaseError
from bench.frame.report import table
from bench.peers import measure
from bench.peers.child import Turns, carry_out
from bench.peers.measure import Run, Timed, check, take_turns, write_input
from bench.peers.results import COLUMNS, Throughput, compared
from bench.peers.spark_plans import spark_conf
from bench.peers.works import PEERS, WORKS, Scale, Tables, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL = Scale(rows=400, keys=120, warm_up=0, counted=1)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, since state stores are chosen by its settings."""
    return spark.newSession()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("work_name", "peer_name"),
    [
        # Of the other works ours; their peers differ in a plan of Spark's.
        pytest.param(work.name, peer, marks=[] if work.name == "a" or PEERS[peer].ours else pytest.mark.slow)
        for work in WORKS.values()
        for peer in work.peers
        if work.name == "a"
        # the others differ from heap in settings, and the floor is the same for all
        or peer not in ("spark-changelog", "spark-snapshot", "floor")
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
    run = Run(given, tmp_path / "run", first_kept=first)
    timed = carry_out(session, peer, work_name, run, Turns(None))
    outcome = check(
        given, work.results[peer.result if peer.ours else ""], tmp_path / "run" / "sink", first, cores=1
    )
    assert outcome.ok, (outcome.problems, outcome.examples)
    assert outcome.expected_rows > 0
    assert len(timed.seconds) == batches
    assert all(seconds > 0 for seconds in timed.seconds)


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
    assert all(result.right and result.expected_rows > 0 and result.rate > 0 for result in results)
    assert list(results[1].figures) == ["a, 500 keys: ours-sync by spark-changelog"]
    assert results[1].facts["aim"] == 5.0
    assert {"trigger", "sink", "output_mode", "conf_of_spark"} <= set(document["fairness"])
    assert "asyncstate, sync" in done.output
    assert "Spark, RocksDB, changelog" in done.output
    lines = [line for line in done.output.splitlines() if " s  " not in line and "written" not in line]
    assert all(len(line) <= 80 for line in lines), lines
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_query_is_refused_with_those_there_are() -> None:
    done = CliRunner().invoke(app, ["peers", "--work", "f", "--queries", "q4,q99"])
    assert done.exit_code == 2
    assert "q99: choose from q3, q4, q5" in done.output


def test_a_wrong_result_fails_the_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = _result("ours-sync", [1.0], wrong=["3 expected rows are missing"])
    right = _result("spark-changelog", [1.0])
    monkeypatch.setattr(measure, "measure", lambda *_: [wrong, right])
    done = CliRunner().invoke(app, ["peers", "--tiny", "--work", "a", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "asyncstate, sync: WRONG: 3 expected rows are missing" in done.output
    results = msgspec.json.decode((tmp_path / "peers.json").read_bytes())["results"]
    assert not any("figures" in result for result in results)


def test_a_peer_that_fails_stands_in_the_table_and_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = _result(
        "spark-changelog", [], failed="its process has ended; the end of its output:\nlast words"
    )
    measured = [[_result("ours-sync", [1.0]), failed, _result("spark-heap", [2.0])]]
    monkeypatch.setattr(measure, "measure", lambda *_: measured.pop())
    works = ["peers", "--tiny", "--work", "a,b", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, works)  # of work b there is nothing: measuring it fails
    assert done.exit_code == 2
    assert "Spark, RocksDB, changelog: FAILED: its process has ended; the end of its output:" in done.output
    assert "last words" in done.output
    assert "b: FAILED: IndexError: pop from empty list" in done.output
    results = msgspec.json.decode((tmp_path / "peers.json").read_bytes())["results"]
    (heap,) = (result for result in results if result.get("peer") == "spark-heap")
    assert heap["facts"]["sync"] == 2.0


@pytest.mark.parametrize("arguments", [["--work", "z"], ["--peers", "nobody"], ["--keys", "many"]])
def test_what_is_not_known_is_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["peers", *arguments])
    assert done.exit_code == 2
    assert arguments[1] in done.output


def _result(peer: str, seconds: list[float], work: str = "a, 500 keys", **more: object) -> Throughput:
    base = Throughput(name=PEERS[peer].title, group="counting", work=work, peer=peer, keys=500, rows=100)
    return msgspec.structs.replace(base, seconds=seconds, **more)


def test_a_ratio_is_the_median_over_pairs_and_the_aim_stands_with_the_quickest_peer() -> None:
    results = [
        _result("ours-sync", [1.0, 2.0, 1.0]),
        _result("spark-changelog", [6.0, 10.0, 8.0]),
        _result("spark-snapshot", [12.0, 12.0, 12.0]),
        _result("ours-async", [1.0, 1.0, 1.0], wrong=["bad"]),
    ]
    _, quick, slow, wrong = compared(results)
    (figure,) = quick.figures.values()
    assert (figure.value, figure.low, figure.high, figure.rate) == (6.0, 5.0, 8.0, True)
    assert (quick.facts["sync"], quick.facts["low"], quick.facts["high"]) == (6.0, 5.0, 8.0)
    assert (quick.facts["aim"], quick.facts["met"]) == (5.0, "yes")
    assert "aim" not in slow.facts
    assert "async" not in slow.facts
    assert wrong.facts == {}


def test_each_way_of_ours_has_an_aim_of_its_own_with_the_best_python_peer() -> None:
    seconds = {"ours-sync": 1.0, "bundle-sync": 0.25, "tws-row": 20.0, "apply-pandas": 12.0}
    shown = compared([_result(peer, [each], work="d") for peer, each in seconds.items()])
    found = {
        (each.group, each.peer): (each.facts["sync"], each.facts.get("aim"), each.facts.get("met"))
        for each in shown
        if "sync" in each.facts
    }
    assert found == {
        ("counting, record grain", "tws-row"): (20.0, None, None),
        ("counting, record grain", "apply-pandas"): (12.0, 15.0, "no"),
        ("counting, built in", "tws-row"): (80.0, None, None),
        ("counting, built in", "apply-pandas"): (48.0, 60.0, "no"),
    }


def test_the_table_of_all_peers_fits_80_columns() -> None:
    names = ("ours-sync", "ours-async", "floor", "spark-changelog", "spark-snapshot")
    results = [_result(name, [0.0001 * (at + 1)]) for at, name in enumerate(names)]
    lines = table(compared([*results, _result("tws-row", [], skipped="it needs protobuf")]), COLUMNS)
    assert all(len(line) <= 80 for line in lines), lines
    assert any("transformWithState: left out: it needs protobuf" in line for line in lines)


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
                raise CaseError(f"{self._name} is gone")

    failed = take_turns(
        {"a": Fake("a"), "b": Fake("b", fails_at=2), "c": Fake("c")},
        alone={"a": 2, "b": 0, "c": 1},
        together=3,
        tell=lambda _: None,
    )
    assert "".join(order) == "aac" + "abc" + "abc" + "ac"
    assert failed == {"b": "b is gone"}


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
