"""What users test their operators with. Ships in the package; must not import Spark."""

from asyncstate.testing.faults import FaultyStore
from asyncstate.testing.harness import OperatorHarness

__all__ = ["FaultyStore", "OperatorHarness"]
