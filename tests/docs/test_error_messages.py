"""docs/errors.md has every message: each place that makes an error is read, and real errors stand on the page."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from asyncstate import (
    AsyncStateError,
    ListStateDescriptor,
    RecordOperator,
    StateTtl,
    ValueStateDescriptor,
    completed_future,
    errors,
)
from asyncstate.config import resolve
from asyncstate.operators import Deduplicate, Join, Rank, tumble
from asyncstate.testing import OperatorHarness

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
SALES = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
CLASSES = [name for name, thing in vars(errors).items() if inspect.isclass(thing)]
_MADE = re.compile(rf"(?<!class )\b({'|'.join(CLASSES)})\(")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return importlib.import_module("error_messages")


def _on_page(error: str) -> Iterator[str]:
    """The messages below a class's heading."""
    part = re.search(rf"^## {error}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert part is not None, f"{error} has no part of the page"
    for line in part[1].splitlines():
        if line.startswith("* "):
            yield line[2:].strip("`").strip()


def _fits(text: str, template: str) -> bool:
    fixed = [re.escape(part) for part in re.split(r"\{[^{}]*\}", template)]
    return re.fullmatch(".*".join(fixed), " ".join(text.split()), re.DOTALL) is not None


class _Emits(RecordOperator):
    def __init__(self, process: Callable[..., object]) -> None:
        self.body = process

    def bind(self, inputs: object) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def open(self, context: object) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", pa.int64()))  # type: ignore[attr-defined]
        self.list = context.get_state(ListStateDescriptor("list", pa.int64()))  # type: ignore[attr-defined]

    def process(self, row: object, ctx: object) -> object:
        return self.body(self, row, ctx)


def _run(process: Callable[..., object]) -> None:
    with OperatorHarness(_Emits(process), SALES, ["shop"]) as harness:
        harness.push([("a", 1)])
        harness.end_batch()


WRONG: dict[str, Callable[[], object]] = {
    "a key that is not known": lambda: resolve({"async-state.enable": "true"}, {}),
    "a column that is not there": lambda: OperatorHarness(Join("inner"), [SALES, SALES], ["item"]),
    "a changelog that is refused": lambda: OperatorHarness(Deduplicate(), SALES, ["shop"], changelog=True),
    "a window of no length": lambda: tumble(0),
    "a ranking of nothing": lambda: Rank("amount", 0),
    "a time to live of no length": lambda: StateTtl("0 seconds"),
    "a value of another type": lambda: _run(lambda self, row, ctx: self.value.update("x")),
    "None in a list": lambda: _run(lambda self, row, ctx: self.list.add(None)),
    "a row of too few values": lambda: _run(lambda self, row, ctx: ctx.emit()),
    "an output that is not declared": lambda: _run(lambda self, row, ctx: ctx.emit(1, output="late")),
    "code that fails": lambda: _run(lambda self, row, ctx: {}["x"]),
    "None for a future": lambda: _run(
        lambda self, row, ctx: completed_future(1).then_compose(lambda _: None)
    ),
    "rows behind the end": lambda: _finished().push([("a", 1)]),
}


def _finished() -> OperatorHarness:
    harness = OperatorHarness(Join("inner"), [SALES, SALES], ["shop"])
    harness.finish()
    return harness


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_page_has_the_message_of_an_error_that_is_raised(wrong: Callable[[], object]) -> None:
    with pytest.raises(AsyncStateError) as raised:
        wrong()
    kind, text = type(raised.value).__name__, str(raised.value)
    assert any(_fits(text, template) for template in _on_page(kind)), f"{kind}: {text}"


def test_every_place_that_makes_an_error_is_read(collector: ModuleType) -> None:
    """Counted in another way: by the text of the source, without its comments and docstrings."""
    for package in collector.PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text("utf-8")
            tree = ast.parse(source)
            code = ast.unparse(tree)  # without comments; docstrings hold no calls of errors
            read = [name for name, call, _ in collector._calls(tree, None) if name in ast.unparse(call.func)]
            assert sorted(_MADE.findall(code)) == sorted(read), path


def test_messages_of_any_class_are_told_apart_from_what_the_program_fills_in() -> None:
    for name in CLASSES[1:]:
        found = list(_on_page(name))
        assert found
        assert all(re.search(r"[a-z]{2}", re.sub(r"\{[^{}]*\}", "", template)) for template in found)


def test_the_message_that_is_made_in_sql_is_that_of_the_source(collector: ModuleType) -> None:
    source = (ROOT / "asyncstate" / "spark" / "sources" / "malformed.py").read_text("utf-8")
    in_sql = collector.IN_SQL
    assert in_sql in PAGE
    for fixed in re.split(r"\{[^{}]*\}", in_sql)[2:]:
        assert fixed.strip() in source
