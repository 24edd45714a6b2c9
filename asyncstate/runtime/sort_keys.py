"""The ``order_by``, ``sequence`` and ``drop_seen`` arguments of a job's ``apply`` and of the harness.

Owns: their shape. Whether the columns exist and fit is for ``InputSpec`` and the check of the operator to say.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asyncstate.errors import JobError
from asyncstate.operator import SortKey

SortColumn = str | SortKey | tuple[str, str]
"""A column, ascending unless it is a SortKey or a pair that says ``"desc"``."""
Order = SortColumn | Sequence[SortColumn] | None
OrderBy = Order | Sequence[Order]

Columns = str | Sequence[str] | None
SequenceBy = Columns | Sequence[Columns]
"""The columns that order the changes of a key; with several inputs one entry for each."""

_DIRECTIONS: Final = {"asc": False, "desc": True}


def sort_keys_of_inputs(uid: str, order_by: OrderBy, num_inputs: int) -> list[tuple[SortKey, ...]]:
    """The order of each input, empty where it has none; with several inputs ``order_by`` has one entry an input.

    An entry is None, a column, or a list of columns. Raises JobError for anything else.
    """
    if order_by is None:
        return [()] * num_inputs
    if num_inputs == 1:
        return [_sort_keys(uid, order_by)]
    if isinstance(order_by, (str, SortKey)) or not _is_list(order_by) or len(order_by) != num_inputs:
        raise JobError(
            f"operator '{uid}' has {num_inputs} inputs, so order_by needs one entry for each (None where rows are not "
            f"to be ordered), like order_by=(['time', ('score', 'desc')], None); it is {order_by!r}"
        )
    return [_sort_keys(uid, entry) for entry in order_by]


def sequences_of_inputs(uid: str, sequence: SequenceBy, num_inputs: int) -> list[tuple[str, ...]]:
    """The sequence of each input, empty where it has none; with several inputs ``sequence`` has one entry an input.

    An entry is None, a column, or a list of columns. Raises JobError for anything else.
    """
    if sequence is None:
        return [()] * num_inputs
    if num_inputs == 1:
        return [_sequence(uid, sequence)]
    if not _is_list(sequence) or len(sequence) != num_inputs:
        raise JobError(
            f"operator '{uid}' has {num_inputs} inputs, so sequence needs one entry for each (None where there is "
            f"none), like sequence=('lsn', None); it is {sequence!r}"
        )
    return [_sequence(uid, entry) for entry in sequence]


def drop_seen_of_inputs(
    uid: str, drop_seen: bool | Sequence[bool], sequences: Sequence[tuple[str, ...]]
) -> list[bool]:
    """``drop_seen`` of each input; True holds for those that have a sequence, if there is one. Raises JobError for
    anything else."""
    if drop_seen is True and any(sequences):
        return [bool(sequence) for sequence in sequences]
    given = list(drop_seen) if isinstance(drop_seen, (list, tuple)) else [drop_seen] * len(sequences)
    if len(given) != len(sequences) or not all(isinstance(one, bool) for one in given):
        raise JobError(
            f"operator '{uid}': drop_seen is {drop_seen!r}; give True or False, or one of them for each input"
        )
    return [one is True for one in given]


def _sequence(uid: str, given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    columns = list(given) if _is_list(given) else [given]  # type: ignore[call-overload]
    if not columns or not all(isinstance(column, str) for column in columns):
        raise JobError(
            f"operator '{uid}': sequence has {given!r}; give the name of a column, or a list of names"
        )
    if len(set(columns)) != len(columns):
        raise JobError(f"operator '{uid}': sequence {given!r} names a column twice; name each once")
    return tuple(columns)


def _sort_keys(uid: str, given: object) -> tuple[SortKey, ...]:
    if given is None:
        return ()
    columns = [given] if isinstance(given, (str, SortKey)) or not _is_list(given) else list(given)  # type: ignore[call-overload]
    keys = tuple(_sort_key(uid, column) for column in columns)
    names = [key.column for key in keys]
    if len(set(names)) != len(names):
        raise JobError(f"operator '{uid}': order_by {given!r} names a column twice; name each once")
    return keys


def _sort_key(uid: str, column: object) -> SortKey:
    if isinstance(column, SortKey):
        return column
    if isinstance(column, str):
        return SortKey(column)
    if _is_list(column) and len(column) == 2 and isinstance(column[0], str) and column[1] in _DIRECTIONS:  # type: ignore[arg-type,index]
        return SortKey(column[0], _DIRECTIONS[column[1]])  # type: ignore[index]
    raise JobError(
        f"operator '{uid}': order_by has {column!r}, which is no column; give a name, a pair of a name and 'asc' or "
        "'desc', or a SortKey"
    )


def _is_list(given: object) -> bool:
    return isinstance(given, (list, tuple))
