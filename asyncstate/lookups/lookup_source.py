"""The common interface of all sources of a lookup join.

Owns: ``Lookup``, and the types of its requests and answers; ``rows_by_key``.
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
"""The rows of a key, none to many: each a tuple with a value per column, or a dict by column name."""


class Lookup(ABC):
    """A source of rows by key. It is pickled: create what cannot be pickled in ``open``.

    ``requests_per_second``: how many requests all partitions of the job may send together, if the lookup bounds them.
    """

    requests_per_second: float | None = None

    def check(self, keys: pa.Schema, columns: pa.Schema) -> None:
        """Raise SchemaError if it does not support such ``keys``, or has no such ``columns``; called once, before
        rows."""

    def take_share(self, start: float, size: float) -> None:
        """Called in each task before ``open``: this partition may send the part ``size`` of the job's requests. The
        parts of all partitions fill [0, 1), and this one begins at ``start``."""

    async def open(self) -> None:
        """Create clients and connections; runs on the event loop of the calls, before the first request of a task."""

    async def close(self) -> None:
        """Close what ``open`` created; runs on the same event loop, also when the task fails."""

    @abstractmethod
    def lookup(self, keys: Sequence[Key]) -> Any:
        """The rows of each key, in the order of ``keys``; None means no rows. May be ``async def``.

        An exception with an attribute ``retry_after`` (seconds) is not retried earlier.
        """


def rows_by_key(keys: Sequence[Key], rows: Iterable[Sequence[Any]]) -> list[Rows]:
    """Group ``rows`` by these keys; each row has the values of its key, then those of the found row. Raises
    OperatorError for a row of another key, which would be lost silently.

    >>> rows_by_key([(1,), (2,)], [(2, "b"), (2, "c")])
    [[], [('b',), ('c',)]]
    """
    found: dict[Key, list[Key]] = {key: [] for key in keys}
    width = len(keys[0]) if keys else 0
    for row in rows:
        values = tuple(row)
        if values[:width] not in found:
            raise OperatorError(
                f"a row of key {values[:width]!r} was returned but not requested; requested were "
                f"{', '.join(map(repr, keys[:3]))}{' and others' if len(keys) > 3 else ''}. Select the key's columns "
                "first, with the same values and types as sent"
            )
        found[values[:width]].append(values[width:])
    return [found[key] for key in keys]
