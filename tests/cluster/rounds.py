"""Drawing the faults of a run, from a seed, and running them story by story.

Owns: the kinds of faults, ``draw``, ``Campaign`` and its figures.
Invariant: the seed alone says which faults happen where; a round is one fault.
"""

from __future__ import annotations

import random
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.driver import PARALLELISM, UIDS, Settings, generate
from tests.cluster.points import DRIVER_POINTS, TASK_POINTS, Fault
from tests.cluster.results import Difference, Results, difference
from tests.cluster.story import DAMAGED_FILES, RECOVERY_SECONDS_MAX, Outcome, Story

BATCHES = 8
FINAL = BATCHES  # the micro-batch that ``finish()`` runs
_ROWS = 400
_FAULTS_A_STORY = 6
# A query that has failed is started again by the same driver, at times by another.
_QUERIES_A_DRIVER = (1, 4, 4, 4, 4, 4)
_OUTSIDE_SECONDS_MAX = 2.0
_OUTSIDE_SECONDS_MAX_FINAL = 0.5  # it has no rows, and is over soon
_BATCHES_UNTIL_FIRST_RETENTION = 3
_NOT_IN_FINAL = ("in retention", "after batch")

KINDS = (
    "executor in task",
    "executor from driver",
    "executor from outside",
    "worker in task",
    "worker from outside",
    "driver",
    "driver from outside",
    "task raises",
    "slow task",
    "sink raises",
    "disk full in task",
    "disk full in driver",
    "damaged file",
)


def fault(kind: str, number: int, batch_id: int, rng: random.Random) -> Fault:
    """One fault of this kind at this micro-batch, the rest drawn."""
    task = {"uid": rng.choice(UIDS), "partition": rng.randrange(PARALLELISM)}
    at_task, at_driver = rng.choice(TASK_POINTS), rng.choice(DRIVER_POINTS)
    delay_s = rng.uniform(0.0, _OUTSIDE_SECONDS_MAX_FINAL if batch_id == FINAL else _OUTSIDE_SECONDS_MAX)
    sink_point = rng.choice(("before sink", "in sink", "after sink"))
    if batch_id < _BATCHES_UNTIL_FIRST_RETENTION and at_driver == "in retention":
        at_driver = "after manifest"
    if batch_id == FINAL and at_driver in _NOT_IN_FINAL:
        at_driver = "before claim"
    made: dict[str, tuple[str, str, dict[str, Any]]] = {
        "executor in task": ("kill executor", at_task, task),
        "executor from driver": (
            "kill executor",
            rng.choice(("between stages", "before sink", "in sink")),
            {},
        ),
        "executor from outside": ("kill executor", "outside", {"delay_s": delay_s}),
        "worker in task": ("kill worker", at_task, task),
        "worker from outside": ("kill worker", "outside", {"delay_s": delay_s}),
        "driver": ("kill driver", at_driver, {}),
        "driver from outside": ("kill driver", "outside", {"delay_s": delay_s}),
        "task raises": ("raise", rng.choice(("task start", "task end")), task),
        "slow task": ("slow", rng.choice(("task start", "task end")), task),
        "sink raises": ("raise", sink_point, {}),
        "disk full in task": ("disk full", rng.choice(("before upload", "after upload")), task),
        "disk full in driver": ("disk full", "manifest write", {}),
        "damaged file": ("kill driver", "after manifest", {"uid": rng.choice(DAMAGED_FILES)}),
    }
    action, point, more = made[kind]
    return Fault(number, action, point, batch_id, **more)


@dataclass(frozen=True)
class Draw:
    """A story to tell: its faults with their kinds, the mode, and how often a driver starts the query."""

    faults: list[tuple[str, Fault]]
    asynchronous: bool
    seed: int
    queries: int = 1

    @property
    def speculation(self) -> bool:
        return any(kind == "slow task" for kind, _ in self.faults)


def draw(rounds: int, seed: int) -> Iterator[Draw]:
    """Stories until there are ``rounds`` faults; kinds come in shuffled turns, so that each comes equally often."""
    rng = random.Random(seed)
    deck: list[str] = []
    number = 0
    while number < rounds:
        faults = []
        count = min(_FAULTS_A_STORY, rounds - number)
        for batch_id in sorted(rng.sample(range(FINAL + 1), count)):
            deck = deck or rng.sample(KINDS, len(KINDS))
            if batch_id == FINAL and deck[-1] == "damaged file":  # nothing would read it again
                deck = rng.sample(KINDS[:-1], len(KINDS) - 1) if len(deck) == 1 else [deck[-1], *deck[:-1]]
            kind = deck.pop()
            faults.append((kind, fault(kind, number, batch_id, rng)))
            number += 1
        queries = rng.choice(_QUERIES_A_DRIVER)
        yield Draw(faults, rng.random() < 0.5, rng.randrange(1 << 30), queries)


@dataclass
class Figures:
    """What all stories came to."""

    rounds: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    missed: int = 0
    lost_rows: int = 0
    doubled_rows: int = 0
    wrong_entries: int = 0
    hangs: int = 0
    rollbacks: int = 0
    regrouped: int = 0
    starts: int = 0
    bad_stories: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.bad_stories

    def add(self, drawn: Draw, outcome: Outcome, found: Difference | None, folder: Path) -> None:
        """Take in one story; ``found`` is None when it did not come to an end."""
        for kind, planned in drawn.faults:
            self.rounds += 1
            if planned.number not in outcome.missed:
                self.happened[kind] += 1
            if planned.number in outcome.recovery_s:
                self.recovery_s.setdefault(kind, []).append(outcome.recovery_s[planned.number])
        self.missed += len(outcome.missed)
        self.hangs += len(outcome.hangs)
        self.rollbacks += len(outcome.rollbacks)
        self.starts += outcome.starts
        self.regrouped += outcome.regrouped
        if found is not None:
            self.lost_rows += found.lost_rows
            self.doubled_rows += found.doubled_rows
            self.wrong_entries += found.wrong_entries
        if outcome.hangs or found:
            self.bad_stories.append(str(folder))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: counts, and the distribution of recovery times in seconds."""
        every = sorted(second for seconds in self.recovery_s.values() for second in seconds)
        return {
            "rounds": self.rounds,
            "happened": dict(self.happened),
            "missed": self.missed,
            "lost_rows": self.lost_rows,
            "doubled_rows": self.doubled_rows,
            "wrong_entries": self.wrong_entries,
            "hangs": self.hangs,
            "driver_starts": self.starts,
            "rollbacks": self.rollbacks,
            "regrouped_by_spark": self.regrouped,
            "recovery_s": distribution(every),
            "recovery_s_by_kind": {kind: distribution(sorted(s)) for kind, s in self.recovery_s.items()},
            "bad_stories": self.bad_stories,
        }


def distribution(seconds: list[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum of sorted values; empty without any."""
    if not seconds:
        return {}
    p95 = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    return {
        "count": len(seconds),
        "p50": round(statistics.median(seconds), 3),
        "p95": round(p95, 3),
        "max": round(seconds[-1], 3),
    }


class Campaign:
    """Runs stories on one cluster against one undisturbed run over the same source."""

    def __init__(
        self, cluster: Cluster, folder: Path, seed: int, recovery_seconds_max: float = RECOVERY_SECONDS_MAX
    ) -> None:
        self._recovery_seconds_max = recovery_seconds_max
        self._cluster = cluster
        self._folder = folder
        self._source = folder / "source"
        self._classes = folder / "classes"
        self.figures = Figures()
        generate(self._source, BATCHES, _ROWS, seed)
        reference = replace(self._settings("undisturbed", asynchronous=False), leaves_classes=True)
        outcome = Story(cluster, reference, [], seed).run()
        if outcome.hangs or outcome.failures or outcome.regrouped:
            raise RuntimeError(f"the undisturbed run failed: {outcome}, see {reference.story}")
        self.expected = Results.read(Path(reference.story))

    def tell(self, name: str, drawn: Draw) -> tuple[Outcome, Difference | None]:
        """Run one story and compare; its folder stays only if it went wrong."""
        settings = self._settings(name, drawn.asynchronous, drawn.speculation, drawn.queries)
        faults = [planned for _, planned in drawn.faults]
        outcome = Story(self._cluster, settings, faults, drawn.seed, self._recovery_seconds_max).run()
        folder = Path(settings.story)
        ended = not outcome.hangs and not outcome.regrouped
        found = difference(self.expected, Results.read(folder)) if ended else None
        self.figures.add(drawn, outcome, found, folder)
        if ended and not found:
            shutil.rmtree(folder)
        return outcome, found

    def run(self, rounds: int, seed: int, told: Callable[[Draw], None] = lambda drawn: None) -> Figures:
        """Stories until ``rounds`` faults were drawn; ``told`` is called after each."""
        for number, drawn in enumerate(draw(rounds, seed)):
            self.tell(f"story-{number:04d}", drawn)
            told(drawn)
        return self.figures

    def close(self) -> None:
        """Remove what only speeds it up; folders of stories that went wrong stay."""
        shutil.rmtree(self._classes, ignore_errors=True)

    def _settings(
        self, name: str, asynchronous: bool, speculation: bool = False, queries: int = 1
    ) -> Settings:
        folder = self._folder / name
        folder.mkdir()
        return Settings(
            self._cluster.master,
            str(self._source),
            str(self._classes),
            str(folder),
            BATCHES,
            asynchronous,
            speculation,
            queries,
        )
