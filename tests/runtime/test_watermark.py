"""The rule by which sources hold the watermark and become idle, beside a model of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.operator import MIN_WATERMARK
from asyncstate.runtime import WatermarkSource, advance_sources, watermark_after, watermark_holders
from asyncstate.storage import Manifest


def after(
    base: Manifest | None,
    declared: dict[str, WatermarkSource],
    seen: dict[str, int | None],
    time: int,
    restarted: bool = False,
) -> Manifest:
    times = advance_sources(base, declared, seen, time, restarted)
    number = 0 if base is None else base.batch_id + 1
    return Manifest(
        "job",
        number,
        number - 1,
        128,
        watermark=watermark_after(base),
        processing_time=time,
        sources=times.reached,
        heard=times.heard,
        idle=times.idle,
    )


A, B = WatermarkSource(0, 60), WatermarkSource(5)


def test_the_watermark_stays_while_all_sources_are_idle() -> None:
    one = after(None, {"a": A}, {"a": 100}, 0)
    assert watermark_after(one) == 100
    silent = after(one, {"a": A}, {"a": None}, 60)
    assert (silent.idle, watermark_after(silent), watermark_holders(silent)) == (["a"], 100, {})
    again = after(silent, {"a": A}, {"a": 90}, 61)
    assert (again.idle, watermark_after(again), watermark_holders(again)) == ([], 100, {"a": 100})


def test_a_source_that_never_had_an_event_becomes_idle() -> None:
    both = {"a": A, "b": B}
    first = after(None, both, {"b": 50}, 1_000)
    assert (watermark_after(first), watermark_holders(first)) == (MIN_WATERMARK, {"a": MIN_WATERMARK})
    assert after(first, both, {"b": 50}, 1_059).idle == []
    second = after(first, both, {"b": 50}, 1_060)
    assert (second.idle, watermark_after(second), watermark_holders(second)) == (["a"], 45, {"b": 45})


@pytest.mark.parametrize(("restarted", "idle"), [(False, ["a"]), (True, [])])
def test_time_without_a_driver_counts_from_the_second_micro_batch_on(
    restarted: bool, idle: list[str]
) -> None:
    first = after(None, {"a": A}, {"a": 1}, 0)
    second = after(first, {"a": A}, {}, 1_000, restarted)
    assert second.idle == idle
    assert after(second, {"a": A}, {}, 1_001).idle == ["a"]


@given(
    st.lists(
        st.tuples(
            st.lists(st.one_of(st.none(), st.integers(0, 300)), min_size=3, max_size=3),
            st.integers(0, 40),
            st.integers(1, 3),
        ),
        max_size=12,
    )
)
def test_what_follows_from_any_history(history: list[tuple[list[int | None], int, int]]) -> None:
    """``history``: of each micro-batch the event times of three sources, the time since the one before, and how many of
    the sources are declared."""
    declared = {"a": A, "b": B, "c": WatermarkSource(7, 30)}
    base, time, marks = None, 0, [MIN_WATERMARK]
    highest: dict[str, int] = {}
    last: dict[str, int] = {}
    for seen, passed, number in history:
        time += passed
        now = dict(list(declared.items())[:number])
        for name in declared.keys() - now.keys():
            highest.pop(name, None)
            last.pop(name, None)
        for name, event in zip(now, seen, strict=False):
            if event is not None:
                highest[name] = max(event, highest.get(name, 0))
            if event is not None or name not in last:
                last[name] = time
        base = after(base, now, dict(zip(declared, seen, strict=True)), time)
        quiet = {
            name for name, one in now.items()
            if one.idle_after_us is not None and time - last[name] >= one.idle_after_us
        }  # fmt: skip
        reached = [
            highest[name] - one.delay_us if name in highest else MIN_WATERMARK
            for name, one in now.items()
            if name not in quiet
        ]
        marks.append(max(marks[-1], min(reached, default=MIN_WATERMARK)))
        assert set(base.idle) == quiet
        assert watermark_after(base) == marks[-1]
