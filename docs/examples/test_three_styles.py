"""Tests of three_styles.py, as you would write them for your own operator: ``pytest test_three_styles.py``.

Each runs for every style and in both modes. The expected rows come from a plain loop, not from the operator.
"""

from __future__ import annotations

import random

import pytest
from three_styles import READINGS, STYLES

from asyncstate.testing import OperatorHarness, Tuning


@pytest.fixture(params=STYLES, ids=lambda style: style.__name__)
def operator(request):
    return request.param()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def settings(request):
    """The harness's: in async mode every read of stored state waits, as on a large state it does."""
    return {"async_enabled": request.param, "tuning": Tuning(batch_hot_reads=request.param)}


def expected(readings):
    """What comes of the readings, in their order."""
    seen = {}
    for sensor, value in readings:
        before = seen.setdefault(sensor, [])
        yield "+I", sensor, value, value - sum(before) / len(before) if before else None
        before.append(value)


def test_deviations_from_the_mean_so_far(operator, settings):
    chance = random.Random(1)
    readings = [(f"s{chance.randrange(5)}", float(chance.randrange(100))) for _ in range(200)]
    with OperatorHarness(operator, READINGS, ["sensor"], **settings) as harness:
        for start in range(0, 200, 50):  # four micro-batches with the same sensors
            harness.push(readings[start : start + 50])
            harness.end_batch()
        assert harness.output == list(expected(readings))


def test_state_survives_a_restart_with_more_partitions(operator, settings):
    before, after = [("a", 1.0), ("b", 2.0)], [("a", 5.0), ("b", 2.0), ("a", 0.0)]
    with OperatorHarness(operator, READINGS, ["sensor"], **settings) as harness:
        harness.push(before)
        harness.end_batch()
        with harness.restore(harness.snapshot(), parallelism=3) as restored:
            restored.push(after)
            assert sorted(restored.end_batch()) == sorted([*expected([*before, *after])][2:])


def test_a_sensor_without_a_name_and_an_empty_micro_batch(operator, settings):
    with OperatorHarness(operator, READINGS, ["sensor"], **settings) as harness:
        assert harness.end_batch() == []
        harness.push([(None, 1.0), (None, 3.0)])
        assert harness.end_batch() == [("+I", None, 1.0, None), ("+I", None, 3.0, 2.0)]


def test_all_styles_store_the_same_bytes():
    stored = []
    for style in STYLES:
        for async_enabled in (False, True):
            with OperatorHarness(style(), READINGS, ["sensor"], async_enabled=async_enabled) as harness:
                harness.push([("a", 1.0), ("b", 2.0), ("a", 3.0)])
                harness.end_batch()
                stored.append(harness.state_entries())
    assert stored == stored[:1] * 6
