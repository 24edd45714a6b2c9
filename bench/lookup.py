"""What a lookup join gains from calls that overlap: an HTTP service with a latency, asked key by key.

Owns: ``bench lookup``. Invariant: the service is a process of its own and answers each request after the same time,
however many there are; both modes ask for the same keys, which they have not asked for before.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Annotated

import pyarrow as pa
import typer

from asyncstate.lookups import HttpLookup
from asyncstate.testing import OperatorHarness
from bench.frame import CaseError, Report, Row, turns
from bench.frame.measure import ROOT
from bench.frame.report import Output, Rounds, costs, sides
from bench.processor_time import Clocks, Spent
from operators import LookupJoin

ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
FOUND = pa.schema([("name", pa.string())])
_BODY = b'[{"name":"x"}]'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)
_END = b"\r\n\r\n"


class _Service(asyncio.Protocol):
    """Answers every request ``latency`` seconds after its head has come."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.given = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self.given = (self.given + data).split(_END)
        for _ in requests:
            asyncio.get_running_loop().call_later(self.latency, self.transport.write, _ANSWER)


async def serve(latency: float) -> None:
    """Print the port, then answer until the process is killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Service(latency), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def service(latency_ms: float) -> Iterator[str]:
    """The address of a service in a process of its own."""
    command = [sys.executable, "-m", "bench.lookup", str(latency_ms / 1000)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure(address: str, keys: int, rounds: int) -> list[Row]:
    """Both modes, micro-batches by turns."""
    join = LookupJoin(HttpLookup(address + "/{0}"), FOUND)
    with (
        OperatorHarness(join, ROWS, ["k"], async_enabled=False, changelog=False) as sync,
        OperatorHarness(join, ROWS, ["k"], async_enabled=True, changelog=False) as overlapping,
    ):

        def side(harness: OperatorHarness) -> Callable[[int], Spent]:
            def ask(number: int) -> Spent:
                harness.push([(number * keys + key, key) for key in range(keys)])
                clocks = Clocks()
                if len(harness.end_batch()) != keys:
                    raise CaseError("rows are missing")
                return clocks.spent()

            return ask

        spent = turns({"sync": side(sync), "async": side(overlapping)}, rounds, count())
    return sides(spent, 1, "sync", speed=True, scale=1e3)


def lookup(
    keys: Annotated[int, typer.Option(min=1, help="Distinct keys of a micro-batch.")] = 500,
    latency: Annotated[float, typer.Option(min=0, help="Latency of the service in milliseconds.")] = 10.0,
    rounds: Rounds = 7,
    output: Output = None,
) -> None:
    """Query an HTTP service for each key of a micro-batch, sync and async; the ratio is the speed by that of sync."""
    with Report("lookup", output, keys=keys, latency_ms=latency) as report, service(latency) as address:
        title = f"{keys:,} distinct keys a micro-batch, {latency:g} ms an answer, medians of {rounds}"
        report.section(title, costs("ms", ""))
        report.case("lookup", lambda: measure(address, keys, rounds))


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
