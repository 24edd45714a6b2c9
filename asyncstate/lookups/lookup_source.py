"""The one interface behind which all places are that a lookup join asks.

Owns: ``Lookup``, and the types of what it is asked and what it answers; ``rows_by_key``.
Invariant: the answer has one list of rows for each key, in the order of the keys.
Must not import anything of ``asyncstate`` but ``errors``.

Source: Flink's ``LookupFunction`` and ``AsyncLookupFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from asyncstate.errors import OperatorError

Key: TypeAlias = tuple[Any, ...]
"""A value for each of the columns that are sent."""

Rows: TypeAlias = Sequence[Any]
"""The rows of a key, none to many: each a tuple with a value a column, or a dict by column name."""


class Lookup(ABC):
    """A place that is asked for the rows of keys. It is pickled: make what cannot be in ``open``."""

    def check(self, keys: pa.Schema, columns: pa.Schema) -> None:
        """Raise SchemaError if it cannot be asked for such ``keys``, or has no such ``columns``; once, before rows."""

    async def open(self) -> None:
        """Make clients and connections; on the event loop of the calls, before the first request of a task."""

    async def close(self) -> None:
        """Close what ``open`` made; on the same event loop, also when the task fails."""

    @abstractmethod
    def lookup(self, keys: Sequence[Key]) -> Any:
        """The rows of each key, in the order of ``keys``; None stands for no rows. May be ``async def``.

        An exception with an attribute ``retry_after`` (seconds) is not retried before.
        """


def rows_by_key(keys: Sequence[Key], rows: Iterable[Sequence[Any]]) -> list[Rows]:
    """``rows``, each the values of a key with those of a found row behind them, put to these keys. OperatorError for a
    row of another key, which would be lost without a word.

    >>> rows_by_key([(1,), (2,)], [(2, "b"), (2, "c")])
    [[], [('b',), ('c',)]]
    """
    found: dict[Key, list[Key]] = {key: [] for key in keys}
    width = len(keys[0]) if keys else 0
    for row in rows:
        values = tuple(row)
        if values[:width] not in found:
            raise OperatorError(
                f"a row of key {values[:width]!r} was found, which was not asked for; asked for were "
                f"{', '.join(map(repr, keys[:3]))}{' and others' if len(keys) > 3 else ''}. Select the key's columns "
                "first, with the values and types that are sent"
            )
        found[values[:width]].append(values[width:])
    return [found[key] for key in keys]
