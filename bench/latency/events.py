"""Events that come at a steady rate.

Owns: ``Events``, the listening end of a socket source, in a process of its own so that nobody's work delays it.
Invariant: line ``i`` is the number i; its time is taken before it is handed to the socket.
Must not import Spark or asyncstate.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

_STEP_SECONDS = 0.01


class Events:
    """Numbers from 0 on, ``rate`` a second from the moment a source connects to ``port``, ``count`` of them."""

    def __init__(self, rate: int, count: int) -> None:
        processes = multiprocessing.get_context("spawn")
        self._line, there = processes.Pipe()
        self._process = processes.Process(target=_serve, args=(there, rate, count), daemon=True)
        self._process.start()
        self.port: int = self._line.recv()

    def times(self) -> npt.NDArray[np.float64]:
        """When each was sent, in seconds since the epoch; waits until the last one was."""
        times: npt.NDArray[np.float64] = self._line.recv()
        return times

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


def _serve(line: Connection, rate: int, count: int) -> None:
    """Say the port, send to the first who connects in steps of some milliseconds, say when each was sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line.send(server.getsockname()[1])
        connection, _ = server.accept()
        with connection, suppress(EOFError):
            times = np.zeros(count)
            sent, started = 0, time.time()
            while sent < count:
                due = min(count, int((time.time() - started) * rate) + 1)
                if due > sent:
                    times[sent:due] = time.time()
                    connection.sendall("".join(f"{number}\n" for number in range(sent, due)).encode())
                    sent = due
                time.sleep(_STEP_SECONDS)
            line.send(times)
            line.recv()  # the connection stays: a source whose end has gone fails
