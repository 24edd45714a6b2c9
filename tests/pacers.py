"""Pacers that do not measure, so that a test meets the same reads on every machine.

Owns: ``AlwaysSlow`` and ``AlwaysQuick``.
"""

from __future__ import annotations

from asyncstate.execution import Pacer


class AlwaysSlow(Pacer):
    """Takes every store for a slow device, so that reads wait and come back in the order of the threads."""

    @property
    def waits_for_device(self) -> bool:
        return True


class AlwaysQuick(Pacer):
    """Takes no read for slow, however busy the machine is."""

    @property
    def waits_for_device(self) -> bool:
        return False
