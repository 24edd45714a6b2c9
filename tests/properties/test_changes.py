"""A table that is kept by a job is the batch answer, whatever the modes of its edges and the cut into micro-batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import ChangelogMode
from asyncstate.testing import PipelineHarness, PipelineSource, net
from operators import ChangelogNormalize, GroupAggregate, Join, UpsertMaterialize, count, sum_
from tests.examples import at_most

ROWS = "id bigint, g string, v bigint, n bigint"
Change = tuple[int, str | None, int | None]
"""The id of a row, its group and value; a deletion has the id alone."""

changes = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.none(), st.tuples(st.sampled_from("ab"), st.integers(-3, 9)))),
    max_size=24,
)
cuts = st.lists(st.integers(1, 6), min_size=1, max_size=8)
shapes = st.fixed_dictionaries(
    {
        "filters": st.booleans(),
        "update_before": st.booleans(),
        "each": st.booleans(),
        "normalizes": st.booleans(),
        "behind": st.sampled_from(["nothing", "normalized", "joined", "counted", "materialized"]),
        "bundle": st.sampled_from(["1", "2", "100"]),
    }
)


def declare(shape: dict[str, Any]) -> Any:
    def flow(rows: Any) -> None:
        kept = rows.apply(ChangelogNormalize(emit_update_before=True), key="id", uid="n")
        if shape["filters"]:
            kept = kept.where("v > 0")
        before = shape["update_before"]
        totals = kept.apply(
            GroupAggregate(
                [sum_("v").alias("total"), count().alias("rows")],
                emit_update_before=before,
                emit="each" if shape["each"] else "net",
            ),
            key="g",
            uid="t",
        )
        behind = shape["behind"]
        if behind == "normalized":
            totals = totals.apply(ChangelogNormalize(emit_update_before=before), key="g", uid="again")
        elif behind == "materialized":
            totals = totals.apply(UpsertMaterialize(["g"], emit_update_before=before), key="g", uid="again")
        elif behind == "joined":
            join = Join("left", left_unique="join_key", right_unique="join_key")
            totals = totals.join(totals, join, key="g", uid="j").select("g", "total_right AS total", "rows")
        elif behind == "counted" and before:
            totals = totals.apply(
                GroupAggregate([sum_("total").alias("total"), sum_("rows").alias("rows")]), uid="all"
            ).select("'all' AS g", "total", "rows")
        totals.to(print, name="sink")

    return flow


def answer(table: dict[int, tuple[str, int]], shape: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for group, value in table.values():
        if not shape["filters"] or value > 0:
            groups[group].append(value)
    rows = [(group, sum(values), len(values)) for group, values in groups.items()]
    if shape["behind"] == "counted" and shape["update_before"]:
        rows = [("all", sum(row[1] for row in rows), sum(row[2] for row in rows))] if rows else []
    return Counter(rows)


class Table:
    """What a sink keeps of the rows that it is given, as they are declared."""

    def __init__(self, mode: ChangelogMode) -> None:
        self.mode = mode
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def take(self, rows: list[tuple[Any, ...]]) -> None:
        if self.mode is ChangelogMode.UPSERT:
            keys = [row[1] for row in rows]
            assert len(set(keys)) == len(keys), "several changes of a key in one micro-batch"
            for kind, *row in rows:
                for old in [one for one in self.rows if one[0] == row[0]]:
                    del self.rows[old]
                if kind != "-D":
                    self.rows[tuple(row)] = 1
            return
        assert self.mode is not ChangelogMode.INSERT_ONLY or {row[0] for row in rows} <= {"+I"}
        self.rows.update(net(rows))


@settings(max_examples=at_most(40))
@given(given_changes=changes, cut=cuts, shape=shapes)
def test_the_table_is_the_batch_answer(
    given_changes: list[tuple[int, Any]], cut: list[int], shape: dict[str, Any], async_enabled: bool
) -> None:
    source = PipelineSource(ROWS, mode="upsert", primary_key="id", sequence="n")
    options = {"async-state.bundle-size": shape["bundle"]}
    table: dict[int, tuple[str, int]] = {}
    with PipelineHarness(
        declare(shape), {"rows": source}, async_enabled=async_enabled, parallelism=2, options=options
    ) as harness:
        (sink,) = harness.flow.sinks
        kept = Table(harness.changes[sink].mode)
        place = 0
        for number in range(len(given_changes)):
            size = cut[number % len(cut)]
            part = given_changes[place : place + size]
            for at, (id_, row) in enumerate(part):
                kind = "+U" if row is not None else "-D"
                harness.push("rows", [(id_, *(row or (None, None)), place + at)], kind=kind)
                if row is None:
                    table.pop(id_, None)
                else:
                    table[id_] = row
            place += size
            kept.take(harness.end_batch()["sink"])
            assert kept.rows == answer(table, shape)
            if place >= len(given_changes):
                break
