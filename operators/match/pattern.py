"""The language of row patterns, as text and as Python objects.

Owns: ``Pattern`` and its four forms, ``variable``, the parser of pattern texts.
Invariant: a pattern and its ``text``, parsed again, are equal.
Must not know of rows, conditions or state.

Source: the PATTERN clause of SQL's row pattern recognition (ISO/IEC 19075-5), as in Flink's MATCH_RECOGNIZE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from asyncstate.errors import SchemaError

DEPTH_MAX: Final = 50
"""The most levels of groups within groups."""
TEXT_MAX: Final = 10_000
"""The most characters in the text of a pattern."""
TIMES_MAX: Final = 1_000_000_000
"""The largest number in a quantifier."""
_SHOWN_CHARS: Final = 200

_NAME: Final = re.compile(r"[A-Za-z_]\w{0,99}")
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<mark>[()|*+?])|\{\s*(?P<least>\d*)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\})"
)


class Pattern:
    """A pattern that consecutive rows match; made with ``variable`` and these methods, or from a text.

    ``a + b``: rows of ``a``, then rows of ``b``. ``a | b``: rows of ``a``, or else of ``b``. A text can be
    used as the pattern that it describes. Quantifiers take as many rows as they can; with ``reluctant=True`` as few.

    >>> a, b = variable("A"), variable("B")
    >>> print(a + b.times(2, 5, reluctant=True) + "C+" + (variable("D") | "E"))
    A B{2,5}? C+ (D | E)
    """

    @property
    def text(self) -> str:
        """The pattern in the language of ``parse_pattern``."""
        raise NotImplementedError

    def variables(self) -> Iterator[str]:
        """The variables in order, each as often as it occurs."""
        raise NotImplementedError

    def optional(self, *, reluctant: bool = False) -> Pattern:
        """Once or not at all: ``?``."""
        return Quantified(self, 0, 1, reluctant)

    def zero_or_more(self, *, reluctant: bool = False) -> Pattern:
        """Any number of times: ``*``."""
        return Quantified(self, 0, None, reluctant)

    def one_or_more(self, *, reluctant: bool = False) -> Pattern:
        """At least once: ``+``."""
        return Quantified(self, 1, None, reluctant)

    def times(self, least: int, most: int | None = None, *, reluctant: bool = False) -> Pattern:
        """``least`` times, or between ``least`` and ``most``: ``{n}``, ``{n,m}``."""
        return Quantified(self, least, least if most is None else most, reluctant)

    def times_or_more(self, least: int, *, reluctant: bool = False) -> Pattern:
        """``least`` times or more often: ``{n,}``."""
        return Quantified(self, least, None, reluctant)

    def __add__(self, other: Pattern | str) -> Pattern:
        return Concatenation((*_parts(self, Concatenation), *_parts(as_pattern(other), Concatenation)))

    def __radd__(self, other: str) -> Pattern:
        return as_pattern(other) + self

    def __or__(self, other: Pattern | str) -> Pattern:
        return Alternation((*_parts(self, Alternation), *_parts(as_pattern(other), Alternation)))

    def __ror__(self, other: str) -> Pattern:
        return as_pattern(other) | self

    def __str__(self) -> str:
        """Its text, or the beginning of a long one."""
        return _beginning(self.text)

    def __repr__(self) -> str:
        return repr(self.text)  # which is accepted wherever a pattern is


@dataclass(frozen=True, repr=False)
class Variable(Pattern):
    """One row that meets the condition of the variable ``name``."""

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(str(self.name)):
            raise SchemaError(
                f"pattern variable {_beginning(repr(self.name))}: give a name of letters, digits and _, at most 100, "
                "such as 'A'"
            )

    @property
    def text(self) -> str:
        """The pattern in the language of ``parse_pattern``."""
        return self.name

    def variables(self) -> Iterator[str]:
        """The variables in order, each as often as it occurs."""
        yield self.name


@dataclass(frozen=True, repr=False)
class Concatenation(Pattern):
    """All of ``parts``, one after the other."""

    parts: tuple[Pattern, ...]

    @property
    def text(self) -> str:
        """The pattern in the language of ``parse_pattern``."""
        return " ".join(_grouped(part, Concatenation, Alternation) for part in self.parts)

    def variables(self) -> Iterator[str]:
        """The variables in order, each as often as it occurs."""
        for part in self.parts:
            yield from part.variables()


@dataclass(frozen=True, repr=False)
class Alternation(Pattern):
    """One of ``parts``; an earlier one is preferred to a later one."""

    parts: tuple[Pattern, ...]

    @property
    def text(self) -> str:
        """The pattern in the language of ``parse_pattern``."""
        return " | ".join(_grouped(part, Alternation) for part in self.parts)

    def variables(self) -> Iterator[str]:
        """The variables in order, each as often as it occurs."""
        for part in self.parts:
            yield from part.variables()


@dataclass(frozen=True, repr=False)
class Quantified(Pattern):
    """``part`` between ``least`` and ``most`` times (None: any number); ``reluctant``: prefers fewer times."""

    part: Pattern
    least: int
    most: int | None
    reluctant: bool = False

    def __post_init__(self) -> None:
        numbers = [self.least, *([] if self.most is None else [self.most])]
        if any(abs(number) > TIMES_MAX for number in numbers if type(number) is int):
            raise SchemaError(
                f"pattern: a quantifier has a number beyond {TIMES_MAX:,}; use a smaller one, or an unbounded one"
            )
        if any(type(number) is not int or number < 0 for number in numbers):
            raise SchemaError(
                f"pattern: {self._times} is not a number of times; give whole numbers of at least 0"
            )
        if self.most is not None and (self.most == 0 or self.most < self.least):
            raise SchemaError(
                f"pattern: {self._times} never matches a row; give numbers of at least 1, the smaller one first"
            )

    @property
    def text(self) -> str:
        """The pattern in the language of ``parse_pattern``."""
        part = _grouped(self.part, Concatenation, Alternation, Quantified)
        return f"{part}{self._times}{'?' if self.reluctant else ''}"

    def variables(self) -> Iterator[str]:
        """The variables in order, each as often as it occurs."""
        yield from self.part.variables()

    @property
    def _times(self) -> str:
        short = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((self.least, self.most))
        if short is not None:
            return short
        if self.least == self.most:
            return f"{{{self.least}}}"
        return f"{{{self.least},{'' if self.most is None else self.most}}}"


def variable(name: str) -> Pattern:
    """One row that meets the condition of ``name``. Raises SchemaError for an invalid name."""
    return Variable(name)


def as_pattern(given: object) -> Pattern:
    """The given pattern, or that of a text. Raises SchemaError for anything else."""
    if isinstance(given, Pattern):
        return given
    if isinstance(given, str):
        return parse_pattern(given)
    raise SchemaError(
        f"pattern {_beginning(repr(given))}: give a string such as 'A B+ C', or objects built with variable('A')"
    )


def parse_pattern(text: str) -> Pattern:
    """The pattern that ``text`` describes: names; sequences, ``|``, ``( )``; ``* + ? {n} {n,} {n,m} {,m}``, each
    reluctant with a ``?`` after it. Raises SchemaError with the position of the error."""
    return _Parser(text).parse()


def _parts(pattern: Pattern, form: type[Concatenation] | type[Alternation]) -> tuple[Pattern, ...]:
    return pattern.parts if isinstance(pattern, form) else (pattern,)


def _grouped(pattern: Pattern, *forms: type[Pattern]) -> str:
    return f"({pattern.text})" if isinstance(pattern, forms) else pattern.text


class _Parser:
    """A recursive descent parser: alternatives of sequences of quantified names and groups."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> Pattern:
        if len(self._text) > TEXT_MAX:
            raise SchemaError(
                f"pattern '{_beginning(self._text)}': the text has {len(self._text):,} characters, but at most "
                f"{TEXT_MAX:,} are allowed; use quantifiers, or build the pattern with variable(...)"
            )
        pattern = self._alternation()
        if self._peek() is not None:
            self._refuse("expected the end, a name or '('")
        return pattern

    def _alternation(self) -> Pattern:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _sequence(self) -> Pattern:
        parts = []
        while (token := self._peek()) is not None and (token["name"] or token["mark"] == "("):
            parts.append(self._quantified())
        if not parts:
            self._refuse("expected a name or '('")
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _quantified(self) -> Pattern:
        part = self._group() if self._takes("(") else self._name()
        times = self._times()
        return part if times is None else Quantified(part, *times, reluctant=self._takes("?"))

    def _group(self) -> Pattern:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"more than {DEPTH_MAX} nested groups")
        pattern = self._alternation()
        if not self._takes(")"):
            self._refuse("expected ')'")
        self._depth -= 1
        return pattern

    def _name(self) -> Pattern:
        token = self._peek()
        assert token is not None, "the caller has seen a name"
        self._at = token.end()
        return Variable(token["name"])

    def _times(self) -> tuple[int, int | None] | None:
        for mark, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(mark):
                return times
        token = self._peek()
        if token is None or token["least"] is None:
            return None
        least, most = token["least"], token["most"]
        if not least and not most:
            self._refuse("expected a number between { and }")
        if max(len(least), len(most)) > len(str(TIMES_MAX)):
            self._refuse(f"a number beyond {TIMES_MAX:,}")
        self._at = token.end()
        if not token["comma"]:
            return int(least), int(least)
        return int(least or 0), int(most) if most else None

    def _peek(self) -> re.Match[str] | None:
        """The next token; None at the end."""
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._text[self._at :].strip():
            self._refuse("expected a name, ( ) | * + ? or {n,m}")
        return found

    def _takes(self, mark: str) -> bool:
        token = self._peek()
        if token is None or token["mark"] != mark:
            return False
        self._at = token.end()
        return True

    def _refuse(self, why: str) -> NoReturn:
        at = self._at + len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
        raise SchemaError(
            f"pattern '{_beginning(self._text)}': {why} at character {at + 1}, before '{_beginning(self._text[at:])}'"
        )


def _beginning(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
