"""Join, example by example: what is put out and in which order, what is read, what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate.errors import OperatorError, SchemaError
from asyncstate.testing import OperatorHarness
from operators.join.interval.interval_join import IntervalJoin
from operators.join.join_operator import Join
from tests.operators.join_runner import KINDS, LEFT, RIGHT, Runner


def test_inner_keeps_the_kind_and_the_order_of_arrival() -> None:
    runner = Runner(Join("inner"))
    assert runner.run(0, [("+I", (2, 1, "b")), ("+I", (1, 1, "a")), ("+I", (2, 2, "c"))]) == []
    assert runner.run(1, [("+U", (1, 9, 5)), ("+I", (2, 9, 6)), ("+I", (3, 9, 7))]) == [
        ("+U", (1, 1, "a", 1, 9, 5)),
        ("+I", (2, 1, "b", 2, 9, 6)),
        ("+I", (2, 2, "c", 2, 9, 6)),
    ]
    assert runner.run(0, [("-U", (1, 1, "a")), ("+U", (1, 1, "z")), ("-D", (2, 1, "b"))]) == [
        ("-U", (1, 1, "a", 1, 9, 5)),
        ("-D", (2, 1, "b", 2, 9, 6)),
        ("+U", (1, 1, "z", 1, 9, 5)),
    ]


def test_left_join_pads_and_takes_the_pad_back() -> None:
    runner = Runner(Join("left"))
    pad = (1, 1, "a", None, None, None)
    assert runner.run(0, [("+I", (1, 1, "a"))]) == [("+I", pad)]
    both = [("-D", pad), ("+I", (1, 1, "a", 1, 9, 5)), ("+I", (1, 1, "a", 1, 8, 6))]
    assert runner.run(1, [("+I", (1, 9, 5)), ("+I", (1, 8, 6))]) == both
    assert runner.run(1, [("-D", (1, 9, 5))]) == [("-D", (1, 1, "a", 1, 9, 5))]
    assert runner.run(1, [("-D", (1, 8, 6))]) == [("-D", (1, 1, "a", 1, 8, 6)), ("+I", pad)]


def test_an_update_of_the_only_partner_does_not_bring_the_pad_back() -> None:
    runner = Runner(Join("left"))
    runner.run(0, [("+I", (1, 1, "a"))])
    runner.run(1, [("+I", (1, 9, 5))])
    assert runner.run(1, [("-U", (1, 9, 5)), ("+U", (1, 9, 6))]) == [
        ("-D", (1, 1, "a", 1, 9, 5)),
        ("+I", (1, 1, "a", 1, 9, 6)),
    ]
    # one partner only, however often it was updated
    assert runner.run(1, [("-D", (1, 9, 6))])[-1] == ("+I", (1, 1, "a", None, None, None))


def test_a_partner_that_comes_and_goes_in_one_bundle_is_no_change() -> None:
    for kind in KINDS:
        runner = Runner(Join(kind))
        runner.run(0, [("+I", (1, 1, "a"))])
        assert runner.run(1, [("+I", (1, 9, 5)), ("-D", (1, 9, 5))]) == []


def test_rows_with_null_keys_are_padded_but_not_stored() -> None:
    runner = Runner(Join("left"))
    row = (None, 1, "a")
    assert runner.run(0, [("+I", row)]) == [("+I", (*row, None, None, None))]
    assert runner.run(1, [("+I", (None, 9, 5))]) == []
    assert runner.data == {}
    assert runner.run(0, [("-U", row), ("+U", (1, 1, "b"))]) == [
        ("-D", (*row, None, None, None)),
        ("+I", (1, 1, "b", None, None, None)),
    ]


def test_semi_and_anti_follow_the_right_side() -> None:
    kind: Any
    for kind, first, last in (("semi", "+I", "-D"), ("anti", "-D", "+I")):
        runner = Runner(Join(kind))
        out = runner.run(0, [("+U", (1, 1, "a"))])
        assert out == ([] if kind == "semi" else [("+U", (1, 1, "a"))])
        assert runner.run(1, [("+I", (1, 9, 5)), ("+I", (1, 9, 6))]) == [(first, (1, 1, "a"))]
        assert runner.run(1, [("-D", (1, 9, 5))]) == []
        assert runner.run(1, [("-D", (1, 9, 6))]) == [(last, (1, 1, "a"))]
        assert runner.run(0, [("-D", (1, 1, "a"))]) == ([] if kind == "semi" else [("-D", (1, 1, "a"))])


def test_a_replaced_row_is_taken_back_although_no_retraction_came() -> None:
    runner = Runner(Join("inner", right_unique="join_key"))
    runner.run(0, [("+I", (1, 1, "a"))])
    runner.run(1, [("+I", (1, 9, 5))])
    assert runner.run(1, [("+U", (1, 9, 6))]) == [("-U", (1, 1, "a", 1, 9, 5)), ("+U", (1, 1, "a", 1, 9, 6))]
    assert runner.run(1, [("+U", (1, 9, 6))]) == []


def test_insert_only_inputs_read_each_side_once_a_bundle() -> None:
    runner = Runner(Join("inner", right_unique="join_key"), changelog=(False, False))
    for number in range(3):
        runner.reads = 0
        runner.run(0, [("+I", (k, number, "a")) for k in range(5)])
        assert runner.reads == 2  # the right rows; the heads of its own lists
        runner.reads = 0
        runner.run(1, [("+I", (number, 9, 5))])
        assert runner.reads == 1  # the left rows; its own row is written blindly


def test_a_skewed_key_is_joined_in_full() -> None:
    runner = Runner(Join("full"))
    left = [("+I", (1, number, "a")) for number in range(1500)]
    assert len(runner.run(0, left)) == 1500
    out = runner.run(1, [("+I", (1, number, 5)) for number in range(20)])
    assert Counter(kind for kind, _ in out) == {"-D": 1500, "+I": 30000}
    assert len(runner.run(1, [("-D", (1, number, 5)) for number in range(20)])) == 31500
    runner.run(0, [("-D", row) for _, row in left])
    assert runner.data == {}


def test_rows_that_change_with_the_other_side_come_in_the_order_of_what_changed_them() -> None:
    runner = Runner(Join("semi"))
    runner.run(0, [("+I", (1, 1, "a")), ("+I", (2, 1, "b")), ("+I", (1, 2, "c"))])
    assert runner.run(1, [("+I", (2, 9, 5)), ("+I", (1, 9, 5))]) == [
        ("+I", (2, 1, "b")),
        ("+I", (1, 1, "a")),
        ("+I", (1, 2, "c")),
    ]


def test_rows_with_nested_columns_are_found_again() -> None:
    nested = pa.schema([("k", pa.int64()), ("tags", pa.list_(pa.string()))])
    runner = Runner(Join("anti"), (nested, RIGHT))
    rows = [(1, ["a", "b"]), (1, ["a"]), (1, None), (1, [])]
    runner.run(0, [("+I", row) for row in rows])
    assert runner.run(0, [("-D", (1, [])), ("-D", (1, ["b"])), ("-D", (1, ["a", "b"]))]) == [
        ("-D", (1, [])),
        ("-D", (1, ["a", "b"])),
    ]
    assert runner.dropped.value == 1
    assert runner.run(1, [("+I", (1, 1, 1))]) == [("-D", (1, ["a"])), ("-D", (1, None))]


def test_condition_may_be_a_function() -> None:
    runner = Runner(Join("left", lambda batch: pc.equal(batch.column("id"), batch.column("id_right"))))
    runner.run(0, [("+I", (1, 1, "a")), ("+I", (1, 2, "b"))])
    assert runner.run(1, [("+I", (1, 2, 5))]) == [
        ("-D", (1, 2, "b", None, None, None)),
        ("+I", (1, 2, "b", 1, 2, 5)),
    ]


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(SchemaError, match="kind is 'outer'"):
        Join("outer")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="right_unique is 'id'"):
        Join(right_unique="id")
    with pytest.raises(SchemaError, match="condition is 'k > 1'"):
        Join(condition="k > 1")


def test_bad_inputs_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"'id_right' would occur twice.*suffixes"):
        Runner(Join(), (LEFT, pa.schema([("k", pa.int64()), ("id", pa.int64()), ("id_right", pa.int64())])))
    with pytest.raises(SchemaError, match="'k' would occur twice"):
        Runner(Join(suffixes=("", "")))
    with pytest.raises(SchemaError, match="key column 'k' of input 0 is int64 but 'k' of input 1 is string"):
        Runner(Join(), (LEFT, pa.schema([("k", pa.string())])))
    with pytest.raises(SchemaError, match="input 0 has no column 'number'"):
        Runner(Join(left_unique=["number"]))
    with pytest.raises(SchemaError, match="does not fit the joined columns"):
        Runner(Join(condition=pc.field("nothing") > 1))
    with pytest.raises(SchemaError, match="return one boolean per row"):
        Runner(Join(condition=pc.field("w") + 1))


def test_a_condition_that_gives_no_booleans_is_refused() -> None:
    runner = Runner(Join(condition=lambda batch: batch.column("w")))
    runner.run(0, [("+I", (1, 1, "a"))])
    with pytest.raises(OperatorError, match="return one boolean per row"):
        runner.run(1, [("+I", (1, 9, 5))])


def test_output_columns() -> None:
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("x", pa.int64(), nullable=False)])
    schema = Runner(Join("left", suffixes=("_l", "_r")), (strict, strict)).output_schema
    assert schema.names == ["k_l", "x_l", "k_r", "x_r"]
    assert [field.nullable for field in schema] == [False, False, True, True]
    assert Runner(Join("anti")).output_schema == LEFT


def test_a_retraction_may_come_before_its_row() -> None:
    runner = Runner(Join("inner"))
    runner.run(1, [("+I", (1, 9, 5))])
    assert runner.run(0, [("-D", (1, 1, "a")), ("+I", (1, 1, "a"))]) == []
    assert runner.dropped.value == 0
    assert runner.run(0, [("-D", (1, 1, "a"))]) == []
    assert runner.dropped.value == 1


def test_a_retraction_takes_back_only_the_row_it_names_under_a_unique_key() -> None:
    for unique in (["id"], "join_key"):
        runner = Runner(Join("inner", left_unique=unique))
        runner.run(1, [("+I", (1, 9, 5))])
        runner.run(0, [("+I", (1, 7, "old"))])
        assert runner.run(0, [("+U", (1, 7, "new")), ("-U", (1, 7, "old"))]) == [
            ("-U", (1, 7, "old", 1, 9, 5)),
            ("+U", (1, 7, "new", 1, 9, 5)),
        ]
        assert runner.run(0, [("-D", (1, 7, "old"))]) == []
        assert runner.dropped.value == 1


def test_updates_without_retractions_replace_each_other_in_their_order() -> None:
    runner = Runner(Join("inner", left_unique="join_key"))
    runner.run(1, [("+I", (1, 9, 5))])
    runner.run(0, [("+I", (1, 7, "a"))])
    assert runner.run(0, [("+U", (1, 7, "b")), ("+U", (1, 7, "c"))]) == [
        ("-U", (1, 7, "a", 1, 9, 5)),
        ("+U", (1, 7, "c", 1, 9, 5)),
    ]
    assert runner.run(0, [("+U", (1, 7, "d")), ("-D", (1, 7, "d"))]) == [("-D", (1, 7, "c", 1, 9, 5))]
    assert runner.run(0, [("+I", (1, 7, "e")), ("+U", (1, 7, "f")), ("-D", (1, 7, "f"))]) == []
    assert runner.dropped.value == 0


def test_marks_say_who_has_a_partner(async_enabled: bool) -> None:
    schemas = [
        pa.schema([("k", pa.int64()), ("v", pa.int64())]),
        pa.schema([("j", pa.int64()), ("w", pa.int64())]),
    ]
    equal = pc.field("v") == pc.field("w")
    for null_aware, unknown in ((False, False), (True, None)):
        join = Join("mark", equal, mark="is_in", null_aware=null_aware)
        with OperatorHarness(join, schemas, [["k"], ["j"]], async_enabled=async_enabled) as harness:
            assert harness.output_schema.names == ["k", "v", "is_in"]
            harness.push([(1, 5), (1, None), (None, 5)], input=0)
            assert harness.end_batch() == [
                ("+I", 1, 5, False),
                ("+I", 1, None, False),  # of nothing, even null is in no doubt
                ("+I", None, 5, False),
            ]
            harness.push([(1, 5)], input=1)
            out = [("-D", 1, 5, False), ("+I", 1, 5, True)]
            if null_aware:
                out = [out[0], ("-D", 1, None, False), out[1], ("+I", 1, None, None)]
            assert harness.end_batch() == out
            harness.push([(1, 6), (1, None)], input=0)
            assert harness.end_batch() == [("+I", 1, 6, False), ("+I", 1, None, unknown)]
            harness.push([(1, None)], input=1)
            assert harness.end_batch() == ([("-D", 1, 6, False), ("+I", 1, 6, None)] if null_aware else [])


def test_marks_that_cannot_be_are_refused() -> None:
    with pytest.raises(SchemaError, match="null_aware is for the kind 'mark' with a condition"):
        Join("mark", null_aware=True)
    with pytest.raises(SchemaError, match="null_aware is for the kind 'mark'"):
        Join("semi", pc.field("v") == pc.field("w"), null_aware=True)
    one = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    with pytest.raises(SchemaError, match="two output columns have the name 'v'"):
        OperatorHarness(Join("mark", mark="v"), [one, one], [["k"], ["k"]])
    with pytest.raises(SchemaError, match="kind is 'mark'; choose"):
        IntervalJoin("mark", lower=0, upper=1)
