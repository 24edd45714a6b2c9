"""What a restarted query may find: one of its two checkpoints lost or older than the other, or another driver.

Each case is right in the end, or refused with what to do next, which is then done.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import AsyncStateError, ConcurrentJobError, JobError
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.storage import Checkpoint, LocalFiles, files
from tests.cluster.story import roll_back
from tests.spark.parts import Echo, RunningTotal, echo
from tests.spark.test_stateful import Rows, numbers, running_totals

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
ROOT = Path(__file__).resolve().parents[2]
STEP = 20

TAKE_OVER = """
import sys
from asyncstate.config import resolve
from asyncstate.driver.commit_log import CommitLog
from asyncstate.runtime.declarations.watermark import SourceTimes
ledger = CommitLog(resolve({"async-state.checkpoint-dir": sys.argv[1]}, {}), "job", 0)
batch_id = int(sys.argv[2])
base = ledger.base_of(batch_id)
if sys.argv[3] == "commit":
    ledger.commit(batch_id, base, 0, 0, SourceTimes({}, {}, []), base.operators, False)
"""


class Query:
    """A streaming query over files, one a micro-batch; ``sink`` has the rows of the last run of each."""

    def __init__(self, spark: SparkSession, make_job: MakeJob, folder: Path) -> None:
        self._spark = spark
        self._make_job = make_job
        self.source, self.query, self.state = folder / "source", folder / "query", folder / "checkpoint"
        self.sink: dict[int, Rows] = {}

    def add(self, batches: int) -> None:
        """More files."""
        first = len(list(self.source.glob("*.parquet")))
        for batch in range(first, first + batches):
            rows = numbers(self._spark, batch * STEP, batch * STEP + STEP).coalesce(1)
            rows.write.mode("append").parquet(str(self.source))

    def run(self) -> None:
        """Until all files were read. Raises the job's error."""
        job = self._make_job()

        @job.micro_batch
        def on_batch(df: DataFrame, batch: MicroBatch) -> None:
            out = batch.apply(RunningTotal(), df, key="k", uid="total")
            self.sink[batch.batch_id] = sorted((row.k, row.rows, row.total) for row in out.collect())

        schema = self._spark.read.parquet(str(self.source)).schema
        stream = (
            self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.source))
        )
        writer = stream.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(self.query))
        job.await_termination(writer.trigger(availableNow=True).start())

    def refused(self, message: str) -> None:
        """A run fails with ``message`` and changes neither sink nor state."""
        versions, rows = self.versions(), dict(self.sink)
        with pytest.raises(AsyncStateError, match=message):
            self.run()
        assert (self.versions(), self.sink) == (versions, rows)

    def versions(self) -> list[int]:
        return Checkpoint(LocalFiles(self.state)).versions()

    @property
    def expected(self) -> dict[int, Rows]:
        model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        batches = len(list(self.source.glob("*.parquet")))
        return {n: running_totals(range(n * STEP, n * STEP + STEP), model) for n in range(batches)}


@pytest.fixture
def query(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> Query:
    """A query that has run three micro-batches."""
    query = Query(spark, make_job, tmp_path)
    query.add(3)
    query.run()
    assert query.sink == query.expected
    return query


def test_a_deleted_query_checkpoint_is_refused(query: Query) -> None:
    shutil.rmtree(query.query)
    query.refused("runs batch 0, but .* is at batch 2.*or start both from new")
    shutil.rmtree(query.query)
    shutil.rmtree(query.state)
    query.run()
    assert query.sink == query.expected


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.classic
def test_a_deleted_state_checkpoint_is_refused(query: Query) -> None:
    shutil.rmtree(query.state)
    query.add(1)
    query.refused("runs batch 3, but .* is empty. Was it deleted")
    shutil.rmtree(query.query)
    query.run()
    assert query.sink == query.expected


def test_state_rolled_back_alone_is_refused(query: Query) -> None:
    command = [sys.executable, "-m", "asyncstate", "state", "rollback", str(query.state), "0"]
    done = subprocess.run(
        command, check=True, cwd=ROOT, timeout=120, input="y\n", text=True, capture_output=True
    )
    assert "Forget versions 1, 2 of job" in done.stdout
    query.add(1)
    query.refused("runs batch 3, but .* is at batch 0; the batches in between are missing")
    roll_back(query.state, query.query, 0)
    query.run()
    assert query.sink == query.expected


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.classic
def test_a_batch_is_replayed_after_its_commit(query: Query) -> None:
    (query.query / "commits" / "2").unlink()  # killed between our commit and Spark's
    (query.query / "commits" / ".2.crc").unlink(missing_ok=True)
    query.sink.pop(2)
    query.add(1)
    query.run()
    assert query.sink == query.expected


@pytest.mark.parametrize("deed", ["claim", "commit"])
def test_the_first_of_two_drivers_commits_nothing_more(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, run_log: str, deed: str
) -> None:
    rivals = [[str(tmp_path / "checkpoint"), "1", deed]]

    def use(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(Echo(run_log), df, uid="e")
        if batch.batch_id == 1 and rivals:
            command = [sys.executable, "-c", TAKE_OVER, *rivals.pop()]
            subprocess.run(command, check=True, cwd=ROOT, timeout=60)

    on_batch = make_job(run=echo).micro_batch(use)
    rows = spark.range(4)
    on_batch(rows, 0)
    for _ in range(2):
        with pytest.raises(ConcurrentJobError, match="Stop this query; to run it here, stop the other"):
            on_batch(rows, 1)
    checkpoint = Checkpoint(LocalFiles(tmp_path / "checkpoint"))
    assert checkpoint.versions() == {"claim": [0], "commit": [0, 1]}[deed]
    make_job(run=echo, unclaimed_state="keep").micro_batch(lambda df, batch: None)(rows, 1)
    with pytest.raises(ConcurrentJobError):
        on_batch(rows, 1)
    assert checkpoint.versions() == [0, 1]


def test_leftovers_of_killed_writers_go_when_the_checkpoint_is_claimed(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(*batch_ids: int) -> None:
        on_batch = make_job(run=echo).micro_batch(lambda df, batch: None)
        for batch_id in batch_ids:
            on_batch(spark.range(4), batch_id)

    batches(0)
    left = tmp_path / "checkpoint" / "state" / "e" / "0" / ".tmp-left"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    batches(1)
    assert left.exists()  # its writer may be alive
    now = time.time()
    monkeypatch.setattr(files, "time", SimpleNamespace(time=lambda: now + 7_200))
    batches(2)
    assert not left.exists()


def test_a_second_query_of_a_job_does_not_pass_for_a_repeated_one(
    spark: SparkSession, make_job: MakeJob, async_enabled: bool, tmp_path: Path
) -> None:
    """Its first micro-batch would replace that of the other query."""
    job = make_job(options={"async-state.enabled": async_enabled})
    sink: dict[int, Rows] = {}

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(RunningTotal(), df, key="k", uid="total")
        sink[batch.batch_id] = sorted((row.k, row.rows, row.total) for row in out.collect())

    def add(batch: int) -> None:
        rows = numbers(spark, batch * STEP, batch * STEP + STEP).coalesce(1)
        rows.write.mode("append").parquet(str(tmp_path / "source"))

    def run(query: str) -> None:
        stream = spark.readStream.schema(numbers(spark, 0, 1).schema).parquet(str(tmp_path / "source"))
        writer = stream.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(tmp_path / query))
        job.await_termination(writer.trigger(availableNow=True).start())

    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    expected = {n: running_totals(range(n * STEP, n * STEP + STEP), model) for n in range(2)}
    add(0)
    run("one")
    add(1)
    with pytest.raises(
        JobError, match="job 'job' runs in two queries: micro-batch 0 of this one would replace"
    ):
        run("two")
    run("one")
    assert sink == expected
