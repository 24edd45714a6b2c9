"""What operators over aggregates have in common: their aggregates, and the life of the functions among them.

Owns: ``AggregateOperator``.
Must not import anything of ``asyncstate`` but ``operator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncstate.operator import BundleOperator

from ..core.checks import Named
from .declared import Aggregate, check_aggregates, functions_of, state_bytes_of


class AggregateOperator(Named, BundleOperator):
    """An operator whose output has ``aggregates``. Functions of the user's own are opened with their plan."""

    takes_tables: ClassVar[bool] = False
    """Whether its aggregates are those of ``udtaf``."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        check_aggregates(aggregates, self.owner, self.takes_tables)
        self.aggregates = tuple(aggregates)

    @property
    def is_bundled(self) -> bool:
        """See ``BundleOperator``."""
        return any(aggregate.kind.is_bundled for aggregate in self.aggregates)

    @property
    def row_bytes(self) -> int:
        """See ``BundleOperator``: each row may have a window or a frame of its own."""
        return self.state_bytes

    @property
    def state_bytes(self) -> int:
        """What aggregates read and write of a state, as far as it is known beforehand."""
        return 2 * state_bytes_of(self.aggregates)

    def close(self) -> None:
        """Close the functions."""
        for function in functions_of(self.aggregates):
            function.close()

    async def open_calls(self) -> None:
        """See ``Operator``: what the functions share."""
        for function in functions_of(self.aggregates):
            await function.open_calls()

    async def close_calls(self) -> None:
        """See ``Operator``."""
        for function in functions_of(self.aggregates):
            await function.close_calls()
