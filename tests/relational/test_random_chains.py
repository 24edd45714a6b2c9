"""Random chains of relational methods, cut, restarted and rescaled at random, against DuckDB."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("duckdb")

from tests.relational.random_chains import keyed_tables, random_chain
from tests.sql.tables import kept_right


@pytest.mark.parametrize("seed", range(40))
def test_a_random_chain_is_kept_right(seed: int, async_enabled: bool) -> None:
    chain = random_chain(seed)

    def flow(**tables: Any) -> None:
        chain.make(tables).to(print, name="out")

    kept_right(
        flow,
        keyed_tables(seed),
        chain.sql,
        chain.sql,
        async_enabled=async_enabled,
        restarts=random.Random(seed),
    )
