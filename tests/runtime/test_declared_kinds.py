"""What an operator declares of its rows: other kinds are an error, and upserts leave a task once a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from asyncstate import Changelog, InputSpec, OutputSpec, RecordOperator, RowKind
from asyncstate.errors import AsyncStateError, OperatorError, SchemaError
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource, Tuning
from operators import ChangelogNormalize, GroupAggregate, IncrementalGroupAggregate, count, last_value, sum_

ROWS = "k string, v bigint"


class WindowCallbacks(RecordOperator):
    """Puts out each row with the kind that its value has in ``KINDS``."""

    KINDS: ClassVar[dict[int, RowKind]] = dict(enumerate(RowKind))

    def __init__(self, changes: Changelog | None) -> None:
        self.changes = changes

    def bind(self, inputs: Sequence[InputSpec]) -> Any:
        return ROWS if self.changes is None else OutputSpec(ROWS, changes=self.changes)

    def process(self, row: Any, ctx: Any) -> None:
        ctx.emit(row.k, row.v, kind=self.KINDS[row.v % 4])


def run(changes: Changelog | None, values: list[int], async_enabled: bool, **settings: Any) -> list[Any]:
    with OperatorHarness(
        WindowCallbacks(changes), ROWS, "k", changelog=False, async_enabled=async_enabled, **settings
    ) as harness:
        harness.push([("a", value) for value in values])
        return harness.end_batch()


@pytest.mark.parametrize("value", [1, 2, 3])
def test_rows_of_other_kinds_than_insertions_must_be_declared(value: int, async_enabled: bool) -> None:
    with pytest.raises(
        SchemaError, match=r"'operator' emitted a row .* for the key \('a',\).*Changelog.retract"
    ):
        run(None, [0, value], async_enabled)
    assert len(run(Changelog.retract(), [0, value], async_enabled)) == 2


def test_upserts_have_no_row_before_a_change(async_enabled: bool) -> None:
    with pytest.raises(SchemaError, match=r"a row -U .* declares upsert by \(k\)"):
        run(Changelog.upsert("k"), [0, 1], async_enabled)


@pytest.mark.parametrize("memory", [128 << 20, 1 << 10])
def test_the_last_change_of_each_key_leaves_the_task(async_enabled: bool, memory: int) -> None:
    tuning = Tuning(gathered_bytes=memory)
    with OperatorHarness(
        WindowCallbacks(Changelog.upsert("k")),
        ROWS,
        "k",
        changelog=False,
        async_enabled=async_enabled,
        tuning=tuning,
    ) as harness:
        rows = [(f"k{number % 50}", 4 * number + 2) for number in range(30_000)]
        harness.push([*rows, ("k7", 4_000_003), ("k8", 8)])
        out = harness.end_batch()
        assert sorted(out) == sorted(
            [
                *(("+U", f"k{at}", 4 * (29_950 + at) + 2) for at in range(50) if at not in (7, 8)),
                ("-D", "k7", 4_000_003),
                ("+I", "k8", 8),
            ]
        )
        assert harness.statistics()["rows_out"] == 50
        assert harness.end_batch() == []


@pytest.mark.parametrize("bundle", ["1", "2", "100"])
def test_bundles_leave_one_change_of_each_key(bundle: str, async_enabled: bool) -> None:
    operator = GroupAggregate([last_value("v")], emit_update_before=False, emit="each")
    with OperatorHarness(
        operator, ROWS, "k", async_enabled=async_enabled, options={"async-state.bundle-size": bundle}
    ) as harness:
        harness.push([("a", 1), ("b", 5), ("a", 2), ("a", 1), ("a", 6)])
        assert sorted(row[1:] for row in harness.end_batch()) == [("a", 6), ("b", 5)]


def test_the_upsert_key_has_the_key_of_the_operator() -> None:
    with pytest.raises(SchemaError, match=r"upserts by \(v\), which does not have the key \(k\)"):
        OperatorHarness(WindowCallbacks(Changelog.upsert("v")), ROWS, "k", changelog=False)
    with pytest.raises(SchemaError, match=r"key column 'x'.*its columns are: k, v"):
        OutputSpec(ROWS, changes=Changelog.upsert("x"))


def test_several_changes_of_a_key_need_an_order(async_enabled: bool) -> None:
    def flow(rows: Any) -> None:
        rows.apply(ChangelogNormalize(), key="k", uid="n").to(print, name="sink")

    source = PipelineSource(ROWS, mode="upsert", primary_key="k")
    with PipelineHarness(flow, {"rows": source}, async_enabled=async_enabled) as harness:
        harness.push("rows", [("a", 1), ("b", 2)])
        harness.push("rows", [("a", 1)])  # the same once more
        harness.push("rows", [("c", None), ("c", 7)], kind="-D")
        assert sorted(harness.end_batch()["sink"]) == [("+I", "a", 1), ("+I", "b", 2)]
        harness.push("rows", [("a", 3), ("a", 4)])
        with pytest.raises(OperatorError, match=r"source 'rows' has several changes of k = 'a'.*sequence="):
            harness.end_batch()


def test_an_aggregation_in_two_parts_runs_in_a_graph(async_enabled: bool) -> None:
    split = IncrementalGroupAggregate([count().alias("rows"), sum_("v").alias("sum")], bucket="bucket")

    def flow(rows: Any) -> None:
        parts = rows.with_columns(bucket="v % 3").apply(split, key=["k", "bucket"], uid="parts")
        parts.apply(split.final(), key="k", uid="totals").to(print, name="sink")

    with PipelineHarness(flow, {"rows": PipelineSource(ROWS)}, async_enabled=async_enabled) as harness:
        harness.push("rows", [("a", number) for number in range(10)])
        assert harness.end_batch()["sink"] == [("+I", "a", 10, 45)]
        harness.push("rows", [("a", 5)])
        assert harness.end_batch()["sink"] == [("-U", "a", 10, 45), ("+U", "a", 11, 50)]


def test_a_side_output_is_no_stream_of_upserts() -> None:
    class Aside(WindowCallbacks):
        def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
            aside = pa.schema([("k", pa.string())])
            return OutputSpec(ROWS, {"aside": aside}, side_changes={"aside": Changelog.upsert("k")})

    with pytest.raises(AsyncStateError, match="side output 'aside' is declared as upsert"):
        OperatorHarness(Aside(None), ROWS, "k", changelog=False)


class Closing(WindowCallbacks):
    """Emits when the watermark has moved, where there is no key."""

    def process(self, row: Any, ctx: Any) -> None:
        """Nothing."""

    def on_watermark(self, watermark: int, ctx: Any) -> None:
        ctx.emit("a", self.changes and 3.7, kind=RowKind.DELETE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, r"a row -D for the key \(\), but"),
        (Changelog.retract(), r"key \(\): emit\(\) got, for column 'v', 3\.7"),
    ],
)
def test_a_row_that_has_no_key_is_named_too(
    changes: Changelog | None, message: str, async_enabled: bool
) -> None:
    with (
        OperatorHarness(Closing(changes), ROWS, "k", changelog=False, async_enabled=async_enabled) as harness,
        pytest.raises(SchemaError, match=message),
    ):
        harness.end_batch()
