"""Databases as sources of a lookup join: any with a DB-API driver, and PostgreSQL through asyncpg.

Owns: ``DatabaseLookup`` and ``PostgresLookup``.
Invariant: values of keys reach the database as parameters, never as text of the query.
Must not import anything of ``asyncstate`` but ``errors`` and ``lookups.lookup_source``; drivers only where they are
opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from asyncstate.display import value_text, without_secrets
from asyncstate.errors import ConfigurationError
from asyncstate.lookups.lookup_source import Key, Lookup, Rows, rows_by_key


@dataclass(repr=False)
class DatabaseLookup(Lookup):
    """A query over a DB-API connection: ``select id, name from items where id in ({keys})``.

    ``query``: selects the key's columns first, in the order that is sent, then those of the answer; ``{keys}`` becomes
    a ``placeholder`` a key ("?", or "%s"), in parentheses where keys have several columns. ``connect`` makes a
    connection on the thread of a request, which closes it: pass ``pool.get_connection``, for example, where connecting
    is expensive. Give the operator a ``batch`` of some hundred keys.
    """

    connect: Callable[[], Any]
    query: str
    placeholder: str = "?"

    def __repr__(self) -> str:
        return f"DatabaseLookup({value_text(self.connect)}, {self.query!r})"

    def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """The rows of each key, in the order of ``keys``; None means no rows."""
        one = ", ".join([self.placeholder] * len(keys[0]))
        group = f"({one})" if len(keys[0]) > 1 else one
        query = self.query.replace("{keys}", ", ".join([group] * len(keys)))
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(query, [value for key in keys for value in key])
            return rows_by_key(keys, cursor.fetchall())


@dataclass(repr=False)
class PostgresLookup(Lookup):
    """A query over a pool of asyncpg: ``select id, name from items where id = any($1)``.

    ``query``: selects the key's columns first, in the order in which they are sent, then those of the answer. Parameter
    i has a list of the values of the i-th column of the keys; with several columns compare with
    ``(a, b) in (select * from unnest($1::bigint[], $2::text[]))``. Needs ``asyncpg``.
    """

    dsn: str
    query: str
    connections: int = 8

    def __repr__(self) -> str:
        return f"PostgresLookup({without_secrets(self.dsn)!r}, {self.query!r})"

    async def open(self) -> None:
        """Create clients and connections; runs on the event loop of the calls, before the first request of a task."""
        try:
            import asyncpg
        except ImportError as error:
            raise ConfigurationError(
                "PostgresLookup needs asyncpg; install it with: pip install 'asyncstate[postgres]'"
            ) from error
        self._pool = await asyncpg.create_pool(self.dsn, min_size=0, max_size=self.connections)

    async def close(self) -> None:
        """Close what ``open`` created; runs on the same event loop, also when the task fails."""
        await self._pool.close()

    async def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """The rows of each key, in the order of ``keys``; None means no rows."""
        values = [list(column) for column in zip(*keys, strict=True)]
        return rows_by_key(keys, await self._pool.fetch(self.query, *values))
