"""Whole lives of jobs in one process: random graphs, restarts and faults; the sinks hold what a model says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import life
from tests.simulation.faults import Steps
from tests.simulation.life import problem_of, shrunk
from tests.simulation.story import (
    Batch,
    Finish,
    NodeDecl,
    Program,
    Restart,
    Settings,
    SinkDecl,
    SourceDecl,
    Story,
    random_story,
)

_LIVES_A_TEST = 10

EVENTS = SourceDecl("events", "events", 3)
SUMS = Program(
    (EVENTS,),
    (NodeDecl("sum_0", "sum", ("events",)),),
    (SinkDecl("log of sum_0", "sum_0", "log"), SinkDecl("table of sum_0", "sum_0", "table")),
)


def _check(seeds: range) -> None:
    for seed in seeds:
        problem = problem_of(random_story(seed))
        if problem is not None:
            small = shrunk(random_story(seed), seconds=20)
            text = "\n".join(small.lines())
            pytest.fail(
                f"seed {seed}: {problem}\nsmaller: {problem_of(small)}\n{text}\n"
                f"again: python -m tests.simulation --lives 1 --seed {seed}",
                pytrace=False,
            )


def test_a_few_lives() -> None:
    _check(range(10))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1_000, 1_190, _LIVES_A_TEST))
def test_lives(first: int) -> None:
    _check(range(first, first + _LIVES_A_TEST))


def _story(*acts: Batch | Restart | Finish, settings: Settings | None = None) -> Story:
    return Story(SUMS, settings or Settings(), acts)


def _batch(number: int, fault: str = "", step: int = 0) -> Batch:
    row = (number, 1, number, 100_000_000 + number)
    return Batch({"events": (("+I", row),)}, fault, step)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["crash", "disk", "task", "driver"])
def test_a_fault_happens_and_does_no_harm(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = []
    plan = Steps.plan

    def watched(self: Steps, at: int, action: object) -> None:
        if self.happened:
            happened.append(self.happened)
        plan(self, at, action)  # type: ignore[arg-type]

    monkeypatch.setattr(Steps, "plan", watched)
    story = _story(_batch(1), _batch(2, fault, 30), _batch(3))
    assert problem_of(story) is None
    assert len(happened) == 1


def test_a_wrong_answer_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is given a fault of its own: sums forget the values of key 1 above 2."""
    original = life.Process.run

    def forgetful(
        self: life.Process, batch_id: int, rows: dict[str, life.Changes], final: bool = False
    ) -> None:
        kept = {
            name: tuple(one for one in changes if not (one[1][1] == 1 and (one[1][2] or 0) > 2))
            for name, changes in rows.items()
        }
        original(self, batch_id, kept, final)

    monkeypatch.setattr(life.Process, "run", forgetful)
    story = _story(
        _batch(1), Restart(SUMS, Settings(parallelism=2)), _batch(2), _batch(3), _batch(4), Finish()
    )
    problem = problem_of(story)
    assert problem is not None
    assert "log of sum_0" in problem
    small = shrunk(story, seconds=30)
    assert problem_of(small) is not None
    assert len(small.acts) == 1
    assert len(small.program.sinks) == 1


def test_equal_seeds_give_equal_stories() -> None:
    assert random_story(7) == random_story(7)
    assert random_story(7) != replace(random_story(8), seed=7)
    made = {"Story": Story, "Program": Program, "Settings": Settings, "SourceDecl": SourceDecl}
    made |= {"NodeDecl": NodeDecl, "SinkDecl": SinkDecl, "Batch": Batch, "Restart": Restart, "Finish": Finish}
    made |= {name: getattr(life, name) for name in ("WipeLocal", "MoveClock")}
    text = "\n".join(random_story(7).lines())
    assert eval(text, made) == random_story(7)
