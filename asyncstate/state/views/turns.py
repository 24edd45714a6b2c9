"""Guards views: only those of the key whose rows a function handles may be used.

Owns: ``Turns`` and ``ended``.
Invariant: a view that a function has kept from another key, or from another bundle, refuses every use. Otherwise it
would read and write the state of that key, or its writes would be lost.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from asyncstate.errors import StateAccessError


class Turns:
    """The views of m keys, several per key, of which one key at a time is active; no keys if there are no views. A
    context manager: after it all may be used again."""

    def __init__(self, views: Sequence[Sequence[Any]]) -> None:
        self._views = views
        self._states = [[view._state for view in of_key] for of_key in views]
        self._at: int | None = None

    def take(self, key: int) -> None:
        """Activate the views of the key at this index."""
        if self._views and key != self._at:
            if self._at is not None:
                self._close(self._at)
            self._open(key)
            self._at = key

    def __enter__(self) -> Turns:
        for key in range(len(self._views)):
            self._close(key)
        return self

    def __exit__(self, *error: object) -> None:
        for key in range(len(self._views)):
            self._open(key)

    def _open(self, key: int) -> None:
        for view, state in zip(self._views[key], self._states[key], strict=True):
            view._state = state

    def _close(self, key: int) -> None:
        for view in self._views[key]:
            view._state = _OF_ANOTHER_KEY


def ended(views: Iterable[Any]) -> None:
    """End these views with their bundle."""
    for view in views:
        view._state = _OF_ANOTHER_BUNDLE


class _Refusing:
    """Replaces the state of a view that must not be used."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's tools look up such names in any object
            raise AttributeError(name)
        raise StateAccessError(
            f"a view is used {self._why}; take it from the current accumulator, as accumulator['name'], in every call"
        )

    def __repr__(self) -> str:
        return f"<{self._why}>"


_OF_ANOTHER_KEY = _Refusing("that belongs to another key than the current one")
_OF_ANOTHER_BUNDLE = _Refusing("that belongs to an earlier bundle")
