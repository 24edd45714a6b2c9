"""What tests of states share beside the fakes."""

from __future__ import annotations

import pytest

from asyncstate.execution import Pacer
from asyncstate.runtime.partition.worker_memory import worker_memory


class _SlowPacer(Pacer):
    @property
    def waits_for_device(self) -> bool:
        return True


@pytest.fixture(params=["quick", "slow"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test once as it is, and once with a store that is taken for a slow device: then all reads wait."""
    if request.param == "slow":
        monkeypatch.setattr(worker_memory(), "pacer", _SlowPacer())
    return str(request.param)
