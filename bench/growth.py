"""How long micro-batches take, and what memory a worker takes, as the state grows: ``python -m bench growth``.

Owns: the job that is filled and then updated, its processes, and the table. Invariant: each size runs in a process
of its own, so that one size's memory is not another's. Must not import Spark.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from asyncstate.config import Tuning, resolve
from bench.options import made, numbers
from bench.processor_time import Clocks
from bench.report import write_json

_MIB = 1 << 20
# Of a row of count, sum and maximum under an int64 key, in the column cache and in RocksDB's blocks.
_COLUMN_BYTES, _BLOCK_BYTES = 70, 40
_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])


class Growth(msgspec.Struct, frozen=True):
    """What a state of ``keys`` keys took: seconds and processor seconds of each counted micro-batch, and the seconds
    that it waited for a compaction; bytes of memory at the end (``parts`` of it by owner), and the highest one.
    ``cache_share`` is the part of the rows that the caches have room for; None: as configured by default.
    """

    keys: int
    rows: int
    seconds: list[float]
    processor_seconds: list[float]
    waited_seconds: list[float]
    rss_bytes: int
    rss_bytes_peak: int
    state_bytes: int
    parts: dict[str, float]
    cache_share: float | None = None

    @property
    def row_us(self) -> tuple[float, float]:
        """Microseconds a row, by the clock and of processors, medians."""
        wall, processor = (
            statistics.median(each) / self.rows * 1e6 for each in (self.seconds, self.processor_seconds)
        )
        return wall, processor


def growth(
    keys: Annotated[
        str, typer.Option(help="Keys in the state, sizes with commas between them.")
    ] = "1000000,10000000",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a counted micro-batch.")] = 250_000,
    micro_batches: Annotated[int, typer.Option(min=2, help="Counted micro-batches.")] = 36,
    cache_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Room for this part of the rows in the caches, of each size; by default as configured.",
        ),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where the state lies while it runs.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for growth.json.")] = None,
) -> None:
    """Fill a state, then update keys of it at random: a row's cost, the slowest micro-batch, and memory, by size."""
    if tiny:
        keys, rows, micro_batches = "2000", 500, 3
    console = Console()
    results = []
    for size in numbers(keys, "--keys"):
        with (
            console.status(f"{size:,} keys"),
            tempfile.TemporaryDirectory(prefix="asyncstate-growth-", dir=made(folder)) as at,
        ):
            results.append(_in_own_process(size, rows, micro_batches, at, cache_share))
    console.print(growth_table(results))
    for line in row_costs(results):
        console.print(line, highlight=False, soft_wrap=True)
    if output is not None:
        write_json(results, output / "growth.json")


def growth_table(results: list[Growth]) -> Table:
    """A line a size: the median micro-batch, and the slowest and the mean by it, in wall and processor time."""
    title = "Micro-batches and memory by state size"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in (
        "\nkeys",
        *(f"{clock}\n{unit}" for clock in ("wall", "cpu") for unit in ("s", "max", "mean")),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("wait\ns", "state\nMiB", "RSS\nMiB", "peak\nMiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in results:
        table.add_row(
            f"{each.keys:,}",
            *_spread(each.seconds),
            *_spread(each.processor_seconds),
            f"{max(each.waited_seconds):.2f}",
            *(f"{size / _MIB:,.0f}" for size in (each.state_bytes, each.rss_bytes, each.rss_bytes_peak)),
        )
    return table


def row_costs(results: list[Growth]) -> list[str]:
    """What a row costs at each size, and by that of the first size."""
    (wall, processor), *_ = (each.row_us for each in results)
    return [
        f"a row at {each.keys:,} keys: {each.row_us[0]:.2f} us, {each.row_us[0] / wall:.2f}x; "
        f"of processors {each.row_us[1]:.2f} us, {each.row_us[1] / processor:.2f}x"
        for each in results
    ]


def _spread(seconds: list[float]) -> tuple[str, str, str]:
    median = statistics.median(seconds)
    return f"{median:.2f}", f"{max(seconds) / median:.2f}x", f"{statistics.mean(seconds) / median:.2f}x"


def _in_own_process(
    keys: int, rows: int, micro_batches: int, folder: str, cache_share: float | None
) -> Growth:
    numbers = [str(each) for each in (keys, rows, micro_batches)]
    share = [] if cache_share is None else [str(cache_share)]
    command = [sys.executable, "-m", "bench.growth", folder, *numbers, *share]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Growth)


def measure(
    folder: Path, keys: int, rows: int, micro_batches: int, cache_share: float | None = None
) -> Growth:
    """Fill ``keys`` keys by micro-batches of ``rows``, then count ``micro_batches`` of them with uniform keys."""
    from asyncstate.operator import InputSpec
    from bench.job import Job
    from operators import GroupAggregate, count, max_, sum_

    operator = GroupAggregate([count(), sum_("value"), max_("value")])
    job = Job(folder, operator, resolve({}, {}, _caches(keys, cache_share)), InputSpec(_SCHEMA, ("key",)))
    random = np.random.default_rng(1)
    for part in np.array_split(random.permutation(keys), max(1, keys // rows)):
        job.run([_rows(part, random)])
    seconds, processor, waited = [], [], []
    for number in range(micro_batches):
        batch = _rows(random.integers(0, keys, rows), random)
        clocks = Clocks()
        job.run([batch])
        spent = clocks.spent()
        seconds.append(spent.seconds)
        processor.append(spent.cpu_seconds)
        waited.append(job.statistics["compaction_seconds"])
        _report(number, seconds[-1], processor[-1], job.statistics)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    state_bytes = int(job.statistics["state_bytes"])
    parts = _parts(job.statistics)
    return Growth(keys, rows, seconds, processor, waited, _rss_bytes(), peak, state_bytes, parts, cache_share)


def _caches(keys: int, share: float | None) -> Tuning:
    """Room for a part of the rows, as columns and as blocks."""
    if share is None:
        return Tuning()
    return Tuning(
        columns_bytes=int(share * keys * _COLUMN_BYTES),
        blocks_bytes=max(_MIB, int(share * keys * _BLOCK_BYTES)),
    )


def _report(number: int, seconds: float, processor: float, figures: dict[str, float]) -> None:
    parts = ", ".join(
        f"{name} {figures[f'{name}_seconds']:.2f}" for name in ("compaction", "commit", "restore")
    )
    print(
        f"{number:3} {seconds:.2f} s, cpu {processor:.2f}, {parts}, {_rss_bytes() / _MIB:.0f} MiB",
        file=sys.stderr,
        flush=True,
    )


def _rows(keys: np.ndarray[Any, Any], random: np.random.Generator) -> pa.RecordBatch:
    values = random.integers(0, 100_000, len(keys))
    return pa.record_batch([pa.array(keys), pa.array(values)], schema=_SCHEMA)


def _parts(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if "bytes" in name}


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    _share = float(sys.argv[5]) if len(sys.argv) > 5 else None
    share = float(sys.argv[5]) if len(sys.argv) > 5 else None
    at, of_keys, of_rows, number_of_batches = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    measured = measure(at, of_keys, of_rows, number_of_batches, share)
    print(msgspec.json.encode(measured).decode())
