"""Conditions that a join itself checks, for each pair of values."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset

from asyncstate.sql.conditions import COMPARED, arrow_condition

VALUES = (None, math.nan, -math.inf, -1.5, -0.0, 0.0, 2.0, math.inf)
PAIRS = list(itertools.product(VALUES, VALUES))


def answer(sign: str, one: float | None, two: float | None) -> bool | None:
    """Spark's: a NaN equals a NaN and is the largest number; a null makes all of it unknown, but for ``<=>``."""
    if one is None or two is None:
        return (one is None and two is None) if sign == "<=>" else None
    first, second = ((math.isnan(value), 0.0 if math.isnan(value) else value) for value in (one, two))
    return bool(COMPARED["=" if sign == "<=>" else sign](first, second))


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@pytest.mark.parametrize("negated", [False, True], ids=["", "not"])
@pytest.mark.parametrize("sign", [*COMPARED, "<=>"])
def test_floats_compare_as_in_spark(sign: str, negated: bool, kind: pa.DataType) -> None:
    condition: Any = (sign, ("field", "one"), ("field", "two"), True)
    wanted = [answer(sign, one, two) for one, two in PAIRS]
    if negated:
        condition, wanted = ("not", condition), [None if one is None else not one for one in wanted]
    columns = [pa.array(list(values), kind) for values in zip(*PAIRS, strict=True)]
    rows = dataset.dataset(pa.table(columns, names=["one", "two"]))
    found = rows.to_table(columns={"found": arrow_condition(condition)}).column("found").to_pylist()
    assert [pair for pair, have, want in zip(PAIRS, found, wanted, strict=True) if have is not want] == []
