"""``netted`` and ``last_changes``: what a changelog comes to, whatever the order of its rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from asyncstate.changelog import Changelog
from asyncstate.errors import SchemaError
from asyncstate.spark import last_changes, netted
from asyncstate.spark.task_errors import restore

pytestmark = pytest.mark.spark

CHANGES = [
    ("b", 2, None, "+U"), ("a", 1, [1], "+I"), ("b", 1, [], "-U"), ("c", 5, None, "+I"), ("c", 5, None, "-D"),
    ("b", 3, None, "+U"), ("b", 2, None, "-U"), ("d", 4, [4], "-D"), (None, 7, None, "+I"), (None, 7, None, "+I"),
    ("e", 1, [1], "-U"), ("e", 1, [1], "+U"),
]  # fmt: skip
SCHEMA = "`k.1` string, v int, tags array<int>, row_kind string"


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.parametrize("partitions", [1, 5])
def test_rows_as_a_set(spark: SparkSession, partitions: int) -> None:
    for rows in (CHANGES, CHANGES[::-1]):
        frame = spark.createDataFrame(rows, SCHEMA).repartition(partitions)

        def found(of: Any) -> Counter[str]:
            return Counter(repr(tuple(row)) for row in of.collect())

        net = [
            ("a", 1, [1], "+I"), ("b", 1, [], "-D"), ("b", 3, None, "+I"), ("d", 4, [4], "-D"),
            (None, 7, None, "+I"), (None, 7, None, "+I"),
        ]  # fmt: skip
        assert found(netted(frame)) == Counter(map(repr, net))
        assert netted(frame).columns == frame.columns
        last = [("a", 1, [1], "+U"), ("b", 3, None, "+U"), ("d", 4, [4], "-D"), (None, 7, None, "+U")]
        with pytest.raises(Exception, match=r'the key {"k.1":null} has 2 rows at once'):
            last_changes(frame, "k.1").collect()
        once = spark.createDataFrame([row for row in rows if row[0] is not None], SCHEMA).repartition(
            partitions
        )
        once = once.unionByName(spark.createDataFrame([(None, 7, None, "+I")], SCHEMA))
        assert found(last_changes(once, "k.1")) == Counter(map(repr, last))
        assert found(last_changes(once, ["k.1", "v"])) == Counter(map(repr, [*last, ("b", 1, [], "-D")]))


def test_what_is_no_changelog_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame(CHANGES, SCHEMA)
    with pytest.raises(SchemaError, match="no 'row_kind' column"):
        netted(frame.drop("row_kind"))
    with pytest.raises(SchemaError, match="column 'ROW_KIND' differs only in case from 'row_kind'"):
        netted(frame.withColumnRenamed("row_kind", "ROW_KIND"))
    with pytest.raises(SchemaError, match=r"no column 'nothing'; their columns are: k\.1, v, tags"):
        last_changes(frame, ["v", "nothing"])
    with pytest.raises(SchemaError, match="is empty"):
        last_changes(frame, [])
    with pytest.raises(SchemaError, match="column 'm' is of type map<string,int>"):
        netted(frame.selectExpr("map(v, 1) as n", "row_kind").selectExpr("map('a', 1) as m", "row_kind"))


@pytest.mark.parametrize("kind", [None, "", "I", "+i", "delete"])
def test_a_row_without_a_kind_is_no_deletion(spark: SparkSession, kind: str | None) -> None:
    frame = spark.createDataFrame([("a", 1, "+I"), ("b", 2, kind)], "k string, v int, row_kind string")
    shown = "null" if kind is None else f"'{kind}'"
    for read in (
        netted(frame),
        last_changes(frame, "k"),
        last_changes(frame, "k", Changelog.upsert("k")),
    ):
        with pytest.raises(Exception, match="row_kind") as caught:
            read.collect()
        error = restore(str(caught.value))
        assert isinstance(error, SchemaError)
        assert str(error) == (
            f"column 'row_kind' has the value {shown}; write one of +I, -U, +U, -D, or drop the column if every row "
            "is an insert"
        )
