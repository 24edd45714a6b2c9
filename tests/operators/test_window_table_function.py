"""WindowTableFunction: the windows of each row, tried one by one; a chain with WindowRank; what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import JobError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import WindowRank, WindowTableFunction, desc, tumble
from tests.operators.test_window_rank import ROWS, SECOND, WINDOWS, windows_of

KINDS = ["+I", "-U", "+U", "-D"]


@pytest.fixture(autouse=True)
def parts_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a bundle get their windows in many parts."""
    monkeypatch.setattr("operators.window.windows.ASSIGNED_ROWS", 3)


@given(
    rows=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(-9, 19)), max_size=12),
    window=st.sampled_from(WINDOWS),
    enabled=st.booleans(),
    parallelism=st.integers(1, 3),
)
def test_each_row_once_for_each_window(rows: Any, window: Any, enabled: bool, parallelism: int) -> None:
    with OperatorHarness(
        WindowTableFunction(window),
        ROWS,
        None,
        event_time="at",
        async_enabled=enabled,
        parallelism=parallelism,
        max_parallelism=4,
    ) as harness:
        given_rows = [(k, 0, number, time * SECOND) for number, (_, k, time) in enumerate(rows)]
        harness.push(given_rows, kinds=[kind for kind, _, _ in rows])
        found = harness.end_batch()
        assert harness.state_entries() == {}
    assert found == [  # in the order in which they came
        (kind, *row, start, end, end - 1_000)
        for (kind, _, _), row in zip(rows, given_rows, strict=True)
        for start, end in windows_of(window, row[3])
    ]


def test_processing_time_and_times_out_of_range(async_enabled: bool) -> None:
    windows = WindowTableFunction(tumble("4 seconds"), time="processing")
    with OperatorHarness(windows, ROWS, None, changelog=False, async_enabled=async_enabled) as harness:
        harness.advance_processing_time(5 * SECOND)
        harness.push([(1, 0, 0, None)])
        (row,) = harness.end_batch()
        assert row[6] - row[5] == 4 * SECOND
    with OperatorHarness(
        WindowTableFunction(tumble("4 seconds")), ROWS, None, event_time="at", async_enabled=async_enabled
    ) as harness:
        harness.push([(1, 0, 0, 2**63 - 5), (1, 0, 0, -(2**63)), (1, 0, 0, None), (1, 0, 0, 0)])
        assert len(harness.end_batch()) == 1
        assert harness.statistics()["counter.event_times_out_of_range"] == 2


def test_what_it_puts_out_can_be_ranked(async_enabled: bool) -> None:
    rows = [(k, v, 0, time * SECOND) for k, v, time in ((1, 5, 1), (1, 7, 2), (1, 6, 5), (2, 1, 6))]
    with OperatorHarness(
        WindowTableFunction(tumble("4 seconds")), ROWS, None, event_time="at", async_enabled=async_enabled
    ) as windows:
        windows.push(rows)
        found = windows.end_batch()
        schema = windows.output_schema
    with OperatorHarness(WindowRank(desc("v"), 1), schema, ["k"], async_enabled=async_enabled) as ranks:
        ranks.push([row[1:] for row in found])
        assert sorted(row[1:3] for row in ranks.finish()) == [(1, 6), (1, 7), (2, 1)]


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="WindowTableFunction: 3 is not a window; create one with tumble"):
        WindowTableFunction(3)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="needs an event time"):
        OperatorHarness(WindowTableFunction(tumble("1 second")), ROWS, None)
    with pytest.raises(JobError, match="is stateless: its rows are not exchanged; leave key out"):
        OperatorHarness(WindowTableFunction(tumble("1 second")), ROWS, ["k"], event_time="at")
    named = ROWS.append(pa.field("window_end", pa.int64()))
    with pytest.raises(SchemaError, match="column 'window_end' has the name of an output column"):
        OperatorHarness(WindowTableFunction(tumble("1 second")), named, None, event_time="at")
