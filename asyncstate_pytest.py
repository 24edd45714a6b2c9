"""Fixtures for pytest, found by their entry point wherever asyncstate is installed.

Owns: ``operator_harness``.
Invariant: importing this costs nothing: who does not ask for a fixture does not load asyncstate. It is a module of its
own, as ``asyncstate.anything`` would load the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def operator_harness(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Creates OperatorHarnesses and closes them after the test; the test runs in both modes."""
    from asyncstate.testing import OperatorHarness

    with ExitStack() as made:

        def make(*arguments: Any, **settings: Any) -> OperatorHarness:
            return made.enter_context(
                OperatorHarness(*arguments, **{"async_enabled": request.param, **settings})
            )

        yield make
