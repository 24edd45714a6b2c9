"""How operators, harnesses and jobs show themselves."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import operators
from asyncstate import InputSpec, RecordContext, RecordOperator, Row, StateTtl
from asyncstate.dataflow import Stream
from asyncstate.durations import duration_text, microseconds
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource

TEXTS = [
    "GroupAggregate([count().alias('n'), sum_('v').distinct().where('big'), max_('v')], emit='each')",
    "WindowAggregate(tumble('10 seconds'), [count()])",
    "WindowAggregate(hop('1 hour 30 minutes', '15 minutes', offset='1 minute'), [avg('v').alias('mean')])",
    "WindowAggregate(session('1 day'), [min_('v')])",
    "Rank(desc('v'), 3, unique=['k'])",
    "Rank([asc('v', nulls='last'), desc('k')], 1)",
    "OverAggregate([row_number(), lag('v', 2), sum_('v')], range_('1 minute'))",
    "OverAggregate([rank_()], unbounded(peers=False))",
    "Join('left')",
    "Match('A B+ C', measures={'n': match_number(), 'v': first('v', 'B', offset=1)}, within='1 hour')",
    "Match('A B', measures={'v': last('v', 'A')}, after_match=skip_to_last('B'))",
    "Match('A | B', measures={'v': first('v')}, after_match=skip_to_next(), then='v')",
    "Limit(3)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_an_operator_shows_the_call_that_makes_it(text: str) -> None:
    made = eval(text, vars(operators).copy())
    assert repr(made).replace(", 2)", ")") == text.replace(
        ", 2)", ")"
    )  # lag says its distance only in its kind
    assert repr(eval(repr(made), vars(operators).copy())) == repr(made)


def test_settings_are_shown_with_their_defaults_and_escaped() -> None:
    shown = operators.GroupAggregate([operators.count().alias("<b>")])._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>GroupAggregate</b>" in shown
    assert "emit_update_before" in shown
    assert next(iter(inspect.signature(operators.Join).parameters)) == "kind"  # as notebooks ask it


class Odd(RecordOperator):  # noqa: PLW1641 - it is to have no hash
    """Takes what is no literal, cannot be hashed, and is equal to others."""

    def __init__(self, function: Callable[..., Any], *more: object, schema: pa.Schema) -> None:
        self.function, self.more, self.schema = function, more, schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return self.schema

    def process(self, row: Row, ctx: RecordContext) -> None:
        """Nothing."""


class Shown(Odd):
    """The same, with a hash."""

    __hash__ = object.__hash__


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_a_repr_cannot_fail_and_copies_know_nothing() -> None:
    schema = pa.schema([("k", pa.int64())])
    assert repr(Odd(len, schema=schema)) == "Odd(...)"
    made = Shown(len, Broken(), {"a": [1, (2,)]}, schema=schema)
    assert repr(made) == "Shown(len, <Broken>, {'a': [1, (2,)]}, schema=k: int64)"
    assert repr(pickle.loads(pickle.dumps(Shown(len, schema=schema)))) == "Shown(...)"
    assert len(pickle.dumps(Shown(len, schema=schema))) < len(pickle.dumps(schema)) + 200
    assert repr(operators.GroupAggregate(ttl=StateTtl("1 day"))).startswith("GroupAggregate(ttl=StateTtl(")


@pytest.mark.parametrize("length_us", [0, 1, 999, 61_000_001, -5_000_000, 10**15])
def test_durations_can_be_read_back(length_us: int) -> None:
    assert microseconds(duration_text(length_us), "test", "length") == length_us


def test_harnesses_show_mode_batch_watermark_and_states(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us"))])
    operator = operators.GroupAggregate([operators.count()])
    mode = "async" if async_enabled else "sync"
    with OperatorHarness(
        operator, schema, ["k"], event_time="ts", watermark_delay=0, async_enabled=async_enabled
    ) as harness:
        assert f"GroupAggregate([count()]): mode {mode}" in repr(harness)
        assert "watermark none yet, states none yet" in repr(harness)
        harness.push([("a", 86_400_000_000)])
        assert "batch 0 (1 rows pushed)" in repr(harness)
        harness.end_batch()
        assert "batch 1 (0 rows pushed), watermark 1970-01-02 00:00:00, states accumulators (column)" in repr(
            harness
        )
        assert "<td" in harness._repr_html_()
        harness.finish()
        assert "batch the end" in repr(harness)

    def pipeline(rows: Stream) -> None:
        rows.apply(operator, key="k", uid="counts").to(print, name="out")

    with PipelineHarness(pipeline, {"rows": PipelineSource(schema)}, async_enabled=async_enabled) as whole:
        whole.push("rows", [("a", 0)])
        whole.end_batch()
        assert f"mode {mode}, partitions 1, batch 1 (0 rows pushed)" in repr(whole)
        assert "sinks out (1 rows)" in repr(whole)
        assert "<svg" in whole._repr_html_()
