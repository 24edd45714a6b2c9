"""Events that come at a steady rate: the program ``python -m bench.latency.events RATE COUNT TIMES``.

Owns: the listening end of a socket source, in a process of its own so that nobody's work delays it, and ``Events``.
Invariant: line ``i`` is the number i; its time is taken before it is handed to the socket.
Must not import Spark or asyncstate.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

_ROOT = Path(__file__).parents[2]
_STEP_SECONDS = 0.01


class Events:
    """Numbers from 0 on, ``rate`` a second from the moment a source connects to ``port``, ``count`` of them."""

    def __init__(self, rate: int, count: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._times = folder / "times.npy"
        self._times.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.latency.events", str(rate), str(count), str(self._times)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def times(self) -> npt.NDArray[np.float64]:
        """When each was sent, in seconds since the epoch; waits until the last one was."""
        assert self._process.stdout is not None
        self._process.stdout.readline()
        times: npt.NDArray[np.float64] = np.load(self._times)
        return times

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def send(connection: socket.socket, rate: int, count: int) -> npt.NDArray[np.float64]:
    """Send ``count`` numbers in steps of some milliseconds; when each was sent."""
    times = np.zeros(count)
    sent, started = 0, time.time()
    while sent < count:
        due = min(count, int((time.time() - started) * rate) + 1)
        if due > sent:
            times[sent:due] = time.time()
            connection.sendall("".join(f"{number}\n" for number in range(sent, due)).encode())
            sent = due
        time.sleep(_STEP_SECONDS)
    return times


def main() -> None:
    """Say the port, send to the first who connects, write the times, then wait to be ended."""
    rate, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            np.save(path, send(connection, rate, count))
            print("sent", flush=True)
            sys.stdin.read()  # the connection stays: a source whose end has gone fails


if __name__ == "__main__":
    main()
