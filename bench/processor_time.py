"""Processor time: of this process, and of a process and all that it has started.

Owns: ``Clocks`` and ``Spent``; ``TreeClocks``, ``tree_seconds``, ``tree_times`` and ``spent_seconds``, which read
``/proc``, so on Linux only; elsewhere they have no figure. Must import nothing of this project.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
# After the name in /proc/PID/stat: the parent, and user and system time of the process and of its ended children.
_PARENT, _TIMES = 1, slice(11, 15)


class Spent(NamedTuple):
    """Wall seconds, and processor seconds, user and system; None where the system does not report them."""

    seconds: float
    cpu_seconds: float | None


class Clocks:
    """Both clocks, from now on; processors: all threads of this process."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def spent(self) -> Spent:
        return Spent(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class TreeClocks(Clocks):
    """Both clocks, from now on, for work that processes started by this one do, such as Spark. Exact to some 10 ms."""

    def __init__(self) -> None:
        self._times, self._wall = tree_times(os.getpid()), time.perf_counter()

    def spent(self) -> Spent:
        return Spent(time.perf_counter() - self._wall, spent_seconds(self._times, tree_times(os.getpid())))


def tree_seconds(pid: int) -> float | None:
    """Seconds, user and system, of process ``pid``, its descendants and their ended children that were waited for; None
    where there is no ``/proc``."""
    times = tree_times(pid)
    return None if times is None else sum(times.values())


def spent_seconds(before: dict[int, float] | None, after: dict[int, float] | None) -> float | None:
    """The seconds between two ``tree_times``; None where they are not known. What a process has used that was there
    before and has ended is not in it: nobody waits for Spark's Python workers, so in the difference of two
    ``tree_seconds`` all that they had used would count as time that was given back."""
    if before is None or after is None:
        return None
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def tree_times(pid: int) -> dict[int, float] | None:
    """``tree_seconds`` by process."""
    if not _PROC.is_dir():
        return None
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            # After the program's name, which may contain anything.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[_TIMES]))
    found, waiting, a_second = {}, [pid], os.sysconf("SC_CLK_TCK")
    while waiting:
        each = waiting.pop()
        if each in ticks:
            found[each] = ticks[each] / a_second
        waiting += children.get(each, [])
    return found
