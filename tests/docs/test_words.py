"""The pages say things in the field's words: none of ``words.toml`` is in their prose."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))["word"]
_PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"),
    ROOT / "docs" / "decisions" / "README.md",
]
"""All but the records of decisions, which say what was thought when they were written, and generated pages."""
_GENERATED = {"errors.md", "CHANGELOG.md"}
_NO_PROSE = re.compile(
    r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)|\"[^\"\n]*\"|<!--.*?-->", re.MULTILINE | re.DOTALL
)


def found_in(text: str) -> list[str]:
    """What of the list is in the prose of a page, with its line."""
    prose = _NO_PROSE.sub(lambda gone: "\n" * gone[0].count("\n"), text)
    return [
        f"line {prose.count(chr(10), 0, hit.start()) + 1}: '{hit[0]}': {word['instead']}"
        for word in _WORDS
        for hit in re.finditer(rf"\b(?:{word['pattern']})\b", prose, re.IGNORECASE)
    ]


@pytest.mark.parametrize(
    "page",
    [page for page in _PAGES if page.name not in _GENERATED],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    assert found_in(page.read_text("utf-8")) == []


def test_the_check_finds_words_in_prose_alone() -> None:
    assert found_in("It puts out rows.") == ["line 1: 'puts out': emit"]
    assert found_in("one\n`behind`\n```\nput out\n```\nfor ever") == ["line 6: 'for ever': forever"]
