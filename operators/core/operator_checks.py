"""Base classes of operators with a name or a key, and the checks before any row is read, each with one error text.

Owns: ``Named``, ``KeepsKey`` and the checks. Each raises SchemaError that names the operator (``owner``) and the input
or the parameter.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors`` and ``operator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from asyncstate.changelog import Changelog
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.operator import Bundle, InputSpec

from .arrays import Int64Array

TimeDomain = Literal["event", "processing"]
"""Whether the time of a row is its event time, or the start of its micro-batch."""


class Named:
    """An operator whose errors begin with the name of its class."""

    @property
    def owner(self) -> str:
        """The operator's name in errors."""
        return type(self).__name__


class KeepsKey(Named):
    """An operator whose output has the columns of its input's key under their names."""

    def keyed_output(self, inputs: Sequence[InputSpec]) -> Sequence[tuple[str, ...]]:
        """The output columns that contain, in each row, the values of the key for which it was emitted, in the key's
        order: none, or several where columns are equal."""
        return [inputs[0].key]


def check_choice(value: object, choices: Sequence[str], name: str, owner: str) -> None:
    """Check that the parameter ``name`` is one of ``choices``."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise SchemaError(f"{owner}: {name} is {value!r}; choose {', '.join(others)} or {last}")


def check_time_domain(time: object, owner: str) -> None:
    """Check that the parameter ``time`` is a ``TimeDomain``."""
    check_choice(time, ("event", "processing"), "time", owner)


def check_number(value: object, least: int, name: str, owner: str) -> None:
    """Check that the parameter ``name`` is an integer >= ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SchemaError(f"{owner}: {name} is {value!r}; give a number of at least {least}")


def check_has_time(spec: InputSpec, time: TimeDomain, owner: str) -> None:
    """Check that the input has an event time if the operator's ``time`` is "event"."""
    if time == "event" and spec.event_time is None:
        raise SchemaError(
            f"{owner}: time='event' needs an event time but {spec.name} declares none; name its event time column, "
            "or use time='processing'"
        )


def check_event_time(spec: InputSpec, owner: str) -> None:
    """Check that the input of an operator without a choice of time has an event time."""
    if spec.event_time is None:
        raise SchemaError(
            f"{owner} needs an event time but {spec.name} declares none; name its event time column"
        )


def check_insert_only(spec: InputSpec, owner: str, instead: str) -> None:
    """Check that the input has no retractions; ``instead`` names an alternative that accepts them."""
    if spec.changelog:
        raise SchemaError(
            f"{owner}: {spec.name} is a changelog{_of(spec)}, but {owner} does not accept retractions; put it "
            f"upstream of the operator that produces the changelog, or use {instead}"
        )


def check_whole_updates(spec: InputSpec, owner: str) -> None:
    """Check that no condition on columns outside the key could pass one half of an update and drop the other."""
    by = sorted(column for column in spec.changes.filtered_by if column not in spec.key)
    if by:
        what = ", ".join(repr(column) for column in by if column.isprintable()) or "what a function says"
        raise SchemaError(
            f"{owner}: {spec.name}{_of(spec)} is filtered by {what}, which is not in the key ({', '.join(spec.key)}): "
            "when an update changes it, the new row may be dropped while the old one stays. Put where() after "
            f"{owner}, or give the condition to ChangelogNormalize(condition=...)"
        )


def check_one_change(
    bundle: Bundle,
    ids: Int64Array,
    content: Int64Array,
    spec: InputSpec,
    owner: str,
    rows: Int64Array | None = None,
) -> None:
    """Raise OperatorError where upserts without a ``sequence`` have different changes of a key in a micro-batch: the
    last one is then unknown. ``ids`` and ``content`` (n): equal for equal upsert keys and rows; of all rows of the
    bundle, or of ``rows`` (n)."""
    if spec.sequence or len(ids) < 2:
        return
    at = np.arange(len(ids)) if rows is None else rows
    order = np.argsort(ids, kind="stable")
    same = ids[order][1:] == ids[order][:-1]
    added = bundle.accumulate[at]
    one, other = added[order][1:], added[order][:-1]
    differ = (one != other) | (one & (content[order][1:] != content[order][:-1]))
    wrong = np.flatnonzero(same & differ)
    if not len(wrong):
        return
    row = int(at[order[wrong[0]]])
    columns = spec.changes.upsert_key or ()
    key = ", ".join(f"{name} = {bundle.batch.column(name)[row].as_py()!r}" for name in columns)
    raise OperatorError(
        f"{owner}: {spec.name}{_of(spec)} has several changes of {key} in one micro-batch, and their order is not "
        "known; give the source sequence=, the columns that order them"
    )


def keyed_changes(spec: InputSpec, emit_update_before: bool) -> Changelog:
    """The changelog of a table with one row per key of the input."""
    changes = Changelog.retract(spec.key) if emit_update_before else Changelog.upsert(*spec.key)
    return changes.without_nulls_in(never_null_key(spec))


def never_null_key(spec: InputSpec) -> frozenset[str]:
    """The columns of the key that are known to have no nulls."""
    return spec.changes.never_null.intersection(spec.key)


def _of(spec: InputSpec) -> str:
    return f" of {spec.changes.origin}" if spec.changes.origin else ""


def check_distinct_names(names: Sequence[str], owner: str) -> None:
    """Check that all output columns have distinct names."""
    for name in names:
        if list(names).count(name) > 1:
            raise SchemaError(
                f"{owner}: two output columns have the name '{name}'; rename an aggregate with .alias(...)"
            )
