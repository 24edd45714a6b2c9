"""State that no operator of a job claims, in both forms of a job; and the commands that settle it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asyncstate import AsyncStateError
from asyncstate.cli.app import app
from asyncstate.errors import ConfigurationError
from asyncstate.operators import GroupAggregate, sum_
from asyncstate.spark import StreamingJob

pytestmark = pytest.mark.parametrize("enabled", ["false", "true"])


def _graph(
    spark: Any, folder: Path, uid: str, rows: list[Any], unclaimed: Any = "refuse", **options: str
) -> StreamingJob:
    given = {"async-state.parallelism": "1", **options}
    job = StreamingJob(spark, str(folder / "state"), options=given, unclaimed_state=unclaimed)
    sales = job.source(
        "sales", spark.readStream.schema("shop string, amount long").parquet(str(folder / "in"))
    )
    totals = sales.apply(GroupAggregate([sum_("amount").alias("total")]), key="shop", uid=uid)
    totals.to(lambda out, batch: rows.extend((row.row_kind, row.total) for row in out.collect()))
    return job


def _function(spark: Any, folder: Path, uids: list[str], rows: list[Any], **options: str) -> Any:
    job = StreamingJob(spark, str(folder / "state"), options={"async-state.parallelism": "1", **options})

    @job.micro_batch
    def process(sales: Any, batch: Any) -> None:
        for uid in uids:
            out = batch.apply(GroupAggregate([sum_("amount").alias("total")]), sales, key="shop", uid=uid)
            rows.extend((row.row_kind, row.total) for row in out.collect())

    return job, process


def _write(spark: Any, folder: Path) -> None:
    spark.range(0, 10, 1, 1).selectExpr("'ann' shop", "10L amount").write.mode("append").parquet(
        str(folder / "in")
    )


def _run(job: StreamingJob) -> None:
    job.await_termination(job.start(trigger={"availableNow": True}))


@pytest.mark.long
def test_a_renamed_uid_is_refused_until_it_is_settled(spark: Any, tmp_path: Path, enabled: str) -> None:
    mode = {"async-state.enabled": enabled}
    rows: list[Any] = []
    _write(spark, tmp_path)
    _run(_graph(spark, tmp_path, "totals", rows, **mode))
    assert rows == [("+I", 100)]
    _write(spark, tmp_path)
    renamed = _graph(spark, tmp_path, "totals-by-shop", rows, **mode)
    with pytest.raises(AsyncStateError, match="Did you rename 'totals' to 'totals-by-shop'") as refused:
        renamed.check()
    with pytest.raises(AsyncStateError, match="has state of operator 'totals'"):
        renamed.start(trigger={"availableNow": True})
    found = re.search(r"state migrate (rename-operator) CHECKPOINT (\S+) ([\w-]+)", str(refused.value))
    assert found
    arguments = ["state", "migrate", found[1], str(tmp_path / "state"), found[2], found[3]]
    for more in (["--dry-run"], ["--yes"]):
        assert CliRunner().invoke(app, [*arguments, *more]).exit_code == 0
    _run(_graph(spark, tmp_path, "totals-by-shop", rows, **mode))
    assert rows[1:] == [("-U", 100), ("+U", 200)]


@pytest.mark.long
def test_a_removed_operator_is_dropped_or_kept_as_the_job_says(
    spark: Any, tmp_path: Path, enabled: str
) -> None:
    mode = {"async-state.enabled": enabled}
    rows: list[Any] = []
    _write(spark, tmp_path)
    _run(_graph(spark, tmp_path, "old", rows, **mode))
    _write(spark, tmp_path)
    _run(_graph(spark, tmp_path, "new", rows, "keep", **mode))
    _write(spark, tmp_path)
    _run(_graph(spark, tmp_path, "old", rows, "drop", **mode))
    assert rows == [("+I", 100), ("+I", 100), ("-U", 100), ("+U", 200)]
    _write(spark, tmp_path)
    with pytest.raises(AsyncStateError, match="has state of operator 'old'"):
        _graph(spark, tmp_path, "new", rows, **mode).check()


@pytest.mark.long
def test_a_function_is_refused_before_its_first_commit(spark: Any, tmp_path: Path, enabled: str) -> None:
    sales = spark.createDataFrame([("ann", 100)], "shop string, amount long")
    mode = {"async-state.enabled": enabled}
    rows: list[Any] = []
    _, process = _function(spark, tmp_path, ["a", "b"], rows, **mode)
    process(sales, 0)
    uids = ["a"]
    _, process = _function(spark, tmp_path, uids, rows, **mode)
    with pytest.raises(AsyncStateError, match="has state of operator 'b'"):
        process(sales, 1)
    uids.append("b")
    process(sales, 1)  # nothing of the one that was refused has been committed
    assert rows[-4:] == [("-U", 100), ("+U", 200)] * 2
    uids.remove("a")
    process(sales, 2)  # later micro-batches may leave an operator out


def test_another_word_is_refused(spark: Any, tmp_path: Path, enabled: str) -> None:
    with pytest.raises(
        ConfigurationError, match="unclaimed_state is 'delete'; give 'refuse' or 'keep' or 'drop'"
    ):
        _graph(spark, tmp_path, "totals", [], "delete", **{"async-state.enabled": enabled})
    with pytest.raises(
        ConfigurationError, match="async-state.unclaimed-state.*StreamingJob.unclaimed_state='keep'"
    ):
        _graph(spark, tmp_path, "totals", [], **{"async-state.unclaimed-state": "keep"})
