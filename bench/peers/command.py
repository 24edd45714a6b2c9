"""``python -m bench peers``."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyspark
import typer

from asyncstate import __version__
from bench.frame import Cores, Report, Seed, benchmark, chosen, numbers
from bench.peers import measure
from bench.peers.flink.nexmark import FLINK_PEERS, PYFLINK, NexmarkPlan, keyed, nexmark, share_of_good
from bench.peers.flink.run import FLINK_QUERIES, Flink
from bench.peers.results import COLUMNS, Throughput, compared
from bench.peers.spark_plans import NATIVE, PYTHON, STORES, spark_conf
from bench.peers.works import PEERS, WORKS, Scale
from bench.session import local_conf

_SPARK_WORK = ("a", "b", "c", "d", "e", "g")
_NEXMARK = "f"
_WORK_HELP = (
    "a aggregates, b first rows, c join, d counter, e windows, f Nexmark compared with Flink, g a user-defined "
    "function; separated by commas, or 'all'."
)
_FLINK_HELP = "Python with apache-flink 2.3 or later; by default $ASYNCSTATE_FLINK_PYTHON, or this one."


@benchmark(rows=600, keys="500", batches=1, warm_up=0, repeat=1, events=5_000)
def peers(
    report: Report,
    work: Annotated[str, typer.Option(help=_WORK_HELP)] = ",".join(_SPARK_WORK),
    peers: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows a micro-batch.")] = 500_000,
    keys: Annotated[str, typer.Option(help="Keys of work a; b has the first number.")] = "1000000,10000000",
    batches: Annotated[int, typer.Option(min=1, help="Counted micro-batches.")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="Warm-up micro-batches, not measured.")] = 2,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions, in reversed order each time.")] = 1,
    cores: Cores = 2,
    events: Annotated[int, typer.Option(min=1_000, help="Nexmark events (work f).")] = 5_000_000,
    queries: Annotated[str, typer.Option(help="Nexmark queries of work f, or 'all'.")] = "all",
    checked_events: Annotated[int | None, typer.Option(min=1, help="Of these, those compared.")] = None,
    flink_python: Annotated[Path | None, typer.Option(help=_FLINK_HELP)] = None,
    seed: Seed = 1,
) -> None:
    """Compare asyncstate with Spark's own operators, with Python code on Spark, and with Flink."""
    works = chosen(work, (*_SPARK_WORK, _NEXMARK), "--work")
    sizes, check = numbers(keys, "--keys"), Scale(rows=2_000, keys=600, warm_up=0, counted=2)
    if report.tiny:
        check = Scale(rows=300, keys=100, warm_up=0, counted=1)
        works = ["a"] if works == list(_SPARK_WORK) else works
        peers = "ours-sync,spark-changelog" if peers == "all" else peers
    names = chosen(peers, (*PEERS, *FLINK_PEERS, "pyflink"), "--peers")
    asked = tuple(chosen(queries, FLINK_QUERIES, "--queries"))
    report.facts |= facts(cores)
    plan = measure.Plan(report.folder, cores, repeat, 0.2 if report.tiny else 15.0, check)
    much = events, cores, repeat, seed, flink_python, asked, checked_events or events
    flink = NexmarkPlan(report.folder, *much)
    what = f"{events:,} events" if works == [_NEXMARK] else f"{rows:,} rows a micro-batch"
    title = f"asyncstate and others: {what}, {cores} cores, medians of {batches * repeat}"
    report.section(title, COLUMNS)

    def results(name: str, label: str, scale: Scale) -> Iterator[Throughput]:
        found = measure.measure(WORKS[name], scale, label, names, plan, report.tell)
        if name in PYFLINK and "pyflink" in names:
            found += [keyed(name, label, WORKS[name].title, scale, flink, report.tell)]
        yield from compared(found)

    for each in works:
        if each == _NEXMARK:
            nexmark(names, flink, report)
            report.add(*share_of_good(report.rows))
        for label, name, number in _lines(each, rows, sizes):
            report.case(label, results, name, label, Scale(rows, number, warm_up, batches, seed))


def _lines(work: str, rows: int, keys: tuple[int, ...]) -> list[tuple[str, str, int]]:
    """Label, work and keys of each line of a letter."""
    if work == "a":
        return [(f"a, {number:,} keys", "a", number) for number in keys]
    if work == "e":  # a fifth as many keys as rows: rows a key of a window
        return [(name, name, max(1, rows // 5)) for name in ("e-tumble", "e-hop")]
    own = {"b": keys[0], "c": keys[0], "d": 2 * rows, "g": max(1, rows // 10)}
    return [(work, work, own[work])] if work in own else []


def facts(cores: int) -> dict[str, Any]:
    """Where it runs, and what is held equal between the peers, and what is not, for the JSON."""
    scratch = Path("FOLDER")
    flink = Flink(Path("PYTHON"), scratch, cores)
    modes = {work: mode for work, (_, mode) in NATIVE.items()}
    modes |= {f"{work}, {peer}": mode for (work, peer), (_, mode) in PYTHON.items()}
    fairness = {
        "turns": "a process each, a micro-batch each by turns; seconds from trigger to commit, less the wait",
        "partitions": cores,
        "cores": cores,
        "input": f"the same Parquet files, {cores} a micro-batch and table",
        "trigger": "availableNow, maxFilesPerTrigger",
        "sink": "foreachBatch, format noop; the last micro-batch, untimed, to Parquet and compared with DuckDB",
        "output_mode": modes,
        "conf_of_all": local_conf(scratch, cores),
        "conf_of_spark": {store: spark_conf(store) for store in STORES},
        "conf_of_flink": {backend: flink.conf(backend) for backend in ("rocksdb", "forst", "hashmap")},
        "conf_of_asyncstate": "defaults; async-state.enabled as the peer says",
        "slow_peers": "fewer rows a micro-batch and as many fewer keys, so the same rows a key and smaller state",
    }
    versions = {"asyncstate": __version__, "python": platform.python_version(), "spark": pyspark.__version__}
    return {"cores_of_machine": os.cpu_count(), "versions": versions, "fairness": fairness}
