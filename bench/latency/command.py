"""``python -m bench latency``."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from bench.options import chosen, numbers
from bench.report import write_json

if TYPE_CHECKING:
    from bench.latency.fixed import FixedCost, FixedPlan
    from bench.latency.steady import Latency, SteadyPlan

WRONG_RESULT, CANNOT_RUN = 1, 2
_FILE_WIDTH = 120
_WARM_UP_SECONDS = 8.0
_KEY_SECONDS = 5
"""After so many each key comes again, at a steady rate."""


def latency(
    work: Annotated[
        str, typer.Option(help="a aggregates, b first rows, d a counter in Python; with commas.")
    ] = "all",
    rows: Annotated[
        str, typer.Option(help="Rows a micro-batch, sizes with commas; none with ''.")
    ] = "10,1000,10000",
    engines: Annotated[
        str,
        typer.Option(help="Names with commas: ours-sync, ours-async, spark, spark-foreach, ...; or 'all'."),
    ] = "all",
    batches: Annotated[int, typer.Option(min=1, help="Counted micro-batches a turn.")] = 8,
    turns: Annotated[
        int, typer.Option(min=1, help="Counted turns of each engine, behind one that is not.")
    ] = 2,
    keys: Annotated[int, typer.Option(min=1, help="Keys in the state.")] = 100_000,
    rate: Annotated[
        int, typer.Option(min=0, help="Events a second for the latency; 0 measures none.")
    ] = 1_000,
    seconds: Annotated[float, typer.Option(min=0.5, help="Counted seconds at that rate.")] = 15.0,
    cores: Annotated[int, typer.Option(min=1, help="Cores for Spark, and partitions.")] = 2,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for latency.json.")] = None,
) -> None:
    """What a small micro-batch costs, and how long events take, beside Spark's own stateful operators."""
    from bench.latency.engines import ENGINES
    from bench.latency.fixed import FixedPlan
    from bench.latency.steady import SteadyPlan

    works = chosen(work, tuple(ENGINES), "--work")
    sizes = numbers(rows, "--rows") if rows else ()
    known = tuple(dict.fromkeys(engine.name for each in ENGINES.values() for engine in each))
    names = chosen(engines, known, "--engines")
    scratch = Path(tempfile.mkdtemp(prefix="asyncstate-latency-"))
    fixed = FixedPlan(scratch, sizes, batches, turns, keys, names)
    steady = SteadyPlan(scratch, rate, seconds, _WARM_UP_SECONDS, min(keys, _KEY_SECONDS * rate), names)
    if tiny:
        works, names = ["a"], ["ours-sync", "spark"]
        fixed = FixedPlan(scratch, (10,), 1, 1, 100, names, opening=1)
        steady = SteadyPlan(scratch, 100, 0.5, 0.5, 100, names)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    found = _Found()
    try:
        _measure(console, works, fixed, steady, cores, found)
    except Exception as error:  # of an engine: the figures of the others are shown
        found.failure = f"{found.doing}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found.show(console)
    if output is not None:
        facts = {
            "machine": platform.platform(),
            "cores": cores,
            "keys": fixed.keys,
            "load_at_end": os.getloadavg()[0],
            "latencies": msgspec.to_builtins(found.late),
        }
        write_json(found.costs, output / "latency.json", **facts)
        console.print(f"written: {output / 'latency.json'}", highlight=False)
    if code := found.judge(console):
        raise typer.Exit(code)


@dataclass
class _Found:
    """What there is so far, and what is being done."""

    costs: list[FixedCost] = field(default_factory=list)
    late: list[Latency] = field(default_factory=list)
    doing: str = ""
    failure: str = ""

    def show(self, console: Console) -> None:
        """The tables."""
        from bench.latency.report import fixed_table, latency_table

        if self.costs:
            console.print(fixed_table(self.costs))
        if self.late:
            console.print(latency_table(self.late))

    def judge(self, console: Console) -> int:
        """The exit code; says what was wrong."""
        wrong = [each for each in self.late if each.problems]
        said = [
            f"{each.work}, {each.engine_title}: WRONG result: {'; '.join(each.problems)}" for each in wrong
        ]
        for text in (*said, self.failure):
            if text:
                console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        return WRONG_RESULT if wrong else CANNOT_RUN if self.failure else 0


def _measure(
    console: Console,
    works: Sequence[str],
    fixed: FixedPlan,
    steady: SteadyPlan,
    cores: int,
    found: _Found,
) -> None:
    from bench.latency.engines import ENGINES, session_conf
    from bench.latency.fixed import fixed_costs
    from bench.latency.steady import latencies
    from bench.session import local_session

    started = time.perf_counter()

    def tell(text: str) -> None:
        found.doing = text
        console.print(f"[dim]{time.perf_counter() - started:7.1f} s[/dim]  {text}", highlight=False)

    for each in works:
        for engine in ENGINES[each]:
            if engine.missing and engine.name in fixed.engines:
                tell(f"{each}: left out: {engine.title}: {engine.missing}")
    tell("starting Spark")
    spark = local_session("latency", fixed.folder, cores, session_conf())
    try:
        for each in works:
            found.costs += fixed_costs(spark, each, fixed, tell)
        for each in works if steady.rate else ():
            found.late += latencies(spark, each, steady, tell)
    finally:
        spark.stop()
