"""One piece of work: its rows as files, checked small, then measured, side by side.

A process gets each of its Runs, and ``GO`` for each micro-batch of one. It answers None when it waits for its turn, a
Timed at the end of a Run, and a text, why, if it fails. Invariant: at most one process works at any moment. No peer
with a wrong result on the small input is measured, and no metric counts as right if its last micro-batch was not. Files
sort by name and by modification time in the order of their micro-batches, ``files`` of them each. Must not import
Spark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow.parquet as pq

from asyncstate.changelog import ROW_KIND_COLUMN
from bench.frame import LAST_WORDS, LOG, CaseError, in_turns, reason, serving, stamp
from bench.nexmark.comparison import ComparisonResult, compare
from bench.peers.results import Throughput
from bench.peers.works import PEERS, Result, Scale, Work

GO = "go"
Tell = Callable[[str], None]
Peers = Mapping[str, Any]
Results = list[Throughput]


class Input(NamedTuple):
    """A folder with a folder of files for each table, ``files`` a micro-batch and table."""

    folder: Path
    tables: tuple[str, ...]
    files: int
    micro_batches: int


class Run(NamedTuple):
    """One streaming query from nothing. The rows of micro-batches from ``first_kept`` on go to ``folder``/sink."""

    input: Input
    folder: Path
    first_kept: int


@dataclass(frozen=True)
class Timed:
    """Seconds of each micro-batch, from its trigger to its commit. ``cpu_seconds`` are those of processors: driver, JVM
    and Python workers, from a micro-batch's turn to the next one's; the last one's are unknown. Empty where the system
    does not report them."""

    seconds: list[float]
    cpu_seconds: list[float] = field(default_factory=list)


class Running:
    """One peer's process, at the other end of ``line``. ``timed`` is set when a Run has ended."""

    def __init__(self, line: Connection, folder: Path) -> None:
        self._line, self._logs = line, [folder / LOG, folder / "log"]
        self.timed: Timed | None = None

    def step(self) -> None:
        """Let it do one micro-batch, and what follows up to the next one's turn."""
        self.tell(GO)

    def tell(self, what: object) -> None:
        """Hand it a Run, and wait until its first micro-batch is ready; or go on."""
        try:
            self._line.send(what)
            answer = self._line.recv()
        except (EOFError, OSError):
            answer = "its process has ended"
        if isinstance(answer, str):
            last = [log.read_text(errors="replace")[-LAST_WORDS:] for log in self._logs if log.exists()]
            raise CaseError("\n".join([f"{answer}; the end of what it said:", *last]).strip())
        self.timed = answer


def _child(line: Connection, peer: str, work: str, folder: Path, cores: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        from bench.peers.child import serve

        serve(line, peer, work, folder, cores)
    except Exception as error:
        line.send(reason(error))
        raise


def take_turns(peers: Peers, alone: Mapping[str, int], together: int, tell: Tell) -> dict[str, str]:
    """First each peer's ``alone`` micro-batches, then ``together`` ones in turns; what failed with what it said."""
    failed: dict[str, str] = {}

    def step(name: str, number: int) -> None:
        tell(f"micro-batch {number + 1}: {name}")
        peers[name].step()

    for name in peers:
        failed |= in_turns([name], alone[name], step)
    return failed | in_turns([name for name in peers if name not in failed], together, step, turned=False)


class Plan(NamedTuple):
    """How much to measure. A slow peer gets as many rows a micro-batch as it would do in ``slow_seconds`` at the rate
    of the check's small ones; of large ones it does up to four times as many a second."""

    folder: Path
    cores: int
    repeat: int
    slow_seconds: float
    check: Scale


def measure(work: Work, scale: Scale, label: str, names: Sequence[str], plan: Plan, tell: Tell) -> Results:
    """The metrics of those of ``names`` that do this work; ``label`` is the work's name in the table. Of all
    repetitions the seconds, concatenated; a wrong repetition takes precedence."""
    group = f"{label}: {work.title}"

    def blank(name: str) -> Throughput:
        title, missing = PEERS[name].title, PEERS[name].missing
        return Throughput(name=title, group=group, work=label, peer=name, keys=scale.keys, skipped=missing)

    found = {name: blank(name) for name in work.peers if name in names}
    able = [name for name, result in found.items() if not result.skipped]
    for number in range(plan.repeat):
        folder = plan.folder / f"{work.name}-{scale.keys}-{number}"
        bench = _Bench(work, scale, blank, plan, folder, lambda text: tell(f"{label}: {text}"))
        # The order turns round each time: who follows whom should not matter, but might.
        for name, result in bench.run(able[:: -1 if number % 2 else 1]).items():
            before = found[name]
            if before.right and result.right:
                before.seconds += result.seconds
                before.cpu_seconds += result.cpu_seconds
            elif before.right or not number:
                found[name] = result
        shutil.rmtree(folder, ignore_errors=True)
    return list(found.values())


@dataclass
class _Bench:
    """One repetition: the processes of all peers, their inputs, their results."""

    work: Work
    scale: Scale
    blank: Callable[[str], Throughput]
    plan: Plan
    folder: Path
    tell: Callable[[str], None]

    def run(self, names: Sequence[str]) -> dict[str, Throughput]:
        """Check, then measure those that were right. Processes are ended whatever happens. Slow ones get an input of
        their size, by what they did with the last rows of the check. Each its own: Spark ends Python processes that
        have had nothing to do for a minute, so a round must be shorter."""
        plan, work = self.plan, self.work
        running: dict[str, Running] = {}
        with ExitStack() as opened:
            for name in names:
                folder = self.folder / name
                line = serving(_child, name, work.name, folder, plan.cores, patience=30)
                running[name] = Running(opened.enter_context(line), folder)
            self.tell("checking results on a small input")
            few = write_input(work, plan.check, self.folder / "small", min(plan.cores, 2))
            found = self._carried_out(running, dict.fromkeys(running, (few, plan.check)), "check")
            right = {name: process for name, process in running.items() if found[name].right}
            self.tell("writing the input")
            whole = write_input(work, self.scale, self.folder / "input", plan.cores)
            inputs = dict.fromkeys(right, (whole, self.scale))
            for name in filter(lambda each: PEERS[each].slow, right):
                rate = found[name].rows / found[name].seconds[-1]
                rows = min(self.scale.rows, max(200, int(rate * plan.slow_seconds) // 100 * 100))
                keys = max(1, self.scale.keys * rows // self.scale.rows)
                scale = replace(self.scale, rows=rows, keys=keys)
                inputs[name] = write_input(work, scale, self.folder / f"for-{name}", plan.cores), scale
            return found | self._carried_out(right, inputs, "run")

    def _carried_out(
        self, running: Mapping[str, Running], inputs: Mapping[str, tuple[Input, Scale]], what: str
    ) -> dict[str, Throughput]:
        """One Run of each process in turns, then the comparison of what each has kept: of a check all of it."""
        runs: dict[str, Run] = {}

        def begin(name: str, _: int) -> None:
            running[name].tell(runs[name])

        for name, (given, scale) in inputs.items():
            first_kept = 0 if what == "check" else scale.micro_batches(self.work) - 1
            runs[name] = Run(given, self.folder / name / what, first_kept)
        failed = in_turns(list(running), 1, begin)
        able = {name: process for name, process in running.items() if name not in failed}
        alone = {name: inputs[name][1].fill(self.work) for name in able}
        for _, scale in list(inputs.values())[:1]:
            failed |= take_turns(able, alone, scale.warm_up + scale.counted + 1, self.tell)
        found = {}
        for name, process in running.items():
            scale, run, timed = inputs[name][1], runs[name], process.timed
            result = found[name] = self.blank(name)
            result.keys = scale.keys
            if name in failed or timed is None:
                result.failed = failed.get(name, "it did not come to its end")
            else:
                self.tell(f"comparing with DuckDB: {name}")
                expected = self.work.results[PEERS[name].result if PEERS[name].ours else ""]
                outcome = check(run.input, expected, run.folder / "sink", run.first_kept, self.plan.cores)
                result.expected_rows, result.wrong = outcome.expected_rows, outcome.wrong
                first, result.rows = scale.first_counted(self.work), scale.rows
                counted = slice(first, first + scale.counted)
                result.seconds, result.cpu_seconds = timed.seconds[counted], timed.cpu_seconds[counted]
            shutil.rmtree(run.folder, ignore_errors=True)
        return found


def write_input(work: Work, scale: Scale, folder: Path, files: int) -> Input:
    for batch in range(scale.micro_batches(work)):
        for name, table in work.tables(scale, batch).items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for number in range(files):
                start, end = (table.num_rows * step // files for step in (number, number + 1))
                path = folder / name / f"batch-{batch:06d}-{number:02d}.parquet"
                pq.write_table(table.slice(start, end - start), path, compression="snappy")
                stamp(path, batch * files + number)
    tables = tuple(sorted(each.name for each in folder.iterdir()))
    return Input(folder, tables, files, scale.micro_batches(work))


def check(given: Input, result: Result, sink: Path, first: int, cores: int) -> ComparisonResult:
    """Compare what the micro-batches from ``first`` on left in ``sink`` with DuckDB's answer on the same files."""
    with duckdb.connect(config={"threads": cores}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in given.tables:
            connection.execute(
                f"""CREATE TEMP VIEW "{table}" AS SELECT * EXCLUDE (filename),
                CAST(regexp_extract(filename, 'batch-(\\d+)-', 1) AS BIGINT) AS batch
                FROM read_parquet('{_text(given.folder / table)}/*.parquet', filename = true)"""
            )
        if result.upsert:  # of each key the row that was emitted last: in one file a micro-batch, in order
            files, sink = f"{_text(sink)}/*/*.parquet", sink.with_name(f"{sink.name}-last")
            sink.mkdir()
            kind = f"COLUMNS(lambda name: name NOT IN ('{ROW_KIND_COLUMN}', 'filename', 'file_row_number'))"
            options = "hive_partitioning = false, filename = true, file_row_number = true"
            connection.execute(
                f"""COPY (
                    SELECT {kind} FROM read_parquet('{files}', {options})
                    QUALIFY row_number() OVER (
                        PARTITION BY {", ".join(result.upsert)}
                        ORDER BY regexp_extract(filename, 'batch=(\\d+)', 1) DESC, file_row_number DESC
                    ) = 1
                ) TO '{_text(sink / "rows.parquet")}' (FORMAT parquet)"""
            )
        return compare(connection, result.sql.format(first=first, last=given.micro_batches - 1), sink)


def _text(path: Path) -> str:
    return str(path).replace("'", "''")
