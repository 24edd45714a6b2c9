"""Events that come at a steady rate.

Owns: ``Events``, the listening end of a socket source, in a process of its own so that nobody's work delays it.
Invariant: line ``i`` is the number i; its time is taken before it is handed to the socket.
Must not import Spark.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.frame.measure import serving

_STEP_SECONDS = 0.01


class Events(NamedTuple):
    """The port, and what waits until the last event was sent, and says when each was, in seconds since the epoch."""

    port: int
    times: Callable[[], npt.NDArray[np.float64]]


@contextmanager
def events(rate: int, count: int) -> Iterator[Events]:
    """Numbers from 0 on, ``rate`` a second from the moment a source connects to the port, ``count`` of them."""
    with serving(_serve, rate, count) as line:
        yield Events(line.recv(), line.recv)


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
