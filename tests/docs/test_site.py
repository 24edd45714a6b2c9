"""What makes the docs site of the pages: nothing is left out, and a page says the same with and without it."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PUBLIC = (
    "asyncstate",
    "asyncstate.functions",
    "asyncstate.lookups",
    "asyncstate.operators",
    "asyncstate.spark",
    "asyncstate.spark.kafka",
    "asyncstate.spark.sinks",
    "asyncstate.spark.sources",
    "asyncstate.testing",
)
"""Modules whose every name a user may import."""
_EXTERNAL = re.compile(r"\]\(([a-z]+://[^)]*)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"^<!-- (side by side|beside|end) -->$", re.MULTILINE)


def _site(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module(f"_site.{name}")


def _names() -> set[str]:
    return {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES}


def test_every_page_is_in_the_side_bar_once(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = _site("contents", monkeypatch)
    pages = {*_names(), "api/index", "examples/one", "new", "tasks/new", "operators/new"}
    listed = [page for _, group in contents.sections(pages) for page in group]
    below = [
        page for page in pages for pattern in contents.BELOW.values() if contents._matches(page, pattern)
    ]
    counted = Counter([*listed, *(page for page in below if page not in contents.BELOW), "index"])
    assert {page for page, times in counted.items() if times > 1} == set()
    assert set(counted) == pages
    assert {page for _, group in contents.SECTIONS for page in group if "*" not in page} <= pages | {
        "examples/README"
    }


def test_links_are_those_of_the_place_where_a_page_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = _site("contents", monkeypatch)
    start = contents.on_site("start", (DOCS / "start.md").read_text("utf-8"), _names(), DOCS)
    assert start.startswith("# Getting started\n")
    assert "](dataflow.md)" in start
    assert "](install.md)" in start
    assert "](docs/" not in start
    text = "[here](../state.md#views) and [a folder](../../bench)\n```python\n[x](../y)\n```\n[state.md](../state.md)"
    shown = contents.on_site("operators/join", text, _names(), DOCS)
    assert shown == "[here](../state.md#views) and a folder\n```python\n[x](../y)\n```\n[](../state.md)"


def test_the_front_page_links_the_reference_and_records_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = _site("contents", monkeypatch)
    front = contents.on_site("index", (DOCS / "index.md").read_text("utf-8"), _names(), DOCS)
    assert "[API reference](api/index.rst)" in front
    record = "decisions/0001-a-decision"
    assert contents.on_site(record, "# 1", {*_names(), record}, DOCS) == "---\nnosearch: true\n---\n\n# 1"
    assert not contents.on_site("decisions/README", "# Decisions", _names(), DOCS).startswith("---")


def test_columns_add_nothing_to_a_page_and_take_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = _site("columns", monkeypatch)
    marked = [page for page in PAGES if _MARKS.search(page.read_text("utf-8"))]
    assert {page.name for page in marked} >= {"index.md", "from-flink.md"}
    for page in marked:
        text = page.read_text("utf-8")
        order = " ".join(found[1].replace(" ", "-") for found in _MARKS.finditer(text))
        assert re.fullmatch(r"(side-by-side (beside )+end ?)+", order), page
        shown = columns.in_columns(text)
        left = [line for line in shown.removeprefix(columns._WIDE).splitlines() if not line.startswith(":")]
        assert [line for line in left if line] == [line for line in _MARKS.sub("", text).splitlines() if line]
    assert columns.in_columns("plain") == "plain"


def test_the_reference_has_every_public_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = _site("reference", monkeypatch)
    pages = dict(reference.collected())
    shown = [thing for things in pages.values() for thing in things.values()]
    for name in PUBLIC:
        module = importlib.import_module(name)
        for public in module.__all__:
            thing = getattr(module, public)
            times = sum(thing is other for other in shown)
            assert times == (0 if isinstance(thing, ModuleType) else 1), f"{name}.{public}"
    paths = [path for things in pages.values() for path in things]
    assert "asyncstate.operators.triggers.event_time" in paths
    assert len(set(paths)) == len(paths)


def test_types_of_arguments_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = _site("reference", monkeypatch)
    page = reference.types_page()
    entries = page.split(".. py:type:: ")[1:]
    assert [entry.partition("\n")[0] for entry in entries] == list(reference.ALIASES)
    for entry in entries:
        name, canonical, *text = [line.strip() for line in entry.splitlines() if line.strip()]
        assert canonical.startswith(":canonical: "), name
        assert text, f"{name} has no text below its assignment"
    assert "\n   :canonical: StateTtl | Duration | None\n\n   A time to live" in page


@pytest.mark.parametrize(
    ("signature", "shown"),
    [
        ("(spark, *, name='a', _clock=None)", "(spark, *, name='a')"),
        ("(*, _run=None)", "()"),
        ("(a, *args, b=1, **named)", "(a, *args, b=1, **named)"),
        ("(a=<object>, *, _b=1)", "(a=<object>, *, _b=1)"),
    ],
)
def test_arguments_of_tests_are_not_in_the_reference(
    signature: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _site("reference", monkeypatch)._without_hooks(signature) == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_external_links_are_well_formed(page: Path) -> None:
    for link in _EXTERNAL.findall(_FENCED.sub("", page.read_text("utf-8"))):
        parts = urlsplit(link)
        assert parts.scheme == "https", link
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), link
        assert not re.search(r"[\s\"<>]", link), link
