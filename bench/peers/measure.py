"""One piece of work: checked small, then measured, peer beside peer.

Owns: ``Plan`` and ``measure``.
Invariant: nobody is measured whose result on the small input is not right, and no figure stands as right whose last
micro-batch was not.
Must not import Spark.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.peers.inputs import check, write_input
from bench.peers.parts import PARTS
from bench.peers.peers import PEERS, Peer
from bench.peers.protocol import Input, Run, Start, Timed
from bench.peers.results import Throughput
from bench.peers.turns import PeerError, Running, take_turns
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
    """The figures of those of ``names`` that do this work; ``label`` is the work's name in the table."""
    chosen = [PEERS[name] for name in work.peers if name in names]
    found = [_blank(work, label, peer, scale, skipped=peer.missing) for peer in chosen if peer.missing]
    able = [peer for peer in chosen if not peer.missing]
    for number in range(plan.repeat):
        folder = plan.folder / f"{work.name}-{scale.keys}-{number}"
        # The order turns round each time: who follows whom should not matter, but might.
        order = able if number % 2 == 0 else able[::-1]
        bench = _Bench(work, scale, label, plan, folder, lambda text: tell(f"{label}: {text}"))
        found += bench.run(order)
        shutil.rmtree(folder, ignore_errors=True)
    return _merged(found)


def _blank(work: Work, label: str, peer: Peer, scale: Scale, *, skipped: str | None = None) -> Throughput:
    return Throughput(
        work=label,
        title=work.title,
        peer=peer.name,
        peer_title=peer.title,
        keys=scale.keys,
        skipped=skipped or "",
    )


def _merged(found: Sequence[Throughput]) -> list[Throughput]:
    """One result a peer: the seconds of all repetitions one behind the other; a wrong one before all others."""
    by_peer: dict[str, list[Throughput]] = {}
    for result in found:
        by_peer.setdefault(result.peer, []).append(result)
    merged = []
    for results in by_peer.values():
        bad = next((result for result in results if not result.checked), None)
        base = bad or results[0]
        seconds = [] if bad else [each for result in results for each in result.seconds]
        cpu_seconds = [] if bad else [each for result in results for each in result.cpu_seconds]
        merged.append(_with(base, seconds=seconds, cpu_seconds=cpu_seconds))
    return merged


def _with(result: Throughput, **changes: object) -> Throughput:
    return msgspec.structs.replace(result, **changes)


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
        self._results: dict[str, Throughput] = {}

    def run(self, peers: Sequence[Peer]) -> list[Throughput]:
        """Check, then measure. Processes are ended whatever happens."""
        running: dict[str, Running] = {}
        try:
            for peer in peers:
                running[peer.name] = Running(
                    Start(
                        peer=peer.name,
                        work=self._work.name,
                        folder=str(self._folder / peer.name),
                        cores=self._plan.cores,
                    )
                )
            self._check_small(running)
            self._measure(running)
        finally:
            for process in running.values():
                process.close()
        return [self._results[peer.name] for peer in peers]

    def _check_small(self, running: Mapping[str, Running]) -> None:
        self._tell("checking results on a small input")
        given = write_input(self._work, self._plan.check, self._folder / "small", min(self._plan.cores, 2))
        self._carry_out(running, {name: given for name in running}, "check", self._plan.check, keep_all=True)

    def _measure(self, running: Mapping[str, Running]) -> None:
        """Those whose small result was right; slow ones on an input of their size."""
        right = {name: process for name, process in running.items() if self._results[name].checked}
        self._tell("writing the input")
        whole = write_input(self._work, self._scale, self._folder / "input", self._plan.cores)
        inputs, scales = {name: whole for name in right}, {name: self._scale for name in right}
        for name in filter(lambda each: PEERS[each].slow, right):
            scales[name] = self._slow_scale(name)
            inputs[name] = write_input(
                self._work, scales[name], self._folder / f"for-{name}", self._plan.cores
            )
        self._carry_out(right, inputs, "run", self._scale, keep_all=False, scales=scales)

    def _slow_scale(self, name: str) -> Scale:
        """By what the peer did with the last rows of the check.

        Each its own: Spark ends Python processes that have had nothing to do for a minute, so a round must be shorter.
        """
        rate = self._results[name].rows / self._results[name].seconds[-1]
        rows = min(self._scale.rows, max(_SLOW_ROWS_MIN, int(rate * self._plan.slow_seconds) // 100 * 100))
        return replace(self._scale, rows=rows, keys=max(1, self._scale.keys * rows // self._scale.rows))

    def _carry_out(
        self,
        running: Mapping[str, Running],
        inputs: Mapping[str, Input],
        name: str,
        scale: Scale,
        *,
        keep_all: bool,
        scales: Mapping[str, Scale] | None = None,
    ) -> None:
        """One Run of each process in turns, then the comparison of what each has kept."""
        work, scales = self._work, scales or dict.fromkeys(running, scale)
        first_kept = {peer: 0 if keep_all else each.micro_batches(work) - 1 for peer, each in scales.items()}
        folders = {peer: self._folder / peer / name for peer in running}
        failed: dict[str, str] = {}
        for peer, process in running.items():
            try:
                process.begin(Run(input=inputs[peer], folder=str(folders[peer]), first_kept=first_kept[peer]))
            except PeerError as error:
                failed[peer] = str(error)
        able = {peer: process for peer, process in running.items() if peer not in failed}
        alone = {peer: scales[peer].fill(work) for peer in able}
        failed |= take_turns(able, alone, scale.warm_up + scale.counted + 1, self._tell)
        for peer, process in running.items():
            if peer in failed or process.timed is None:
                blank = _blank(work, self._label, PEERS[peer], scales[peer])
                self._results[peer] = _with(blank, failed=failed.get(peer, "it did not come to its end"))
            else:
                self._tell(f"comparing with DuckDB: {peer}")
                self._results[peer] = self._compared(
                    PEERS[peer], inputs[peer], scales[peer], folders[peer], first_kept[peer], process.timed
                )
            shutil.rmtree(folders[peer], ignore_errors=True)

    def _compared(
        self, peer: Peer, given: Input, scale: Scale, folder: Path, first_kept: int, timed: Timed
    ) -> Throughput:
        expected = self._work.results[peer.result if peer.ours else ""]
        outcome = check(given, expected, folder / "sink", first_kept, self._plan.cores)
        counted = slice(scale.first_counted(self._work), scale.first_counted(self._work) + scale.counted)
        return _with(
            _blank(self._work, self._label, peer, scale),
            rows=scale.rows,
            seconds=timed.seconds[counted],
            cpu_seconds=timed.cpu_seconds[counted],
            parts=_median_parts(timed.parts[counted]),
            expected_rows=outcome.expected_rows,
            checked=outcome.ok,
            problems=(*outcome.problems, *outcome.examples),
        )


def _median_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(part[name] for part in parts) for name in PARTS} if parts else {}
