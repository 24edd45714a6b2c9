"""What all joins of two inputs have in common: their requirements on the inputs, and their output columns.

Owns: ``TwoInputJoin``; ``Condition``, that of a join in addition to its keys; the checks of keys, the joined schema,
and which keys can match.
Invariant: a join that has been bound has keys of equal types and output columns of distinct names.
Must not know of state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog, ChangelogMode, RowKind
from asyncstate.codec import KeyBatch
from asyncstate.errors import SchemaError
from asyncstate.operator import BundleContext, BundleOperator, InputSpec, OutputSpec

from ..core.arrays import BoolArray, Int8Array, Int64Array, index_among, take_rows, valid_rows
from ..core.condition import ConditionLike, RowCondition, check_condition
from ..core.operator_checks import Named, check_choice
from ..core.state_meaning import meaning
from .rules import PAIRED_KINDS, JoinKind

JoinCondition: TypeAlias = ConditionLike
"""A function of a batch of joined candidate rows to booleans, or a pyarrow expression over their columns."""


class Condition(RowCondition):
    """Evaluates ``condition`` over pairs of rows; ``schema`` has the left, then the right columns."""

    def __init__(self, condition: JoinCondition, schema: pa.Schema, owner: str) -> None:
        super().__init__(condition, schema, owner, "joined columns")

    def __call__(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> BoolArray:
        """True (n) for the pairs that match; ``left`` and ``right`` are columns of n rows each."""
        return self.mask([*left, *right])

    def unknown(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> BoolArray:
        """True (n) for the pairs of which the condition is null."""
        return self.nulls([*left, *right])


class TwoInputJoin(Named, BundleOperator):
    """Rows of two inputs with equal keys."""

    num_inputs: ClassVar[int] = 2

    def __init__(
        self,
        kind: JoinKind,
        condition: JoinCondition | None,
        suffixes: tuple[str, str],
        null_safe: bool,
        kinds: Sequence[str] = PAIRED_KINDS,
    ) -> None:
        """``kinds``: the values that ``kind`` may have."""
        check_choice(kind, kinds, "kind", self.owner)
        check_condition(condition, self.owner)
        self.kind: JoinKind = kind
        self.condition = condition
        self.suffixes = suffixes
        self.null_safe = null_safe

    @property
    def _left_only(self) -> bool:
        """Whether no columns of right rows are emitted."""
        return self.kind in ("semi", "anti", "mark")

    def _output_schema(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """Left columns, then right columns; only the left ones for semi and anti. Raises SchemaError for keys,
        names or a condition that do not fit."""
        left, right = inputs
        check_keys(left, right, self.owner)
        joined = joined_schema(self.kind, inputs, self.suffixes, self.owner)
        condition = self._condition_over(inputs)
        if condition is not None:
            condition.check()
        return left.schema if self._left_only else joined

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows are stored, and what was emitted for them."""
        return meaning(self, kind=self.kind, condition=self.condition, null_safe=self.null_safe)

    def keyed_output(self, inputs: Sequence[InputSpec]) -> Sequence[tuple[str, ...]]:
        """See ``Operator``: the keys of inputs whose rows are never padded."""
        return kept_keys(self.kind, inputs, self.bind(inputs))

    def _condition_over(self, inputs: Sequence[InputSpec]) -> Condition | None:
        """The condition in addition to the keys."""
        if self.condition is None:
            return None
        joined = joined_schema(self.kind, inputs, self.suffixes, self.owner)
        return Condition(self.condition, joined, self.owner)

    def _emit(
        self,
        side: int,
        own: tuple[Sequence[pa.Array], Int64Array],
        other: tuple[Sequence[pa.Array], Int64Array],
        kinds: Int8Array | RowKind,
        ctx: BundleContext,
    ) -> None:
        """Emit rows of ``side`` and of the other one: their columns, and the indices of the rows (-1: none)."""
        if not len(own[1]):
            return
        parts = [own, other] if side == 0 else [other, own]
        if self._left_only:
            parts = parts[:1]
        ctx.emit([column for columns, rows in parts for column in take_rows(columns, rows)], kinds)


def check_keys(left: InputSpec, right: InputSpec, owner: str) -> None:
    """Raise SchemaError if the keys of the inputs cannot be compared."""
    if len(left.key) != len(right.key):
        raise SchemaError(
            f"{owner}: {left.name} has the key ({', '.join(left.key)}), {right.name} ({', '.join(right.key)}); give "
            "both inputs the same number of key columns"
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
    """Left, then right columns; ``suffixes`` after names that both have. Raises SchemaError if a name occurs twice."""
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


def joined_changes(
    mode: ChangelogMode,
    kind: JoinKind,
    inputs: Sequence[InputSpec],
    output: pa.Schema,
    more: Sequence[str] = (),
) -> Changelog:
    """The changes of the rows of a join, from those of its inputs; ``output`` has left, then right columns. ``more``:
    columns that are part of each unique key, and never null.

    A left row has at most one partner where the key identifies a right row, and the other way round. Only the
    other side identifies padded rows, so keys of a padded side identify nothing. If both sides are padded, a key of
    both needs a column that is null only where it is padded: otherwise a left and a right row could have the same.
    """
    (left, ours, ours_never_null), (right, theirs, theirs_never_null) = _known_keys(inputs, output)
    never_null = {*(ours_never_null if kind not in ("right", "full") else ()), *more}
    if kind in ("semi", "anti", "mark"):
        return Changelog(mode, tuple((*key, *more) for key in ours)).without_nulls_in(never_null)
    never_null |= theirs_never_null if kind in ("inner", "right") else set()
    keys = []
    if kind in ("inner", "left") and right.changes.identifies(right.key):
        keys += ours
    if kind in ("inner", "right") and left.changes.identifies(left.key):
        keys += theirs
    both = ((*one, *other) for one in ours for other in theirs)
    keys += [
        key for key in both if kind != "full" or not (ours_never_null | theirs_never_null).isdisjoint(key)
    ]
    return Changelog(mode, tuple((*key, *more) for key in keys)).without_nulls_in(never_null)


def _known_keys(
    inputs: Sequence[InputSpec], output: pa.Schema
) -> Iterator[tuple[InputSpec, list[tuple[str, ...]], set[str]]]:
    """For each input its unique keys, in which nulls are values like others, and its columns without nulls, both by
    their names in ``output``."""
    begin = 0
    for spec in inputs:
        shown = dict(zip(spec.schema.names, output.names[begin:], strict=False))
        keys = [key for key in spec.changes.unique_keys if set(key) <= shown.keys()]
        never_null = {shown[name] for name in spec.changes.never_null if name in shown}
        yield spec, [tuple(shown[name] for name in key) for key in keys], never_null
        begin += len(spec.schema)


def matchable_keys(keys: KeyBatch, null_safe: bool) -> BoolArray | None:
    """The unique keys (u) that can match; None if all can. A null matches nothing, unless ``null_safe``."""
    return None if null_safe else valid_rows(keys.columns)


def matching(keys: KeyBatch, null_safe: bool) -> tuple[KeyBatch, Int64Array]:
    """The keys that can match, and the index of each row's key among them (-1: it never matches)."""
    row_keys = keys.inverse.astype(np.int64)
    matchable = matchable_keys(keys, null_safe)
    if matchable is None:
        return keys, row_keys
    return keys.select(matchable), np.where(matchable, index_among(matchable), -1)[row_keys]
