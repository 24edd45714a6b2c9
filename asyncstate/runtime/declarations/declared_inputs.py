"""The declarations of an operator and its inputs, the same for a job's ``apply`` and for the harness.

Owns: the shape of these declarations. ``InputSpec`` and the check of the operator decide whether columns exist and
fit.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from asyncstate.durations import microseconds
from asyncstate.errors import ConfigurationError, JobError, SchemaError
from asyncstate.operator import InputSpec, Operator, SortKey

Key = str | Sequence[str] | None
Keys = Key | Sequence[Key]
"""The key columns; for several inputs one entry for each."""
Delay = str | timedelta | int | None
"""A text such as "10 seconds", a timedelta, or an int of microseconds."""


SortColumn = str | SortKey | tuple[str, str]
"""A column, ascending unless it is a SortKey or a pair with ``"desc"``."""
Order = SortColumn | Sequence[SortColumn] | None
OrderBy = Order | Sequence[Order]

Columns = str | Sequence[str] | None
SequenceBy = Columns | Sequence[Columns]
"""The columns that order the changes of a key; for several inputs one entry for each."""

_DIRECTIONS: Final = {"asc": False, "desc": True}


def check_num_inputs(uid: str, operator: Operator, num_inputs: int) -> None:
    """Raise JobError unless ``operator`` takes ``num_inputs`` inputs, and SchemaError if the broadcast input that its
    class names is not one of them."""
    broadcast = operator.broadcast_input
    if broadcast is not None and (type(broadcast) is not int or broadcast not in range(operator.num_inputs)):
        raise SchemaError(
            f"operator '{uid}' ({type(operator).__name__}): broadcast_input is {broadcast!r} with num_inputs "
            f"{operator.num_inputs}; give the index of an input, from 0; it needs at least one other input"
        )
    first = operator.first_input
    others = [index for index in range(operator.num_inputs) if index != operator.broadcast_input]
    if first is not None and (operator.num_inputs < 2 or first not in others):
        raise JobError(
            f"operator '{uid}' ({type(operator).__name__}): first_input is {first!r} with num_inputs "
            f"{operator.num_inputs}; give the index of an input other than the broadcast input; it needs at least one "
            "other input"
        )
    if num_inputs != operator.num_inputs:
        raise JobError(
            f"operator '{uid}' ({type(operator).__name__}) takes {operator.num_inputs} inputs but got {num_inputs}; "
            "give one for each"
        )


def watermark_wait_reason(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> str | None:
    """Why rows of the operator wait for the watermark, in words; None if none do."""
    given = next((one for one in inputs if one.waits_for_watermark), None)
    if given is not None:
        return f"{given.name} has {'order_by' if given.order_by else 'an order of event time'}"
    if operator.waits_for_watermark:
        return f"operator '{uid}' ({type(operator).__name__}) emits nothing until the watermark passes"
    return None


def check_parallelism(uid: str, parallelism: object, max_parallelism: int) -> None:
    """Raise ConfigurationError unless each partition can have a key group."""
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
        raise ConfigurationError(
            f"operator '{uid}': parallelism is {parallelism!r}; give a whole number of at least 1"
        )
    if parallelism > max_parallelism:
        raise ConfigurationError(
            f"operator '{uid}': parallelism {parallelism} is more than its {max_parallelism} key groups "
            "(async-state.max-parallelism, which the job's first batch fixes); choose a lower one"
        )


def delay_us(delay: str | timedelta | int) -> int:
    """Microseconds of a watermark delay. Raises ConfigurationError if it is not a duration or is negative."""
    length = microseconds(delay, "input", "watermark delay", ConfigurationError)
    if length < 0:
        raise ConfigurationError(f"input: watermark delay {delay!r} is below zero; give zero or more")
    return length


def keys_of_inputs(
    uid: str, key: Keys, num_inputs: int, broadcast: int | None = None
) -> list[tuple[str, ...]]:
    """The key columns of each input; with several inputs ``key`` has one entry per input.

    The input ``broadcast`` has no key: its entry is None or left out, and a single name is the key of the only
    other input. Raises JobError for any other shape.
    """
    if num_inputs > 1 and key is not None and broadcast is not None:
        key = _with_broadcast(uid, key, num_inputs, broadcast)
    example = ", like key=('id', 'seller') or key=(['a', 'b'], ['c', 'd'])"
    return [_key(uid, entry) for entry in _entries(uid, "key", key, num_inputs, example)]


def _entries(uid: str, what: str, given: object, num_inputs: int, example: str) -> list[object]:
    """The entry of each input: ``given`` itself for a single one, else it has one for each. Raises JobError, with an
    ``example``, if it does not."""
    if given is None or num_inputs == 1:
        return [given] * num_inputs
    if isinstance(given, SortKey) or not isinstance(given, (list, tuple)) or len(given) != num_inputs:
        raise JobError(
            f"operator '{uid}' has {num_inputs} inputs, so {what} needs one entry for each{example}; it is {given!r}"
        )
    return list(given)


def _with_broadcast(uid: str, key: Keys, num_inputs: int, broadcast: int) -> Sequence[Key]:
    """``key`` with an entry for each input; None for the broadcast input."""
    given: list[object] = list(key) if isinstance(key, (list, tuple)) else [key]
    if len(given) == num_inputs - 1:
        given.insert(broadcast, None)
    if len(given) != num_inputs or given[broadcast] not in (None, [], ()):
        example = [None if index == broadcast else "id" for index in range(num_inputs)]
        raise JobError(
            f"operator '{uid}': input {broadcast} is broadcast and has no key, every partition gets its rows; write "
            f"None for it, like key={tuple(example)!r}, with a list where a key has several columns; key is {key!r}"
        )
    return given  # type: ignore[return-value]  # what the entries are is for _key to say


def _key(uid: str, key: object) -> tuple[str, ...]:
    if key is None:
        return ()
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, (list, tuple)) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise JobError(
            f"operator '{uid}': key {key!r} is neither a column name, nor a list of them, nor None"
        )
    if len(set(names)) != len(names):
        raise JobError(f"operator '{uid}': key {key!r} names a column twice; name each once")
    return tuple(str(name) for name in names)


def times_of_inputs(
    uid: str,
    event_time: str | Sequence[str | None] | None,
    watermark_delay: Delay | Sequence[Delay],
    num_inputs: int,
) -> tuple[list[str | None], list[int | None]]:
    """Event time column and watermark delay (microseconds) of each input; one value applies to all inputs.

    Raises JobError for other shapes and ConfigurationError for an invalid delay.
    """
    columns = each_input("event_time", uid, event_time, num_inputs)
    for column in columns:
        if column is not None and not isinstance(column, str):
            raise JobError(
                f"operator '{uid}': event_time has {column!r}; give the name of a timestamp column"
            )
    delays = [
        None if delay is None else delay_us(delay)
        for delay in each_input("watermark_delay", uid, watermark_delay, num_inputs)
    ]
    for column, delay in zip(columns, delays, strict=True):
        if delay is not None and column is None:
            raise JobError(
                f"operator '{uid}': watermark_delay without event_time; name the timestamp column too"
            )
    return columns, delays


def each_input(what: str, uid: str, given: Any, num_inputs: int) -> list[Any]:
    """``given`` for each input: one value for all, or a list with an entry for each. Raises JobError."""
    if not isinstance(given, (list, tuple)):
        return [given] * num_inputs
    if len(given) != num_inputs:
        raise JobError(
            f"operator '{uid}' has {num_inputs} inputs but {what} has {len(given)} entries; give one value "
            "for all or one for each"
        )
    return list(given)


def sort_keys_of_inputs(uid: str, order_by: OrderBy, num_inputs: int) -> list[tuple[SortKey, ...]]:
    """The order of each input, empty where it has none; with several inputs ``order_by`` has one entry per input.

    An entry is None, a column, or a list of columns. Raises JobError for anything else.
    """
    example = " (None for an input without order), like order_by=(['time', ('score', 'desc')], None)"
    return [_sort_keys(uid, entry) for entry in _entries(uid, "order_by", order_by, num_inputs, example)]


def sequences_of_inputs(uid: str, sequence: SequenceBy, num_inputs: int) -> list[tuple[str, ...]]:
    """The sequence of each input, empty where it has none; with several inputs ``sequence`` has one entry per input.

    An entry is None, a column, or a list of columns. Raises JobError for anything else.
    """
    example = " (None for an input without one), like sequence=('lsn', None)"
    return [_sequence(uid, entry) for entry in _entries(uid, "sequence", sequence, num_inputs, example)]


def drop_stale_of_inputs(
    uid: str, drop_stale: bool | Sequence[bool], sequences: Sequence[tuple[str, ...]]
) -> list[bool]:
    """``drop_stale`` of each input; True applies to the inputs that have a sequence, if any. Raises JobError for
    anything else."""
    if drop_stale is True and any(sequences):
        return [bool(sequence) for sequence in sequences]
    given = list(drop_stale) if isinstance(drop_stale, (list, tuple)) else [drop_stale] * len(sequences)
    if len(given) != len(sequences) or not all(isinstance(one, bool) for one in given):
        raise JobError(
            f"operator '{uid}': drop_stale is {drop_stale!r}; give True or False, or one of them for each input"
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
        name, descending, nulls_first = column
        return SortKey(name, descending, None if nulls_first is not descending else nulls_first)
    if isinstance(column, str):
        return SortKey(column)
    if _is_list(column) and len(column) == 2 and isinstance(column[0], str) and column[1] in _DIRECTIONS:  # type: ignore[arg-type,index]
        return SortKey(column[0], _DIRECTIONS[column[1]])  # type: ignore[index]
    raise JobError(
        f"operator '{uid}': order_by has {column!r}, which is not a column; give a name, asc(name), "
        "desc(name), or a pair of a name and 'asc' or 'desc'"
    )


def _is_list(given: object) -> bool:
    return isinstance(given, (list, tuple))
