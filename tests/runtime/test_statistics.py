"""The figures of a task: declared once, put together by their kinds, read back whatever a report lacks or adds."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.metrics import (
    Count,
    Counters,
    Gauge,
    MaxGauge,
    MetricKind,
    from_dict,
    kinds,
    max_metrics,
    sum_metrics,
    to_dict,
)
from asyncstate.runtime import TASK_METRICS, TaskStatistics
from asyncstate.runtime.statistics import sums_of_both


@dataclass(frozen=True, kw_only=True)
class Inner:
    done: Count
    most: MaxGauge


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    maybe: Inner2 | None
    there: Gauge
    rare: Count | None
    own: Counters


@dataclass(frozen=True, kw_only=True)
class Inner2:
    other: Count


_WHOLE = st.integers(0, 2**40)
_OUTER = st.builds(
    Outer,
    inner=st.builds(Inner, done=_WHOLE, most=_WHOLE),
    maybe=st.none() | st.builds(Inner2, other=_WHOLE),
    there=_WHOLE,
    rare=st.none() | _WHOLE,
    own=st.dictionaries(st.text("abc.", min_size=1), _WHOLE),
)


@given(_OUTER)
def test_what_was_named_is_read_again(part: Outer) -> None:
    assert from_dict(Outer, to_dict(part)) == part
    assert {name for name in to_dict(part) if not name.startswith("counter.")} <= kinds(Outer).keys()


@given(_OUTER, st.sets(st.sampled_from(["done", "most", "there", "other", "rare", "counter.a"])))
def test_a_report_of_another_version_is_read_all_the_same(part: Outer, lacking: set[str]) -> None:
    figures = {name: value for name, value in to_dict(part).items() if name not in lacking}
    found = from_dict(Outer, {**figures, "a name of tomorrow": 7.0})
    assert found.inner.done == (0 if "done" in lacking else part.inner.done)
    assert found.rare == (None if "rare" in lacking else part.rare)
    assert found.maybe == (None if "other" in lacking else part.maybe)
    assert ("a" in found.own) == ("a" in part.own and "counter.a" not in lacking)


def test_two_figures_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Twice:
        inner: Inner
        done: Count

    with pytest.raises(AssertionError, match="done"):
        kinds(_resolved(Twice, inner=Inner, done=Count))


def _resolved(part: type, **types: Any) -> type:
    part.__annotations__ = types  # of a class in a function the names of types are not found
    return part


@given(st.lists(_OUTER, min_size=1))
def test_over_partitions_some_add_up_and_of_others_the_highest_counts(parts: list[Outer]) -> None:
    figures = [to_dict(part) for part in parts]
    assert sum_metrics(figures)["done"] == sum(part.inner.done for part in parts)
    assert sum_metrics(figures).get("rare", 0) == sum(part.rare or 0 for part in parts)
    assert max_metrics(figures)["most"] == max(part.inner.most for part in parts)


def test_of_two_runs_in_a_micro_batch_what_there_is_counts_once() -> None:
    first = {"state_bytes": 70.0, "rows_in": 2.0, "counter.late": 1.0, "a name of tomorrow": 1.0}
    then = {"state_bytes": 90.0, "rows_in": 3.0, "delta_bytes": 5.0, "a name of tomorrow": 2.0}
    assert sums_of_both(first, then) == {
        **{"state_bytes": 90.0, "rows_in": 5.0, "counter.late": 1.0},
        **{"delta_bytes": 5.0, "a name of tomorrow": 3.0},
    }


def test_every_figure_is_told_of_and_named_by_its_kind() -> None:
    """A part's docstring tells of each; names end in what they are, as ``docs/metrics.md`` says."""
    for name, kind in kinds(TaskStatistics).items():
        assert name.endswith("_limit") == (kind is MetricKind.LIMIT), name
        assert name.endswith("_peak") == (kind is MetricKind.MAX_GAUGE), name
    for part in _parts(TaskStatistics):
        told = part.__doc__ or ""
        plain = [one.name for one in fields(part) if one.name not in _of_parts(part)]
        assert [name for name in plain if f"``{name}``" not in told] == [], part
    assert TASK_METRICS.keys() == kinds(TaskStatistics).keys() - {"counters"}


def _of_parts(part: type) -> list[str]:
    hints = get_type_hints(part, include_extras=True)
    return [
        one.name
        for one in fields(part)
        if any(map(is_dataclass, (hints[one.name], *get_args(hints[one.name]))))
    ]


def _parts(part: type) -> list[type]:
    hints = get_type_hints(part, include_extras=True)
    inner = [
        one for name in _of_parts(part) for one in (hints[name], *get_args(hints[name])) if is_dataclass(one)
    ]
    return [part, *(below for one in inner for below in _parts(one))]
