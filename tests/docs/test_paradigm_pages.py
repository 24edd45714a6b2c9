"""The pages on the paradigms show the code that runs: every listing stands in ``bench/paradigms``, word for word."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from bench.paradigms import PARADIGMS, Form, Paradigm
from bench.paradigms.measure import has_await

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "paradigms").glob("[1-9]-*.md"))
SOURCES = [path.read_text("utf-8") for path in (ROOT / "bench" / "paradigms").glob("*.py")]
_LISTING = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _listings(page: Path) -> list[str]:
    return _LISTING.findall(page.read_text("utf-8"))


def _indented(code: str, spaces: int) -> str:
    return textwrap.indent(code, " " * spaces)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_listings_are_the_code_that_runs(page: Path) -> None:
    for listing in _listings(page):
        shown = any(_indented(listing, spaces) in source for source in SOURCES for spaces in (0, 4))
        assert shown, f"{page.name} shows code that is not in bench/paradigms:\n{listing}"


@pytest.mark.parametrize(("page", "paradigm"), list(zip(PAGES, PARADIGMS, strict=True)))
def test_a_page_shows_every_form_and_every_rejected_one(page: Path, paradigm: type[Paradigm]) -> None:
    forms = [Form.CALLS, Form.FUTURES, *([Form.AWAIT] if has_await(paradigm) else [])]
    text = "".join(_listings(page))
    for method in [*forms, *(rejected.method for rejected in paradigm.rejected)]:
        assert f"def {method}(self, row" in text


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "paradigms" / "README.md").read_text("utf-8")
    assert all(f"]({page.name})" in index for page in PAGES)
    assert len(PAGES) == len(PARADIGMS)
