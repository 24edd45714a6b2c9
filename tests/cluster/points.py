"""Points of a run at which a planned fault happens, in the process that reaches them.

Owns: ``Fault``, the plan file of a story, and the hooks that tell which point is reached. The hooks are laid over
the product's functions in the test's own processes; the product knows nothing of them.
Invariant: each fault happens at most once, over all processes and restarts; when it does, a file says so and when.
Must not import pyspark: Python workers import this module.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec
from asyncstate.runtime.partition.task import run_partitions
from asyncstate.storage import Checkpoint, LocalFiles, files
from tests.cluster.cluster import command_line, executors_of, kill

TASK_POINTS = ("task start", "before upload", "after upload", "task end")
DRIVER_POINTS = (
    "before claim",
    "after claim",
    "before stage",
    "between stages",
    "before sink",
    "in sink",
    "after sink",
    "after manifest",
    "in retention",
    "after batch",
)
_SLOW_SECONDS_MAX = 20.0
_hooks = ExitStack()
"""Those that are laid for the rest of this process."""


class InjectedError(Exception):
    """What a fault of action ``raise`` raises."""


@dataclass(frozen=True)
class Fault:
    """What happens where: ``action`` at ``point`` of ``batch_id``.

    ``partition`` of the operator ``uid`` for the points of tasks. A fault at the point "outside" is done by the
    supervisor, ``delay_s`` after the batch has started.
    """

    number: int
    action: str
    point: str
    batch_id: int
    uid: str = ""
    partition: int = 0
    delay_s: float = 0.0

    @property
    def in_task(self) -> bool:
        return self.point in TASK_POINTS


class Plan:
    """The faults of one story and what became of them, in a folder that all its processes reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        text = (folder / "plan.json").read_text("utf-8")
        self.faults = [Fault(**fault) for fault in json.loads(text)]

    @staticmethod
    def write(folder: Path, faults: list[Fault]) -> Plan:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps([asdict(fault) for fault in faults]))
        return Plan(folder)

    def take(self, fault: Fault) -> bool:
        """Whether it has not happened yet; from now on it has. Only one caller hears True."""
        try:
            marker = os.open(self._marker(fault), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(marker, json.dumps(time.time()).encode())
        os.close(marker)
        return True

    def happened_at(self, fault: Fault) -> float | None:
        """Seconds since the epoch, None as long as it has not happened."""
        try:
            return float(self._marker(fault).read_text() or "nan")
        except FileNotFoundError:
            return None

    def note(self, event: str, batch_id: int) -> None:
        """Add a line to the story's events."""
        with open(self.folder / "events.jsonl", "a") as log:
            log.write(json.dumps({"event": event, "batch": batch_id, "at": time.time()}) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """The story's events so far; the line a process died in is left out."""
        path = self.folder / "events.jsonl"
        lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def reached(self, point: str, batch_id: int, uid: str = "", partition: int = 0) -> None:
        """Let the faults planned for this point happen."""
        for fault in self.faults:
            here = (fault.point, fault.batch_id) == (point, batch_id)
            if here and (not fault.in_task or (fault.uid, fault.partition) == (uid, partition)):
                if self.take(fault):
                    self._act(fault)
                elif fault.action == "slow":
                    (self.folder / f"second-{fault.number}").touch()

    def _marker(self, fault: Fault) -> Path:
        return self.folder / f"happened-{fault.number}"

    def _act(self, fault: Fault) -> None:
        if fault.action == "raise":
            raise InjectedError(f"fault {fault.number} at '{fault.point}'")
        if fault.action == "disk full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault.action == "slow":
            self._wait_for_second_attempt(fault)
        if fault.action == "kill worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.action == "kill executor":
            kill(_executor_above(os.getpid()) if fault.in_task else _some_executor(fault.number))
        if fault.action == "kill driver":
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def _wait_for_second_attempt(self, fault: Fault) -> None:
        deadline = time.monotonic() + _SLOW_SECONDS_MAX
        while not (self.folder / f"second-{fault.number}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def _executor_above(pid: int) -> int:
    while pid > 1 and "CoarseGrainedExecutorBackend" not in command_line(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert pid > 1, "a Python worker stands below its executor"
    return pid


def _some_executor(number: int) -> int:
    found = sorted(executors_of((Path(os.environ["CLUSTER_STORY"]) / "application").read_text()))
    assert found, "the application has an executor"
    return found[number % len(found)]


@dataclass(frozen=True)
class PlannedRun:
    """``run_partitions`` with the faults of a plan: what a job is given as ``run``."""

    story: str

    def __call__(
        self, spec: TaskSpec, partitions: range, batches: Iterator[InputBatch]
    ) -> Iterator[pa.RecordBatch | CommitRecord]:
        plan = Plan(Path(self.story))
        reached = functools.partial(
            plan.reached, batch_id=spec.batch_id, uid=spec.uid, partition=partitions[0]
        )
        reached("task start")

        def written(when: str, name: str) -> None:
            if "/delta-" in name:
                reached(f"{when} upload")

        with _writes(written):
            for out in run_partitions(spec, partitions, batches):
                if isinstance(out, CommitRecord):
                    reached("task end")
                yield out


@contextmanager
def _writes(reached: Callable[[str, str], None]) -> Iterator[None]:
    """Inside, each write of a checkpoint file is told of, ``reached("before", name)`` and ``reached("after", name)``:
    within its own error handling, as a full disk is."""
    original = LocalFiles._written

    @contextmanager
    def hooked(self: LocalFiles, name: str) -> Iterator[BinaryIO]:
        with files._explained("write", name, missing_is_damage=False):
            with original(self, name) as file:
                reached("before", name)
                yield file
            reached("after", name)

    LocalFiles._written = hooked  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalFiles._written = original  # type: ignore[method-assign]


def hook_driver(plan: Plan) -> None:
    """Lay the points of the driver over its ledger and its checkpoint, for the rest of this process."""
    from asyncstate.driver.commit_log import CommitLog

    running = [-1]
    base_of, commit, delete = CommitLog.base_of, Checkpoint.commit, LocalFiles.delete

    def hooked_base_of(self: CommitLog, batch_id: int) -> Any:
        running[0] = batch_id
        plan.note("start", batch_id)
        plan.reached("before claim", batch_id)
        base = base_of(self, batch_id)
        plan.reached("after claim", batch_id)
        return base

    def hooked_commit(self: Checkpoint, manifest: Any) -> None:
        commit(self, manifest)
        plan.note("commit", manifest.batch_id)
        plan.reached("after manifest", manifest.batch_id)

    def hooked_delete(self: LocalFiles, name: str) -> None:
        delete(self, name)
        if not name.startswith("owners/"):
            plan.reached("in retention", running[0])

    def written(when: str, name: str) -> None:
        if when == "before" and name.startswith("manifests/"):
            plan.reached("manifest write", running[0])

    CommitLog.base_of = hooked_base_of  # type: ignore[method-assign]
    Checkpoint.commit = hooked_commit  # type: ignore[method-assign]
    LocalFiles.delete = hooked_delete  # type: ignore[method-assign]
    _hooks.enter_context(_writes(written))
