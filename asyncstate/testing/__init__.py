"""Test support for users' operators and jobs. Ships in the package; must not import Spark."""

from asyncstate.config import Tuning
from asyncstate.testing.fake_context import FakeContext
from asyncstate.testing.faults import FaultyStore
from asyncstate.testing.harness import OperatorHarness
from asyncstate.testing.harness_rows import net
from asyncstate.testing.pipeline import PipelineHarness, PipelineSource

__all__ = [
    "FakeContext",
    "FaultyStore",
    "OperatorHarness",
    "PipelineHarness",
    "PipelineSource",
    "Tuning",
    "net",
]
