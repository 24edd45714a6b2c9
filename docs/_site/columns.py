"""Puts parts of a page side by side where its source has comments that say so; elsewhere the comments are not seen.

    <!-- side by side -->   what follows is the first column
    <!-- beside -->         what follows is the next one
    <!-- end -->            after the last one

Invariant: a page reads the same without this.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

_MARKS = {
    "side by side": "::::{grid} 1 1 2 2\n:gutter: 3\n:class-container: columns\n\n:::{grid-item}",
    "beside": ":::\n\n:::{grid-item}",
    "end": ":::\n\n::::",
}
_WIDE = "---\nhide-toc: true\n---\n\n"
_MARK = re.compile(r"^<!-- (side by side|beside|end) -->$", re.MULTILINE)


def in_columns(text: str) -> str:
    """The page with sphinx-design's grids in place of the comments; it is as wide as the window, without contents."""
    if not _MARK.search(text):
        return text
    return _WIDE + _MARK.sub(lambda found: _MARKS[found[1]], text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Before a page is parsed."""

    def read(_: Sphinx, name: str, source: list[str]) -> None:
        source[0] = in_columns(source[0])

    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
