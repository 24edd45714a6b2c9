"""Generated stories over both column states with a time to live, against dicts of stamps.

How soon the clean-up comes to a row depends on its key group. The model looks at what is stored to learn what is gone,
and knows what must not be and what must be: what lives is there, what has been over for half the ttl is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import InputSpec, StateTtl
from asyncstate.state import TtlTime
from asyncstate.state.columnar import list_blocks
from tests.state.ttl_column_probe import ColumnProbe, text
from tests.state.ttl_direct import MS, ExpiringRunner
from tests.state.ttl_probe import INPUT

TTL_MS = 100
LINGER_MS = TTL_MS // 2
KEYS = range(5)
KEY = pa.schema([("key", pa.int64())])
STATES = ("value", "elements", "windows")
SPEC = InputSpec(INPUT, ("key",), event_time="time")

Story = list[tuple[int, str, list[tuple[int, int]]]]
"""Micro-batches: how many milliseconds after the one before, the op, and (key, milliseconds ahead) of its rows."""

UNTIL_ALL_IS_OVER: Story = [(40, "nothing", [])] * 6

rows = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([-30, 0, 20])), min_size=1, max_size=12)
stories = st.lists(
    st.tuples(
        st.integers(0, 70), st.sampled_from(["put", "put", "put", "read", "peek", "drop", "remove"]), rows
    ),
    min_size=2,
    max_size=7,
)


@dataclass
class Model:
    """For each state and key: (number, stamp) in the order of the state, milliseconds."""

    ttl: StateTtl
    held: dict[str, dict[int, list[tuple[int, int]]]] = field(
        default_factory=lambda: {name: {key: [] for key in KEYS} for name in STATES}
    )

    def lives(self, stamp: int, now: int) -> bool:
        return stamp + TTL_MS > now

    def stamp(self, now: int, ahead: int) -> int:
        return now + max(ahead, 0) if self.ttl.time is TtlTime.EVENT else now

    def learn(self, name: str, stored: dict[int, list[tuple[int, int]]], now: int) -> None:
        """Forget what the clean-up has removed; check that it may, and that it has come in time."""
        for key, mine in self.held[name].items():
            left = [row for row in mine if row in stored[key]]
            assert left == stored[key], (name, key)
            assert all(not self.lives(stamp, now) for row in mine if row not in left for stamp in row[1:])
            assert all(stamp + TTL_MS + LINGER_MS > now for _, stamp in left)
            self.held[name][key] = left

    def put(self, key: int, number: int, stamp: int) -> None:
        self.held["value"][key] = [(number, stamp)]
        self.held["elements"][key].append((number, stamp))
        self.held["windows"][key].append((number, stamp))

    def shown(self, name: str, key: int, now: int) -> list[int]:
        return [number for number, stamp in self.held[name][key] if self.lives(stamp, now)]

    def drop(self, key: int, now: int) -> None:
        """The first row that is shown goes, with all that are not."""
        shown = self.shown("elements", key, now)[1:]
        self.held["elements"][key] = [row for row in self.held["elements"][key] if row[0] in shown]


def stored(runner: ExpiringRunner, name: str) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for row in runner.stored(name):
        assert row.values[1] == text(row.values[0])
        assert row.stamp is not None
        found[row.key[0]].append((row.values[0], row.stamp))
    return found


def apply(model: Model, op: str, batch: list[tuple[int, int, int]], now: int) -> list[Any]:
    """One micro-batch of (key, number, ahead) on the model; the rows that it must put out, in order of the keys."""
    out = []
    if op == "put":
        for key, number, ahead in batch:
            model.put(key, number, model.stamp(now, ahead))
    for key in sorted({key for key, _, _ in batch}):
        if op in ("read", "peek"):
            value, elements, windows = (model.shown(name, key, now) for name in STATES)
            out.append(("+I", key, value[0] if value else None, elements, windows if op == "read" else []))
        if op == "drop":
            model.drop(key, now)
        elif op == "remove":
            model.held["value"][key], model.held["elements"][key] = [], []
    return out


def run(story: Story, ttl: StateTtl, deferred: bool) -> list[Any]:
    model, outcomes, now, count = Model(ttl), [], 1_000, 0
    runner = ExpiringRunner(ColumnProbe(ttl), [SPEC], deferred)
    for pause, op, pairs in [*story, *UNTIL_ALL_IS_OVER]:
        now += pause
        numbers = range(count, count + len(pairs))
        batch = [(key, number, ahead) for (key, ahead), number in zip(pairs, numbers, strict=True)]
        count += len(pairs)
        rows = [(key, (now + ahead) * MS, op, number) for key, number, ahead in batch]
        bundles = [(0, rows, ["+I"] * len(rows))] if rows else []
        found = [row for output in runner.batch(now, *bundles) for row in output]
        assert sorted(found) == apply(model, op, batch, now)
        for name in STATES:
            model.learn(name, stored(runner, name), now)
        outcomes.append((found, runner.entries, runner.counters))
    assert runner.entries == {}
    return outcomes


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a few rows have several chunks."""
    monkeypatch.setattr(list_blocks, "TAIL_ROWS", 2)
    monkeypatch.setattr(list_blocks, "CHUNK_ROWS", 3)


@given(stories, st.sampled_from(["processing", "event"]))
def test_stories(story: Story, domain: str) -> None:
    ttl = StateTtl(TTL_MS * MS, domain)
    assert run(story, ttl, deferred=False) == run(story, ttl, deferred=True)
