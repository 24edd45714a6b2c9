"""What a lookup join gains from calls that overlap: an HTTP service with a latency, asked key by key.

Owns: ``bench lookup``. Invariant: the service is a process of its own and answers each request after the same time,
however many there are; both modes ask for the same number of keys that they have not asked for before.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from asyncstate.lookups import HttpLookup
from asyncstate.testing import OperatorHarness
from bench.report import write_json
from operators import LookupJoin

ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
FOUND = pa.schema([("name", pa.string())])
_BODY = b'[{"name":"x"}]'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)
_END = b"\r\n\r\n"


class LookupCost(msgspec.Struct, frozen=True):
    """A micro-batch of ``keys`` distinct keys: ``ratio`` is sync's time by this one."""

    name: str
    keys: int
    wall_ms: float
    cpu_ms: float
    ratio: float


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
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure(address: str, keys: int, rounds: int) -> list[LookupCost]:
    """Both modes, micro-batches by turns; raises RuntimeError if rows are missing."""
    times: dict[str, list[tuple[float, float]]] = {"sync": [], "async": []}
    join = LookupJoin(HttpLookup(address + "/{0}"), FOUND)
    with (
        OperatorHarness(join, ROWS, ["k"], async_enabled=False, changelog=False) as sync,
        OperatorHarness(join, ROWS, ["k"], async_enabled=True, changelog=False) as overlapping,
    ):
        for number in range(rounds + 1):
            rows = [(number * keys + key, key) for key in range(keys)]
            for name, harness in {"sync": sync, "async": overlapping}.items():
                harness.push(rows)
                start, cpu = time.perf_counter(), time.process_time()
                if len(harness.end_batch()) != keys:
                    raise RuntimeError(f"{name}: rows are missing")
                times[name].append((time.perf_counter() - start, time.process_time() - cpu))
    return [
        LookupCost(
            name,
            keys,
            statistics.median(wall for wall, _ in found[1:]) * 1e3,
            statistics.median(cpu for _, cpu in found[1:]) * 1e3,
            statistics.median(
                base / own for (base, _), (own, _) in zip(times["sync"][1:], found[1:], strict=True)
            ),
        )
        for name, found in times.items()
    ]


def lookup(
    keys: Annotated[int, typer.Option(min=1, help="Distinct keys of a micro-batch.")] = 500,
    latency: Annotated[float, typer.Option(min=0, help="Milliseconds until the service answers.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Counted micro-batches.")] = 7,
    output: Annotated[Path | None, typer.Option(help="Folder for lookup.json.")] = None,
) -> None:
    """Ask an HTTP service for each key of a micro-batch, sync and async."""
    with service(latency) as address:
        found = measure(address, keys, rounds)
    title = f"{keys:,} distinct keys a micro-batch, {latency:g} ms an answer, medians of {rounds}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("mode")
    for heading in ("ms", "processor ms", "speed"):
        table.add_column(heading, justify="right")
    for cost in found:
        table.add_row(cost.name, f"{cost.wall_ms:.0f}", f"{cost.cpu_ms:.0f}", f"{cost.ratio:.1f}x")
    Console().print(table)
    if output is not None:
        write_json(found, output / "lookup.json", keys=keys, latency_ms=latency)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
