"""What a lookup join gains from calls that overlap: an HTTP service with a latency, asked key by key.

Owns: ``bench lookup``. Invariant: the service is a process of its own and answers each request after the same time,
however many there are; both modes ask for the same keys, which they have not asked for before.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from itertools import count
from multiprocessing.connection import Connection
from typing import Annotated

import pyarrow as pa
import typer

from asyncstate.lookups import HttpLookup
from asyncstate.testing import OperatorHarness
from bench.frame import CaseError, Report, Rounds, Row, Side, benchmark, costs, serving, sides, turns
from bench.processor_time import Clocks, Spent
from operators import LookupJoin

ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
FOUND = pa.schema([("name", pa.string())])
_BODY = b'[{"name":"x"}]'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
_ANSWER = _HEAD + b"%d\r\n\r\n%s" % (len(_BODY), _BODY)


def _serve(line: Connection, latency: float) -> None:
    """Say the port, then answer each request ``latency`` seconds after its head, until the process is killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # at the end of the connection
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(latency)
                writer.write(_ANSWER)

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
        line.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def measure(line: Connection, keys: int, rounds: int) -> list[Row]:
    address = f"http://127.0.0.1:{line.recv()}"
    with ExitStack() as open_:

        def side(enabled: bool) -> Side:
            join = LookupJoin(HttpLookup(address + "/{0}"), FOUND)
            harness = OperatorHarness(join, ROWS, ["k"], async_enabled=enabled, changelog=False)
            open_.enter_context(harness)

            def ask(number: int) -> Spent:
                harness.push([(number * keys + key, key) for key in range(keys)])
                clocks = Clocks()
                if len(harness.end_batch()) != keys:
                    raise CaseError("rows are missing")
                return clocks.spent()

            return ask

        spent = turns({"sync": side(False), "async": side(True)}, rounds, count())
    return sides(spent, 1, "sync", speed=True, scale=1e3)


@benchmark(keys=5, latency=1.0, rounds=1)
def lookup(
    report: Report,
    keys: Annotated[int, typer.Option(min=1, help="Distinct keys of a micro-batch.")] = 500,
    latency: Annotated[float, typer.Option(min=0, help="Latency of the service in milliseconds.")] = 10.0,
    rounds: Rounds = 7,
) -> None:
    """Query an HTTP service for each key of a micro-batch, sync and async; the ratio is the speed by that of sync."""
    with serving(_serve, latency / 1000) as line:
        title = f"{keys:,} distinct keys a micro-batch, {latency:g} ms an answer, medians of {rounds}"
        report.section(title, costs("ms", ""))
        report.case("lookup", measure, line, keys, rounds)
