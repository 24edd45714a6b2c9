"""Operators that always or never aggregate before the exchange."""

from __future__ import annotations

import copy
from typing import TypeVar

from asyncstate import BundleOperator

AnyBundleOperator = TypeVar("AnyBundleOperator", bound=BundleOperator)


def in_phases(operator: AnyBundleOperator, two: bool | str) -> AnyBundleOperator:
    """A copy of ``operator`` that runs in two phases or in one; "auto": as it is without a setting."""
    made = copy.copy(operator)
    made.local_aggregation = {"true": "always", "false": "never"}.get(str(two).lower(), "auto")  # type: ignore[assignment]
    return made
