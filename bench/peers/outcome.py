"""What the comparison has found so far: kept as JSON, shown as tables and pictures, judged at the end.

Owns: ``Amount``, ``Report``, ``facts``.
Must not start Spark.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from bench.peers.results import Figure, Throughput

WRONG_RESULT, CANNOT_RUN = 1, 2
_GROWTH_SIZES = (100_000, 1_000_000, 5_000_000, 10_000_000, 20_000_000)


@dataclass(frozen=True)
class Amount:
    """How much of everything, as the command line says."""

    rows: int
    keys: tuple[int, ...]
    batches: int
    warm_up: int
    repeat: int
    cores: int
    seed: int
    events: int
    slow_seconds: float = 15.0
    sizes: tuple[int, ...] = _GROWTH_SIZES


@dataclass
class Report:
    """What there is so far; written after each result, so that an interrupted run keeps its figures."""

    output: Path | None
    facts: dict[str, Any]
    results: list[Throughput] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def add(self, results: Sequence[Throughput] = (), figures: Sequence[Figure] = ()) -> None:
        """Take in and write down."""
        from bench.peers.results import compare_all

        self.results += results
        self.figures += figures
        if self.output is not None:
            more = {"comparisons": compare_all(self.results), "itself": self.figures}
            write_json(self.results, self.output / "peers.json", **self.facts, **more)

    def show(self, console: Console, amount: Amount) -> None:
        """Tables, who was left out, and with an output folder the pictures."""
        from bench.peers.report import itself_table, peers_table, write_plots

        title = _title(amount, self.results)
        if self.results:
            console.print(peers_table(self.results, f"asyncstate and others: {title}"))
        if self.figures:
            console.print(itself_table(self.figures, "asyncstate itself, one core, without Spark"))
        for result in self.results:
            if result.skipped:
                console.print(
                    f"left out, {result.work}: {result.peer_title}: {result.skipped}", highlight=False
                )
        if self.output is not None and (self.results or self.figures):
            written = [self.output / "peers.json"]
            written += write_plots(self.results, self.figures, self.output, title)
            console.print(f"written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)

    def judge(self, console: Console) -> int:
        """The exit code: 1 if a result is wrong, 2 if somebody failed, 0 if all is well."""
        for result in self.results:
            if result.wrong:
                text = "\n  ".join(
                    (
                        f"{result.work}, {result.peer_title}: WRONG result, compared with DuckDB's:",
                        *result.problems,
                    )
                )
                console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
            elif result.failed:
                text = f"{result.work}, {result.peer_title}: {result.failed}"
                console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        if any(result.wrong for result in self.results):
            return WRONG_RESULT
        if any(result.failed for result in self.results):
            return CANNOT_RUN
        return 0


def _title(amount: Amount, results: Sequence[Throughput]) -> str:
    """How much of what; Nexmark, where it is all there is, has events and runs."""
    if results and all(result.work.startswith("f ") for result in results):
        return f"Nexmark, {amount.events:,} events, {amount.cores} cores, medians of {amount.repeat}"
    counted = amount.batches * amount.repeat
    return f"{amount.rows:,} rows a micro-batch, {amount.cores} cores, medians of {counted}"


def facts(amount: Amount) -> dict[str, Any]:
    """What was held equal, what was not, and where."""
    import pyspark

    from asyncstate import __version__
    from bench.peers.flink.run import Flink
    from bench.peers.spark_plans import NATIVE, PYTHON, STORES, spark_conf
    from bench.session import local_conf

    scratch = Path("FOLDER")
    flink = Flink(Path("PYTHON"), scratch, amount.cores)
    return {
        "rows": amount.rows,
        "batches": amount.batches,
        "warm_up": amount.warm_up,
        "repeat": amount.repeat,
        "seed": amount.seed,
        "machine": platform.platform(),
        "cores_of_machine": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "versions": {
            "asyncstate": __version__,
            "python": platform.python_version(),
            "spark": pyspark.__version__,
        },
        "fairness": {
            "turns": "a process each, a micro-batch each by turns; seconds from trigger to commit, less the wait",
            "partitions": amount.cores,
            "cores": amount.cores,
            "input": f"the same Parquet files, {amount.cores} a micro-batch and table",
            "trigger": "availableNow, maxFilesPerTrigger",
            "sink": "foreachBatch, format noop; the last micro-batch, untimed, to Parquet and compared with DuckDB",
            "output_mode": {
                **{work: mode for work, (_, mode) in NATIVE.items()},
                **{f"{work}, {peer}": mode for (work, peer), (_, mode) in PYTHON.items()},
            },
            "conf_of_all": local_conf(scratch, amount.cores),
            "conf_of_spark": {store: spark_conf(store) for store in STORES},
            "conf_of_flink": {backend: flink.conf(backend) for backend in ("rocksdb", "forst", "hashmap")},
            "conf_of_asyncstate": "defaults; async-state.enabled as the peer says",
            "slow_peers": "fewer rows a micro-batch and as many fewer keys, so the same rows a key and smaller state",
        },
    }
