"""One story: a run of the query under faults, started again until it is done, and what came of it.

Owns: ``Story`` and ``Outcome``: restarts, faults from outside, damage to checkpoint files and the way back, recovery
times and the deadline of each. Invariant: it does what an operator who follows the error messages would do, no more.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from asyncstate.storage import Checkpoint, LocalFiles
from tests.cluster.cluster import Cluster, kill, kill_group, python_environment, spawn
from tests.cluster.driver import DONE, REGROUPED, Settings
from tests.cluster.points import Fault, Plan

RECOVERY_SECONDS_MAX = 120.0
_STARTS_A_FAULT = 4  # a fault ends at most a few lives of the driver; one that fails for ever is a hang
DAMAGED_FILES = ("delta", "snapshot", "manifest")
_DAMAGES = ("flip", "cut", "missing")
_WAY_BACK = re.compile(r"newest older version whose files are all present is (\d+): roll back to it")


@dataclass
class Outcome:
    """What a story came to. ``recovery_s``: from each fault to the next commit of its micro-batch or a later one."""

    recovery_s: dict[int, float] = field(default_factory=dict)
    hangs: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    starts: int = 0
    rollbacks: list[int] = field(default_factory=list)
    regrouped: bool = False


class Story:
    """Runs to the end or to a hang; afterwards the folder holds checkpoint and sink."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        faults: list[Fault],
        seed: int,
        recovery_seconds_max: float = RECOVERY_SECONDS_MAX,
    ) -> None:
        self._cluster = cluster
        self._recovery_seconds_max = recovery_seconds_max
        self._settings = settings
        self._random = random.Random(seed)
        self._folder = Path(settings.story)
        self.plan = Plan.write(self._folder, faults)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """The query from its start to its finish."""
        while not self.outcome.hangs and not self.outcome.regrouped:
            code = self._run_driver()
            if code == DONE:
                break
            if self.outcome.starts > _STARTS_A_FAULT * (len(self.plan.faults) + 1):
                self.outcome.hangs.append(self._waiting())
            if code == REGROUPED:
                self.outcome.regrouped = True
            self._repair()
            self._damage()
        self._account()
        return self.outcome

    # -- one life of the driver

    def _run_driver(self) -> int | None:
        """Its exit code, None if it had to be killed."""
        (self._folder / "failure.json").unlink(missing_ok=True)
        self.outcome.starts += 1
        command = [
            *(python_environment()["PYSPARK_PYTHON"], "-m", "tests.cluster.driver"),
            str(self._settings.write()),
        ]
        process = spawn(command, self._folder / "driver.log", python_environment())
        started = time.time()
        try:
            while process.poll() is None:
                self._outside(process.pid)
                last = max([started, *(event["at"] for event in self.plan.events())])
                if time.time() - last > self._recovery_seconds_max:
                    self.outcome.hangs.append(self._waiting())
                    return None
                time.sleep(0.02)
            return process.returncode
        finally:
            kill_group(process)

    def _waiting(self) -> int:
        """The fault that has happened and whose micro-batch has not been committed since; -1: none."""
        self._account()
        happened = [fault.number for fault in self.plan.faults if self.plan.happened_at(fault) is not None]
        return next((number for number in reversed(happened) if number not in self.outcome.recovery_s), -1)

    def _outside(self, driver: int) -> None:
        """Faults at a moment that no process of the query chose: a time after its micro-batch began."""
        starts = {event["batch"]: event["at"] for event in self.plan.events() if event["event"] == "start"}
        for fault in self.plan.faults:
            begun = starts.get(fault.batch_id)
            due = fault.point == "outside" and begun is not None and time.time() >= begun + fault.delay_s
            if due and self.plan.happened_at(fault) is None:
                victims = self._victims(fault.action, driver)
                if victims and self.plan.take(fault):
                    self._kill(sorted(victims)[fault.number % len(victims)], driver)

    def _kill(self, victim: int, driver: int) -> None:
        if victim == driver:
            os.killpg(driver, signal.SIGKILL)  # with its JVM
        else:
            kill(victim)

    def _victims(self, action: str, driver: int) -> list[int]:
        if action == "kill driver":
            return [driver]
        return self._cluster.executors() if action == "kill executor" else self._cluster.python_workers()

    # -- between two lives

    def _damage(self) -> None:
        """For a fault "damage" that is due: one file of the checkpoint, and the local stores with it."""
        for fault in self.plan.faults:
            if (
                fault.action != "kill driver"
                or fault.point != "after manifest"
                or fault.uid not in DAMAGED_FILES
            ):
                continue
            taken = self.plan.happened_at(fault) is not None
            marker = self._folder / f"damaged-{fault.number}"
            if not taken or marker.exists():
                continue
            marker.touch()
            shutil.rmtree(self._folder / "local", ignore_errors=True)
            target = self._target(fault.uid)
            if target is not None:
                how = _DAMAGES[fault.number % len(_DAMAGES)]
                marker.write_text(f"{how} {target.relative_to(self._folder)}")
                _spoil(target, how)

    def _target(self, what: str) -> Path | None:
        files = LocalFiles(self._folder / "checkpoint")
        latest = Checkpoint(files).latest()
        assert latest is not None, "a manifest was just committed"
        if what == "manifest":
            return max((files.root / "manifests").iterdir(), key=lambda path: path.stat().st_mtime)
        names = sorted(ref.name for ref in latest.files() if (what == "snapshot") == ("/snap/" in ref.name))
        return files.root / self._random.choice(names) if names else None

    def _repair(self) -> None:
        """Follow the way back that the last failure names, if it names one."""
        path = self._folder / "failure.json"
        if not path.exists():
            return
        failure = json.loads(path.read_text())
        self.outcome.failures.append(f"{failure['type']}: {failure['message'].splitlines()[0][:500]}")
        if failure["type"] != "CheckpointCorruptionError":
            return
        found = _WAY_BACK.search(failure["message"])
        version = int(found.group(1)) if found else -1
        self.outcome.rollbacks.append(version)
        if version < 0:
            for name in ("checkpoint", "query"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
        else:
            roll_back(self._folder / "checkpoint", self._folder / "query", version)

    # -- figures

    def _account(self) -> None:
        commits = [event for event in self.plan.events() if event["event"] == "commit"]
        self.outcome.missed = []
        for fault in self.plan.faults:
            at = self.plan.happened_at(fault)
            if at is None:
                self.outcome.missed.append(fault.number)
                continue
            after = [c["at"] for c in commits if c["at"] >= at and c["batch"] >= fault.batch_id]
            if after:
                self.outcome.recovery_s[fault.number] = after[0] - at


def roll_back(checkpoint: Path, query: Path, version: int) -> None:
    """Take the state back to ``version`` and Spark's own checkpoint with it, so that later batches are run again.

    The batch after ``version`` keeps its offsets, so that it will have the rows it had.
    """
    command = [
        sys.executable,
        "-m",
        "asyncstate",
        "state",
        "rollback",
        str(checkpoint),
        str(version),
        "--spark-checkpoint",
        str(query),
        "--yes",
    ]
    subprocess.run(command, check=True, cwd=Path(__file__).resolve().parents[2], timeout=120)


def _spoil(path: Path, how: str) -> None:
    """Damage a checkpoint file; local stores may be hard links to it, so it is written anew."""
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "missing":
        return
    if how == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 0x55
    path.write_bytes(data)
