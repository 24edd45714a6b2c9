"""One piece of work: checked on a small input, then measured, all peers in turns.

Owns: ``Plan`` and ``measure``.
Invariant: no peer with a wrong result on the small input is measured, and no metric counts as right if its last
micro-batch was not.
Must not import Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.frame import CaseError
from bench.peers.inputs import check, write_input
from bench.peers.peers import PEERS
from bench.peers.process import Input, Run, Running, Start, Timed, take_turns
from bench.peers.results import Throughput
from bench.peers.works import Scale, Work

_CHECK = Scale(rows=2_000, keys=600, warm_up=0, counted=2)
_SLOW_ROWS_MIN = 200


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    A slow peer gets as many rows a micro-batch as it would do in ``slow_seconds`` at the rate of the check's small
    ones; of large ones it does up to four times as many a second.
    """

    folder: Path
    cores: int
    repeat: int
    slow_seconds: float
    check: Scale = _CHECK


def measure(
    work: Work, scale: Scale, label: str, names: Sequence[str], plan: Plan, tell: Callable[[str], None]
) -> list[Throughput]:
    """The metrics of those of ``names`` that do this work; ``label`` is the work's name in the table."""
    chosen = [name for name in work.peers if name in names]
    found: dict[str, list[Throughput]] = {name: [] for name in chosen}
    able = [name for name in chosen if not PEERS[name].missing]
    for name in chosen:
        if name not in able:
            found[name].append(_blank(work, label, name, scale.keys, skipped=PEERS[name].missing))
    for number in range(plan.repeat):
        folder = plan.folder / f"{work.name}-{scale.keys}-{number}"
        bench = _Bench(work, scale, label, plan, folder, lambda text: tell(f"{label}: {text}"))
        # The order turns round each time: who follows whom should not matter, but might.
        for result in bench.run(able[:: -1 if number % 2 else 1]):
            found[result.peer].append(result)
        shutil.rmtree(folder, ignore_errors=True)
    return [_merged(results) for results in found.values()]


def _blank(work: Work, label: str, peer: str, keys: int, **more: object) -> Throughput:
    blank = Throughput(
        name=PEERS[peer].title, group=f"{label}: {work.title}", work=label, peer=peer, keys=keys
    )
    return msgspec.structs.replace(blank, **more)


def _merged(results: Sequence[Throughput]) -> Throughput:
    """The seconds of all repetitions, concatenated; a wrong repetition takes precedence."""
    bad = next((result for result in results if not result.right), None)
    seconds, cpu_seconds = (
        [each for result in results for each in getattr(result, clock)]
        for clock in ("seconds", "cpu_seconds")
    )
    return bad or msgspec.structs.replace(results[0], seconds=seconds, cpu_seconds=cpu_seconds)


class _Bench:
    """One repetition: the processes of all peers, their inputs, their results."""

    def __init__(
        self, work: Work, scale: Scale, label: str, plan: Plan, folder: Path, tell: Callable[[str], None]
    ) -> None:
        self._work = work
        self._scale = scale
        self._label = label
        self._plan = plan
        self._folder = folder
        self._tell = tell

    def run(self, names: Sequence[str]) -> list[Throughput]:
        """Check, then measure those that were right. Processes are ended whatever happens."""
        running: dict[str, Running] = {}
        try:
            for name in names:
                folder = str(self._folder / name)
                running[name] = Running(
                    Start(peer=name, work=self._work.name, folder=folder, cores=self._plan.cores)
                )
            small = self._small(running)
            right = {name: process for name, process in running.items() if small[name].right}
            return list((small | self._whole(right, small)).values())
        finally:
            for process in running.values():
                process.close()

    def _small(self, running: Mapping[str, Running]) -> dict[str, Throughput]:
        self._tell("checking results on a small input")
        given = write_input(self._work, self._plan.check, self._folder / "small", min(self._plan.cores, 2))
        all_ = dict.fromkeys(running, (given, self._plan.check))
        return self._carried_out(running, all_, "check", keep_all=True)

    def _whole(
        self, running: Mapping[str, Running], small: Mapping[str, Throughput]
    ) -> dict[str, Throughput]:
        """Slow ones on an input of their size, by what they did with the last rows of the check. Each its own: Spark
        ends Python processes that have had nothing to do for a minute, so a round must be shorter."""
        self._tell("writing the input")
        whole = write_input(self._work, self._scale, self._folder / "input", self._plan.cores)
        inputs = dict.fromkeys(running, (whole, self._scale))
        for name in filter(lambda each: PEERS[each].slow, running):
            rate = small[name].rows / small[name].seconds[-1]
            rows = max(_SLOW_ROWS_MIN, int(rate * self._plan.slow_seconds) // 100 * 100)
            rows = min(self._scale.rows, rows)
            scale = replace(self._scale, rows=rows, keys=max(1, self._scale.keys * rows // self._scale.rows))
            given = write_input(self._work, scale, self._folder / f"for-{name}", self._plan.cores)
            inputs[name] = given, scale
        return self._carried_out(running, inputs, "run", keep_all=False)

    def _carried_out(
        self,
        running: Mapping[str, Running],
        inputs: Mapping[str, tuple[Input, Scale]],
        what: str,
        *,
        keep_all: bool,
    ) -> dict[str, Throughput]:
        """One Run of each process in turns, then the comparison of what each has kept."""
        work, failed, runs = self._work, dict[str, str](), dict[str, Run]()
        for name, process in running.items():
            given, scale = inputs[name]
            first_kept = 0 if keep_all else scale.micro_batches(work) - 1
            runs[name] = Run(input=given, folder=str(self._folder / name / what), first_kept=first_kept)
            try:
                process.begin(runs[name])
            except CaseError as error:
                failed[name] = str(error)
        able = {name: process for name, process in running.items() if name not in failed}
        alone = {name: inputs[name][1].fill(work) for name in able}
        for _, scale in list(inputs.values())[:1]:
            failed |= take_turns(able, alone, scale.warm_up + scale.counted + 1, self._tell)
        found = {}
        for name, process in running.items():
            if name in failed or process.timed is None:
                why = failed.get(name, "it did not finish")
                found[name] = _blank(work, self._label, name, inputs[name][1].keys, failed=why)
            else:
                self._tell(f"comparing with DuckDB: {name}")
                found[name] = self._compared(name, runs[name], inputs[name][1], process.timed)
            shutil.rmtree(runs[name].folder, ignore_errors=True)
        return found

    def _compared(self, name: str, run: Run, scale: Scale, timed: Timed) -> Throughput:
        expected = self._work.results[PEERS[name].result if PEERS[name].ours else ""]
        outcome = check(run.input, expected, Path(run.folder) / "sink", run.first_kept, self._plan.cores)
        first = scale.first_counted(self._work)
        counted = slice(first, first + scale.counted)
        return _blank(
            self._work,
            self._label,
            name,
            scale.keys,
            rows=scale.rows,
            seconds=timed.seconds[counted],
            cpu_seconds=timed.cpu_seconds[counted],
            expected_rows=outcome.expected_rows,
            wrong=[*outcome.problems, *outcome.examples],
        )
