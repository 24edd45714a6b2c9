"""The measurements of the slow-disk benchmark, each in a process of its own.

Owns: ``Device``, ``DEVICES``, ``Plan``, ``SlowDiskResult`` and ``run``.
Invariant: sync and async of one result start from the same state and read with the same caches and latency.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from asyncstate.errors import AsyncStateError
from bench.slowdisk import shim
from bench.slowdisk.child import Measured, Task
from bench.slowdisk.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
_RECORD_US = 60.0  # about what a record costs in sync mode beside the added latency
_WARM_UP_SHARE = 10


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What reads meet: memory (``cached``), or the local disk with ``latency_us`` added to each read."""

    name: str
    cached: bool = False
    latency_us: int = 0


DEVICES: dict[str, Device] = {
    "memory": Device(name="memory", cached=True),
    "disk": Device(name="local disk"),
    "0.2ms": Device(name="+ 0.2 ms", latency_us=200),
    "1ms": Device(name="+ 1 ms", latency_us=1_000),
    "5ms": Device(name="+ 5 ms", latency_us=5_000),
}
"""By the name of the command line."""


class SlowDiskResult(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on one device. ``speedup`` is the time of a record in sync mode by that in async mode."""

    workload: str
    title: str
    device: str
    latency_us: int
    sync: Measured
    asynchronous: Measured
    speedup: float

    @property
    def device_us(self) -> float | None:
        """What the device alone would take for a record in async mode: its reads, shared out over the threads."""
        measured = self.asynchronous
        if not self.latency_us or measured.reads_per_record is None or not measured.threads:
            return None
        return measured.reads_per_record * self.latency_us / measured.threads


@dataclass(frozen=True)
class Plan:
    """How much to measure. Sync gets as many records as fit ``sync_seconds``, so that no run takes for ever."""

    state_keys: int
    records: int
    records_min: int
    sync_seconds: float
    rounds: int
    seed: int

    def sync_records(self, device: Device) -> int:
        """Records of a sync micro-batch on ``device``."""
        affordable = int(self.sync_seconds * 1e6 / (device.latency_us + _RECORD_US))
        return max(self.records_min, min(self.records, affordable))


def run(
    workloads: Sequence[str],
    devices: Sequence[str],
    plan: Plan,
    folder: Path,
    library: Path | None,
    tell: Callable[[str], None],
) -> Iterator[SlowDiskResult]:
    """Measure each workload on each device. Without the shim's ``library`` devices with a latency are left out."""
    for workload in workloads:
        tell(f"{WORKLOADS[workload].name}: filling {plan.state_keys:,} keys")
        made = folder / workload
        made.mkdir()
        task = Task(workload=workload, folder=str(made), state_keys=plan.state_keys, seed=plan.seed)
        _start(task, None)
        for name in devices:
            device = DEVICES[name]
            if library is None and device.latency_us:
                continue
            tell(f"{WORKLOADS[workload].name}, {device.name}")
            environment = (
                None if library is None else shim.environment(library, folder.resolve(), device.latency_us)
            )
            yield _compare(workload, device, plan, task, environment)


def _compare(
    workload: str, device: Device, plan: Plan, task: Task, environment: dict[str, str] | None
) -> SlowDiskResult:
    measured = {}
    for asynchronous in (False, True):
        records = plan.records if asynchronous else plan.sync_records(device)
        ready = msgspec.structs.replace(
            task,
            records=records,
            warm_up=plan.state_keys // 4
            if device.cached
            else max(plan.records_min, records // _WARM_UP_SHARE),
            rounds=plan.rounds,
            asynchronous=asynchronous,
            cached=device.cached,
        )
        measured[asynchronous] = msgspec.json.decode(_start(ready, environment), type=Measured)
    return SlowDiskResult(
        workload=workload,
        title=WORKLOADS[workload].name,
        device=device.name,
        latency_us=device.latency_us,
        sync=measured[False],
        asynchronous=measured[True],
        speedup=measured[False].us_per_record / measured[True].us_per_record,
    )


def _start(task: Task, environment: dict[str, str] | None) -> str:
    """Run the child; what it prints. Raises MeasurementError with its last words if it fails."""
    command = [sys.executable, "-m", "bench.slowdisk.child", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MeasurementError(
            f"measuring {task.workload} failed with exit code {done.returncode}; the end of what it said:\n"
            f"{done.stderr[-2000:]}"
        )
    return done.stdout


class MeasurementError(AsyncStateError):
    """A measuring process failed; the text has what it said."""
