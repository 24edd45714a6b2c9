"""The texts of what state means: the same for the same program, another for another one."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from asyncstate import AsyncStateError
from asyncstate.changelog import Changelog
from asyncstate.functions import Evictor
from asyncstate.operator import InputSpec
from asyncstate.program_text import function_text, object_text, said
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource
from operators import GroupAggregate, UpsertMaterialize, WindowAggregate, count, evictors, tumble
from tests.operators.test_changed_programs import DECISIONS, EVERY, PUBLIC, SCHEMA

LIMIT = 3


def _over_limit(batch: Any) -> Any:
    return pc.greater(batch["v"], LIMIT)


def _loaded(folder: Path, name: str, source: str) -> Any:
    """``f`` of a module with this source."""
    path = folder / f"{name}.py"
    path.write_text(source)
    scope: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), scope)
    return scope["f"]


def test_formatting_comments_and_docstrings_are_no_change(tmp_path: Path) -> None:
    one = _loaded(tmp_path, "one", "def f(a):\n    return a + 1\n")
    other = _loaded(
        tmp_path, "other", '# more\ndef f(\n    a,\n):\n    """More."""\n    return (a + 1)  # less\n'
    )
    changed = _loaded(tmp_path, "changed", "def f(a):\n    return a + 2\n")
    assert function_text(one) == function_text(other) != function_text(changed)


def test_lambdas_are_told_apart_also_in_one_line(tmp_path: Path) -> None:
    first, second = _loaded(tmp_path, "two", "f = (lambda a: a > 1, lambda a: a > 2)\n")
    assert function_text(first) == "lambda a: a > 1"
    assert function_text(second) == "lambda a: a > 2"


def test_the_source_of_a_function_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks in every micro-batch."""
    parsed: list[str] = []
    real = ast.parse

    def parse(text: str) -> ast.Module:
        parsed.append(text)
        return real(text)

    monkeypatch.setattr(ast, "parse", parse)
    function = _loaded(tmp_path, "often", "def f(a):\n    return a + 71\n")
    texts = {function_text(function) for _ in range(3)}
    assert len(texts) == len(parsed) == 1


def test_plain_values_from_around_count() -> None:
    def above(limit: int) -> Any:
        return lambda value: value > limit

    assert function_text(above(1)) == "lambda value: value > limit with limit=1"
    assert function_text(above(1)) != function_text(above(2))
    assert "LIMIT=3" in function_text(_over_limit)
    assert said(partial(_over_limit, 5)).endswith("with 5")


def test_without_source_the_name_is_what_there_is() -> None:
    assert function_text(eval("lambda a: a")) == "<lambda>"
    assert function_text(len) == "len"


def test_objects_are_told_by_their_class_and_plain_attributes() -> None:
    class Above:
        def __init__(self, limit: int) -> None:
            self.limit = limit
            self.more = object()

        def __call__(self, batch: Any) -> Any:
            return batch

    assert object_text(Above(2)).endswith("Above(limit=2)")
    assert said(Above(2)) == said(Above(2)) != said(Above(3))


def test_evictors_have_texts() -> None:
    class Own(Evictor):
        pass

    texts = [
        said(one)
        for one in (
            evictors.count(2),
            evictors.count(3),
            evictors.count(3, after=True),
            evictors.time("2 seconds"),
            evictors.delta(1.0, lambda row: row.v),
            Own(),
        )
    ]
    assert len(set(texts)) == len(texts)
    assert said(evictors.count(2)) == texts[0]


@pytest.mark.parametrize(("name", "parameter"), EVERY, ids=[f"{name}-{one}" for name, one in EVERY])
def test_texts_depend_on_the_program_alone(name: str, parameter: str) -> None:
    """Not on where an object lies, nor on which copy of it is asked."""
    change = DECISIONS[name][parameter]
    operator = PUBLIC[name](**{parameter: change.before, **change.others})
    changes = Changelog.retract() if operator.accepts_changelog else Changelog.insert_only()
    spec = InputSpec(SCHEMA, ("k",), "at", changes)
    inputs = [spec] * operator.num_inputs
    if name in ("Limit", "SortLimit"):
        inputs = [InputSpec(SCHEMA, (), None, changes)]
    texts = operator.state_meaning(inputs)
    assert " at 0x" not in str(texts)
    copied = pickle.loads(cloudpickle.dumps(operator))
    assert copied.state_meaning(inputs) == texts


def test_texts_are_the_same_in_another_process() -> None:
    program = (
        "from asyncstate.program_text import said; from tests.operators.test_meaning import _over_limit; "
        "from operators import evictors; print(said(_over_limit), said(evictors.count(2)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == f"{said(_over_limit)} {said(evictors.count(2))}"


@pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])
def test_columns_of_time_and_sequence_are_part_of_it(enabled: bool) -> None:
    def opened(operator: Any, **more: Any) -> OperatorHarness:
        return OperatorHarness(operator, SCHEMA, ["k"], changelog=True, async_enabled=enabled, **more)

    row = ("x", 1, 1, True, 1, 1)
    with opened(WindowAggregate(tumble("1 minute"), [count()]), event_time="at") as windows:
        windows.push([row])
        windows.end_batch()
        with pytest.raises(AsyncStateError, match="event time of input 0 was at and is since"):
            windows.restore(windows.snapshot(), event_time="since")
    with opened(UpsertMaterialize(), sequence="v") as rows:
        rows.push([row])
        rows.end_batch()
        with pytest.raises(AsyncStateError, match="sequence of input 0 was v and is w"):
            rows.restore(rows.snapshot(), sequence="w")
    with opened(GroupAggregate([count()])) as groups:
        groups.push([row])
        groups.end_batch()
        with groups.restore(groups.snapshot(), event_time="at", sequence="v") as more:
            more.push([row])
            assert more.end_batch() == [("-U", "x", 1), ("+U", "x", 2)]


@pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])
def test_another_filter_of_a_changelog_is_refused(enabled: bool) -> None:
    """Rows that it would let through are taken back though they were never added, or the other way round."""

    def totals(text: str, **more: Any) -> OperatorHarness:
        return OperatorHarness(
            GroupAggregate([count()]), SCHEMA, ["k"], filters=[text], async_enabled=enabled, **more
        )

    for changelog in (True, False):
        with totals("v > 1", changelog=changelog) as harness:
            harness.push([("x", 2, 1, True, 1, 1)])
            harness.end_batch()
            if changelog:
                with pytest.raises(AsyncStateError, match="filter of input 0 was v > 1 and is v > 2"):
                    harness.restore(harness.snapshot(), filters=["v > 2"])
            with harness.restore(harness.snapshot(), filters=["v > 2" if not changelog else None]) as other:
                other.push([("x", 3, 1, True, 1, 1)])
                assert other.end_batch() == [("-U", "x", 1), ("+U", "x", 2)]


def test_filters_of_a_graph_reach_the_operators_behind_them() -> None:
    def pipeline(sales: Any) -> None:
        some = sales.where("v>1  AND w < 3 -- few").select("k", "v")
        totals = some.apply(GroupAggregate([count().alias("n")]), key="k", uid="totals")
        totals.where(lambda batch: pc.greater(batch["n"], 2)).union(totals.where("n = 1")).apply(
            GroupAggregate([count()]), key="n", uid="sizes"
        ).to(lambda rows, batch: None, name="out")

    with PipelineHarness(pipeline, {"sales": PipelineSource(SCHEMA)}) as harness:
        assert harness.operator("totals")._specs[0].filters == "v > 1 AND w < 3"
        assert harness.operator("sizes")._specs[0].filters == (
            "(lambda batch: pc.greater(batch['n'], 2)) or (n = 1)"
        )
