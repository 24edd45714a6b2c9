"""The life of a job as plain data: its programs, and what happens to it, in order.

Owns: ``Program`` and its parts, the acts of a ``Story``, and their random choice from a seed.
Invariant: a story says everything that decides its outcome; equal seeds give equal stories.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tests.simulation.catalogue import KINDS, Edge

SECOND: Final = 1_000_000
Row = tuple[int, int, int | None, int]
"""id, key, value, time in microseconds."""
Change = tuple[str, Row]
"""A row kind and a row."""


@dataclass(frozen=True)
class SourceDecl:
    """``kind``: rows that are only added, or the changes of a table whose primary key is the id: of a ``table`` with
    the row before each change, of ``upserts`` without."""

    name: str
    kind: Literal["events", "table", "upserts"]
    delay_seconds: int | None
    idle_seconds: int | None = None


@dataclass(frozen=True)
class NodeDecl:
    """An operator or a step between operators; ``inputs`` are names of sources or uids, ``number`` its parameter."""

    uid: str
    kind: str
    inputs: tuple[str, ...]
    number: int = 0


@dataclass(frozen=True)
class SinkDecl:
    """``log``: a function that keeps the rows of each micro-batch; ``table``: upserts into SQLite by the id."""

    name: str
    of: str
    kind: Literal["log", "table"]


@dataclass(frozen=True)
class Program:
    """A dataflow, in an order in which every input stands before what reads it."""

    sources: tuple[SourceDecl, ...]
    nodes: tuple[NodeDecl, ...]
    sinks: tuple[SinkDecl, ...]


@dataclass(frozen=True)
class Settings:
    """How a process of the job is started."""

    parallelism: int = 1
    async_enabled: bool = False
    bundle_rows: int = 100_000
    snapshot_interval: int = 10


@dataclass(frozen=True)
class Batch:
    """A micro-batch. ``fault`` happens at the ``step``-th step of its run: the process dies (``crash``), the disk is
    full (``disk``), a task fails and is run again (``task``), another driver takes the job over (``driver``)."""

    rows: dict[str, tuple[Change, ...]]
    fault: Literal["", "crash", "disk", "task", "driver"] = ""
    step: int = 0


@dataclass(frozen=True)
class Restart:
    """The job is stopped and started again, maybe as another program or with other settings."""

    program: Program
    settings: Settings
    is_edited: bool = False


@dataclass(frozen=True)
class Mistake:
    """Somebody starts the job as a program whose operator ``uid`` means something else than its state."""

    program: Program
    uid: str


@dataclass(frozen=True)
class WipeLocal:
    """The workers' local folders are deleted; ``while_running``: under the process that uses them."""

    while_running: bool


@dataclass(frozen=True)
class MoveClock:
    """The clock of the driver's machine jumps."""

    seconds: int


@dataclass(frozen=True)
class Finish:
    """The end of the input."""


Act = Batch | Restart | Mistake | WipeLocal | MoveClock | Finish


@dataclass(frozen=True)
class Story:
    """A life: what the job is at first, and what happens to it."""

    program: Program
    settings: Settings
    acts: tuple[Act, ...] = ()
    seed: int = field(default=0, compare=False)

    def lines(self) -> Iterator[str]:
        """The story as Python that makes it again."""
        yield f"Story({self.program!r},"
        yield f"    {self.settings!r},"
        yield "    ("
        for act in self.acts:
            yield f"        {act!r},"
        yield f"    ), seed={self.seed})"


def edges_of(program: Program) -> dict[str, Edge]:
    """What is known of the rows of each source and node."""
    edges: dict[str, Edge] = {}
    for source in program.sources:
        is_changelog = source.kind != "events"
        is_in_time = not is_changelog and source.delay_seconds is not None
        edges[source.name] = Edge(is_changelog, True, True, is_in_time, is_upsert=source.kind == "upserts")
    for node in program.nodes:
        edges[node.uid] = KINDS[node.kind].edge([edges[one] for one in node.inputs])
    return edges


# -- choice --------------------------------------------------------------------------------------------


def random_story(seed: int) -> Story:
    """The story of a seed."""
    rng = random.Random(seed)
    program = _random_program(rng)
    settings = _random_settings(rng)
    return Story(program, settings, tuple(_random_acts(rng, program, settings)), seed)


def _random_settings(rng: random.Random) -> Settings:
    return Settings(
        parallelism=rng.choice([1, 1, 2, 3]),
        async_enabled=rng.random() < 0.5,
        bundle_rows=rng.choice([1, 3, 100_000]),
        snapshot_interval=rng.choice([1, 2, 10]),
    )


def _random_program(rng: random.Random) -> Program:
    sources = [SourceDecl("events", "events", rng.choice([3, 8]), rng.choice([None, None, 10]))]
    if rng.random() < 0.4:
        delay = rng.choice([3, 8, None])
        idle = None if delay is None else rng.choice([None, 10, 20])
        sources.append(SourceDecl("more", "events", delay, idle))
    if rng.random() < 0.6:
        sources.append(SourceDecl("items", rng.choice(["table", "table", "upserts"]), None))
    program = Program(tuple(sources), (), ())
    for _ in range(rng.randint(1, 4)):
        program = _with_node(rng, program)
    return _with_sinks(rng, program)


def _with_node(rng: random.Random, program: Program) -> Program:
    edges = edges_of(program)
    names = list(edges)
    for _ in range(20):
        kind = rng.choice(sorted(KINDS))
        inputs = tuple(rng.choice(names) for _ in range(KINDS[kind].num_inputs))
        given = [edges[one] for one in inputs]
        may_be = KINDS[kind].takes_upserts or not any(one.is_upsert for one in given)
        if may_be and len(set(inputs)) == len(inputs) and KINDS[kind].takes(given):
            taken = {node.uid for node in program.nodes}
            uid = next(uid for number in range(1000) if (uid := f"{kind}_{number}") not in taken)
            node = NodeDecl(uid, kind, inputs, rng.randint(0, 3))
            return replace(program, nodes=(*program.nodes, node))
    return program


def _with_sinks(rng: random.Random, program: Program, before: Program | None = None) -> Program:
    """Every row goes somewhere: to a log at each end, and sometimes to a table. What the program had ``before`` gets no
    table: one that begins now would lack all earlier rows."""
    edges = edges_of(program)
    running = set() if before is None else set(edges_of(before))
    for node in program.nodes if before is not None else ():
        if not KINDS[node.kind].has_state and not running.isdisjoint(node.inputs):
            running.add(node.uid)  # a new filter only passes on what ran before
    read = {one for node in program.nodes for one in node.inputs}
    sinks = list(program.sinks)
    known = {(sink.of, sink.kind) for sink in sinks}
    for name, edge in edges.items():
        is_end = name not in read
        if edge.is_upsert:
            # A source may have several changes of a key in a micro-batch, of which a table cannot know the last.
            if (
                name not in {source.name for source in program.sources}
                and name not in running
                and (name, "table") not in known
            ):
                sinks.append(SinkDecl(f"table of {name}", name, "table"))
            continue
        if (is_end or rng.random() < 0.3) and (name, "log") not in known:
            sinks.append(SinkDecl(f"log of {name}", name, "log"))
        may_have_table = edge.is_unique and name not in running and (name, "table") not in known
        if may_have_table and rng.random() < 0.35:
            sinks.append(SinkDecl(f"table of {name}", name, "table"))
    return replace(program, sinks=tuple(sinks))


def _random_acts(rng: random.Random, program: Program, settings: Settings) -> Iterator[Act]:
    now = 100 * SECOND
    histories = _Histories(rng)
    is_idle: dict[str, bool] = {}
    for _ in range(rng.randint(3, 10)):
        what = rng.random()
        if what < 0.12:
            settings = _random_settings(rng)
            edited = _edited(rng, program) if rng.random() < 0.4 else program
            yield Restart(edited, settings, edited != program)
            program = edited
        elif what < 0.15:
            yield from _mistake(rng, program)
        elif what < 0.18:
            yield WipeLocal(rng.random() < 0.5)
        elif what < 0.22:
            yield MoveClock(rng.choice([-3600, -1, 3600]))
        if rng.random() < 0.6:
            yield MoveClock(rng.choice([1, 5, 15]))
        now += rng.choice([0, 1, 5, 30]) * SECOND
        for source in program.sources:
            if rng.random() < 0.1:
                is_idle[source.name] = not is_idle.get(source.name, False)
        rows = {
            source.name: ()
            if is_idle.get(source.name) or rng.random() < 0.15
            else histories.rows(source, now)
            for source in program.sources
        }
        fault: Any = rng.choice(["", "", "", "crash", "crash", "disk", "task", "driver"])
        yield Batch(rows, fault, rng.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]) if fault else 0)
    if rng.random() < 0.5:
        yield Finish()


def _edited(rng: random.Random, program: Program) -> Program:
    """Another program over the same checkpoint, whose kept operators keep their inputs."""
    found = _changed(rng, program)
    return found if found.sinks and found.nodes else program


def _changed(rng: random.Random, program: Program) -> Program:
    choice = rng.random()
    if choice < 0.15 and len(program.sources) > 1:
        return _with_sinks(rng, _without_source(program, rng.choice(program.sources).name), program)
    if choice < 0.4:
        grown = _with_node_of_sources(rng, program)
        return _with_sinks(rng, grown, program)
    read = {one for node in program.nodes for one in node.inputs}
    ends = [node for node in program.nodes if node.uid not in read]
    if not ends:
        return program
    end = rng.choice(ends)
    sinks = tuple(sink for sink in program.sinks if sink.of != end.uid)
    others = tuple(node for node in program.nodes if node is not end)
    if choice < 0.7 and others:
        return _with_sinks(rng, replace(program, nodes=others, sinks=sinks), program)
    edges = edges_of(program)
    if any(edges[one].is_changelog for one in end.inputs):
        return program  # it would get changes of rows that it has never had
    renamed = replace(program, nodes=(*others, replace(end, uid=f"{end.uid}x")), sinks=sinks)
    return _with_sinks(rng, renamed, program)


def _with_node_of_sources(rng: random.Random, program: Program) -> Program:
    """One more operator, over rows that are only added: it knows nothing of those before."""
    events = tuple(source for source in program.sources if source.kind == "events")
    if not events:
        return program
    fresh = _with_node(rng, Program(events, (), ()))
    taken = {node.uid for node in program.nodes}
    added = tuple(replace(node, uid=f"{node.uid}_{len(taken)}y") for node in fresh.nodes)
    return replace(program, nodes=(*program.nodes, *added))


_OTHERS: Final = {
    "sum": "min",
    "min": "max",
    "max": "count",
    "count": "sum",
    "first": "last",
    "last": "first",
    "tumble": "hop",
    "hop": "session",
    "session": "tumble",
    "inner_join": "left_join",
    "left_join": "anti_join",
    "semi_join": "inner_join",
    "anti_join": "semi_join",
    "interval_join": "interval_left",
    "interval_left": "interval_join",
}
"""Operators of the same family, which keep state of another meaning."""


def _mistake(rng: random.Random, program: Program) -> Iterator[Act]:
    may = [node for node in program.nodes if node.kind in _OTHERS]
    if may:
        node = rng.choice(may)
        other = replace(node, kind=_OTHERS[node.kind])
        nodes = tuple(other if one is node else one for one in program.nodes)
        edges = edges_of(replace(program, nodes=nodes))
        if all(KINDS[one.kind].takes([edges[name] for name in one.inputs]) for one in nodes):
            yield Mistake(replace(program, nodes=nodes), node.uid)


class _Histories:
    """Rows of sources, and what tables have by now."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_id = 1
        self._tables: dict[str, dict[int, Row]] = {}

    def rows(self, source: SourceDecl, now: int) -> tuple[Change, ...]:
        count = self._rng.randint(1, 8)
        if source.kind == "events":
            return tuple(("+I", self._row(now)) for _ in range(count))
        if source.kind == "upserts":
            return self._upserts(self._tables.setdefault(source.name, {}), count, now)
        changes: list[Change] = []
        table = self._tables.setdefault(source.name, {})
        for _ in range(count):
            changes += self._change(table, now)
        self._rng.shuffle(changes)
        return tuple(changes)

    def _upserts(self, table: dict[int, Row], count: int, now: int) -> tuple[Change, ...]:
        """The time tells the order of changes, which come in any."""
        changes: list[Change] = []
        for _ in range(count):
            number, key, value, _ = self._row(now)
            time = now + number
            if table and self._rng.random() < 0.6:
                old = self._rng.choice(sorted(table))
                if self._rng.random() < 0.3:
                    del table[old]
                    changes.append(("-D", (old, 0, None, time)))
                    continue
                number = old
            row = table[number] = number, key, value, time
            changes.append((self._rng.choice(["+I", "+U"]), row))
        self._rng.shuffle(changes)
        return tuple(changes)

    def _change(self, table: dict[int, Row], now: int) -> list[Change]:
        if not table or self._rng.random() < 0.5:
            row = self._row(now)
            table[row[0]] = row
            return [("+I", row)]
        old = table.pop(self._rng.choice(sorted(table)))
        if self._rng.random() < 0.3:
            return [("-D", old)]
        new = table[old[0]] = (old[0], *self._row(now)[1:])
        return [("-U", old), ("+U", new)]

    def _row(self, now: int) -> Row:
        number = self._next_id
        self._next_id += 1
        value = None if self._rng.random() < 0.1 else self._rng.randint(-3, 9)
        late = self._rng.choice([0, 0, 1, 2, 6, 20]) * SECOND
        return number, self._rng.randint(0, 3), value, now - late + number  # times differ, so nothing ties


# -- smaller stories -----------------------------------------------------------------------------------


def smaller(story: Story) -> Iterator[Story]:
    """Stories with less in them, the boldest cuts first."""
    for size in (8, 4, 2, 1):
        for start in range(0, len(story.acts), size):
            yield replace(story, acts=story.acts[:start] + story.acts[start + size :])
    for sink in story.program.sinks:
        yield _mapped(story, lambda program, sink=sink: _without_sink(program, sink.name))  # type: ignore[misc]
    for node in reversed(story.program.nodes):
        yield _mapped(story, lambda program, node=node: _without_node(program, node.uid))  # type: ignore[misc]
    for source in story.program.sources:
        yield _mapped(story, lambda program, source=source: _without_source(program, source.name))  # type: ignore[misc]
    for number, act in enumerate(story.acts):
        for less in _smaller_acts(act):
            yield replace(story, acts=(*story.acts[:number], less, *story.acts[number + 1 :]))
    plain = Settings()
    for name in (one.name for one in dataclasses.fields(Settings)):
        if getattr(story.settings, name) != getattr(plain, name):
            yield replace(story, settings=replace(story.settings, **{name: getattr(plain, name)}))


def _smaller_acts(act: Act) -> Iterator[Act]:
    if isinstance(act, Batch):
        if act.fault:
            yield replace(act, fault="", step=0)
        for name, rows in act.rows.items():
            for size in (4, 2, 1):
                for start in range(0, len(rows), size):
                    yield replace(act, rows={**act.rows, name: rows[:start] + rows[start + size :]})
        if act.step > 1:
            yield replace(act, step=act.step - 1)
    if isinstance(act, Restart) and act.settings != Settings():
        yield replace(act, settings=Settings())


def _mapped(story: Story, change: Callable[[Program], Program]) -> Story:
    acts = tuple(
        replace(act, program=change(act.program))
        if isinstance(act, Restart | Mistake)
        else replace(act, rows=dict(act.rows))
        if isinstance(act, Batch)
        else act
        for act in story.acts
    )
    return replace(story, program=change(story.program), acts=acts)


def _without_sink(program: Program, name: str) -> Program:
    return replace(program, sinks=tuple(sink for sink in program.sinks if sink.name != name))


def _without_node(program: Program, uid: str) -> Program:
    """Without the node and everything downstream of it."""
    gone = {uid}
    for node in program.nodes:
        if gone & set(node.inputs):
            gone.add(node.uid)
    return Program(
        program.sources,
        tuple(node for node in program.nodes if node.uid not in gone),
        tuple(sink for sink in program.sinks if sink.of not in gone),
    )


def _without_source(program: Program, name: str) -> Program:
    for node in [one for one in program.nodes if name in one.inputs]:
        program = _without_node(program, node.uid)
    return Program(
        tuple(source for source in program.sources if source.name != name),
        program.nodes,
        tuple(sink for sink in program.sinks if sink.of != name),
    )
