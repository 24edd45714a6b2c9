"""What the harness, and a driver with it, refuses: the error says what, where and what to do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.errors import ConfigurationError, JobError, OperatorError, SchemaError, StateDeclarationError
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


class Simple(RecordOperator):
    """Does what its parameters say."""

    def __init__(self, output: Any = None, state: Any = None, work: Any = None) -> None:
        self.output = pa.schema([("out", pa.int64())]) if output is None else output
        self.state, self.work = state, work

    def bind(self, inputs: Any) -> Any:
        return None if self.output == "none" else self.output

    def open(self, context: Any) -> None:
        if self.state is not None:
            context.get_state(self.state)

    def process(self, row: Any, ctx: Any) -> Any:
        if self.work is not None:
            self.work(ctx)


def harness(operator: Any = None, **settings: Any) -> OperatorHarness:
    return OperatorHarness(operator or Simple(), settings.pop("inputs", SCHEMA), ["k"], **settings)


OPERATORS: list[tuple[Any, type[Exception], str]] = [
    ("no operator", JobError, "'no operator' is not an Operator"),
    (Simple, JobError, "Simple is a class; give an instance"),
    (Simple("none"), SchemaError, "bind.. of Simple returned None; return the output's columns"),
    (Simple({"a": 1}), SchemaError, r"returned \{'a': 1\}"),
    (Simple(pa.schema([("a", pa.int64()), ("a", pa.int64())])), SchemaError, "column 'a' twice"),
    (
        Simple(pa.schema([("row_kind", pa.string())])),
        SchemaError,
        "column 'row_kind', which is reserved",
    ),
    (Simple(state="v"), StateDeclarationError, "get_state got 'v', which declares no state"),
]


@pytest.mark.parametrize(("operator", "error", "text"), OPERATORS)
def test_operators(operator: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        harness(operator)


@pytest.mark.parametrize("uid", ["total of day", "_total", "t" * 101, "", None])
def test_uids_that_a_job_refuses(uid: Any) -> None:
    with pytest.raises(JobError, match="uid .* cannot be used"):
        harness(uid=uid)


ROWS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([(1, "a")], {"kind": "+X"}, SchemaError, r"row 0 has the kind '\+X'; write one of \+I, -U, \+U, -D"),
    ([(1, "a"), (2, "b")], {"kinds": ["+I"]}, SchemaError, "1 kinds for 2 rows"),
    (
        [(1, "a"), (2,)],
        {},
        SchemaError,
        r"row 1 of input 0 is \(2,\); give a tuple with one value for each of its 2",
    ),
    (["ab"], {}, SchemaError, "row 0 of input 0 is 'ab'"),
    ([{"k": 1}], {}, SchemaError, "row 0 of input 0 is .*: it has no v; give a value"),
    (
        [(1, "a"), {"k": 1, "w": 2}],
        {},
        SchemaError,
        "row 1 of .*: it has no v and has w, which input 0 has not",
    ),
    ({"k": 1, "v": "a"}, {}, SchemaError, "give a list of rows, even for a single row"),
    ([(1, "a"), ("x", "b")], {}, SchemaError, "row 1 of input 0 has, in column 'k', 'x'.*int64"),
    ([(1, "a"), (2**63, "b")], {}, SchemaError, "row 1 of input 0 has, in column 'k', 9223372036854775808"),
    ([(1, "\ud800")], {}, SchemaError, "row 0 of input 0 has, in column 'v', .*ud800"),
    ([(1, "a")], {"input": 1}, JobError, "there is no input 1"),
    (pa.record_batch({"k": [1]}), {}, SchemaError, "the RecordBatch has the columns"),
]


@pytest.mark.parametrize(("rows", "settings", "error", "text"), ROWS)
def test_rows(rows: Any, settings: Any, error: Any, text: str) -> None:
    with harness() as made:
        with pytest.raises(error, match=text):
            made.push(rows, **settings)
        made.push([(1, "a")])
        assert made.end_batch() == []


def test_settings() -> None:
    with pytest.raises(ConfigurationError, match="parallelism 9 is more than its 4 key groups"):
        harness(parallelism=9, max_parallelism=4)
    with pytest.raises(
        ConfigurationError,
        match="async-state.parallelism: '0' does not fit; write a whole number without a unit from 1 to 32768, or auto",
    ):
        harness(options={"async-state.parallelism": "0"})
    with pytest.raises(SchemaError, match="input 0 has column 'k' twice"):
        harness(inputs=pa.schema([("k", pa.int64()), ("k", pa.int64())]))


CODE: list[tuple[Any, str]] = [
    (lambda ctx: ctx.emit(1, kind=17), r"key \(1,\).*emit\(\) got the kind 17; give one of RowKind.INSERT"),
    (lambda ctx: ctx.emit(1, kind="*I"), r"got the kind '\*I'"),
    (lambda ctx: ctx.timers.register_event_time(5), r"key \(1,\).*the operator has no on_timer\(\) method"),
]


@pytest.mark.parametrize(("work", "text"), CODE)
def test_code(work: Any, text: str, async_enabled: bool) -> None:
    with harness(Simple(work=work), async_enabled=async_enabled) as made:
        made.push([(1, "a")])
        with pytest.raises(OperatorError, match=text):
            made.end_batch()


@pytest.mark.parametrize("time", ["x", 1.5, None])
def test_times_of_timers(time: Any, async_enabled: bool) -> None:
    class Timed(Simple):
        def on_timer(self, timer: Any, ctx: Any) -> None: ...

    with harness(
        Timed(work=lambda ctx: ctx.timers.register_event_time(time)), async_enabled=async_enabled
    ) as made:
        made.push([(1, "a")])
        with pytest.raises(OperatorError, match=f"{time!r} is not a time; give int64 microseconds"):
            made.end_batch()


def test_a_default_that_does_not_fit_is_named() -> None:
    with pytest.raises(StateDeclarationError, match="default"):
        harness(Simple(state=ValueStateDescriptor("v", pa.int64(), default="x")))
