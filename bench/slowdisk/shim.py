"""The shared object that delays reads (``slowread.c``): built when it is needed, asked by those who run under it."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

from bench.frame import CaseError, output_of

_SOURCE = Path(__file__).with_name("slowread.c")


def build(folder: Path) -> Path:
    """Compile the shim into ``folder``. Raises CaseError off Linux and without a C compiler."""
    if sys.platform != "linux":
        raise CaseError(f"delaying reads needs Linux's LD_PRELOAD; this is {sys.platform}")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CaseError("delaying reads needs a C compiler, and there is no cc, gcc or clang on the PATH")
    library = folder.resolve() / "slowread.so"
    output_of(compiler, compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl")
    return library


def environment(library: Path, folder: Path, latency_us: int) -> dict[str, str]:
    """Variables for a process in which reads of tables under ``folder`` are counted and take ``latency_us`` longer."""
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "ASYNCSTATE_SLOWREAD_FOLDER": str(folder),
        "ASYNCSTATE_SLOWREAD_NS": str(latency_us * 1_000),
    }


def reads() -> int | None:
    """Reads of tables in this process so far; None in a process without the shim."""
    counter = getattr(ctypes.CDLL(None), "slowread_count", None)
    if counter is None:
        return None
    counter.restype = ctypes.c_long
    return int(counter())
