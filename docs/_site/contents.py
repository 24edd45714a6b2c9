"""The order of the pages, and what a page needs on the site that it does not need on a git host.

Owns: the side bar. Invariant: pages are plain Markdown; a new page needs no entry here: one that no section names is in
the last section of its folder. The project's CHANGELOG.md is a page of the site, too.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from pathlib import Path

from sphinx.application import Sphinx

SECTIONS = (
    ("Begin", ("install", "start", "from-flink", "glossary")),
    (
        "Tasks",
        (
            "tasks/README",
            "tasks/deduplicate",
            "tasks/top-n",
            "tasks/join-cdc-tables",
            "tasks/rolling-sums-and-alerts",
            "tasks/sessions",
            "tasks/call-a-service",
            "tasks/write-upserts",
            "tasks/*",
            "tasks/notebooks",
            "tasks/backfill",
            "tasks/deploy",
            "tasks/slow-jobs",
            "tasks/change-a-job",
            "tasks/repair-state",
        ),
    ),
    (
        "Jobs",
        ("dataflow", "sql", "sources", "sinks", "batch", "testing"),
    ),
    ("Examples", ("examples/README", "examples/*")),
    (
        "Operators",
        ("operators/README", "functions", "aggregates", "table-functions"),
    ),
    (
        "Operators of your own",
        ("writing-operators", "state", "time", "order-and-time", "calls", "broadcast", "paradigms/README"),
    ),
    (
        "In production",
        (
            "async-state",
            "configuration",
            "checkpoints",
            "exactly-once",
            "connect",
            "schema-changes",
            "inspecting",
            "metrics",
            "monitoring",
            "state-cache",
            "benchmarks",
            "performance",
            "measurements",
            "limits",
        ),
    ),
    ("Look up", ("api/index", "errors", "*", "versions", "changelog")),
    ("Inside", ("architecture", "decisions/README")),
)
"""Captions of the side bar and the pages below each, by name or pattern; a name wins over a pattern."""

BELOW = {
    "operators/README": "operators/*",
    "paradigms/README": "paradigms/*",
    "decisions/README": "decisions/*",
}
"""Pages that have a side bar of their own below them."""

WHOLE = {"changelog": "CHANGELOG.md"}
"""Pages whose text is a file of the project's root, below a title of their own."""

ONLY_HERE = ("API reference (built by `make docs-site`)", "[API reference](api/index.rst)")
"""What the front page says of the reference where there is none, and its link here."""

NOT_SEARCHED = "---\nnosearch: true\n---\n\n"
"""Begins a page that a search does not find: a record of a decision says what was thought then."""

_LINK = re.compile(r"^```.*?^```$|\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)", re.MULTILINE | re.DOTALL)
"""A block of code, which stays as it is, or a link to a file."""


def sections(pages: set[str]) -> list[tuple[str, list[str]]]:
    """Each caption with its pages, those of a pattern in order of their names."""
    named = {entry for _, entries in SECTIONS for entry in entries}
    left = {page for page in pages - named - {"index"} if not any(_matches(page, p) for p in BELOW.values())}
    found = []
    for caption, entries in SECTIONS:
        listed: list[str] = []
        for entry in entries:
            new = [entry] if entry in pages else sorted(page for page in left if _matches(page, entry))
            listed += new
            left -= set(new)
        found.append((caption, listed))
    return found


def _matches(page: str, pattern: str) -> bool:
    return fnmatch(page, pattern) and page.count("/") == pattern.count("/")


def toctree(pages: list[str], caption: str = "") -> str:
    """MyST's directive, which puts pages into the side bar and nothing into the text."""
    head = f":caption: {caption}\n" if caption else ""
    return "\n```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(f"/{page}" for page in pages) + "\n```\n"


def on_site(name: str, text: str, pages: set[str], docs: Path) -> str:
    """The text of a page as the site needs it."""
    written_in = shown_in = (docs / name).parent
    if name in WHOLE:
        title = text.partition("\n")[0]
        text = title + "\n" + (docs.parent / WHOLE[name]).read_text("utf-8").partition("\n")[2]
        written_in = docs.parent
    text = _LINK.sub(lambda link: _relinked(link, written_in, shown_in, docs), text)
    if name == "index":
        text = text.replace(*ONLY_HERE)
        text += "".join(toctree(listed, caption) for caption, listed in sections(pages))
    if name.startswith("decisions/") and name not in BELOW:
        text = NOT_SEARCHED + text
    if name in BELOW:
        text += toctree(sorted(page for page in pages if _matches(page, BELOW[name]) and page != name))
    return text


def _relinked(link: re.Match[str], written_in: Path, shown_in: Path, docs: Path) -> str:
    """A link as it is where its page is shown. What is not on the site stays as its text."""
    label, target, anchor = link[1], link[2], link[3] or ""
    if target is None or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = (written_in / target).resolve()
    path = {docs.parent / file: docs / f"{page}.md" for page, file in WHOLE.items()}.get(path, path)
    if path.is_dir():
        path /= "README.md"
    if not path.is_relative_to(docs):
        return label
    if label.endswith(".md"):
        label = ""  # MyST puts the title there
    return f"[{label}]({os.path.relpath(path, shown_in)}{anchor})"


def setup(app: Sphinx) -> dict[str, bool]:
    """Before a page is parsed. Pages that are made of other files are read each time."""

    def read(app: Sphinx, name: str, source: list[str]) -> None:
        if Path(app.env.doc2path(name)).suffix == ".md":
            source[0] = on_site(name, source[0], set(app.env.found_docs), Path(app.srcdir))

    app.connect("source-read", read)
    app.connect("env-get-outdated", lambda *_: ["index", *BELOW, *WHOLE])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
