"""Pages, docstrings, comments and messages use the field's words: none of ``words.toml`` is in their prose."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
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
_GENERATED = {"errors.md"}
_SOURCES = [
    path
    for folder in ("asyncstate", "operators", "bench", "docs", ".ci")
    for path in sorted((ROOT / folder).rglob("*.py"))
] + [ROOT / "asyncstate_pytest.py"]
_NO_PROSE = re.compile(
    r"^```.*?^```$|``[^`\n]*``|`[^`\n]*`|\]\([^)]*\)|\"[^\"\n]*\"|<!--.*?-->", re.MULTILINE | re.DOTALL
)
_SEVERAL_WORDS = re.compile(r"(?:[A-Za-z]{2,} ){2}")
"""A string with fewer words is a name, a key or a part of a text, not a sentence."""

_ANY = re.compile("|".join(rf"\b(?:{word['pattern']})\b" for word in _WORDS), re.IGNORECASE)
_ONLY_A_REFERENCE = re.compile(r"See `+[\w.]+`+\.?")


def found_in(text: str, first_line: int = 1) -> list[str]:
    """What of the list is in the prose of a text, with its line; the text begins in ``first_line``."""
    prose = _NO_PROSE.sub(lambda gone: "\n" * gone[0].count("\n"), text)
    if not _ANY.search(prose):  # most texts have none of them
        return []
    return [
        f"line {first_line + prose.count(chr(10), 0, hit.start())}: '{hit[0]}': {word['instead']}"
        for word in _WORDS
        for hit in re.finditer(rf"\b(?:{word['pattern']})\b", prose, re.IGNORECASE)
    ]


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings, messages and comments of Python code, each with its first line.

    A message is any string of several words, f-strings included: errors, warnings, log lines, help texts.
    """
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            text = node.value
        else:
            continue
        if _SEVERAL_WORDS.search(text) or text.startswith("See "):
            yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def prose_of_sources() -> list[tuple[Path, int, str]]:
    return [(path, line, text) for path in _SOURCES for line, text in prose_of(path.read_text("utf-8"))]


@pytest.mark.parametrize(
    "page",
    [page for page in _PAGES if page.name not in _GENERATED],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    assert found_in(page.read_text("utf-8")) == []


def test_docstrings_comments_and_messages_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {one}"
        for path, line, text in prose_of_sources()
        for one in found_in(text, line)
    ]
    assert found == []


def test_a_docstring_says_more_than_where_to_look() -> None:
    found = [
        f"{path.relative_to(ROOT)}, line {line}"
        for path, line, text in prose_of_sources()
        if _ONLY_A_REFERENCE.fullmatch(text.strip())
    ]
    assert found == []


def test_the_check_finds_words_in_prose_alone() -> None:
    assert found_in("It puts out rows.") == ["line 1: 'puts out': emit"]
    assert found_in("one\n`behind`\n```\nput out\n```\nfor ever") == ["line 6: 'for ever': forever"]


def test_the_check_reads_docstrings_messages_and_comments() -> None:
    source = (
        '"""Rows that stand\n\nbehind the end."""\n'
        "# for ever\n"
        'raise ValueError(f"{name} puts " f"out a row; see \'behind\' of {behind} here")\n'
        'options["behind"] = 1\n'
    )
    assert [one for line, text in prose_of(source) for one in found_in(text, line)] == [
        "line 3: 'behind': after, downstream of, below, through",
        "line 5: 'puts out': emit",
        "line 5: 'behind': after, downstream of, below, through",
        "line 4: 'for ever': forever",
    ]
