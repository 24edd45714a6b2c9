"""The mode of a Spark test that is not about modes.

Owns: ``SYNC`` and ``ASYNC``, which run a test with ``async_enabled`` in one of them.
What a mode changes happens in a task, whose code the harness and the simulation run in both. On Spark the mode is a
setting that travels to the task: ``test_stateful`` and ``test_operators`` show in both modes that it arrives.
"""

from __future__ import annotations

import pytest

SYNC = pytest.mark.parametrize("async_enabled", [False], ids=["sync"])
ASYNC = pytest.mark.parametrize("async_enabled", [True], ids=["async"])
