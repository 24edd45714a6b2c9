"""What Match must give: all rows of a key at once, every way through the pattern tried in order of preference.

Owns: ``matches``, by recursion over the pattern as it was written; ``letters``, the same by Python's regular
expressions; and strategies of patterns. Knows nothing of automata, of micro-batches or of memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from operators.match.pattern import Alternation, Concatenation, Pattern, Quantified, Variable
from operators.match.skips import Skip

Labels = tuple[str, ...]
Meets = Callable[[str, int, int, Labels], bool]
"""Whether a row can be a variable: its name, the row's index, the index of the match's first row, the labels so far."""


def matches(
    pattern: Pattern, times: Sequence[int], meets: Meets, skip: Skip, within: int | None = None
) -> Any:
    """``(first row, labels)`` of each match of the rows of one key."""
    found, start = [], 0
    while start < len(times):
        stop = next(
            (at for at in range(start, len(times)) if within and times[at] - times[start] >= within),
            len(times),
        )
        labels = next(
            _ways(pattern, start, (), stop, lambda *asked, start=start: meets(*asked[:2], start, asked[2])),
            (),
        )
        if not labels:
            start += 1
            continue
        skipped = _skipped(labels, skip)
        if skipped:  # otherwise the same match would be found again: it is none
            found.append((start, labels))
        start += skipped or 1
    return found


def _skipped(labels: Labels, skip: Skip) -> int:
    if skip.variable is None:
        return len(labels) if skip.to == "past last row" else 1
    at = [number for number, label in enumerate(labels) if label == skip.variable]
    return (at or [0])[0 if skip.to == "first" else -1]


def _ways(pattern: Pattern, at: int, labels: Labels, stop: int, meets: Any) -> Iterator[Labels]:
    """The labels behind ``pattern``, for each way to take rows from ``at`` on, the preferred first."""
    if isinstance(pattern, Variable):
        row = at + len(labels)
        if row < stop and meets(pattern.name, row, labels):
            yield (*labels, pattern.name)
    elif isinstance(pattern, Concatenation):
        yield from _one_by_one(pattern.parts, at, labels, stop, meets)
    elif isinstance(pattern, Alternation):
        for part in pattern.parts:
            yield from _ways(part, at, labels, stop, meets)
    elif isinstance(pattern, Quantified):
        yield from _rounds(pattern, 0, at, labels, stop, meets)


def _one_by_one(parts: Sequence[Pattern], at: int, labels: Labels, stop: int, meets: Any) -> Iterator[Labels]:
    if not parts:
        yield labels
        return
    for more in _ways(parts[0], at, labels, stop, meets):
        yield from _one_by_one(parts[1:], at, more, stop, meets)


def _rounds(
    pattern: Quantified, done: int, at: int, labels: Labels, stop: int, meets: Any
) -> Iterator[Labels]:
    enough = done >= pattern.least
    if enough and pattern.reluctant:
        yield labels
    if pattern.most is None or done < pattern.most:
        for more in _ways(pattern.part, at, labels, stop, meets):
            if pattern.most is not None or not enough or more != labels:  # such a round is no way at all
                yield from _rounds(pattern, done + 1, at, more, stop, meets)
    if enough and not pattern.reluctant:
        yield labels


def letters(pattern: Pattern, rows: str, taken: dict[str, str]) -> list[tuple[int, int]]:
    """First row and length of each match that Python finds in ``rows``, a letter each, of which a variable takes those
    of ``taken``; each behind the one before."""
    found, start, expression = [], 0, re.compile(_expression(pattern, taken))
    while start < len(rows):
        match = expression.match(rows, start)
        if match is None or match.end() == start:
            start += 1
        else:
            found.append((start, match.end() - start))
            start = match.end()
    return found


def _expression(pattern: Pattern, taken: dict[str, str]) -> str:
    if isinstance(pattern, Variable):
        return f"[{taken[pattern.name]}]"
    if isinstance(pattern, Concatenation | Alternation):
        between = "" if isinstance(pattern, Concatenation) else "|"
        return f"(?:{between.join(_expression(part, taken) for part in pattern.parts)})"
    assert isinstance(pattern, Quantified)
    most = "" if pattern.most is None else pattern.most
    return (
        f"(?:{_expression(pattern.part, taken)}){{{pattern.least},{most}}}{'?' if pattern.reluctant else ''}"
    )


def has_empty_rounds(pattern: Pattern) -> bool:
    """Whether a round of a quantifier can take no row: regular expressions differ in which way they prefer."""
    if isinstance(pattern, Variable):
        return False
    if isinstance(pattern, Quantified):
        return takes_no_row(pattern.part) or has_empty_rounds(pattern.part)
    assert isinstance(pattern, Concatenation | Alternation)
    return any(has_empty_rounds(part) for part in pattern.parts)


def takes_no_row(pattern: Pattern) -> bool:
    """Whether a match can be empty."""
    if isinstance(pattern, Variable):
        return False
    if isinstance(pattern, Quantified):
        return pattern.least == 0 or takes_no_row(pattern.part)
    assert isinstance(pattern, Concatenation | Alternation)
    return (all if isinstance(pattern, Concatenation) else any)(takes_no_row(part) for part in pattern.parts)


def _larger(parts: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    some = st.lists(parts, min_size=2, max_size=3).map(tuple)
    times = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (1, 3), (2, None), (0, 2)])
    repeated = st.tuples(parts, times, st.booleans())
    return st.one_of(
        some.map(Concatenation),
        some.map(Alternation),
        repeated.map(lambda one: Quantified(one[0], *one[1], one[2])),
    )


PATTERNS = st.recursive(st.sampled_from("ABC").map(Variable), _larger, max_leaves=5)
"""Patterns of A, B and C."""
