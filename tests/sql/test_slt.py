"""Files of sqllogictest, as other engines have them, kept up to date in a harness."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from tests.sql.slt.expected import disagreement
from tests.sql.slt.records import records
from tests.sql.slt.runs import SltRun
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = Path(__file__).parent / "slt" / "files"
WHOLE = [
    ("views.slt", "risingwave", 9, {"skipped: EMIT ON WINDOW CLOSE"}),
    ("selects.test", "sqlite", 5, {"refused: (CAST_ = rand_) differs from one", "skipped: reads no table"}),
    ("loops.test", "duckdb", 5, set()),
]


@pytest.mark.spark
@NEEDS_COMPILER
@pytest.mark.parametrize(("name", "engine", "right", "other"), WHOLE)
def test_a_file_is_kept_right(
    spark: SparkSession, name: str, engine: str, right: int, other: set[str]
) -> None:
    with SltRun(FILES / name, engine, spark) as run:
        found = list(run.outcomes())
    kinds = Counter(one.kind for one in found)
    assert {
        " ".join(f"{one.kind}: {one.why}".split()[:7]) for one in found if one.kind != "right"
    } == other, found
    assert kinds["right"] == right


@pytest.mark.spark
@NEEDS_COMPILER
def test_a_wrong_expectation_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    text = (FILES / "views.slt").read_text().replace("ann 2 4 1", "ann 2 5 1")
    wrong, part = tmp_path / "wrong.slt", tmp_path / "part.slt.part"
    wrong.write_text(text)
    part.write_text((FILES / "part.slt.part").read_text())
    with SltRun(wrong, "risingwave", spark) as run:
        found = [one for one in run.outcomes() if one.kind not in ("right", "skipped")]
    assert [(one.kind, one.record.line) for one in found] == [("dialect", 34)]
    assert "'ann', '2', '4', '1'" in found[0].detail


def test_a_file_is_read_record_by_record() -> None:
    found = list(records(FILES / "views.slt", "risingwave"))
    assert [one.path.name for one in found if one.path.name != "views.slt"] == ["part.slt.part"] * 2
    assert [one.sql for one in found if one.kind == "error"] == ["select nothing from orders"]
    assert len([one for one in found if one.kind == "query"]) == 9
    looped = [one for one in records(FILES / "loops.test", "duckdb") if one.path.name == "loops.test"]
    assert [one.sql for one in looped if "::" in one.sql] == [
        f"SELECT i % 2 AS k, SUM(i::{kind}) FROM integers GROUP BY k ORDER BY k"
        for kind in ("BIGINT", "DOUBLE")
    ]
    assert [one.sql for one in looped if "VALUES" in one.sql] == [
        f"INSERT INTO integers VALUES ({n}), (NULL)" for n in (0, 1)
    ]
    asked = [one.sql for one in records(FILES / "selects.test", "sqlite")]
    assert not any("not asked" in one for one in asked)


@pytest.mark.parametrize(
    ("engine", "rows", "lines", "same"),
    [
        ("risingwave", [(1, None), (2, "")], ["2 (empty)", "1 NULL"], True),
        ("risingwave", [(1, "a b")], ["1 a b"], True),
        ("sqlite", [(1, 2), (3, 4)], ["1", "2", "3", "4"], True),
        ("sqlite", [(1, 2), (3, 4)], ["1", "3", "2", "4"], False),
        ("risingwave", [(True, Decimal("1.50"), 0.1 + 0.2)], ["t 1.5 0.3"], True),
        ("risingwave", [([1, None, 3],)], ["{1,NULL,3}"], True),
        ("duckdb", [([1, 3],)], ["[1, 2]"], False),
        ("duckdb", [(dt.datetime(2024, 1, 2, 3, 4, 5),)], ["2024-01-02 03:04:05"], True),
        ("sqlite", [(1,), (1,)], ["1"], False),
        ("sqlite", [], ["1"], False),
        ("sqlite", [], [], True),
        ("sqlite", [(3.7,)], ["3"], True),
        ("duckdb", [(3.7,)], ["3"], False),
        ("risingwave", [({"a": 1, "b": None},)], ["(1,NULL)"], True),
        ("duckdb", [({"a": 1},)], ["{'a': 1}"], True),
    ],
)
def test_rows_are_compared_with_lines(
    engine: str, rows: list[tuple[object, ...]], lines: list[str], same: bool
) -> None:
    assert (disagreement(rows, lines, "I", "nosort", engine) is None) == same
    assert (disagreement(rows[::-1], lines, "I", "nosort", engine) is None) == same
