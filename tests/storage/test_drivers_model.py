"""Drivers that race for one checkpoint: every request of theirs to the store is a step of its own.

A step is one operation on the files. Between any two of them any other driver may go on, or one may die, and a
write that a dead driver had under way may still arrive, or never. Generated stories are played over files in memory
and looked at after every step by a reader of its own.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConcurrentJobError
from asyncstate.storage import Checkpoint, CheckpointFiles, Manifest
from tests.examples import at_most

ANSWER_SECONDS_MAX = 30.0
DRIVERS_MAX = 4
KEPT = 2


class MemoryFiles(CheckpointFiles):
    """A store that lists an object as soon as it is written, and knows no conditional write."""

    place = shown = "memory"

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    def put_file(self, local: str | Path, name: str) -> None:
        self.put_bytes(name, Path(local).read_bytes())

    def put_bytes(self, name: str, data: bytes) -> None:
        self.content[name] = data

    def get_file(self, name: str, local: str | Path) -> None:
        Path(local).write_bytes(self.get_bytes(name))

    def get_bytes(self, name: str, start: int = 0, size: int = -1) -> bytes:
        if name not in self.content:
            raise CheckpointCorruptionError(f"checkpoint file {name} is missing")
        content = self.content[name]
        return content[start:] if size < 0 else content[start : start + size]

    def size_bytes(self, name: str) -> int | None:
        return len(self.content[name]) if name in self.content else None

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.content if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self.content.pop(name, None)


class Died(BaseException):
    """The driver's process has ended."""


class SteppedFiles(MemoryFiles):
    """Asks before each operation whether to go on."""

    def __init__(self, content: dict[str, bytes], step: Callable[[tuple[str, bytes] | None], None]) -> None:
        super().__init__(content)
        self._step = step

    def put_bytes(self, name: str, data: bytes) -> None:
        self._step((name, data))
        super().put_bytes(name, data)

    def get_bytes(self, name: str, start: int = 0, size: int = -1) -> bytes:
        self._step(None)
        return super().get_bytes(name, start, size)

    def list(self, prefix: str) -> list[str]:
        self._step(None)
        return super().list(prefix)

    def delete(self, name: str) -> None:
        self._step(None)
        super().delete(name)


class Driver:
    """One driver process: a thread that works while it is stepped, and stands still otherwise."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.checkpoint = Checkpoint(SteppedFiles(content, self._step), wait=lambda attempt: None)
        self.busy = False
        self.under_way: tuple[str, bytes] | None = None
        self.epoch = 0
        """The newest epoch whose claim has succeeded."""
        self._go: queue.Queue[bool] = queue.Queue()
        self._stopped: queue.Queue[tuple[str, Any]] = queue.Queue()

    def start(self, operation: Callable[[], Any]) -> None:
        """Begin an operation; it waits before its first step."""

        def run() -> None:
            try:
                self._stopped.put(("returned", operation()))
            except Died:
                self._stopped.put(("died", None))
            except Exception as error:
                self._stopped.put(("raised", error))

        self.busy = True
        threading.Thread(target=run, daemon=True).start()
        assert self._stopped.get(timeout=ANSWER_SECONDS_MAX)[0] == "waits"

    def advance(self, alive: bool = True) -> tuple[str, Any]:
        """One operation of the store, or death instead; how the driver stands then."""
        self._go.put(alive)
        state, result = self._stopped.get(timeout=ANSWER_SECONDS_MAX)
        self.busy = state == "waits"
        return state, result

    def _step(self, write: tuple[str, bytes] | None) -> None:
        self.under_way = write
        self._stopped.put(("waits", None))
        if not self._go.get(timeout=ANSWER_SECONDS_MAX):
            raise Died


@dataclass
class Work:
    """What a driver is doing. ``batch_id`` and ``token`` of a commit, ``batch_id`` of a rollback."""

    kind: str
    batch_id: int = -1
    token: int = 0


@dataclass
class Model:
    """What has been promised: the last version, by the epoch that promised it."""

    head: tuple[int, int] | None = None
    epoch: int = 0
    claimed: set[int] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)


class DriversMachine(RuleBasedStateMachine):
    """Tokens stand in for content: a manifest's watermark is its token, its processing time that of its base."""

    def __init__(self) -> None:
        super().__init__()
        self.content: dict[str, bytes] = {}
        self.drivers: list[Driver] = []
        self.works: dict[Driver, Work] = {}
        self.late: list[tuple[str, bytes]] = []
        self.model = Model()
        self.begun: list[Work] = []
        """Works that may still change what was promised last: begun since, or under way then."""
        self.tokens = itertools.count(1)
        self.reader = MemoryFiles(self.content)

    # -- the store, as a reader sees it ----------------------------------------------------------

    def seen(self) -> dict[int, Manifest]:
        reader = Checkpoint(self.reader)
        return {version: reader.read(version) for version in reader.versions()}

    def head(self) -> tuple[int, int] | None:
        seen = self.seen()
        return self._of(seen[max(seen)]) if seen else None

    @staticmethod
    def _of(manifest: Manifest) -> tuple[int, int]:
        assert manifest.watermark is not None
        return manifest.batch_id, manifest.watermark

    def newest_view(self) -> list[tuple[int, int]]:
        """The newest version and the one it is based on: what retention always leaves."""
        seen = self.seen()
        newest = seen[max(seen)] if seen else None
        return [self._of(seen[v]) for v in ([newest.batch_id, newest.base] if newest else []) if v in seen]

    # -- what drivers do -------------------------------------------------------------------------

    def idle(self) -> list[Driver]:
        return [driver for driver in self.drivers if not driver.busy]

    def begin(self, driver: Driver, work: Work, operation: Callable[[], Any]) -> None:
        self.works[driver] = work
        self.begun.append(work)
        driver.start(operation)

    @precondition(lambda self: len(self.drivers) < DRIVERS_MAX)
    @rule()
    def claim(self) -> None:
        driver = Driver(self.content)
        self.drivers.append(driver)
        self.begin(driver, Work("claim"), lambda: driver.checkpoint.claim("job"))

    def pick(self, data: st.DataObject, drivers: Iterable[Driver]) -> Driver | None:
        choice = list(drivers)
        return choice[data.draw(st.integers(0, len(choice) - 1))] if choice else None

    @rule(data=st.data(), replay=st.booleans())
    def commit(self, data: st.DataObject, replay: bool) -> None:
        """Drivers go by what they see, as a job does; a fenced one by what it saw before it stood still."""
        driver = self.pick(data, self.idle())
        if driver is None:
            return
        seen = self.seen()
        newest = seen[max(seen)] if seen else None
        if newest is None:
            batch_id, base = 0, None
        elif replay:
            batch_id, base = newest.batch_id, seen.get(newest.base)
        else:
            batch_id, base = newest.batch_id + 1, newest
        token = next(self.tokens)
        base_id = base.batch_id if base else -1
        made = Manifest(
            "job", batch_id, base_id, 8, watermark=token, processing_time=base.watermark if base else 0
        )
        self.begin(driver, Work("commit", batch_id, token), lambda: driver.checkpoint.commit(made))

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        driver = self.pick(data, self.idle())
        versions = sorted(self.seen())
        if driver is not None and versions:
            target = data.draw(st.sampled_from([-1, *versions]))
            self.begin(driver, Work("rollback", target), lambda: driver.checkpoint.rollback(target))

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        driver = self.pick(data, self.idle())
        if driver is not None:
            self.begin(driver, Work("retain"), lambda: driver.checkpoint.retain(KEPT))

    # -- what happens to them --------------------------------------------------------------------

    @rule(data=st.data(), steps=st.integers(1, 12))
    def advance(self, data: st.DataObject, steps: int) -> None:
        driver = self.pick(data, (driver for driver in self.drivers if driver.busy))
        while driver is not None and driver.busy and steps:
            self.one_step(driver)
            steps -= 1

    def one_step(self, driver: Driver) -> None:
        work = self.works[driver]
        fenced = driver.epoch < self.model.epoch and work.kind != "claim"
        before = self.newest_view() if fenced else []
        state, result = driver.advance()
        if fenced:
            assert self.newest_view() == before, f"a fenced driver's {work} was seen"
            assert state != "returned" or work.kind == "retain", f"a fenced driver's {work} succeeded"
        if state == "returned":
            self.settle(driver, work, result)
        elif state == "raised":
            assert isinstance(result, CheckpointError), repr(result)
            if work.kind == "claim":
                assert isinstance(result, ConcurrentJobError), repr(result)
                assert self.rivals(driver), f"a claim failed without a rival: {result!r}"
            if driver.epoch == self.model.epoch and not self.rivals(driver):
                # Its own reading and its own rules may refuse it, as when a replay's base is gone; nobody else does.
                assert not isinstance(result, ConcurrentJobError), repr(result)

    def rivals(self, driver: Driver) -> list[str]:
        """Claims that are newer than the driver's own."""
        newer = (name for name in self.content if name.startswith("owners/") and "claim" in name)
        return [name for name in newer if int(name[7:17]) > driver.checkpoint.epoch]

    def settle(self, driver: Driver, work: Work, result: Any) -> None:
        if work.kind == "claim":
            assert result not in self.model.claimed, "two drivers got one epoch"
            self.model.claimed.add(result)
            driver.epoch = result
            self.model.epoch = max(self.model.epoch, result)
            self.model.ids.add(driver.checkpoint.start.checkpoint_id)
            assert len(self.model.ids) == 1, "targets know a checkpoint by one id"
        elif work.kind == "commit":
            assert self.head() == (work.batch_id, work.token), "a commit that succeeded is the newest version"
            self.promise()
        elif work.kind == "rollback":
            driver.epoch = driver.checkpoint.epoch
            assert driver.epoch not in self.model.claimed, "two drivers got one epoch"
            self.model.claimed.add(driver.epoch)
            self.model.epoch = max(self.model.epoch, driver.epoch)
            head = self.head()
            assert (head[0] if head else -1) == work.batch_id, "a rollback that succeeded is what is seen"
            self.promise()

    def promise(self) -> None:
        """What is seen now was reported to a driver as done."""
        self.model.head = self.head()
        self.begun = [self.works[driver] for driver in self.drivers if driver.busy]

    @rule(data=st.data(), arrives=st.booleans())
    def die(self, data: st.DataObject, arrives: bool) -> None:
        driver = self.pick(data, (driver for driver in self.drivers if driver.busy))
        if driver is None:
            return
        if driver.under_way is not None and arrives:
            self.late.append(driver.under_way)
        assert driver.advance(alive=False)[0] == "died"
        self.drivers.remove(driver)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A write of a dead driver reaches the store."""
        name, content = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        self.content[name] = content

    @invariant()
    def a_version_stands_on_what_it_was_computed_from(self) -> None:
        seen = self.seen()
        for manifest in seen.values():
            if manifest.base in seen:
                assert seen[manifest.base].watermark == manifest.processing_time

    @invariant()
    def what_was_promised_is_there(self) -> None:
        """Unless somebody rolls back or replays it: that may have been done without having been answered."""
        if self.model.head is None:
            return
        batch_id, token = self.model.head
        undone = any(w.kind == "rollback" and w.batch_id < batch_id for w in self.begun)
        replayed = {w.token for w in self.begun if w.kind == "commit" and w.batch_id == batch_id}
        seen = self.seen()
        if undone or any(version > batch_id + KEPT for version in seen):
            return
        newest = max(seen, default=-1)
        assert newest >= batch_id
        if batch_id in seen:
            assert seen[batch_id].watermark in {token, *replayed}

    def teardown(self) -> None:
        for driver in self.drivers:
            if driver.busy:
                driver.advance(alive=False)


class TestDrivers(DriversMachine.TestCase):  # type: ignore[misc]
    """A few stories, each time others."""

    settings = settings(max_examples=at_most(40), stateful_step_count=30)


@pytest.mark.slow
class TestManyDrivers(DriversMachine.TestCase):  # type: ignore[misc]
    """Thousands of longer ones."""

    settings = settings(max_examples=3_000, stateful_step_count=60)
