"""A page for each program of `docs/examples`: what it says of itself, and its text.

Owns: `docs/examples/*.rst`, which each build makes again and git ignores. The tests run the programs, and compare what
they print with what is at their end.
"""

from __future__ import annotations

import ast
from pathlib import Path

from sphinx.application import Sphinx


def write(folder: Path) -> None:
    """The pages of all programs that are there, and of no others."""
    for page in folder.glob("*.rst"):
        page.unlink()
    for program in sorted(folder.glob("*.py")):
        text = program.read_text("utf-8")
        tree = ast.parse(text)
        about = ast.get_docstring(tree) or ""
        first = (tree.body[0].end_lineno or 0) + 1 if about else 1
        title = program.stem.replace("_", " ").capitalize()
        program.with_suffix(".rst").write_text(
            f"{title}\n{'=' * len(title)}\n\n{about}\n\n"
            f".. literalinclude:: {program.name}\n   :language: python\n   :lines: {first}-\n",
            "utf-8",
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Before Sphinx looks for sources, so that it finds the pages."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "examples"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
