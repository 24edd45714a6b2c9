"""A job lives through its story, beside a model that says what its sinks must hold.

Owns: ``live``, which raises ``Finding`` at the first difference; ``shrunk``, the smallest story that still has one.
Invariant: the model moves once for each micro-batch, when the job has committed it.
"""

from __future__ import annotations

import gc
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable

from asyncstate.errors import ConcurrentJobError, JobError
from asyncstate.testing import net
from tests.simulation.catalogue import KINDS, MIN_TIME, SECOND, Model, Row, Table, Times, add, difference
from tests.simulation.faults import Crash, failing_task, full_disk, hooked
from tests.simulation.story import (
    Batch,
    Change,
    Finish,
    Mistake,
    MoveClock,
    Program,
    Restart,
    Settings,
    SourceDecl,
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
        self.with_state: set[str] = set()
        """The uids of operators that have state in the checkpoint."""
        self._reached: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self._idle: set[str] = set()
        self._processing_time = MIN_TIME
        self._models: dict[str, Model] = {}
        self._upserted: dict[str, dict[int, Row]] = {}
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
        sinks = {sink.name for sink in program.sinks}
        self.tables = {name: table for name, table in self.tables.items() if name in sinks}

    def run(
        self, batch_id: int, rows: dict[str, Changes], now: int, is_first_of_driver: bool, final: bool = False
    ) -> None:
        """A micro-batch has been committed, which began when the driver's clock was at ``now``."""
        self.with_state = {node.uid for node in self.program.nodes if KINDS[node.kind].has_state}
        passed, watermark = self.watermark, MAX_TIME if final else self._next_watermark()
        changes: dict[str, Table] = {}
        for source in self.program.sources:
            changes[source.name] = self._change_of(source, rows.get(source.name, ()))
        for node in self.program.nodes:
            given = [changes[one] for one in node.inputs]
            changes[node.uid] = self._models[node.uid].step(given, Times(watermark, passed))
        for sink in self.program.sinks:
            if sink.kind == "log":
                self.logs.setdefault(sink.name, {})[batch_id] = changes[sink.of]
            else:
                add(self.tables.setdefault(sink.name, Counter()), changes[sink.of])
        self.watermark = watermark
        self._observe(rows, now, is_first_of_driver)

    def _observe(self, rows: dict[str, Changes], now: int, is_first_of_driver: bool) -> None:
        """What the next micro-batch's watermark follows from."""
        before, self._processing_time = self._processing_time, max(now, self._processing_time)
        # The time in which no driver ran counts from its second micro-batch on.
        known = before if is_first_of_driver and before != MIN_TIME else self._processing_time
        reached, heard, idle = self._reached, self._heard, set()
        self._reached, self._heard = {}, {}
        for source in self.program.sources if self.with_state else ():  # else nothing uses the time
            if source.delay_seconds is None:
                continue
            times = [row[3] for _, row in rows.get(source.name, ())]
            new = max(times) - source.delay_seconds * SECOND if times else MIN_TIME
            self._reached[source.name] = max(new, reached.get(source.name, MIN_TIME))
            if source.idle_seconds is not None:
                last = self._processing_time if times else heard.get(source.name, self._processing_time)
                self._heard[source.name] = last
                if known - last >= source.idle_seconds * SECOND:
                    idle.add(source.name)
        self._idle = idle

    def _change_of(self, source: SourceDecl, read: Changes) -> Table:
        """The net change of a source."""
        if source.kind != "upserts":
            return net((kind, *row) for kind, row in read)
        table = self._upserted.setdefault(source.name, {})
        before = Counter(table.values())
        for kind, row in sorted(read, key=lambda one: one[1][3]):
            if kind == "-D":
                table.pop(row[0], None)
            else:
                table[row[0]] = row
        return difference(Counter(table.values()), before)

    def _next_watermark(self) -> int:
        awake = [reached for name, reached in self._reached.items() if name not in self._idle]
        return max(self.watermark, min(awake, default=MIN_TIME))


class _Life:
    """One run of a story."""

    def __init__(self, story: Story, world: World) -> None:
        self._world = world
        self._program = story.program
        self._settings = story.settings
        self._expected = Expected(story.program)
        self._process: Process | None = None
        self._drops_unclaimed = False
        self._was_taken_over = False
        """Another driver started after this one had committed its last micro-batch: the next one says so."""
        self._batch_id = 0
        self._acts = story.acts

    def run(self) -> None:
        """All acts. Raises Finding."""
        for act in self._acts:
            if isinstance(act, Batch):
                self._micro_batch(act)
            elif isinstance(act, Restart):
                self._end(died=False)
                self._restart(act)
            elif isinstance(act, Mistake):
                self._mistake(act)
            elif isinstance(act, WipeLocal):
                self._wipe(act)
            elif isinstance(act, MoveClock):
                self._world.clock.move(act.seconds)
            elif isinstance(act, Finish):
                if self._was_taken_over:
                    self._end(died=False)
                self._run_batch({}, True)
                self._expected.run(self._batch_id, {}, self._world.clock.now_us(), False, True)
                self._compare()
        self._end(died=False)

    def _restart(self, act: Restart) -> None:
        gone = self._expected.with_state - {node.uid for node in act.program.nodes}
        if gone:
            self._check_refused(act.program, act.settings, "unclaimed_state")
        self._drops_unclaimed = bool(gone)
        self._program, self._settings = act.program, act.settings
        self._expected.change(act.program)

    def _mistake(self, act: Mistake) -> None:
        """A program whose operator means something else is refused, and the job goes on as it was."""
        if act.uid in self._expected.with_state:
            self._end(died=False)
            self._check_refused(act.program, self._settings, f"'{act.uid}'")

    def _check_refused(self, program: Program, settings: Settings, reason: str) -> None:
        """A program that cannot go on from what is stored is refused before it reads a row."""
        try:
            process = Process(self._world, program, settings)
        except JobError as error:
            if reason not in str(error):
                raise Finding(f"refused for another reason than {reason}: {error}") from error
        else:
            process.close()
            raise Finding(f"a program that should be refused ({reason}) starts")

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
                if self._was_taken_over:
                    self._end(died=False)
                    continue
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
            # The first driver has taken the job over from the other one, after that had done it all; or it had
            # committed before the other one came.
            self._intruder.close()
            self._was_taken_over = True
        steps.plan(0, None)
        assert self._process is not None
        is_first = self._process.batches == 1
        self._expected.run(self._batch_id, act.rows, self._world.clock.now_us(), is_first)
        self._compare()
        self._batch_id += 1

    def _another_driver(self, rows: dict[str, tuple[Change, ...]]) -> None:
        """The cluster starts the job a second time while the first still runs; it reads the same micro-batch."""
        first, self._process = self._process, None
        try:
            self._intruder = self._started()
            self._intruder.run(self._batch_id, rows)
        finally:  # the first one must be ended, else nobody answers requests for its stores
            self._process = first

    def _run_batch(self, rows: dict[str, tuple[Change, ...]], final: bool) -> None:
        process = self._started()
        process.run(self._batch_id, rows, final)
        self._world.steps.reached("before Spark's own commit")

    def _started(self) -> Process:
        if self._process is None:
            self._process = Process(self._world, self._program, self._settings, self._drops_unclaimed)
        return self._process

    def _end(self, died: bool) -> None:
        process, self._process = self._process, None
        self._was_taken_over = False
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
    """The smallest story found within the time that still has a problem of the same kind."""
    deadline = time.monotonic() + seconds
    kind = _kind(problem_of(story))
    again = True
    while again:
        again = False
        for less in smaller(story):
            if time.monotonic() > deadline:
                return story
            if _is_sound(less) and _kind(problem_of(less)) == kind:
                story, again = less, True
                break
    return story


def _kind(problem: str | None) -> str | None:
    """The class of an error that a problem names, "" if it names none. Cuts can leave a program that is refused: that
    is no smaller case of rows that differ."""
    if problem is None:
        return None
    found = re.search(r"\w+(Error|Exception)\b", problem)
    return found[0] if found else ""


def _is_sound(story: Story) -> bool:
    """Whether a story still says something: a program with a sink, and acts."""
    programs = [story.program, *(act.program for act in story.acts if isinstance(act, Restart))]
    has_all = bool(story.acts) and all(program.sinks and program.sources for program in programs)
    return has_all and all(_is_history(story, source) for source in story.program.sources)


def _is_history(story: Story, source: SourceDecl) -> bool:
    """Whether nothing goes from a table that is not there."""
    if source.kind == "upserts":
        return True
    table: Table = Counter()
    for act in story.acts:
        if isinstance(act, Batch):
            table.update(net((kind, *row) for kind, row in act.rows.get(source.name, ())))
            if any(number not in (0, 1) for number in table.values()):
                return False
            ids = Counter(row[0] for row in table.elements())
            if any(number > 1 for number in ids.values()):
                return False
    return True
