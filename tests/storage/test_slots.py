"""The states of a slot: which method leads from which state to which, and that no other way exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncstate.storage import RocksDBStore
from asyncstate.storage.slots import Slot, SlotState, held
from tests.storage.minijob import SMALL
from tests.storage.test_closed_stores import alive

FREE, TAKEN, LEASED, KEPT, COPYING = SlotState
HELD = {TAKEN, LEASED, KEPT, COPYING}


def filled(slot: Slot) -> None:
    """Make a store in the taken slot, and open it."""
    slot.store = RocksDBStore(slot.new_store(), SMALL)
    slot.write(3, "lineage", changing=False)


WAYS: dict[SlotState, list[Callable[[Slot], Any]]] = {
    FREE: [],
    TAKEN: [Slot.take],
    LEASED: [Slot.take, filled, Slot.lease],
    KEPT: [Slot.take, filled, Slot.lease, Slot.keep],
    COPYING: [Slot.take, Slot.new_store, lambda slot: slot.copy(SMALL, 3)],
}
METHODS: dict[str, tuple[Callable[[Slot], Any], dict[SlotState, SlotState]]] = {
    "take": (Slot.take, {FREE: TAKEN}),
    "take_over": (Slot.take_over, {FREE: FREE}),  # nobody keeps it open
    "new_store": (Slot.new_store, {TAKEN: TAKEN}),
    "clear": (Slot.clear, {TAKEN: TAKEN}),
    "write": (lambda slot: slot.write(3, "lineage", changing=True), {TAKEN: TAKEN}),
    "invalidate": (Slot.invalidate, {TAKEN: TAKEN, LEASED: LEASED}),
    "open": (lambda slot: slot.open(SMALL), {TAKEN: TAKEN}),
    "lease": (Slot.lease, {TAKEN: LEASED}),
    "open_scratch": (Slot.open_scratch, {LEASED: LEASED}),
    "keep": (Slot.keep, {LEASED: KEPT}),
    "resume": (Slot.resume, {KEPT: TAKEN}),
    "copy": (lambda slot: slot.copy(SMALL, 3), {TAKEN: COPYING}),
    "close_store": (Slot.close_store, dict.fromkeys(HELD, TAKEN)),
    "release": (Slot.release, dict.fromkeys(HELD, FREE)),
}
NEEDS_STORE = {"lease"}
NEEDS_FOLDER = {"write", "open", "copy", "clear"}


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    """A free slot, which is released at the end."""
    made = Slot(tmp_path / "slot-0")
    yield made
    if made.state is not FREE:
        made.release()
    assert alive(tmp_path) == []
    assert made not in held.slots


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_states(slot: Slot, name: str, state: SlotState) -> None:
    method, leads = METHODS[name]
    for step in WAYS[state]:
        step(slot)
    if state is TAKEN and name in NEEDS_FOLDER:
        slot.new_store()
    if state is TAKEN and name in NEEDS_STORE:
        filled(slot)
    assert slot.state is state
    assert (slot in held.slots) == (state is not FREE)
    if state in leads:
        method(slot)
    else:
        with pytest.raises(AssertionError, match=rf"slot-0 is '{state.value}', not"):
            method(slot)
    assert slot.state is leads.get(state, state)


def test_an_open_store_is_not_cleared(slot: Slot) -> None:
    assert slot.take()
    filled(slot)
    with pytest.raises(AssertionError):
        slot.clear()
    assert slot.record() is not None


def test_a_store_goes_through_all_of_its_states(slot: Slot) -> None:
    for step in WAYS[KEPT]:
        step(slot)
    path, other = slot.db, Slot(slot.folder)
    assert not other.take()
    slot.resume()
    assert slot.open(SMALL) is slot.lease()  # it was open
    slot.release()
    assert other.take()
    assert other.record() is not None
    assert other.open(SMALL).path == str(path)
    other.release()
