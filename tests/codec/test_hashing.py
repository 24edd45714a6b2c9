"""Key groups: equal to Spark's xxhash64, and equal for a column and its values."""

from __future__ import annotations

import datetime
import math
import random
import struct
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import check_max_parallelism, key_group, key_groups
from asyncstate.codec.hashing import hash_columns
from asyncstate.errors import CodecError, ConfigurationError, SchemaError
from tests.codec.strategies import DECIMALS, EDGES, column, columns, exact_decimal, key_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@given(key_rows(), st.sampled_from([1, 7, 128, 1000, 32768]))
def test_columns_and_tuples_have_the_same_groups(
    keys: tuple[list[pa.DataType], list[tuple[Any, ...]]], max_parallelism: int
) -> None:
    types, rows = keys
    groups = key_groups(columns(rows, types), max_parallelism)
    assert groups.dtype == np.int32
    assert groups.tolist() == [key_group(row, types, max_parallelism) for row in rows]
    assert all(0 <= group < max_parallelism for group in groups.tolist())


def test_slices_hash_like_their_rows() -> None:
    cases: list[tuple[list[Any], pa.DataType]] = [
        ([1, None, 3, 4], pa.int64()),
        (["a", None, "c", "d"], pa.string()),
    ]
    for values, arrow_type in cases:
        whole = hash_columns([column(values, arrow_type)])
        assert hash_columns([column(values, arrow_type).slice(1, 2)]).tolist() == whole[1:3].tolist()


def test_equal_floats_hash_alike_whatever_their_bits() -> None:
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    groups = key_groups([pa.array([0.0, -0.0, math.nan, odd_nan])], 32768).tolist()
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert key_group((odd_nan,), [pa.float64()], 32768) == groups[2]


def test_without_columns_every_row_is_of_group_zero() -> None:
    assert key_groups([], 128, num_rows=3).tolist() == [0, 0, 0]
    assert key_group((), [], 128) == 0


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769])
def test_max_parallelism_out_of_range_is_refused(max_parallelism: int) -> None:
    with pytest.raises(ConfigurationError, match=str(max_parallelism)):
        check_max_parallelism(max_parallelism)
    with pytest.raises(ConfigurationError):
        key_groups([pa.array([1])], max_parallelism)


def test_values_of_another_type_are_refused() -> None:
    with pytest.raises(CodecError, match="'7' .str"):
        key_group(("7",), [pa.int64()], 128)
    with pytest.raises(CodecError, match="out of range"):
        key_group((1, 128), [pa.int64(), pa.int8()], 128)
    with pytest.raises(SchemaError, match="cannot be a key"):
        key_groups([pa.array([[1]])], 128)


@pytest.mark.smoke
@pytest.mark.spark
def test_hashes_equal_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = _table_of_all_types(seed=11, rows=400)
    from asyncstate.spark.compatibility import arrow_table

    pq.write_table(table, tmp_path / "rows.parquet")
    frame = spark.read.parquet(str(tmp_path))
    single = [f"xxhash64({name}) AS h_{name}" for name in table.column_names]
    pairs = list(zip(table.column_names, table.column_names[1:], strict=False))
    double = [f"xxhash64({a}, {b}) AS p_{a}" for a, b in pairs]
    all_columns = ", ".join(table.column_names)
    grouped = [f"pmod(xxhash64({all_columns}), {n}) AS g_{n}" for n in (128, 1000)]
    hashed = frame.selectExpr("row", *single, *double, *grouped)
    spark_side = arrow_table(hashed).sort_by("row")
    for name in table.column_names:
        assert _signed([table[name]]) == spark_side[f"h_{name}"].to_pylist(), name
    for a, b in pairs:
        assert _signed([table[a], table[b]]) == spark_side[f"p_{a}"].to_pylist(), (a, b)
    arrays = [one.combine_chunks() for one in table.columns]
    for n in (128, 1000):
        assert key_groups(arrays, n).tolist() == spark_side[f"g_{n}"].to_pylist()


def _signed(table_columns: list[pa.ChunkedArray]) -> list[int]:
    hashes: list[int] = hash_columns([one.combine_chunks() for one in table_columns]).view(np.int64).tolist()
    return hashes


def _table_of_all_types(seed: int, rows: int) -> pa.Table:
    """Columns of every type Spark has, with nulls, edge values first and random values after."""
    rng = random.Random(seed)
    makers: dict[str, tuple[pa.DataType, list[Any], Any]] = {
        "flag": (pa.bool_(), EDGES[pa.bool_()], lambda: rng.random() < 0.5),
        "i8": (pa.int8(), [0, -1, 127, -128], lambda: rng.randrange(-128, 128)),
        "i16": (pa.int16(), [0, -1, 32767, -32768], lambda: rng.randrange(-32768, 32768)),
        "i32": (pa.int32(), [0, -1, 2**31 - 1, -(2**31)], lambda: rng.randrange(-(2**31), 2**31)),
        "i64": (pa.int64(), [0, -1, 2**63 - 1, -(2**63)], lambda: rng.randrange(-(2**63), 2**63)),
        "f32": (pa.float32(), EDGES[pa.float32()], lambda: rng.gauss(0, 1e6)),
        "f64": (pa.float64(), EDGES[pa.float64()], lambda: rng.gauss(0, 1e300)),
        "text": (pa.string(), EDGES[pa.string()], lambda: "ü" * rng.randrange(9) + "k" * rng.randrange(90)),
        "blob": (pa.binary(), EDGES[pa.binary()], lambda: rng.randbytes(rng.randrange(80))),
        "day": (
            pa.date32(),
            EDGES[pa.date32()][:1],
            lambda: datetime.date.fromordinal(rng.randrange(700_000, 800_000)),
        ),
        "ts": (pa.timestamp("us", "UTC"), [0, -1, 1], lambda: rng.randrange(-(10**15), 4 * 10**15)),
        "ntz": (pa.timestamp("us"), [0, -1, 1], lambda: rng.randrange(-(10**15), 4 * 10**15)),
    }
    for arrow_type in DECIMALS:
        limit = 10**arrow_type.precision
        edges = [
            exact_decimal(n, arrow_type.scale) for n in (0, 1, -1, 127, 128, -128, -129, limit - 1, 1 - limit)
        ]
        makers[f"d{arrow_type.precision}"] = (arrow_type, edges, _decimal_maker(rng, limit, arrow_type.scale))
    arrays: dict[str, pa.Array] = {"row": pa.array(range(rows), pa.int64())}
    for name, (arrow_type, edges, make) in makers.items():
        values = [*edges, None, *(None if rng.random() < 0.1 else make() for _ in range(rows))][:rows]
        arrays[name] = column(values, arrow_type)
    return pa.table(arrays)


def _decimal_maker(rng: random.Random, limit: int, scale: int) -> Any:
    def make() -> Decimal:
        return exact_decimal(rng.randrange(1 - limit, limit) >> rng.randrange(limit.bit_length()), scale)

    return make
