"""Values of command line options that are lists.

Owns: ``numbers`` and ``chosen``.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers from 1 on, with commas between them. Raises typer.BadParameter."""
    try:
        found = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise typer.BadParameter(f"'{text}': give numbers from 1 on, with commas", param_hint=option)
    return found


def chosen(names: str, known: Sequence[str], option: str) -> list[str]:
    """Those of ``known`` that are named, with commas between them, or all. Raises typer.BadParameter."""
    wanted = set(known) if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := wanted - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}", param_hint=option
        )
    return [name for name in known if name in wanted]
