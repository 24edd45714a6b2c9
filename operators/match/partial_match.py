"""The part of a match that conditions which look back can read.

Owns: ``MatchSoFar``, and ``Looking``, such a condition.
Invariant: rows before the first one of the match are not visible, so a match does not depend on its position.
Must not know of the search, of Arrow or of state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncstate.errors import OperatorError
from asyncstate.operator import Row

from .automaton import Automaton


class MatchSoFar(Sequence[Row]):
    """The rows that a match has so far, in order, while a condition checks the next one.

    A sequence of rows: ``match[-1]`` is the row before the current one, ``len(match)`` is 0 for the first. Valid only
    during the call.
    """

    __slots__ = ("_automaton", "_first", "_owner", "_path", "_rows")

    def __init__(
        self, automaton: Automaton, owner: str, rows: Sequence[Row], first: int, path: list[int]
    ) -> None:
        """``rows`` of the key; the match has those from ``first`` on, at the places of ``path``."""
        self._automaton = automaton
        self._owner = owner
        self._rows = rows
        self._first = first
        self._path = path

    def __len__(self) -> int:
        return len(self._path)

    def __getitem__(self, index: Any) -> Any:
        number = range(self._first, self._first + len(self._path))[index]
        return [self._rows[one] for one in number] if isinstance(number, range) else self._rows[number]

    def rows(self, variable: str | None = None) -> list[Row]:
        """The rows that were taken as ``variable``; all of them without one."""
        if variable is None:
            return list(self)
        return [self._rows[index] for index in self._indices(variable)]

    def first(self, variable: str | None = None, offset: int = 0) -> Row | None:
        """The first row of ``variable`` (of all), or the one ``offset`` rows of it later; None if there is none."""
        return self._nth(self._indices(variable), offset)

    def last(self, variable: str | None = None, offset: int = 0) -> Row | None:
        """The last row of ``variable`` (of all), or the one ``offset`` rows of it earlier; None if there is none."""
        return self._nth(self._indices(variable, backwards=True), offset)

    def prev(self, offset: int = 1) -> Row | None:
        """The row ``offset`` rows before the current one; None if the match begins after it."""
        return self.last(None, offset - 1)

    @property
    def variables(self) -> list[str]:
        """The variable that each row was taken as."""
        names, of = self._automaton.variables, self._automaton.variable_of
        return [names[of[place]] for place in self._path]

    def _indices(self, variable: str | None, backwards: bool = False) -> Iterator[int]:
        steps = range(len(self._path))
        places = None if variable is None else self._places(variable)
        for step in reversed(steps) if backwards else steps:
            if places is None or self._path[step] in places:
                yield self._first + step

    def _nth(self, indices: Iterator[int], offset: int) -> Row | None:
        if offset < 0:
            raise OperatorError(
                f"{self._owner}: the offset {offset} of a row is below 0; first() counts to later rows, last() to "
                "earlier ones, and prev(1) is the row before"
            )
        for number, index in enumerate(indices):
            if number == offset:
                return self._rows[index]
        return None

    def _places(self, variable: str) -> set[int]:
        if variable not in self._automaton.variables:
            raise OperatorError(
                f"{self._owner}: a condition asks for the rows of '{variable}', but pattern "
                f"'{self._automaton.pattern}' has no such variable; its variables are: "
                f"{', '.join(self._automaton.variables)}"
            )
        return self._automaton.places_of(variable)


Looking = Callable[[Row, MatchSoFar], Any]
"""A condition that looks back: a function of the current row and the match so far."""
