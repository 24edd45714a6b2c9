"""Typed metrics of a component: declaration, names and aggregation across partitions.

Owns: the kinds of metrics, which define how they add up, and the flat form: numbers by name. A component reports a
frozen dataclass, defined next to it; its fields have the names under which ``OperatorHarness.statistics()``, a job's
``Progress`` and the manifest show them, and one of the types below. A dataclass of such components is a component, too.
Invariant: a name belongs to one field of a report. Reading the flat form fails at no name, known or not: it may come
from an attempt, or a checkpoint, of another version of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_args, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P")

Metrics = dict[str, float]
"""The flat form."""

COUNTER: Final = "counter."
"""The prefix of the names of an operator's own counters."""


class MetricKind(Enum):
    """How the metrics of one name are aggregated: over the partitions of a micro-batch, and over two runs of a
    partition in it (initial rows, then those that come)."""

    COUNTER = "sum, sum"
    GAUGE = "sum, the later"
    MAX_GAUGE = "highest, highest"
    LIMIT = "highest, highest; a bound in force"

    @property
    def is_highest(self) -> bool:
        """Aggregates to the highest metric, not the sum."""
        return self is MetricKind.MAX_GAUGE or self is MetricKind.LIMIT


Count = Annotated[int, MetricKind.COUNTER]
Bytes = Annotated[int, MetricKind.COUNTER]
Elapsed = Annotated[float, MetricKind.COUNTER]
"""Seconds."""
Gauge = Annotated[int, MetricKind.GAUGE]
"""A current level, not a count of events."""
MaxGauge = Annotated[int, MetricKind.MAX_GAUGE]
Limit = Annotated[int, MetricKind.LIMIT]
Counters = Annotated[Mapping[str, int], MetricKind.COUNTER]
"""An operator's own counters, by the names that it gives them."""


def _kept(function: F) -> F:
    return cast(F, cache(function))  # mypy doubts that a class is hashable


class _Field(NamedTuple):
    """``type``: of the field's metric, or of the component whose metrics it has."""

    name: str
    type: Any
    kind: MetricKind | None
    is_optional: bool


@_kept
def _fields(part: type[Any]) -> Sequence[_Field]:
    """The fields that ``part``, a dataclass, declares."""
    found = []
    hints = get_type_hints(part, include_extras=True)
    for name in (one.name for one in fields(part)):
        given = [one for one in get_args(hints[name]) if one is not NoneType]
        is_optional = NoneType in get_args(hints[name])
        declared = given[0] if is_optional else hints[name]
        if is_dataclass(declared):
            found.append(_Field(name, declared, None, is_optional))
        else:
            number, kind = get_args(declared)
            found.append(_Field(name, number, kind, is_optional))
    return found


@_kept
def kinds(part: type[Any]) -> Mapping[str, MetricKind]:
    """The kind of each metric of ``part``, a dataclass, by name."""
    found: dict[str, MetricKind] = {}
    for field in _fields(part):
        more = kinds(field.type) if field.kind is None else {field.name: field.kind}
        assert not found.keys() & more.keys(), (
            f"{part}: two metrics have the name {found.keys() & more.keys()}"
        )
        found.update(more)
    return found


def to_dict(part: object) -> Metrics:
    """The metrics of ``part``, a dataclass, by name; a field that is None has none."""
    found: Metrics = {}
    for field in _fields(type(part)):
        value = getattr(part, field.name)
        if value is None:
            continue
        if field.kind is None:
            found |= to_dict(value)
        elif isinstance(value, Mapping):
            found |= {COUNTER + name: float(number) for name, number in value.items()}
        else:
            found[field.name] = float(value)
    return found


def from_dict(part: type[P], metrics: Mapping[str, float]) -> P:
    """The inverse of ``to_dict``: unknown names are ignored; a missing optional metric is None, another 0."""
    return part(**{field.name: _value(field, metrics) for field in _fields(part)})


def _value(field: _Field, metrics: Mapping[str, float]) -> Any:
    if field.kind is None:
        there = not field.is_optional or not kinds(field.type).keys().isdisjoint(metrics)
        return from_dict(field.type, metrics) if there else None
    if field.type not in (int, float):
        return counters(metrics)
    number = metrics.get(field.name, None if field.is_optional else 0)
    return None if number is None else field.type(number)


def counters(metrics: Mapping[str, float]) -> dict[str, int]:
    """The operator's own counters among ``metrics``."""
    return {
        name.removeprefix(COUNTER): int(value) for name, value in metrics.items() if name.startswith(COUNTER)
    }


def sum_metrics(metrics: Iterable[Mapping[str, float]]) -> Metrics:
    """The sum of each name."""
    sums: Metrics = {}
    for one in metrics:
        for name, value in one.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def max_metrics(metrics: Iterable[Mapping[str, float]]) -> Metrics:
    """The highest of each name."""
    found: Metrics = {}
    for one in metrics:
        for name, value in one.items():
            found[name] = max(found.get(name, value), value)
    return found


class Observed(NamedTuple):
    """What a stage has observed in rows that it has read: the highest event time, microseconds, None if there was no
    time; or the number of rows that a reader drops, and one of them in words."""

    value: int | None
    example: str | None = None


DROPPED: Final = "asyncstate:dropped"
"""The string column by which the reader of a source marks rows to drop, until they are counted: their place and the
reason; null in the others."""
