"""Runs the examples of README.md and docs/*.md, so that the pages cannot say what the code does not do.

A block whose fence says ``python test`` is run; all of one page run in order and share their names, as a reader
would type them. ``python test spark`` is a program of its own: see ``tests.docs.programs``. What stands in a
``text output`` block right behind must be what was printed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.programs import FAILED, PRINTED, PROGRAM, run
from tests.sql.tables import NEEDS_COMPILER

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```([a-z][^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_PROGRAMS_SECONDS_MAX = 600


@dataclass(frozen=True)
class Example:
    """One block to run: where it stands, what it is and what it must print (None: anything)."""

    page: Path
    line: int
    code: str
    spark: bool
    output: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _examples(page: Path) -> Iterator[Example]:
    text = page.read_text("utf-8")
    blocks = list(_FENCED.finditer(text))
    for index, block in enumerate(blocks):
        info = block[1].split()
        if info[:2] != ["python", "test"]:
            continue
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        output = following[2] if following is not None and following[1] == "text output" else None
        line = text.count("\n", 0, block.start(2)) + 1
        yield Example(page, line, block[2], "spark" in info, output)


def _all(spark: bool) -> list[Example]:
    return [example for page in PAGES for example in _examples(page) if example.spark == spark]


def _page_name(page: Path) -> str:
    return "docs_" + re.sub(r"\W", "_", page.stem.lower())


def _run(example: Example, module: ModuleType) -> str:
    """What the block prints. Its lines count from the page's first, so a traceback points into the page."""
    printed = io.StringIO()
    code = compile("\n" * (example.line - 1) + example.code, str(example.page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, module.__dict__)
    return printed.getvalue()


@pytest.mark.parametrize(
    "page",
    sorted({example.page for example in _all(spark=False)}),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_run_and_print_what_the_page_says(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A module that can be found by name: operators are pickled on their way to the partitions.
    module = ModuleType(_page_name(page))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for example in _examples(page):
        if not example.spark:
            printed = _run(example, module)
            if example.output is not None:
                assert printed == example.output, f"{example.place} prints something else"


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By their places, the folders of the programs that this run asks for, which have been run."""
    folders = {}
    for item in request.session.items:
        if getattr(item, "originalname", "") == test_programs_run_as_a_user_runs_them.__name__:
            example: Example = item.callspec.params["example"]  # type: ignore[attr-defined]
            folders[example.place] = folder = tmp_path_factory.mktemp("program")
            (folder / PROGRAM).write_text(example.code, "utf-8")
    run(list(folders.values()), _PROGRAMS_SECONDS_MAX)
    return folders


@pytest.mark.spark
@pytest.mark.timeout(_PROGRAMS_SECONDS_MAX + 20)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, marks=NEEDS_COMPILER if example.page.name == "sql.md" else ())
        for example in _all(spark=True)
    ],
    ids=lambda example: example.place,
)
def test_programs_run_as_a_user_runs_them(example: Example, programs: dict[str, Path]) -> None:
    """But for their process, which they share: `test_wheel` runs the README's in one of its own."""
    folder = programs[example.place]
    failed = folder / FAILED
    assert not failed.exists(), failed.read_text("utf-8")[-4000:]
    assert example.output is not None, f"{example.place}: show what the program prints"
    assert _lines((folder / PRINTED).read_text("utf-8")) == _lines(example.output)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_as_output_only_what_a_program_right_before_it_prints(page: Path) -> None:
    fences = [block[1] for block in _FENCED.finditer(page.read_text("utf-8"))]
    for before, fence in zip(["", *fences], fences, strict=False):
        assert fence != "text output" or before.startswith("python test")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_not_run_is_python_all_the_same(page: Path) -> None:
    for block in _FENCED.finditer(page.read_text("utf-8")):
        if block[1].split()[0] == "python":
            ast.parse(textwrap.dedent(block[2]), str(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = _FENCED.sub("", page.read_text("utf-8"))
    dead = [
        link
        for link in _LINK.findall(text)
        if "://" not in link and not (page.parent / link).resolve().exists()
    ]
    assert dead == []


def test_modules_that_pages_name_exist() -> None:
    """Decision records may name modules of their time."""
    named = {
        (page.name, module)
        for page in PAGES
        if "decisions" not in page.parts
        for module in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text("utf-8"))
    }
    roots = (ROOT, ROOT / "asyncstate", ROOT / "operators")
    assert {one for one in named if not any((root / one[1]).exists() for root in roots)} == set()
    assert ("architecture.md", "runtime/partition/task.py") in named


def test_the_readme_and_the_guide_have_examples() -> None:
    """Without this, a fence that is spelt wrongly would let the tests above pass with nothing run."""
    found = {example.page.name for example in _all(spark=False)}
    assert {
        "writing-operators.md",
        "testing.md",
        "aggregate.md",
        "join.md",
        "index.md",
        "from-flink.md",
    } <= found
    tasks = {page.name for page in PAGES if page.parent.name == "tasks"}
    of_servers = {"materialised-view.md"}  # tests/kafka runs its program
    assert tasks - {"README.md"} - of_servers <= found | {example.page.name for example in _all(spark=True)}
    assert {example.page.name for example in _all(spark=True)} >= {
        "README.md",
        "start.md",
        "slow-jobs.md",
        "backfill.md",
        "notebooks.md",
    }


def test_the_page_of_benchmarks_names_the_queries_that_can_be_run() -> None:
    from bench.nexmark.queries import PLANS

    named = re.search(r"Queries: ([^.]+)\.", (ROOT / "docs" / "benchmarks.md").read_text("utf-8"))
    assert named is not None
    assert re.findall(r"q\d+", named[1]) == list(PLANS)
