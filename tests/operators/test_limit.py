"""Limit: the first rows by arrival, against a list of the rows that are there; what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness, net
from operators import Limit, SortLimit, desc

ROWS = pa.schema([("v", pa.int64()), ("s", pa.string())])

changes = st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=6), max_size=6)


@given(
    batches=changes,
    n=st.integers(1, 3),
    offset=st.integers(0, 2),
    changelog=st.booleans(),
    enabled=st.booleans(),
    restart=st.integers(0, 5),
)
def test_the_first_rows_by_arrival(
    batches: Any, n: int, offset: int, changelog: bool, enabled: bool, restart: int
) -> None:
    there: list[tuple[int, str]] = []
    shown: list[Any] = []
    harness = OperatorHarness(
        Limit(n, offset=offset), ROWS, None, async_enabled=enabled, changelog=changelog, max_parallelism=4
    )
    for number, batch in enumerate(batches):
        if number == restart:
            again = harness.restore(harness.snapshot(), parallelism=2)
            harness.close()
            harness = again
        for added, value in batch:
            row = (value, f"s{value}")
            if added or not changelog or row not in there:
                there.append(row)
                harness.push([row], kinds=["+I"] if changelog else None)
            else:
                there.remove(row)  # the oldest
                harness.push([row], kinds=["-D"])
        shown += harness.end_batch()
        assert net(shown) == Counter(there[offset : offset + n])
        if not changelog:
            assert len(harness.state_entries()) <= 2  # the list of the first rows, and its head
    harness.close()


@pytest.mark.parametrize("make", [lambda: Limit(2), lambda: SortLimit(desc("v"), 2)])
def test_what_has_gone_leaves_nothing(make: Any, async_enabled: bool) -> None:
    rows = [(value, "x") for value in range(100)]
    with OperatorHarness(make(), ROWS, None, async_enabled=async_enabled) as harness:
        harness.push(rows)
        harness.end_batch()
        assert harness.state_entries()
        harness.push(rows, kinds=["-D"] * len(rows))
        assert len(harness.end_batch()) == 2
        assert harness.state_entries() == {}


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="SortLimit: n is 'v'; give a number"):
        SortLimit("v", "v")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="Limit: n is 0; give a number of at least 1"):
        Limit(0)
    with pytest.raises(
        SchemaError, match=r"Limit: input 0 has the key \(v\), but the limit is over all rows"
    ):
        OperatorHarness(Limit(1), ROWS, ["v"])
    with pytest.raises(SchemaError, match="SortLimit: order_by"):
        OperatorHarness(SortLimit("w", 1), ROWS, None)
