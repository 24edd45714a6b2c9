"""What the two phases are compared on: how the keys are spread, and which operator aggregates them.

Owns: ``Case`` and ``CASES``, and the input of a case as files.
Invariant: the input follows from case, rows and seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncstate.operator import Operator
from operators import GroupAggregate, WindowAggregate, avg, count, max_, sum_, tumble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICE_SECONDS = 10
_MINUTE = 60


@dataclass(frozen=True)
class Case:
    """``keys`` of rows as SQL over ``id`` and ``seed``; ``windows``: aggregated a window of event time too. ``values``:
    of so many users, and as many items, the distinct ones are counted."""

    name: str
    title: str
    keys: str
    windows: bool = False
    values: int = 0

    def operator(self) -> Operator:
        """A new operator; its results are exact, so that both ways can be compared."""
        aggregates = [
            count().alias("rows"),
            sum_("price"),
            avg("price"),
            max_("price").where("large").alias("most"),
        ]
        if self.values:
            aggregates += [
                count("user").distinct().alias("users"),
                count("user").distinct().where("large").alias("large_users"),
                count("item").distinct().alias("items"),
            ]
        if self.windows:
            return WindowAggregate(tumble(f"{SLICE_SECONDS} seconds"), aggregates)
        return GroupAggregate(aggregates)


def _uniform(keys: int) -> str:
    return f"pmod(xxhash64(id, {{seed}}), {keys})"


_HOT = (
    f"if(pmod(xxhash64(id, {{seed}}, 1), 10) < 8, pmod(xxhash64(id, {{seed}}), 1000), {_uniform(1_000_000)})"
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("few", "1,000 keys", _uniform(1_000)),
        Case("hot", "80% of rows on 1,000 keys, others on 1 million", _HOT),
        Case("many", "100,000 keys", _uniform(100_000)),
        Case("unique", "1 million keys", _uniform(1_000_000)),
        Case("values", "10 keys, 2,000 users and items", _uniform(10), values=2_000),
        Case("one-key", "one key, 20,000 users and items", "1", values=20_000),
        Case("spread-values", "1,000 keys, 500 users and items each", _uniform(1_000), values=500),
        Case("windows", f"1,000 keys, windows of {SLICE_SECONDS} s", _uniform(1_000), windows=True),
    )
}


def write_input(
    spark: SparkSession, case: Case, folder: Path, rows: int, batches: int, seed: int
) -> Callable[[int], str]:
    """Write ``batches`` micro-batches of ``rows`` rows; gives the folder of each. A minute of event time each."""
    for batch in range(batches):
        key = case.keys.format(seed=seed)
        spark.range(batch * rows, (batch + 1) * rows).selectExpr(
            f"{key} as k",
            "pmod(xxhash64(id, 7), 1000000) as price",
            "pmod(id, 3) = 0 as large",
            f"pmod(xxhash64(id, 11), {max(case.values, 1)}) as user",
            f"pmod(xxhash64(id, 12), {max(case.values, 1)}) as item",
            f"timestamp_micros(cast(id * {_MINUTE * 1_000_000} / {rows} as bigint)) as time",
        ).write.parquet(str(folder / str(batch)))
    return lambda batch: str(folder / str(batch))
