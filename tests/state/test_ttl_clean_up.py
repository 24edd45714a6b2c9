"""Generated stories of writes, reads and pauses against a dict of stamps: what is shown and what is still stored.

How soon the clean-up comes to an entry depends on its key group; the model knows the bounds only: what lives is
there, and what has been over for half the ttl when a micro-batch ends is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import StateTtl
from asyncstate.codec import KeyCodec
from asyncstate.state import TtlUpdate, TtlVisibility
from asyncstate.state.keyed import chunks
from tests.state.ttl_probe import MS, Bench, Probe

TTL_MS = 100
LINGER_MS = TTL_MS // 2
KEYS = range(4)
MAP_ID = 10  # the third state of a Probe

Story = list[tuple[int, list[tuple[str, int]]]]
"""Micro-batches: how many milliseconds after the one before, and (op, key) of its records."""

UNTIL_ALL_IS_OVER: Story = [(30, [])] * 7

stories = st.lists(
    st.tuples(
        st.integers(0, 70),
        st.lists(st.tuples(st.sampled_from(["put", "put", "read"]), st.sampled_from(KEYS)), max_size=6),
    ),
    min_size=2,
    max_size=5,
)


@dataclass
class Stamps:
    """When each number of each key was last touched, milliseconds; numbers are never used twice."""

    ttl: StateTtl
    of: dict[int, dict[int, int]] = field(default_factory=lambda: {key: {} for key in KEYS})

    def living(self, key: int, now: int) -> set[int]:
        return {number for number, stamp in self.of[key].items() if stamp + TTL_MS > now}

    def perhaps_stored(self, key: int, swept: int) -> set[int]:
        """What may be left by a micro-batch at ``swept``."""
        return {number for number, stamp in self.of[key].items() if stamp + TTL_MS + LINGER_MS > swept}

    def read(self, key: int, now: int, before: int, found: set[int]) -> None:
        living = self.living(key, now)
        if self.ttl.visibility is TtlVisibility.NEVER_RETURN_EXPIRED:
            assert found == living
        else:
            assert living <= found <= self.perhaps_stored(key, before)
        if self.ttl.update is TtlUpdate.READ_AND_WRITE:
            self.of[key].update(dict.fromkeys(living, now))


def stored_numbers(entries: dict[bytes, bytes]) -> dict[int, set[int]]:
    """The user keys of the map that are in the store, by key."""
    codec = KeyCodec([pa.int64(), pa.int64()], ["key", "number"], 1)
    found: dict[int, set[int]] = {key: set() for key in KEYS}
    for store_key in entries:
        if store_key[2] == MAP_ID:
            (key, number), _ = codec.decode_one(store_key, 3)
            found[key].add(number)
    return found


def run(story: Story, ttl: StateTtl, async_enabled: bool) -> list[Any]:
    stamps = Stamps(ttl)
    outputs: list[Any] = []
    now, count = 1_000, 0
    with Bench(Probe(ttl), str(ttl.time), async_enabled=async_enabled) as bench:
        for pause, ops in [*story, *UNTIL_ALL_IS_OVER]:
            before, now = now, now + pause
            rows = []
            for op, key in ops:
                count += 1
                rows.append((op, count, key))
            shown = iter(bench.batch(now, *rows))
            for op, number, key in rows:
                if op == "put":
                    stamps.of[key][number] = now
                    continue
                outputs.append(next(shown))
                _, _, elements, keys, _, windows = outputs[-1]
                assert elements == keys == windows
                stamps.read(key, now, before, set(keys))
            stored = stored_numbers(bench.entries)
            for key in KEYS:
                assert stamps.living(key, now) <= stored[key]
                assert stored[key] <= stamps.perhaps_stored(key, now)
        assert bench.entries == {}
        return outputs


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a few elements have several chunks."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 60)


@given(
    stories,
    st.sampled_from(["processing", "event"]),
    st.sampled_from(TtlUpdate),
    st.sampled_from(TtlVisibility),
)
@settings(max_examples=settings().max_examples // 2)
def test_stories(story: Story, domain: str, update: TtlUpdate, visibility: TtlVisibility) -> None:
    ttl = StateTtl(TTL_MS * MS, domain, update, visibility)
    assert run(story, ttl, async_enabled=False) == run(story, ttl, async_enabled=True)
