"""Sort over changelogs: rows and their retractions meet, however many rows there are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import Sort, desc

LOGGED = pa.schema([("item", pa.string()), ("amount", pa.int64()), ("lsn", pa.int64())])


@pytest.mark.parametrize("bundle_size", ["1", "500000"])
def test_a_retraction_of_another_position_meets_its_row(async_enabled: bool, bundle_size: str) -> None:
    settings: dict[str, Any] = {"sequence": "lsn", "async_enabled": async_enabled}
    options = {"async-state.bundle-size": bundle_size}
    with OperatorHarness(Sort(desc("amount")), LOGGED, None, options=options, **settings) as harness:
        harness.push([("pen", 3, 1), ("cup", 4, 2)])
        harness.end_batch()
        harness.push([("pen", 3, 3), ("hat", 3, 4)], kinds=["-D", "+I"])
        harness.end_batch()
        assert harness.finish() == [("+I", "cup", 4, 2), ("+I", "hat", 3, 4)]
        assert harness.statistics().get("counter.retractions_without_state", 0) == 0


def test_an_order_by_position_is_refused_over_changelogs() -> None:
    """A row and its retraction would not be equal in it."""
    operator = Sort(["amount", "lsn"])
    with pytest.raises(SchemaError, match="order_by names 'lsn', which is in the sequence of"):
        OperatorHarness(operator, LOGGED, None, sequence="lsn")
    with OperatorHarness(operator, LOGGED, None, sequence="lsn", changelog=False) as harness:
        harness.push([("pen", 3, 2), ("cup", 3, 1)])
        assert harness.finish() == [("+I", "cup", 3, 1), ("+I", "pen", 3, 2)]
