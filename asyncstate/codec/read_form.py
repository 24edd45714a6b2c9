"""Which Python values are read from a column in the very form in which they were written.

Owns: ``reads_as_given``.
Invariant: where it is true, ``python_values(arrow_values(values, type))`` gives equal values of the same Python types,
at any depth. Equal values of other types, or decimals of another scale, differ as texts, for instance: a result that
is computed from them before they are stored would not be the one that is computed later.
Must not import anything of the project except other modules of ``codec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from asyncstate.codec.arrow_types import is_nested_type
from asyncstate.codec.scalars import plain_values

_NOTHING = type(None)


def reads_as_given(values: Sequence[Any], arrow_type: pa.DataType) -> bool:
    """Whether ``values``, as far as they fit ``arrow_type``, are certainly read as they are; false for float32, which
    rounds. Numbers for timestamps are microseconds."""
    if is_nested_type(arrow_type):
        return _nested_as_given(values, arrow_type)
    plain = plain_values(arrow_type)
    if plain is None or not _are(values, plain.type):
        return False
    if pa.types.is_decimal128(arrow_type):
        exponent = -arrow_type.scale
        return all(value is None or value.as_tuple().exponent == exponent for value in values)
    return plain.kept


def _are(values: Sequence[Any], kind: type) -> bool:
    """Whether all values that are not None are of exactly this type."""
    return {kind, _NOTHING}.issuperset(map(type, values))


def _nested_as_given(values: Sequence[Any], arrow_type: pa.DataType) -> bool:
    there = [value for value in values if value is not None]
    if pa.types.is_struct(arrow_type):
        fields = list(arrow_type)
        names = [field.name for field in fields]
        return (
            _are(there, dict)
            and all(list(value) == names for value in there)
            and all(reads_as_given([value[field.name] for value in there], field.type) for field in fields)
        )
    if not _are(there, list):
        return False
    parts = list(chain.from_iterable(there))
    if pa.types.is_list(arrow_type):
        return reads_as_given(parts, arrow_type.value_type)
    if not _are(parts, tuple) or None in parts or any(len(pair) != 2 for pair in parts):
        return False
    keys, items = [key for key, _ in parts], [item for _, item in parts]
    return reads_as_given(keys, arrow_type.key_type) and reads_as_given(items, arrow_type.item_type)
