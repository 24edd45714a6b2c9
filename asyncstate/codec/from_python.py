"""Python values as Arrow columns: the one conversion from user code's values to what operators emit and store.

Owns: ``arrow_values``, ``arrow_column``, ``plain_value`` and ``UnfitValueError``; which containers are accepted for a
list, map or struct.
Invariant: a column has exactly the given values, or the conversion fails. Arrow itself truncates 3.7 to 3, accepts
bytes as text, and drops fields that a struct does not declare.
Must not import anything of the project except errors and other modules of ``codec``.

Arrow converts a whole column in one call. The Python types of the values, collected in one pass in C, show what it
would alter; only values of unusual types are checked one by one. Lists, maps and structs are split level by level and
assembled from the columns of their parts, so that the same checks apply at any depth.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec.arrow_types import is_bytes_type, is_string_type
from asyncstate.codec.times import in_microseconds, integers
from asyncstate.errors import CodecError

Convert: TypeAlias = Callable[[list[Any]], pa.Array]

_REFUSALS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError, LookupError)
_SHOWN: Final = 120
_NOTHING: Final = type(None)
_INTEGERS: Final[frozenset[type]] = frozenset(
    {int, _NOTHING, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64}
)
_FRACTIONS: Final = (float, np.floating, Decimal, Fraction)
_TICKS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_INT32_MAX: Final = 2**31 - 1


class UnfitValueError(CodecError):
    """A value that its type cannot represent exactly. ``row``: its index among the given values; ``value``: the value.

    The text begins with the value: ``3.7 (float), which does not fit its type int32: a whole number is expected``.
    """

    def __init__(self, row: int, value: Any, arrow_type: pa.DataType, reason: str) -> None:
        super().__init__(
            f"{_shown(value)} ({type(value).__name__}), which does not fit its type {arrow_type}: {reason}"
        )
        self.row = row
        self.value = value


class MisfitError(ValueError):
    """Internal to ``codec``: the ``reason`` why a value, or a part of it, does not fit, and what was ``found``
    there."""

    def __init__(self, reason: str, found: Any) -> None:
        super().__init__(f"{reason}, not {_shown(found)}")
        self.reason = reason
        self.found = found


def arrow_values(values: Any, arrow_type: pa.DataType) -> pa.Array:
    """The column of n Python values; integers for timestamps, at any depth, are microseconds.

    ``values``: a list or another iterable, a NumPy array, or a pandas Series, whose missing values are null. Raises
    UnfitValueError for the first value that the type cannot represent exactly. A float32 column has rounded floats.
    """
    plain = in_microseconds(arrow_type)
    if plain == arrow_type:
        return arrow_column(values, arrow_type)
    return _converted(values, arrow_type, lambda some: _column(some, plain).cast(arrow_type))


def arrow_column(values: Any, arrow_type: pa.DataType) -> pa.Array:
    """As ``arrow_values``, but integers for timestamps have the unit of the type."""
    return _converted(values, arrow_type, partial(_column, kind=arrow_type))


def plain_value(value: Any, arrow_type: pa.DataType) -> Any:
    """The result of reading ``value`` after it is stored: integers in the type's unit for timestamps.

    Raises ValueError with the reason for a value that the type cannot represent exactly.
    """
    try:
        found = integers(_converter(arrow_type)([value])).to_pylist()[0]
    except MisfitError as error:
        raise ValueError(error.reason if error.found is value else str(error)) from None
    if found is None:
        raise ValueError(f"{_wanted(arrow_type)} is expected")
    return found


def _converted(values: Any, arrow_type: pa.DataType, convert: Convert) -> pa.Array:
    given = _listed(values)
    try:
        return convert(given)
    except _REFUSALS as error:
        row = _first_refused(given, convert)
        if row is None:  # each fits alone, as when a column is too large for Arrow
            raise
        alone = given[row : row + 1]
        raise UnfitValueError(row, alone[0], arrow_type, _reason(alone, convert)) from error


def _reason(alone: Any, convert: Convert) -> str:
    """Why ``convert`` refuses a single value."""
    try:
        convert(alone)
    except MisfitError as error:
        return error.reason if error.found is alone[0] else str(error)
    except _REFUSALS as error:
        return str(error) or type(error).__name__
    return "it would become another value"


def _first_refused(values: Any, convert: Convert) -> int | None:
    """The index of the first value that ``convert`` refuses, by bisection; None if it accepts each alone."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        if _refuses(values[low:middle], convert):
            high = middle
        else:
            low = middle
    return low if high > low and _refuses(values[low:high], convert) else None


def _refuses(values: Any, convert: Convert) -> bool:
    try:
        convert(values)
    except _REFUSALS:
        return True
    return False


def _listed(values: Any) -> Any:
    """The values as a list; typed arrays unchanged."""
    if type(values) is list:
        return values
    if hasattr(values, "isna"):  # of pandas
        if values.dtype != object:
            return (
                np.asarray(values)
                if isinstance(values.dtype, np.dtype) and not values.hasnans
                else pa.array(values)
            )
        return [None if missing else value for value, missing in zip(values, values.isna(), strict=True)]
    if isinstance(values, np.ndarray):
        return values.tolist() if values.dtype == object else values
    return values if isinstance(values, pa.Array) else list(values)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if type(values) is list:
        return _converter(kind)(values)
    return _cast(values if isinstance(values, pa.Array) else pa.array(values), kind)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column cast to ``kind``; Arrow refuses most lossy casts, the others are refused here."""
    given = column.type
    if given == kind:
        return column
    if not _alike(given, kind):
        raise MisfitError(f"{_wanted(kind)} is expected", given)
    found = column.cast(kind)
    return _no_new_infinity(found, column) if pa.types.is_floating(kind) else found


def _alike(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a column of the type ``given`` may be cast to ``kind``: if a list of its values could be converted."""
    types = pa.types
    given, kind = (one.value_type if types.is_dictionary(one) else one for one in (given, kind))
    if types.is_nested(given) or types.is_nested(kind):
        return _alike_within(given, kind)
    return bool(
        given == kind
        or types.is_null(given)
        or (_is_number(given) and _is_number(kind))
        or (types.is_integer(given) and (types.is_decimal(kind) or types.is_timestamp(kind)))
        or (types.is_integer(given) and (types.is_duration(kind) or types.is_date32(kind)))
        or (types.is_decimal(given) and (types.is_decimal(kind) or types.is_integer(kind)))
        or (types.is_boolean(given) and types.is_boolean(kind))
        or (types.is_date(given) and types.is_date(kind))
        or (types.is_time(given) and types.is_time(kind))
        or (types.is_timestamp(given) and types.is_timestamp(kind))
        or (types.is_duration(given) and types.is_duration(kind))
        or (_is_text(given) and _is_text(kind))
        or (is_blob(given) and is_blob(kind))
    )


def _alike_within(given: pa.DataType, kind: pa.DataType) -> bool:
    """``_alike`` for lists, maps and structs: the same form, and parts that are alike."""
    types = pa.types
    lists = types.is_list, types.is_large_list, types.is_fixed_size_list
    is_list = any(one(given) for one in lists) and any(one(kind) for one in lists)
    is_struct = types.is_struct(given) and types.is_struct(kind) and given.names == kind.names
    if not (is_list or is_struct or (types.is_map(given) and types.is_map(kind))):
        return False
    parts = [(given.field(at).type, kind.field(at).type) for at in range(given.num_fields)]
    return all(one == other or _alike(one, other) for one, other in parts)


def _is_text(kind: pa.DataType) -> bool:
    return bool(is_string_type(kind) or pa.types.is_string_view(kind))


def is_blob(kind: pa.DataType) -> bool:
    """Whether the type is bytes, in any of Arrow's layouts."""
    types = pa.types
    return bool(is_bytes_type(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


# -- one converter per type -------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _converter(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_struct(kind):
        return _structs(kind)
    if types.is_map(kind):
        return _maps(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(kind)
    if types.is_fixed_size_list(kind):
        variable = _lists(pa.list_(kind.value_field))
        return lambda values: variable(values).cast(kind)
    if types.is_dictionary(kind):
        decoded = _converter(kind.value_type)
        return lambda values: decoded(values).dictionary_encode().cast(kind)
    return _named(_flat(kind), kind)


def _flat(kind: pa.DataType) -> Convert:
    types = pa.types
    none: set[type] = {_NOTHING}
    if types.is_integer(kind):
        return _typed(kind, int, _INTEGERS, _integer)
    if types.is_timestamp(kind):
        return _timestamps(kind)
    if types.is_date(kind):
        return _typed(kind, dt.date, frozenset({dt.date, int} | none), _date)
    if types.is_time(kind):
        return _typed(kind, int, frozenset({int} | none), partial(_time, _TICKS[kind.unit]))
    if types.is_duration(kind):
        return _typed(kind, int, frozenset({int} | none), partial(_duration, _TICKS[kind.unit]))
    if _is_text(kind):
        return _typed(kind, str, frozenset({str, np.str_} | none), partial(_instance, str))
    if is_blob(kind):
        usual = frozenset({bytes, np.bytes_, bytearray, memoryview} | none)
        return _typed(kind, bytes, usual, partial(_instance, (bytes, bytearray, memoryview)))
    if types.is_decimal(kind):
        return _typed(kind, Decimal, frozenset({Decimal, int} | none), _decimal)
    if types.is_float64(kind) or types.is_boolean(kind) or types.is_null(kind):
        return partial(pa.array, type=kind)  # Arrow refuses values that they cannot represent
    if types.is_floating(kind):
        return lambda values: _narrow(pa.array(values, pa.float64()), kind)
    return partial(_compared, kind)


def _named(convert: Convert, kind: pa.DataType) -> Convert:
    """``convert`` with a reason for the first value that it refuses."""

    def named(values: list[Any]) -> pa.Array:
        try:
            return convert(values)
        except _REFUSALS as error:
            at = _first_refused(values, convert)
            if at is None:
                raise
            raise MisfitError(f"{_wanted(kind)} is expected", values[at]) from error

    return named


def _typed(kind: pa.DataType, usual: type, taken: frozenset[type], mend: Callable[[Any], Any]) -> Convert:
    """Converts values of the types ``taken``, nearly all of them ``usual``, directly; ``mend`` converts any other value
    first, or raises."""

    def convert(values: list[Any]) -> pa.Array:
        return pa.array(_mended(values, usual, taken, mend), kind)

    return convert


def _mended(values: list[Any], usual: type, taken: frozenset[type], mend: Callable[[Any], Any]) -> list[Any]:
    found = list(map(type, values))
    if found.count(usual) == len(found) or taken.issuperset(found):
        return values
    return [
        value if kind in taken else mend(value.as_py() if isinstance(value, pa.Scalar) else value)
        for value, kind in zip(values, found, strict=True)
    ]


def _timestamps(kind: pa.DataType) -> Convert:
    integers, per_second = pa.int64(), _TICKS[kind.unit]
    # Arrow truncates a datetime to a coarser unit, so it converts only microseconds here.
    taken = frozenset({int, _NOTHING, dt.datetime} if kind.unit == "us" else {int, _NOTHING})
    mend = partial(_instant, per_second)

    def convert(values: list[Any]) -> pa.Array:
        found = list(map(type, values))
        if found.count(int) == len(found):
            return pa.array(values, integers).cast(kind)
        return pa.array(_mended(values, int, taken, mend), kind)

    return convert


# -- values of unusual types ----------------------------------------------------------------------------


def _integer(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("a bool is not a number")
    if hasattr(value, "__index__"):
        return operator.index(value)
    if isinstance(value, _FRACTIONS) and (whole := int(value)) == value:
        return whole
    raise ValueError("no whole number")


def _date(value: Any) -> dt.date | int | None:
    if isinstance(value, dt.datetime):
        nanosecond: int = getattr(value, "nanosecond", 0)
        if value.time() != dt.time() or nanosecond:
            raise ValueError("a time of day")
        return value.date()
    return value if isinstance(value, dt.date) else _integer(value)


def _instant(per_second: int, value: Any) -> int | None:
    if not isinstance(value, dt.datetime):
        return _integer(value)
    utc = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    since = dt.datetime(
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, dt.UTC
    )
    return _ticks(since - dt.datetime(1970, 1, 1, tzinfo=dt.UTC), getattr(utc, "nanosecond", 0), per_second)


def _duration(per_second: int, value: Any) -> int | None:
    if not isinstance(value, dt.timedelta):
        return _integer(value)
    return _ticks(
        dt.timedelta(value.days, value.seconds, value.microseconds),
        getattr(value, "nanoseconds", 0),
        per_second,
    )


def _time(per_second: int, value: Any) -> int | None:
    if not isinstance(value, dt.time):
        return _integer(value)
    if value.tzinfo is not None:
        raise ValueError("a time zone")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _ticks(dt.timedelta(seconds=seconds, microseconds=value.microsecond), 0, per_second)


def _ticks(length: dt.timedelta, nanoseconds: int, per_second: int) -> int:
    in_all = length // dt.timedelta(microseconds=1) * 1000 + nanoseconds
    whole, rest = divmod(in_all * per_second, 1_000_000_000)
    if rest:
        raise ValueError("finer than the type's unit")
    return whole


def _decimal(value: Any) -> Decimal | int | None:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, float):
        raise TypeError("a float")
    return _integer(value)


def _instance(wanted: Any, value: Any) -> Any:
    if value is None or isinstance(value, wanted):
        return value
    raise TypeError("another type")


def _narrow(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return _no_new_infinity(column.cast(kind), column)


def _no_new_infinity(column: pa.Array, given: pa.Array) -> pa.Array:
    """``column``, rounded from ``given``; ValueError where a finite number became infinite."""
    infinite = pc.is_inf(column)
    if (
        pc.any(infinite).as_py()
        and pa.types.is_floating(given.type)
        and not infinite.equals(pc.is_inf(given))
    ):
        raise ValueError("beyond the largest number")
    return column


def _compared(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """For rarely used types: compares the result with the given values."""
    column = pa.array(values, kind)
    if column.to_pylist() != values:
        raise ValueError("another value")
    return column


# -- nested types ---------------------------------------------------------------------------------------


def _lists(kind: pa.DataType) -> Convert:
    array = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
    item = kind.value_field

    def convert(values: list[Any]) -> pa.Array:
        lists = _mended(values, list, _SEQUENCES, as_list)
        offsets = _offsets(lists, kind)
        return array.from_arrays(offsets, _part(list(chain(*filter(None, lists))), item), type=kind)

    return convert


def _maps(kind: pa.DataType) -> Convert:
    key, item = kind.key_field.with_nullable(False), kind.item_field

    def convert(values: list[Any]) -> pa.Array:
        if list(map(type, values)).count(dict) != len(values):
            values = [None if value is None else as_pairs(value) for value in values]
            pairs = list(chain.from_iterable(filter(None, values)))
            keys, items = [one for one, _ in pairs], [one for _, one in pairs]
        else:
            keys, items = list(chain(*values)), list(chain(*map(dict.values, values)))
        columns = _part(keys, key), _part(items, item)
        return pa.MapArray.from_arrays(_offsets(values, kind), *columns).cast(kind)

    return convert


def _structs(kind: pa.DataType) -> Convert:
    fields = list(kind)
    names = [field.name for field in fields]
    nothing = dict.fromkeys(names)
    getters = [operator.itemgetter(name) for name in names]

    def convert(values: list[Any]) -> pa.Array:
        found = list(map(type, values))
        mask = None
        if found.count(dict) != len(found):
            empty = np.array([value is None for value in values], np.bool_)
            mask = pa.array(empty) if empty.any() else None
            values = [nothing if value is None else as_fields(value, names) for value in values]
        if sum(map(len, values)) != len(values) * len(names):
            raise other_fields(values, names)
        if not names:
            return pa.array([None if null else {} for null in mask.to_pylist()] if mask else values, kind)
        try:
            columns = [list(map(getter, values)) for getter in getters]
        except KeyError:
            raise other_fields(values, names) from None
        nulls = 0 if mask is None else mask.true_count
        parts = [_part(*each, nulls) for each in zip(columns, fields, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)

    return convert


def _part(values: list[Any], field: pa.Field, nulls: int = 0) -> pa.Array:
    """The column of one field; nulls in addition to those of the parent are refused if the field is not nullable."""
    try:
        column = _converter(field.type)(values)
    except MisfitError as error:
        raise MisfitError(f"in '{field.name}' {error.reason}", error.found) from error.__cause__
    if not field.nullable and column.null_count > nulls:
        raise MisfitError(f"for '{field.name}', which is not nullable, a value is expected", None)
    return column


_SEQUENCES: Final[frozenset[type]] = frozenset({list, tuple, _NOTHING})


def as_list(value: Any) -> list[Any]:
    """The elements of a value for a list; MisfitError if it is not one."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist() if value.dtype.kind not in "mM" else list(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return list(value)
    if hasattr(value, "isna"):  # a Series of pandas
        return list(value)
    raise MisfitError("a list is expected", value)


def as_pairs(value: Any) -> list[Any]:
    """The entries of a value for a map; MisfitError if it is not one."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)):
        raise MisfitError("a dict or a list of pairs is expected", value)
    if pairs is value and not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise MisfitError("a dict or a list of pairs is expected", value)
    if pairs is value and _repeats([key for key, _ in pairs]):
        raise MisfitError("a dict or a list of pairs, each with another key, is expected", value)
    return list(pairs)


def _repeats(keys: list[Any]) -> bool:
    try:
        return len(set(keys)) != len(keys)
    except TypeError:  # keys such as lists
        return any(key in keys[:at] for at, key in enumerate(keys))


def as_fields(value: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """A struct's fields by name; a tuple has them in order, a list as pairs. MisfitError if it is not one."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    if isinstance(value, list) and value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        found = dict(value)
        if len(found) == len(value):
            return found
    raise MisfitError(f"a dict with the fields {', '.join(names)} is expected", value)


def other_fields(values: Iterable[Mapping[Any, Any]], names: Sequence[str]) -> MisfitError:
    """The error for the first struct with fields other than ``names``."""
    value = next(
        value for value in values if len(value) != len(names) or not all(name in value for name in names)
    )
    missing = [name for name in names if name not in value]
    unknown = [str(name) for name in value if name not in names]
    wrong = [f"without {', '.join(missing)}"] if missing else []
    wrong += [f"with {', '.join(unknown)}"] if unknown else []
    return MisfitError(
        f"a dict with the fields {', '.join(names)} is expected (None for null), but it is one "
        f"{' and '.join(wrong)}",
        value,
    )


def _offsets(lists: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The start offset of each list, and the end; null for those that are None."""
    there = np.array([one is not None for one in lists], np.bool_) if None in lists else None
    lengths = map(len, lists) if there is None else (0 if one is None else len(one) for one in lists)
    offsets: npt.NDArray[np.int64] = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(lists)), out=offsets[1:])
    if not pa.types.is_large_list(kind):
        if offsets[-1] > _INT32_MAX:
            raise pa.ArrowCapacityError(f"array too large: {offsets[-1]} items in one column of lists")
        offsets = offsets.astype(np.int32)
    return pa.array(offsets, mask=None if there is None else np.append(~there, False))


# -- texts ----------------------------------------------------------------------------------------------


def _wanted(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(kind):
        bits, signed = kind.bit_width, types.is_signed_integer(kind)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return f"a whole number from {low} to {high}"
    if types.is_timestamp(kind):
        return f"a datetime or a whole number of {kind.unit}, of 64 bits, not finer,"
    if types.is_date(kind):
        return "a datetime.date"
    if types.is_time(kind) or types.is_duration(kind):
        name = "datetime.time" if types.is_time(kind) else "datetime.timedelta"
        return f"a {name} or a whole number of {kind.unit}, not finer,"
    if types.is_decimal(kind):
        return f"a finite Decimal of at most {kind.precision} digits, {kind.scale} of them after the point,"
    if types.is_floating(kind):
        return "a float, or a whole number that a float holds exactly,"
    if _is_text(kind):
        return "a str that UTF-8 can encode (without lone surrogates)"
    if is_bytes_type(kind) or types.is_binary_view(kind):
        return "bytes"
    return "a bool" if types.is_boolean(kind) else str(kind)


def _shown(value: Any) -> str:
    try:
        shown = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except Exception as error:  # raised by a class of the user
        shown = f"<a {type(value).__name__} whose repr fails: {type(error).__name__}>"
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
