"""Every engine of the comparison does the work right; the comparison runs, tiny, and says what it compares.

No figure is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.peers.child import Turns, run_ours, run_spark
from bench.peers.inputs import check, write_input
from bench.peers.parts import PARTS
from bench.peers.peers import PEERS
from bench.peers.protocol import Run, Start
from bench.peers.spark_plans import spark_conf
from bench.peers.works import WORKS, Scale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL = Scale(rows=400, keys=120, warm_up=0, counted=2)


class AtOnce(Turns):
    """Nobody else is waiting."""

    def __init__(self) -> None:
        self.waited: dict[int, float] = {}

    def wait(self, batch_id: int) -> None:
        self.waited[batch_id] = 0.0


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, since state stores are chosen by its settings."""
    return spark.newSession()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("work_name", "peer_name"), [(work.name, peer) for work in WORKS.values() for peer in work.peers]
)
def test_every_peer_does_the_work_right(
    work_name: str, peer_name: str, session: SparkSession, tmp_path: Path
) -> None:
    work, peer = WORKS[work_name], PEERS[peer_name]
    if peer.missing:
        pytest.skip(peer.missing)
    for key, value in spark_conf(peer.changelog).items():
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
