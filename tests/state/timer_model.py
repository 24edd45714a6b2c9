"""A plain model of timers: what is live, what a round fires and in which order, whatever callbacks do.

Owns: ``Action`` and its strategies, ``Scripts`` (what callbacks do) and ``Model``. It knows no store and no encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from asyncstate.operator import TimeDomain, Timer

EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME


class Action(NamedTuple):
    """Register a timer, or delete it: by its name if it has one, else by its time."""

    register: bool
    time: int
    name: str | None
    namespace: int | None
    domain: TimeDomain = EVENT

    def on(self, timers: Any) -> None:
        """Do it to the timers of a key."""
        processing = self.domain is PROCESSING
        if self.register:
            register = timers.register_processing_time if processing else timers.register_event_time
            register(self.time, self.name, self.namespace)
            return
        delete = timers.delete_processing_time if processing else timers.delete_event_time
        if self.name is None:
            delete(self.time, namespace=self.namespace)
        else:
            delete(name=self.name, namespace=self.namespace)


# A small space, so that programs hit the same timers again and again.
ACTIONS = st.builds(
    Action,
    st.sampled_from([True, True, False]),
    st.integers(0, 5),
    st.sampled_from([None, "a", "a", "b"]),
    st.sampled_from([None, None, -1]),
    st.sampled_from(TimeDomain),
)


def scripts_of(keys: st.SearchStrategy[int]) -> st.SearchStrategy[dict[int, list[list[Action]]]]:
    """For each key: what its first, second, ... callback does."""
    return st.dictionaries(keys, st.lists(st.lists(ACTIONS, min_size=1, max_size=4), max_size=4))


class Scripts:
    """What the callbacks of a key do: the nth one that fires runs the nth list of actions."""

    def __init__(self, scripts: dict[int, list[list[Action]]]) -> None:
        self._left = {key: list(lists) for key, lists in scripts.items()}

    def next_of(self, key: int) -> list[Action]:
        """The actions of the next callback of ``key``."""
        left = self._left.get(key)
        return left.pop(0) if left else []


Fired = tuple[int, Timer]
Place = tuple[int, TimeDomain, int | None, str | None]  # key, domain, namespace, name


class Model:
    """Live timers with the number of their registration, which tells one from its successor.

    ``group`` gives the key group of a key; keys that are not negative are ordered like their encoded form.
    """

    def __init__(self, scripts: dict[int, list[list[Action]]], group: Callable[[int], int]) -> None:
        self.live: dict[
            tuple[Place, int | None], tuple[int, int]
        ] = {}  # (place, time if unnamed) -> (time, number)
        self.fired: list[Fired] = []
        self._scripts = Scripts(scripts)
        self._group = group
        self._numbers = 0

    def act(self, key: int, action: Action) -> None:
        """An action under ``key``, of a record or a callback."""
        place = (key, action.domain, action.namespace, action.name)
        identity = (place, action.time if action.name is None else None)
        if not action.register:
            self.live.pop(identity, None)
        elif self.live.get(identity, (None, 0))[0] != action.time:
            self._numbers += 1
            self.live[identity] = (action.time, self._numbers)

    def fire(self, until: dict[TimeDomain, int]) -> None:
        """Rounds over the domains in turn, each up to its time, until nothing is due."""
        while any(self._due(domain, time) for domain, time in until.items()):
            for domain, time in until.items():
                self._fire_round(self._due(domain, time))

    def _fire_round(self, due: list[tuple[tuple[Place, int | None], tuple[int, int]]]) -> None:
        for identity, registration in due:
            if self.live.get(identity) == registration:
                del self.live[identity]
                key, domain, namespace, name = identity[0]
                self.fired.append((key, Timer(registration[0], name, namespace, domain)))
                for action in self._scripts.next_of(key):
                    self.act(key, action)

    def _due(self, domain: TimeDomain, until: int) -> list[Any]:
        due = [item for item in self.live.items() if item[0][0][1] is domain and item[1][0] <= until]
        return sorted(due, key=self._order)

    def _order(self, item: Any) -> Any:
        ((key, _, namespace, name), _), (time, _) = item
        return time, self._group(key), key, namespace is not None, namespace or 0, name or ""
