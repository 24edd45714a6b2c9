"""A query on a real cluster is disturbed in every way the long form knows, a handful of rounds; results do not change.

The long form draws many more: ``python -m tests.cluster --rounds 500 --seed 1``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.cluster.cluster import Cluster
from tests.cluster.points import Fault
from tests.cluster.results import Difference, Results, difference
from tests.cluster.rounds import FINAL, Campaign, Draw, draw

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="finds and kills processes by /proc"),
]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """One cluster and one undisturbed run for all stories."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder / "cluster") as cluster, closing(Campaign(cluster, folder, seed=1)) as campaign:
        yield campaign


# Two stories: what Spark itself repairs, then what ends the query. Each fault stands before the next in time.
STORIES = {
    "tasks": [
        ("task raises", Fault(0, "raise", "task end", 0, "latest", 0)),
        ("worker in task", Fault(1, "kill worker", "after upload", 2, "totals", 1)),
        ("executor in task", Fault(2, "kill executor", "before upload", 3, "sold", 0)),
        ("slow task", Fault(3, "slow", "task end", 5, "latest", 1)),
    ],
    "query": [
        ("driver", Fault(0, "kill driver", "in sink", 1)),
        ("disk full in task", Fault(1, "disk full", "before upload", 3, "sold", 1)),
        ("damaged file", Fault(2, "kill driver", "after manifest", 5, "delta")),
        ("driver", Fault(3, "kill driver", "between stages", FINAL)),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_nothing_is_lost_and_nothing_doubled(campaign: Campaign, name: str) -> None:
    drawn = Draw(STORIES[name], asynchronous=name == "query", seed=1, queries=4 if name == "tasks" else 1)
    outcome, found = campaign.tell(name, drawn)
    assert not outcome.hangs, outcome
    assert not outcome.missed, "every fault has happened"
    assert found is not None, outcome
    assert not found, f"{found}: {outcome}"
    assert set(outcome.recovery_s) == {fault.number for _, fault in STORIES[name]}


def test_the_comparison_sees_what_is_lost_doubled_or_changed() -> None:
    rows = {("totals", "batch=0"): Counter([("a", 1), ("b", 2), ("b", 2)]), ("latest", "batch=0"): Counter()}
    expected = Results({"totals": {b"a": b"1", b"b": b"4"}}, rows)
    assert not difference(
        expected, Results(dict(expected.state), {name: found.copy() for name, found in rows.items()})
    )
    doubled = {**rows, ("totals", "batch=0"): Counter([("a", 1), ("a", 1), ("a", 1), ("b", 2), ("b", 2)])}
    assert difference(expected, Results(expected.state, doubled)) == Difference(0, 2, 0)
    assert difference(expected, Results(expected.state, {})) == Difference(3, 0, 0)
    elsewhere = {("totals", "batch=1"): rows["totals", "batch=0"]}
    assert difference(expected, Results(expected.state, elsewhere)) == Difference(3, 3, 0)
    for changed in ({b"a": b"1", b"b": b"?"}, {b"a": b"1"}, {b"a": b"1", b"b": b"4", b"c": b"0"}):
        assert difference(expected, Results({"totals": changed}, rows)) == Difference(0, 0, 1)


@pytest.mark.slow
def test_the_undisturbed_run_has_something_of_everything(campaign: Campaign) -> None:
    expected = campaign.expected
    assert all(len(entries) > 10 for entries in expected.state.values())
    for sink in ("totals", "latest", "widths"):
        assert sum(found.total() for (name, _), found in expected.rows.items() if name == sink) > 10


def test_a_seed_draws_the_same_faults_again() -> None:
    first, again, other = (list(draw(60, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(len(drawn.faults) for drawn in first) == 60
    assert len({kind for drawn in first for kind, _ in drawn.faults}) == 13


def test_the_cluster_leaves_no_process(tmp_path: Path) -> None:
    from tests.cluster.cluster import command_line, descendants

    with Cluster(tmp_path, workers=1) as cluster:
        pids = [pid for process in cluster._processes for pid in (process.pid, *descendants(process.pid))]
        assert len(pids) >= 2
    assert not any("org.apache.spark.deploy" in command_line(pid) for pid in pids)
