"""What users test their operators and jobs with. Ships in the package; must not import Spark."""

from asyncstate.testing.faults import FaultyStore
from asyncstate.testing.harness import OperatorHarness
from asyncstate.testing.pipeline import PipelineHarness, PipelineSource

__all__ = ["FaultyStore", "OperatorHarness", "PipelineHarness", "PipelineSource"]
