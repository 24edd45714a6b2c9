"""The paradigms over plain dicts: what their sync form does when states are as simple as can be.

Owns: ``run_model``. No future, no encoding, no store: an operator's ``with_calls`` works on these as on real states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from asyncstate.operator import StateDescriptor
from asyncstate.state import ListStateDescriptor, MapStateDescriptor
from bench.paradigms import Paradigm

Line = tuple[Any, ...]


class Row(NamedTuple):
    """One row of the input: a key and two numbers."""

    key: int
    x: int
    y: int


class _ModelState:
    """A state's contents by key; ``context.key`` is the key at work."""

    def __init__(self, context: _ModelContext) -> None:
        self._context = context
        self._contents: dict[int, Any] = {}

    def clear(self) -> None:
        self._contents.pop(self._context.key, None)


class _ModelValue(_ModelState):
    def value(self) -> Any:
        return self._contents.get(self._context.key)

    def update(self, value: Any) -> None:
        self._contents[self._context.key] = value


class _ModelMap(_ModelState):
    @property
    def _entries(self) -> dict[Any, Any]:
        return self._contents.setdefault(self._context.key, {})  # type: ignore[no-any-return]

    def get(self, key: Any) -> Any:
        return self._entries.get(key)

    def put(self, key: Any, value: Any) -> None:
        self._entries[key] = value

    def remove(self, key: Any) -> None:
        self._entries.pop(key, None)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return iter(sorted(self._entries.items()))


class _ModelList(_ModelState):
    @property
    def _elements(self) -> list[Any]:
        return self._contents.setdefault(self._context.key, [])  # type: ignore[no-any-return]

    def get(self) -> Iterator[Any]:
        return iter(list(self._elements))

    def add(self, element: Any) -> None:
        self._elements.append(element)


class _ModelContext:
    """An OperatorContext that gives model states, and a RecordContext that collects lines."""

    def __init__(self) -> None:
        self.key = 0
        self.lines: list[Line] = []

    def get_state(self, descriptor: StateDescriptor[Any]) -> _ModelState:
        if isinstance(descriptor, MapStateDescriptor):
            return _ModelMap(self)
        if isinstance(descriptor, ListStateDescriptor):
            return _ModelList(self)
        return _ModelValue(self)

    def emit(self, *values: Any) -> None:
        self.lines.append(("+I", *values))


def run_model(paradigm: type[Paradigm], rows: Sequence[Row]) -> list[Line]:
    """The rows that ``paradigm`` puts out for ``rows``."""
    operator = paradigm("with_calls")
    context: Any = _ModelContext()
    operator.open(context)
    for row in rows:
        context.key = row.key
        operator.with_calls(row, context)  # type: ignore[arg-type]
    lines: list[Line] = context.lines
    return lines
