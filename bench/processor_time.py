"""Processor time of a process and all that it has started.

Owns: ``tree_seconds``. Reads ``/proc``, so Linux only; elsewhere there is no figure.
Must import nothing of this project.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
# Behind the name in /proc/PID/stat: the parent, and user and system time of the process and of its ended children.
_PARENT, _TIMES = 1, slice(11, 15)


def tree_seconds(pid: int) -> float | None:
    """Seconds, user and system, of process ``pid``, its descendants and their ended children that were waited for.

    None where there is no ``/proc``.
    """
    if not _PROC.is_dir():
        return None
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(entry)) is not None:
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[_TIMES]))
    found, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        found += ticks.get(each, 0)
        waiting += children.get(each, [])
    return found / os.sysconf("SC_CLK_TCK")


def _stat(entry: Path) -> list[str] | None:
    """The fields behind the program's name, which may hold anything; None for a process that has ended."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
