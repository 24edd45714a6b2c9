"""IncrementalGroupAggregate and its second part give what GroupAggregate gives over the same rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, IncrementalGroupAggregate, avg, count, max_, sum_

SCHEMA = pa.schema(
    [("k", pa.string()), ("bucket", pa.int64()), ("v", pa.int64()), ("x", pa.float64()), ("flag", pa.bool_())]
)
ADDITIVE = [
    count().alias("rows"),
    count("v").distinct().alias("values"),
    count("v").distinct().where("flag").alias("flagged"),
    sum_("v").distinct().alias("sum_of_values"),
    sum_("x"),
    avg("v"),
]


class Split:
    """The two parts, one behind the other, and beside them the whole."""

    def __init__(self, aggregates: Any, changelog: bool, async_enabled: bool) -> None:
        split = IncrementalGroupAggregate(aggregates, bucket="bucket")
        settings: Any = {"async_enabled": async_enabled}
        self.first = OperatorHarness(split, SCHEMA, ["k", "bucket"], changelog=changelog, **settings)
        schema = split.bind(self.first._specs)
        self.final = OperatorHarness(split.final(), schema, ["k"], changelog=False, **settings)
        self.whole = OperatorHarness(
            GroupAggregate(aggregates), SCHEMA, ["k"], changelog=changelog, **settings
        )

    def run(self, rows: list[tuple[Any, ...]], kinds: list[str]) -> tuple[list[Any], list[Any]]:
        for harness in (self.first, self.whole):
            harness.push(rows, kinds=kinds)
        parts = self.first.end_batch()
        assert all(row[0] == "+I" for row in parts)
        self.final.push([row[1:] for row in parts])
        return self.final.end_batch(), self.whole.end_batch()

    def close(self) -> None:
        for harness in (self.first, self.final, self.whole):
            harness.close()


ROW = st.tuples(
    st.sampled_from("ab"), st.none() | st.integers(0, 5), st.none() | st.integers(-4, 4), st.booleans()
)


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(ROW, max_size=8), max_size=4),
    taken=st.lists(st.integers(0, 99), max_size=6),
    changelog=st.booleans(),
    async_enabled=st.booleans(),
)
def test_two_parts_are_the_whole(batches: Any, taken: Any, changelog: bool, async_enabled: bool) -> None:
    split = Split(ADDITIVE if changelog else [*ADDITIVE, max_("x")], changelog, async_enabled)
    held: list[Any] = []
    try:
        for batch in batches:
            rows = [
                (key, (v or 0) % 3, v, None if x is None else float(x), flag) for key, v, x, flag in batch
            ]
            held += rows
            kinds = ["+I"] * len(rows)
            while changelog and taken and held:
                rows.append(held.pop(taken.pop() % len(held)))
                kinds.append("-D")
            found, wanted = split.run(rows, kinds)
            assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    finally:
        split.close()


@pytest.mark.parametrize(
    ("aggregates", "key", "changelog", "text"),
    [
        ([count()], ["k"], True, "bucket column 'bucket' is not a key column"),
        ([max_("v")], ["k", "bucket"], True, "'max.v' cannot be split by buckets over a changelog"),
    ],
)
def test_what_cannot_be_split_is_refused(aggregates: Any, key: Any, changelog: bool, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        OperatorHarness(IncrementalGroupAggregate(aggregates, "bucket"), SCHEMA, key, changelog=changelog)


def test_the_second_part_wants_what_the_first_puts_out() -> None:
    final = IncrementalGroupAggregate([sum_("v")], "bucket").final()
    with pytest.raises(SchemaError, match="has no column 'count1'"):
        OperatorHarness(final, SCHEMA, ["k"], changelog=False)
    with pytest.raises(SchemaError, match="is a changelog"):
        OperatorHarness(final, SCHEMA, ["k"], changelog=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_parts_have_the_types_of_the_whole(async_enabled: bool, reverse: bool) -> None:
    """An extreme is of its column's type, also next to a sum, which is wider."""
    columns = [("k", pa.string()), ("bucket", pa.int64()), ("n", pa.int32()), ("x.y", pa.float32())]
    schema = pa.schema(columns)
    chosen: dict[str, Any] = {"changelog": False, "async_enabled": async_enabled}
    aggregates = [sum_("n"), max_("n"), avg("x.y"), max_("x.y"), count("n")]
    aggregates = aggregates[::-1] if reverse else aggregates
    split = IncrementalGroupAggregate(aggregates, bucket="bucket")
    with (
        OperatorHarness(split, schema, ["k", "bucket"], **chosen) as first,
        OperatorHarness(split.final(), first.output_schema, ["k"], **chosen) as final,
        OperatorHarness(GroupAggregate(aggregates), schema, ["k"], **chosen) as whole,
    ):
        assert final.output_schema == whole.output_schema
        for rows in ([("a", 0, 3, 0.1), ("a", 1, 5, None)], [("a", 1, 9, 0.3)]):
            first.push(rows)
            whole.push(rows)
            final.push([row[1:] for row in first.end_batch()])
            assert final.end_batch() == whole.end_batch()
