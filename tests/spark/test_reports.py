"""Which attempts are committed: those whose rows all tasks behind them got, and no others."""

from __future__ import annotations

import itertools
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import key_groups
from asyncstate.errors import JobError
from asyncstate.operator import InputSpec
from asyncstate.spark.column_types import MARKER_TAG, REPORTS, ROUTE, TAG_BITS, TAG_MASK
from asyncstate.spark.reports import Received, Report, ShuffleWriter, pack, reports_of

SHAPES: dict[str, dict[str, list[str]]] = {
    "alone": {"a": []},
    "chain": {"a": [], "b": ["a"], "c": ["b"]},
    "join": {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]},
}
"""By stage those that feed it; the last one is kept."""


def onward(parallelism: int) -> ShuffleWriter:
    wire = pa.schema([(ROUTE, pa.int32()), ("c0", pa.int64()), (REPORTS, pa.binary())])
    spec = InputSpec(pa.schema([("k", pa.int64())]), ("k",))
    return ShuffleWriter(spec, 0, wire, parallelism, 128)


class Runs:
    """Stages whose tasks run in their order; each of them again with some chance while others read it."""

    def __init__(
        self, feeds: dict[str, list[str]], parallelism: dict[str, int], random: Random, again: float
    ) -> None:
        self.feeds, self.parallelism = feeds, parallelism
        self._random, self._again, self._attempts = random, again, itertools.count()
        self._out: dict[tuple[str, int], dict[int, list[bytes]]] = {}
        self._reports: dict[bytes, Report] = {}
        self.kept: list[bytes] = []

    def run(self) -> list[bytes]:
        """What the tasks of the last stage report."""
        *_, last = self.feeds
        for stage, partition in ((one, at) for one in self.feeds for at in range(self.parallelism[one])):
            report = self._attempt(stage, partition)
            if stage == last:
                self._out[stage, partition] = {0: [pack(report)]}
                self.kept.append(report.attempt)
        return [self._out[last, at][0][0] for at in range(self.parallelism[last])]

    def used(self) -> dict[tuple[str, int], set[bytes]]:
        """Of each task the attempts whose rows are in those that were kept, if on a way through others."""
        found: dict[tuple[str, int], set[bytes]] = {}
        waiting = list(self.kept)
        while waiting:
            report = self._reports[waiting.pop()]
            found.setdefault((report.stage, report.partition), set()).add(report.attempt)
            waiting += [attempt for _, _, attempt in report.read]
        return found

    def _attempt(self, stage: str, partition: int) -> Report:
        received = Received()
        for feed, at in ((one, at) for one in self.feeds[stage] for at in range(self.parallelism[one])):
            if self._random.random() < self._again:  # its rows were lost before this task had them
                self._attempt(feed, at)
            received.add(self._out[feed, at][partition])
        attempt = next(self._attempts).to_bytes(16, "big")
        report = Report(stage, partition, attempt, b"records of " + attempt, received.read, received.carried)
        self._reports[attempt] = report
        behind = next((self.parallelism[one] for one, feeds in self.feeds.items() if stage in feeds), 1)
        rows = onward(behind).reports(report)
        self._out[stage, partition] = {
            route >> TAG_BITS: [passed]
            for route, passed in zip(
                rows.column(ROUTE).to_pylist(), rows.column(REPORTS).to_pylist(), strict=True
            )
        }
        assert {route & TAG_MASK for route in rows.column(ROUTE).to_pylist()} == {MARKER_TAG}
        return report


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    parallelism=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    again=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 1 << 32),
)
def test_attempts_are_taken_whose_rows_everyone_got(
    shape: str, parallelism: list[int], again: float, seed: int
) -> None:
    feeds = SHAPES[shape]
    runs = Runs(feeds, dict(zip(feeds, parallelism, strict=False)), Random(seed), again)
    packed = runs.run()
    mixed = any(len(attempts) > 1 for attempts in runs.used().values())
    assert not mixed or again
    if mixed:
        with pytest.raises(JobError, match="restart the query"):
            reports_of(packed, 7, runs.parallelism, feeds)
        return
    found = reports_of(packed, 7, runs.parallelism, feeds)
    taken = {(stage, report.partition): {report.attempt} for stage in found for report in found[stage]}
    assert taken == runs.used()
    assert all(
        report.records == b"records of " + report.attempt for stage in found for report in found[stage]
    )


def test_a_report_that_is_missing_or_comes_twice_is_refused() -> None:
    one = Report("a", 0, b"1", b"")
    for packed, told in (
        ([], r"\[\]"),
        ([pack(one)] * 2, r"\[0, 0\]"),
        ([pack(Report("a", 1, b"1", b""))], r"\[1\]"),
    ):
        with pytest.raises(
            JobError, match=rf"operator 'a': partitions {told} reported, expected each of 0..0 once"
        ):
            reports_of(packed, 7, {"a": 1}, {"a": []})
    unread = Report("b", 0, b"2", b"", [], [one])
    with pytest.raises(
        JobError, match=r"'b', batch 7: .* partition 0 got output rows of operator \['a'\] from a different"
    ):
        reports_of([pack(unread)], 7, {"a": 1, "b": 1}, {"a": [], "b": ["a"]})


def test_rows_go_where_their_key_group_is() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"v": list(range(50)), "k": [*range(49), None], "row_kind": ["+I"] * 50}
    )
    sent = onward(3).rows(rows)
    groups = key_groups([rows.column("k")], 128).tolist()
    assert [route >> TAG_BITS for route in sent.column(ROUTE).to_pylist()] == [
        group * 3 // 128 for group in groups
    ]
    assert sent.column("c0").equals(rows.column("k"))
    assert sent.column(REPORTS).null_count == 50
