"""A job lives through its story, beside a model that says what its sinks must hold.

Owns: ``live``, which raises ``Finding`` at the first difference; ``shrunk``, the smallest story that still has one.
Invariant: the model moves once for each micro-batch, when the job has committed it.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections import Counter
from collections.abc import Callable

from asyncstate.errors import ConcurrentJobError
from tests.simulation.catalogue import KINDS, MIN_TIME, SECOND, Model, Table, Times, add
from tests.simulation.faults import Crash, failing_task, full_disk, hooked
from tests.simulation.story import (
    Batch,
    Change,
    Finish,
    MoveClock,
    Program,
    Restart,
    Story,
    WipeLocal,
    edges_of,
    smaller,
)
from tests.simulation.world import Process, World

MAX_TIME = 2**63 - 1
Changes = tuple[Change, ...]
_ATTEMPTS_MAX = 4
"""How often Spark starts a query again whose micro-batch fails."""


class Finding(AssertionError):  # noqa: N818
    """The job is not what its model says."""


class Expected:
    """The model of a job: what its watermark is, and what each of its sinks must have been given."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.logs: dict[str, dict[int, Table]] = {}
        self.tables: dict[str, Table] = {}
        self.watermark = MIN_TIME
        self._seen: dict[str, int] = {}
        self._models: dict[str, Model] = {}
        self.change(program)

    def change(self, program: Program) -> None:
        """The job goes on as another program."""
        self.program = program
        edges = edges_of(program)
        uids = {node.uid for node in program.nodes}
        self._models = {uid: model for uid, model in self._models.items() if uid in uids}
        for node in program.nodes:
            if node.uid not in self._models:
                self._models[node.uid] = KINDS[node.kind].new(
                    node.number, [edges[one] for one in node.inputs]
                )
        declared = {source.name for source in program.sources}
        self._seen = {name: time for name, time in self._seen.items() if name in declared}
        sinks = {sink.name for sink in program.sinks}
        self.tables = {name: table for name, table in self.tables.items() if name in sinks}

    def run(self, batch_id: int, rows: dict[str, tuple[Change, ...]], final: bool = False) -> None:
        """A micro-batch has been committed."""
        passed, watermark = self.watermark, MAX_TIME if final else self._next_watermark()
        changes: dict[str, Table] = {}
        for source in self.program.sources:
            change = changes[source.name] = Counter()
            for kind, row in rows.get(source.name, ()):
                change[row] += 1 if kind in ("+I", "+U") else -1
            changes[source.name] = Counter({row: number for row, number in change.items() if number})
        for node in self.program.nodes:
            given = [changes[one] for one in node.inputs]
            changes[node.uid] = self._models[node.uid].step(given, Times(watermark, passed))
        for sink in self.program.sinks:
            if sink.kind == "log":
                self.logs.setdefault(sink.name, {})[batch_id] = changes[sink.of]
            else:
                add(self.tables.setdefault(sink.name, Counter()), changes[sink.of])
        self.watermark = watermark
        for source in self.program.sources:
            times = [row[3] for _, row in rows.get(source.name, ())]
            if times and source.delay_seconds is not None:
                reached = max(times) - source.delay_seconds * SECOND
                self._seen[source.name] = max(reached, self._seen.get(source.name, MIN_TIME))

    def _next_watermark(self) -> int:
        declared = [source.name for source in self.program.sources if source.delay_seconds is not None]
        reached = min((self._seen.get(name, MIN_TIME) for name in declared), default=MIN_TIME)
        return max(self.watermark, reached)


class _Life:
    """One run of a story."""

    def __init__(self, story: Story, world: World) -> None:
        self._world = world
        self._program = story.program
        self._settings = story.settings
        self._expected = Expected(story.program)
        self._process: Process | None = None
        self._batch_id = 0
        self._acts = story.acts

    def run(self) -> None:
        """All acts. Raises Finding."""
        for act in self._acts:
            if isinstance(act, Batch):
                self._micro_batch(act)
            elif isinstance(act, Restart):
                self._end(died=False)
                self._program, self._settings = act.program, act.settings
                self._expected.change(act.program)
            elif isinstance(act, WipeLocal):
                self._wipe(act)
            elif isinstance(act, MoveClock):
                self._world.clock.move(act.seconds)
            elif isinstance(act, Finish):
                self._run_batch({}, True)
                self._expected.run(self._batch_id, {}, True)
                self._compare()
        self._end(died=False)

    def _wipe(self, act: WipeLocal) -> None:
        if not act.while_running:
            self._end(died=False)
        shutil.rmtree(self._world.local, ignore_errors=True)

    def _micro_batch(self, act: Batch) -> None:
        steps = self._world.steps
        actions: dict[str, Callable[[], None] | None] = {
            "": None,
            "crash": steps.die,
            "disk": full_disk,
            "task": failing_task,
            "driver": lambda: self._another_driver(act.rows),
        }
        steps.plan(act.step, actions[act.fault])
        self._intruder: Process | None = None
        for attempt in range(_ATTEMPTS_MAX):
            try:
                self._run_batch(act.rows, False)
                break
            except Crash:
                self._end(died=True)
            except ConcurrentJobError:
                if self._intruder is None:
                    raise Finding("the job says that another driver has taken over, but none has") from None
            except Exception as error:
                if not steps.happened or attempt == _ATTEMPTS_MAX - 1:
                    raise Finding(
                        f"micro-batch {self._batch_id} failed: {type(error).__name__}: {error}"
                    ) from error
                self._end(died=False)
            steps.plan(0, None)
            if self._intruder is not None:
                self._end(died=False)
                self._process = self._intruder
                break
        else:
            raise Finding(f"micro-batch {self._batch_id} did not come through in {_ATTEMPTS_MAX} attempts")
        if self._intruder is not None and self._process is not self._intruder:
            # The first driver has taken the job over from the other one, after that had done it all.
            self._intruder.close()
        steps.plan(0, None)
        self._expected.run(self._batch_id, act.rows)
        self._compare()
        self._batch_id += 1

    def _another_driver(self, rows: dict[str, tuple[Change, ...]]) -> None:
        """The cluster starts the job a second time while the first still runs; it reads the same micro-batch."""
        first = self._process
        self._process = None
        self._intruder = self._started()
        self._intruder.run(self._batch_id, rows)
        self._process = first

    def _run_batch(self, rows: dict[str, tuple[Change, ...]], final: bool) -> None:
        process = self._started()
        process.run(self._batch_id, rows, final)
        self._world.steps.reached("before Spark's own commit")

    def _started(self) -> Process:
        if self._process is None:
            self._process = Process(self._world, self._program, self._settings)
        return self._process

    def _end(self, died: bool) -> None:
        process, self._process = self._process, None
        if died:
            self._world.steps.plan(0, None)
        if process is not None:
            process.died() if died else process.close()

    def _compare(self) -> None:
        for name, batches in self._expected.logs.items():
            found = self._world.logs.get(name, {}).get(self._batch_id, Counter())
            wanted = batches.get(self._batch_id, Counter())
            if found != wanted:
                raise Finding(
                    f"micro-batch {self._batch_id}, sink '{name}': missing {_text(wanted - found, found - wanted)}"
                )
        for name, table in self._expected.tables.items():
            rows = self._world.table(name)
            if rows != table:
                raise Finding(
                    f"after micro-batch {self._batch_id}, table '{name}' lacks {dict(table - rows)} and has "
                    f"{dict(rows - table)} instead"
                )


def _text(missing: Table, more: Table) -> str:
    return f"{dict(missing)}, too many {dict(more)}"


def live(story: Story) -> None:
    """Run a story. Raises Finding where the job differs from its model, or fails without reason."""
    world = World()
    try:
        gc.freeze()  # what is there by now is none of a process that dies: it need not be looked through
        with hooked(world.steps, str(world.folder)):
            _Life(story, world).run()
    finally:
        world.close()


def problem_of(story: Story) -> str | None:
    """What is wrong in the life of a story; None if nothing is."""
    try:
        live(story)
    except Finding as finding:
        return str(finding)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(story: Story, seconds: float) -> Story:
    """The smallest story found within the time that still has a problem."""
    deadline = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for less in smaller(story):
            if time.monotonic() > deadline:
                return story
            if _is_sound(less) and problem_of(less) is not None:
                story, again = less, True
                break
    return story


def _is_sound(story: Story) -> bool:
    """Whether a story still says something: a program with a sink, and acts."""
    programs = [story.program, *(act.program for act in story.acts if isinstance(act, Restart))]
    has_all = bool(story.acts) and all(program.sinks and program.sources for program in programs)
    return has_all and all(_is_history(story, source.name) for source in story.program.sources)


def _is_history(story: Story, source: str) -> bool:
    """Whether nothing goes from a table that is not there."""
    table: Table = Counter()
    for act in story.acts:
        if isinstance(act, Batch):
            for kind, row in act.rows.get(source, ()):
                table[row] += 1 if kind in ("+I", "+U") else -1
            if any(number not in (0, 1) for number in table.values()):
                return False
            ids = Counter(row[0] for row in table.elements())
            if any(number > 1 for number in ids.values()):
                return False
    return True
