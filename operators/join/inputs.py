"""What all joins of two inputs ask of these, and the columns that they put out.

Owns: the checks of keys, the joined schema, and which keys can match.
Invariant: a join that has been bound has keys of equal types and output columns of distinct names.
Must not know of state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec, OutputSpec

from ..core.arrays import BoolArray, Int64Array, index_among
from .rules import JoinKind


def check_keys(left: InputSpec, right: InputSpec, owner: str) -> None:
    """SchemaError if the keys of the inputs cannot be compared."""
    if len(left.key) != len(right.key):
        raise SchemaError(
            f"{owner}: {left.name} has the key ({', '.join(left.key)}), {right.name} ({', '.join(right.key)}); "
            "give both inputs equally many key columns"
        )
    for one, other in zip(left.key_schema, right.key_schema, strict=True):
        if one.type != other.type:
            raise SchemaError(
                f"{owner}: key column '{one.name}' of {left.name} is {one.type} but "
                f"'{other.name}' of {right.name} is {other.type}; cast one of them"
            )


def joined_schema(
    kind: JoinKind, inputs: Sequence[InputSpec], suffixes: tuple[str, str], owner: str
) -> pa.Schema:
    """Left, then right columns; ``suffixes`` behind names that both have. SchemaError if a name occurs twice."""
    names = [spec.schema.names for spec in inputs]
    shared = set(names[0]) & set(names[1])
    nullable = (kind in ("right", "full"), kind in ("left", "full"))
    fields = [
        pa.field(field.name + (suffix if field.name in shared else ""), field.type, field.nullable or padded)
        for spec, suffix, padded in zip(inputs, suffixes, nullable, strict=True)
        for field in spec.schema
    ]
    for field in fields:
        if [other.name for other in fields].count(field.name) > 1:
            raise SchemaError(
                f"{owner}: column '{field.name}' would occur twice in the output; give other suffixes than "
                f"{suffixes!r}, or rename the column in one of the inputs"
            )
    return pa.schema(fields)


def kept_keys(
    kind: JoinKind, inputs: Sequence[InputSpec], output: pa.Schema | OutputSpec
) -> list[tuple[str, ...]]:
    """The columns of ``output``, left ones first, that have the key in every row: of an input that is never padded."""
    left, right = inputs
    names = OutputSpec.of(output).schema.names
    kept = []
    if kind not in ("right", "full"):
        kept.append(tuple(names[left.schema.get_field_index(name)] for name in left.key))
    if kind in ("inner", "right"):
        first = len(left.schema)
        kept.append(tuple(names[first + right.schema.get_field_index(name)] for name in right.key))
    return kept


def matchable_keys(keys: KeyBatch, null_safe: bool) -> BoolArray | None:
    """The unique keys (u) that can match; None if all can. A null matches nothing, unless ``null_safe``."""
    if null_safe or not any(column.null_count for column in keys.columns):
        return None
    matchable = np.ones(len(keys), np.bool_)
    for column in keys.columns:
        matchable &= column.is_valid().to_numpy(zero_copy_only=False)
    return matchable


def matching(keys: KeyBatch, null_safe: bool) -> tuple[KeyBatch, Int64Array]:
    """The keys that can match, and the index of each row's key among them (-1: it never matches)."""
    row_keys = keys.inverse.astype(np.int64)
    matchable = matchable_keys(keys, null_safe)
    if matchable is None:
        return keys, row_keys
    return keys.select(matchable), np.where(matchable, index_among(matchable), -1)[row_keys]
