"""Fixtures of the runtime's tests: the ways in which records can be run."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstate.execution import Pacer
from asyncstate.runtime.partition.worker_memory import WorkerMemory


class _AlwaysSlow(Pacer):
    """Takes every store for a slow device, so that all reads wait and come back in the order of the threads."""

    @property
    def waits_for_device(self) -> bool:
        return True


_MODES: dict[str, dict[str, Any]] = {
    "sync": {"async_enabled": False},
    "async": {"async_enabled": True},
    "waiting": {"async_enabled": True},
}


@pytest.fixture(params=_MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of the harness; the test runs sync, async, and async with reads that all wait for threads."""
    waits = request.param == "waiting"
    return _MODES[request.param] | ({"worker": WorkerMemory(_AlwaysSlow())} if waits else {})
