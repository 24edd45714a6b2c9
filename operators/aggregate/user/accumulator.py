"""Accumulators of a user-defined function: as the objects that it changes, and as stored columns.

Owns: ``AccumulatorForm``.
Invariant: an accumulator that is stored and read again equals the one that the function left, including its views:
decoding attaches them. The first column says whether there is an accumulator.
Must not import anything of ``asyncstate`` but ``codec``, ``errors``, ``functions``, ``operator`` and ``state``.

A struct is stored field by field, so that numbers are read and written without a loop over rows; a list or map as one
column. Fields that are views have separate states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch, read_schema, read_type
from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.codec.read_form import reads_as_given
from asyncstate.codec.times import python_values
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.functions.aggregate_functions import MutableRow, view_of
from asyncstate.operator import OperatorContext
from asyncstate.state.columnar.state_columns import ColumnState
from asyncstate.state.views.bundle_maps import MapViews
from asyncstate.state.views.bundle_views import BundleViews, ListViews, ValueViews
from asyncstate.state.views.turns import Turns
from asyncstate.state.views.views import is_view

from ..aggregator import State, key_text

_VIEWS: dict[str, Callable[..., BundleViews[Any]]] = {"map": MapViews, "list": ListViews, "value": ValueViews}


class AccumulatorForm:
    """The accumulators of ``accumulator_type``, stored in columns whose names begin with ``prefix``."""

    def __init__(self, accumulator_type: pa.DataType, prefix: str, owner: str) -> None:
        self.type = accumulator_type
        self.owner = owner
        self._prefix = prefix
        self._is_struct = pa.types.is_struct(accumulator_type)
        fields = list(accumulator_type) if self._is_struct else [pa.field("value", accumulator_type)]
        self._names = [field.name for field in fields]
        self._plain = [at for at, field in enumerate(fields) if view_of(field) is None]
        self._types = [field.type for field in fields]
        self._view_fields = {at: field for at, field in enumerate(fields) if view_of(field) is not None}
        self.views: dict[int, BundleViews[Any]] = {}
        stored = [pa.field(f"{prefix}.{self._names[at]}", self._types[at]) for at in self._plain]
        # Not null if there is a key: an aggregate that is added later must not look like one that has seen its rows.
        self.fields = (pa.field(prefix, pa.bool_(), nullable=False), *stored)
        self.make: Callable[[list[Any]], Any] = list
        self._by_name = False

    @property
    def has_views(self) -> bool:
        """Whether some fields are views."""
        return bool(self._view_fields)

    def open(self, context: OperatorContext, time_first: bool) -> None:
        """Declare the states of the views."""
        for at, field in self._view_fields.items():
            name = f"{self._prefix}.{field.name}"
            self.views[at] = _VIEWS[view_of(field) or ""](
                field.name, name, field.type, context, time_first, self.owner
            )

    def like(self, accumulator: Any) -> None:
        """Make accumulators of the same form as ``accumulator``, which the function has created."""
        place = {name: at for at, name in enumerate(self._names)}
        if not self._is_struct:
            wanted = dict if pa.types.is_map(self.type) else list
            if not isinstance(accumulator, wanted):
                raise self._unfit(accumulator, f"a {wanted.__name__}")
            self.make = _mapping if wanted is dict else lambda values: list(values[0])
        elif isinstance(accumulator, dict):
            self.make = lambda values: dict(zip(self._names, values, strict=True))
            self._by_name = True
        elif isinstance(accumulator, list) and not isinstance(accumulator, MutableRow):
            self.make = list
        elif isinstance(accumulator, tuple | MutableRow):
            self.make = lambda values: MutableRow.of(values, place)
        else:
            raise self._unfit(accumulator, "a list, dict, tuple or MutableRow")
        if self._is_struct:
            self._check_fields(accumulator)

    def _check_fields(self, accumulator: Any) -> None:
        """Check the fields of a new struct. A dict may lack fields at first, but may not have other ones."""
        named = accumulator._fields if isinstance(accumulator, MutableRow) else {}
        if isinstance(accumulator, dict):
            fits = accumulator.keys() <= set(self._names)
        else:
            fits = len(accumulator) == len(self._names) and list(named or self._names) == self._names
        if not fits:
            raise self._unfit(accumulator, f"one of the fields {', '.join(self._names)}, in this order")

    def fresh(self, accumulator: Any) -> Any:
        """A new accumulator, converted to the form that the function receives."""
        if isinstance(accumulator, tuple):
            accumulator = self.make(list(accumulator))
        for at, views in self.views.items():
            index = self._index(at)
            view = accumulator.get(index) if self._by_name else accumulator[index]
            if is_view(view):
                views.made(view)
        return accumulator

    def decode(self, state: State, keys: KeyBatch | None = None) -> list[Any]:
        """The accumulators (u) of stored columns, each with its views; None if there is none.

        ``keys`` (u): those whose views are in state; None if nothing is stored.
        """
        accumulators = self._without_views(state)
        if self.views and keys is not None:
            self.begin(keys)
            for key, one in enumerate(accumulators):
                if one is not None:
                    self.attach(one, key)
        return accumulators

    def _without_views(self, state: State) -> list[Any]:
        present = state[0]
        known = present.fill_null(False) if present.null_count else present
        columns: list[list[Any]] = [[None] * len(known)] * len(self._types)
        for at, column in zip(self._plain, state[1:], strict=True):
            columns[at] = python_values(column)
        make = self.make
        if self._is_struct and make is list:
            made: list[Any] = list(map(list, zip(*columns, strict=True)))
        else:
            return [
                make(list(values)) if there else None
                for there, values in zip(known.to_pylist(), zip(*columns, strict=True), strict=True)
            ]
        if known.true_count == len(known):
            return made
        return [one if there else None for one, there in zip(made, known.to_pylist(), strict=True)]

    def encode(self, accumulators: Sequence[Any], keys: KeyBatch | None = None) -> State:
        """Stored columns of accumulators (u, or None) of ``keys`` (u). Raises OperatorError for values that do not fit
        the type."""
        missing = None in accumulators
        if self._is_struct:
            self._check_width(accumulators)
        present = (
            [one is not None for one in accumulators] if missing else np.ones(len(accumulators), np.bool_)
        )
        return [
            pa.array(present, pa.bool_()),
            *(self._column(at, accumulators, missing, keys) for at in self._plain),
        ]

    def as_stored(self, accumulators: Sequence[Any], keys: KeyBatch | None = None) -> None:
        """Give accumulators (u, or None) the form in which they are read after they are stored, such as rounded float32
        and decimals of the type's scale. Values are then the same now and later, so retractions equal the emitted rows.
        """
        missing = None in accumulators
        for at in self._plain:
            if self._reads_as_given(at, accumulators, missing):
                continue
            values = python_values(self._column(at, accumulators, missing, keys))
            for one, value in zip(accumulators, values, strict=True):
                if one is not None and self._is_struct:
                    one[self._index(at)] = value
                elif one is not None:
                    one.clear()
                    one.update(value) if isinstance(one, dict) else one.extend(value)

    def _reads_as_given(self, at: int, accumulators: Sequence[Any], missing: bool) -> bool:
        try:
            values = self._parts(at, accumulators, missing)
        except (TypeError, LookupError):
            return False
        if not self._is_struct and pa.types.is_map(self.type):  # a dict stays one
            values = [None if value is None else list(value.items()) for value in values]
        return reads_as_given(values, self._types[at])

    def _check_width(self, accumulators: Sequence[Any]) -> None:
        """Raise OperatorError for extra fields: those that the type does not have would be lost."""
        for one in accumulators:
            if one is not None and len(one) > len(self._names):
                raise OperatorError(
                    f"{self.owner}: an accumulator is {one!r}, with more than the fields {', '.join(self._names)} of "
                    "its type, but only those are stored; declare the others too"
                )

    def _column(self, at: int, accumulators: Sequence[Any], missing: bool, keys: KeyBatch | None) -> pa.Array:
        try:
            return arrow_values(self._parts(at, accumulators, missing), self._types[at])
        except (TypeError, LookupError) as error:
            raise OperatorError(
                f"{self.owner}: an accumulator has no field '{self._names[at]}' ({error!r}); the function must keep "
                "all fields of the accumulator type"
            ) from error
        except UnfitValueError as error:
            raise OperatorError(
                f"{self.owner}{key_text(keys, error.row)}: field '{self._names[at]}' of an accumulator is {error}; "
                "return values of the accumulator type, or declare another type"
            ) from error

    def _parts(self, at: int, accumulators: Sequence[Any], missing: bool) -> list[Any]:
        """Field ``at`` of each accumulator; ``missing``: some are None."""
        if not self._is_struct:
            return list(accumulators)
        index = self._index(at)
        if not missing:
            return list(map(itemgetter(index), accumulators))
        return [None if one is None else one[index] for one in accumulators]

    def _index(self, at: int) -> Any:
        return self._names[at] if self._by_name else at

    def attach(self, accumulator: Any, key: int, new: bool = False) -> None:
        """Attach the views of the key with index ``key`` in the current bundle to its accumulator; ``new``: the views
        start with the accumulator's content."""
        for at, views in self.views.items():
            index = self._index(at)
            given = None
            if new:
                given = accumulator.get(index) if self._by_name else accumulator[index]
            accumulator[index] = views.view(key, new, given)

    def begin(self, keys: KeyBatch) -> None:
        """Set the keys (u) of the current bundle; the same keys again continue the current bundle."""
        for views in self.views.values():
            if views.keys is not keys:
                views.begin(keys)

    def turns(self, accumulators: Sequence[Any]) -> Turns:
        """The turns of keys (u): in a key's turn, only the views of its accumulator may be used."""
        if not self.views:
            return Turns(())
        fields = itemgetter(
            *map(self._index, self.views), self._index(0)
        )  # one more, so that the result is a tuple
        return Turns(
            [[] if one is None else [v for v in fields(one)[:-1] if is_view(v)] for one in accumulators]
        )

    def flush(self, accumulators: Sequence[Any]) -> None:
        """Write the bundle's changes of the views of accumulators (u)."""
        for at, views in self.views.items():
            place = self._index(at)
            views.settle((key, one[place]) for key, one in enumerate(accumulators) if one is not None)
            views.flush()

    def remove(self, keys: KeyBatch) -> None:
        """Remove the views of ``keys``."""
        for views in self.views.values():
            views.remove(keys)

    def expire_with(self, state: ColumnState) -> None:
        """Expire the views together with the rows of the same keys in ``state``."""
        for views in self.views.values():
            views.expire_with(state)

    def _unfit(self, accumulator: Any, wanted: str) -> SchemaError:
        return SchemaError(
            f"{self.owner}: create_accumulator returned {accumulator!r}, but an accumulator of type {self.type} is "
            f"{wanted}; return one, or declare another accumulator type"
        )


def _mapping(values: list[Any]) -> dict[Any, Any]:
    found = values[0]
    return dict(found) if found is not None else {}


def as_type(given: Any, what: str) -> pa.DataType | None:
    """Convert to an Arrow type: a schema, or its text, to the struct of its fields; the text of a type to that type;
    None to None. Raises SchemaError for anything else."""
    if isinstance(given, pa.Schema):
        return pa.struct(list(given))
    try:
        found = read_type(given, what)
    except SchemaError as error:
        try:
            return pa.struct(list(read_schema(given, what)))
        except SchemaError:
            raise error from None
    if found is not None and not isinstance(found, pa.DataType):
        raise SchemaError(
            f"{what} is {given!r}; give an Arrow type or schema, a string such as 'bigint' or 'total bigint, "
            "n int', or int, float, str, bytes or bool"
        )
    return found
