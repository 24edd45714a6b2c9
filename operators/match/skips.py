"""AFTER MATCH: where the next match may begin.

Owns: ``Skip``, the four functions that make one, and the check for those that would find the same match forever.
Must not know of rows, conditions or state.

Source: AFTER MATCH SKIP of Flink's MATCH_RECOGNIZE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asyncstate.errors import SchemaError

from .automaton import ACCEPT, Automaton


@dataclass(frozen=True, repr=False)
class Skip:
    """Where the next match may begin after one that was found; ``variable`` for the two forms that name one."""

    to: Literal["past last row", "next row", "first", "last"]
    variable: str | None = None

    @property
    def text(self) -> str:
        """The SQL text."""
        if self.variable is None:
            return f"skip {'past last row' if self.to == 'past last row' else 'to next row'}"
        return f"skip to {self.to} {self.variable}"

    def rows(self, variables: Sequence[int], automaton: Automaton) -> int:
        """How many rows after the first row of a match the next one may begin; its rows were taken as ``variables``
        (indices). 0 if it has no row to skip to, or that is its first."""
        if self.variable is None:
            return len(variables) if self.to == "past last row" else 1
        target = automaton.variables.index(self.variable)
        if target not in variables:
            return 0
        return (
            variables.index(target)
            if self.to == "first"
            else len(variables) - 1 - variables[::-1].index(target)
        )

    def __repr__(self) -> str:
        if self.variable is None:
            return "skip_past_last()" if self.to == "past last row" else "skip_to_next()"
        return f"skip_to_{self.to}({self.variable!r})"


def skip_past_last() -> Skip:
    """After the last row of the match: no row is in two matches."""
    return Skip("past last row")


def skip_to_next() -> Skip:
    """At the row after the first one of the match."""
    return Skip("next row")


def skip_to_first(variable: str) -> Skip:
    """At the first row of the match that was taken as ``variable``."""
    return Skip("first", variable)


def skip_to_last(variable: str) -> Skip:
    """At the last row of the match that was taken as ``variable``."""
    return Skip("last", variable)


def check_skip(skip: object, automaton: Automaton, owner: str) -> None:
    """Raise SchemaError for a value that is not a ``Skip``, or one whose variable no match has or all have first."""
    if not isinstance(skip, Skip):
        raise SchemaError(
            f"{owner}: after_match is {skip!r}; give skip_past_last(), skip_to_next(), skip_to_first('B') or "
            "skip_to_last('B')"
        )
    if skip.variable is None:
        return
    if skip.variable not in automaton.variables:
        raise SchemaError(
            f"{owner}: {skip.text}: pattern '{automaton.pattern}' has no such variable; its variables are: "
            f"{', '.join(automaton.variables)}"
        )
    places, begins = automaton.places_of(skip.variable), set(automaton.start)
    later = automaton.reach({more for place in begins for more in automaton.follow[place] if more != ACCEPT})
    if begins <= places and (skip.to == "first" or not places & later):
        raise SchemaError(
            f"{owner}: {skip.text}: that is the first row of every match of pattern '{automaton.pattern}', so the "
            "same match would be found forever; use skip_to_next()"
        )
