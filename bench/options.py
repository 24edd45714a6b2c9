"""Values of command line options that are lists.

Owns: ``numbers``, ``chosen`` and ``made``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

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


def made(folder: Path | None) -> Path | None:
    """``folder``, which is made if it is missing. Raises typer.BadParameter if it cannot be written to."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise typer.BadParameter(
                f"{error}; give a folder that can be written to", param_hint="--folder"
            ) from None
    return folder


def chosen(names: str, known: Sequence[str], option: str) -> list[str]:
    """Those of ``known`` that are named, with commas between them, or all. Raises typer.BadParameter."""
    wanted = set(known) if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := wanted - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}", param_hint=option
        )
    return [name for name in known if name in wanted]
