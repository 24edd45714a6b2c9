"""Which event time and sequence a stream has after its columns were renamed, replaced or dropped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate.dataflow import Dataflow, Stream
from asyncstate.dataflow.nodes import Times, Transform
from asyncstate.errors import JobError
from asyncstate.operators import Deduplicate, WindowAggregate, count, tumble
from asyncstate.testing import PipelineHarness, PipelineSource

SCHEMA = pa.schema(
    [("k", pa.string()), ("at", pa.timestamp("us")), ("other", pa.timestamp("us")), ("n", pa.int64())]
)
SOURCE = PipelineSource(SCHEMA, event_time="at", watermark_delay="0 s", sequence="n")


def flow(steps: Callable[[Stream], Stream], operator: Any = None, **arguments: Any) -> Callable[..., None]:
    """The pipeline of one operator behind the steps."""

    def pipeline(rows: Stream) -> None:
        counted = operator or WindowAggregate(tumble("10 s"), [count().alias("n")])
        given = {"key": ["k"], "uid": "counted", **arguments}
        steps(rows).apply(counted, **given).to(print, name="out")

    return pipeline


KEPT: dict[str, Callable[[Stream], Stream]] = {
    "renamed": lambda rows: rows.select("k", "at AS t", "other AS at", "n"),
    "renamed twice": lambda rows: rows.select("k", "at AS t", "n").select("k", "t AS at", "n"),
    "renamed by name": lambda rows: rows.select("k", "n", t="at", at="other"),
    "all": lambda rows: rows.select("*").with_columns(other="at").drop("other").where("k IS NOT NULL"),
    "but one": lambda rows: rows.select("* EXCEPT (other)"),
    "a sequence of another name": lambda rows: rows.select("k", "at", "n AS m"),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_event_time_follows_its_column(name: str, async_enabled: bool) -> None:
    with PipelineHarness(flow(KEPT[name]), {"rows": SOURCE}, async_enabled=async_enabled) as harness:
        harness.push("rows", [("a", 1_000_000, 90_000_000, 1), ("a", 2_000_000, 80_000_000, 2)])
        found = [row for part in (harness.end_batch(), harness.finish()) for row in part["out"]]
        assert [(row[2], row[-1]) for row in found] == [(0, 2)]


LOST: dict[str, Callable[[Stream], Stream]] = {
    "another column": lambda rows: rows.select("k", "other AS at", "n"),
    "another column by name": lambda rows: rows.with_columns(at="other"),
    "computed": lambda rows: rows.select("k", "at + INTERVAL 1 HOUR AS at", "n"),
    "a function": lambda rows: rows.with_columns(
        at=lambda batch: pc.add(batch.column("at"), pa.scalar(1, "duration[us]"))
    ),
    "a function with arguments": lambda rows: rows.with_columns(
        at=partial(lambda name, batch: batch.column(name), "other")
    ),
    "dropped": lambda rows: rows.drop("at"),
    "not selected": lambda rows: rows.select("k", "other", "n"),
    "left out": lambda rows: rows.select("* EXCEPT (AT)"),
}


@pytest.mark.parametrize("name", LOST)
def test_another_column_is_not_the_event_time(name: str) -> None:
    with pytest.raises(JobError, match="needs an event time"):
        PipelineHarness(flow(LOST[name]), {"rows": SOURCE})
    columns = {"another column": "at", "dropped": "other"}
    if name in columns:
        given = flow(LOST[name], event_time=columns[name])
        with PipelineHarness(given, {"rows": SOURCE}) as harness:
            harness.push("rows", [("a", 1_000_000, 90_000_000, 1)])
            harness.end_batch()
            assert harness.finish()["out"][0][2] == 90_000_000


@pytest.mark.parametrize(
    "steps",
    [
        lambda rows: rows.select("k", "at", "CAST(k AS bigint) AS n"),
        lambda rows: rows.with_columns(n="length(k)"),
        lambda rows: rows.drop("n"),
        lambda rows: rows.select("k", "at"),
    ],
    ids=["computed", "replaced", "dropped", "not selected"],
)
def test_a_lost_sequence_is_an_error(steps: Callable[[Stream], Stream]) -> None:
    first = flow(steps, Deduplicate())
    with pytest.raises(JobError, match=r"'n \(as it was before: (select|with_columns|drop)"):
        PipelineHarness(first, {"rows": SOURCE})


def test_rows_of_their_own_inherit_nothing() -> None:
    rows = Dataflow().add_source("rows", Times("at", "0 s", "n", True), None)
    made: dict[str, Any] = {"name": "t", "place": "here", "inputs": (rows.node,), "kind": "transform"}
    assert Transform(**made).times == Times("at", "0 s", "n", True)
    assert Transform(**made, inherits=False).times == Times()


@pytest.mark.parametrize(
    ("delays", "delay"), [(("0 s", None), None), ((None, "0 s"), None), (("0 s", "5 s"), "0 s")]
)
def test_a_union_has_a_watermark_if_each_stream_has_one(
    delays: tuple[str | None, ...], delay: str | None
) -> None:
    made = Dataflow()
    one, two = (made.add_source(f"rows{n}", Times("at", each), None) for n, each in enumerate(delays))
    assert one.union(two).node.times == Times("at", delay)
