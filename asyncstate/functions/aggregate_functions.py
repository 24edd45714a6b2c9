"""User-defined aggregate functions: many values of a key into one value, or into some rows.

Owns: ``AggregateFunction``, ``TableAggregateFunction``, ``BundledAggregateFunction``, their arguments and results;
``map_view``, ``list_view`` and ``value_view``, the fields of an accumulator that are views.
Invariant: a function sees values, accumulators and segments; it knows nothing of keys' state or of the engine.
Must not import state, storage, execution, runtime or Spark.

Source: FLIP-139, Flink's ``TableAggregateFunction``, and its proposal of a ``BundledAggregateFunction``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import TypeLike, read_type
from asyncstate.codec.times import python_values
from asyncstate.errors import OperatorError
from asyncstate.functions.process import Function

# -- values in a loop -----------------------------------------------------------------------------------


class _Typed(Function):
    """Optional types that both kinds of aggregate functions may declare."""

    def get_result_type(self) -> TypeLike:
        """The Arrow type of a value; None: it is passed to ``udaf``."""
        return None

    def get_accumulator_type(self) -> TypeLike:
        """The Arrow type of the accumulator, a struct (or its schema), a list or a map; None: it is passed to
        ``udaf``."""
        return None


class AggregateFunction(_Typed):
    """Adds values to an accumulator and computes a result from it.

    An *accumulator* is what ``create_accumulator`` returns: a list, a dict, a tuple or a ``MutableRow``, with one value
    per field of the accumulator type; for a tuple the function receives a ``MutableRow``. ``accumulate``, ``retract``
    and ``merge`` change it and return nothing. Times are int64 microseconds; null is None.

    Fields of a struct that are made with ``map_view``, ``list_view`` or ``value_view`` are views:
    ``create_accumulator`` sets them to a ``MapView()``, ``ListView()`` or ``ValueView()``, and their content stays in
    state until it is read.

    ``retract`` is needed over changelogs and in bounded OVER frames, ``merge`` where windows share slices. Types are
    passed to ``udaf``, or returned by ``get_result_type`` and ``get_accumulator_type``.
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """An accumulator to which nothing has been added."""

    @abstractmethod
    def accumulate(self, accumulator: Any, *args: Any) -> None:
        """Add a row's values: one argument per column."""

    def retract(self, accumulator: Any, *args: Any) -> None:
        """Retract a row's values."""
        raise NotImplementedError(f"{type(self).__name__} has no method retract")

    def merge(self, accumulator: Any, accumulators: Iterable[Any]) -> None:
        """Add the content of ``accumulators``, which are not used again, to ``accumulator``."""
        raise NotImplementedError(f"{type(self).__name__} has no method merge")

    def get_value(self, accumulator: Any) -> Any:
        """The result of the accumulator, of the result type, or None."""
        raise NotImplementedError(f"{type(self).__name__} has no method get_value")


class RetractableCollector(Protocol):
    """Collects the rows of ``emit_update_with_retract``: tuples, dicts, or for one column the value itself."""

    def collect(self, row: Any) -> None:
        """Emit a new row."""

    def retract(self, row: Any) -> None:
        """Retract a row that was emitted before and no longer holds."""


class TableAggregateFunction(AggregateFunction):
    """Adds values to an accumulator and computes rows from it: a top N, for instance.

    Write ``emit_value``; or ``emit_update_with_retract``, where the function itself knows what has changed since its
    last call, and keeps the emitted rows in the accumulator. The result type is a struct, or its schema.
    """

    def emit_value(self, accumulator: Any) -> Iterable[Any]:
        """All rows of the accumulator, in the forms that ``RetractableCollector`` accepts."""
        raise NotImplementedError(f"{type(self).__name__} has no method emit_value")

    def emit_update_with_retract(self, accumulator: Any, out: RetractableCollector) -> None:
        """Emit what has changed since the last call for this accumulator; it is stored afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has no method emit_update_with_retract")


def has_method(function: object, name: str) -> bool:
    """Whether a function's class defines ``name`` itself instead of inheriting it from one of the bases here."""
    method = getattr(type(function), name, None)
    return method is not None and method.__module__ != __name__


def require_changed_in_place(method: str, accumulator: Any, result: Any) -> None:
    """Raise OperatorError for the ``result`` of a ``method`` that should change the accumulator in place."""
    if result is not None and result is not accumulator:
        if type(result) is CoroutineType:
            result.close()  # else Python also warns that it was never awaited
        raise OperatorError(
            f"{method} returned {result!r}, which would be ignored; change the accumulator in place and return nothing"
        )


class MutableRow(list[Any]):
    """An accumulator with named fields: ``row["count"] += 1`` or ``row[0] += 1``.

    >>> row = MutableRow(count=0, total=0.0)
    >>> row["count"] += 1
    >>> row[1] += 2.5
    >>> row
    MutableRow(count=1, total=2.5)
    """

    __slots__ = ("_fields",)
    _fields: dict[str, int]

    def __init__(self, *values: Any, **named: Any) -> None:
        """Values by position, or by name."""
        super().__init__(values or named.values())
        self._fields = {name: at for at, name in enumerate(named)}

    @classmethod
    def of(cls, values: Iterable[Any], fields: dict[str, int]) -> MutableRow:
        """A row of ``values``; ``fields`` maps each name to its position."""
        row = cls(*values)
        row._fields = fields
        return row

    def __getitem__(self, item: Any) -> Any:
        return list.__getitem__(self, self._fields[item] if item.__class__ is str else item)

    def __setitem__(self, item: Any, value: Any) -> None:
        list.__setitem__(self, self._fields[item] if item.__class__ is str else item, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return MutableRow.of, (list(self), self._fields)

    def __repr__(self) -> str:
        names = list(self._fields)
        parts = [
            f"{names[at]}={value!r}" if at < len(names) else repr(value) for at, value in enumerate(self)
        ]
        return f"MutableRow({', '.join(parts)})"


# -- views ----------------------------------------------------------------------------------------------

_VIEW: Final = b"asyncstate.view"
ViewKind = Literal["map", "list", "value"]


def map_view(name: str, key_type: TypeLike, value_type: TypeLike) -> pa.Field:
    """A field of an accumulator type that is a ``MapView``: only requested entries are read."""
    what = f"map_view '{name}'"
    kind = pa.map_(read_type(key_type, what), read_type(value_type, what))
    return pa.field(name, kind, metadata={_VIEW: b"map"})


def list_view(name: str, element_type: TypeLike) -> pa.Field:
    """A field of an accumulator type that is a ``ListView``: adding to it reads none of it."""
    kind = pa.list_(read_type(element_type, f"list_view '{name}'"))
    return pa.field(name, kind, metadata={_VIEW: b"list"})


def value_view(name: str, value_type: TypeLike) -> pa.Field:
    """A field of an accumulator type that is a ``ValueView``: read and written only on request."""
    return pa.field(name, read_type(value_type, f"value_view '{name}'"), metadata={_VIEW: b"value"})


def view_of(accumulator_field: pa.Field) -> ViewKind | None:
    """The kind of view of a field of an accumulator type; None: a plain value."""
    found = (accumulator_field.metadata or {}).get(_VIEW)
    return None if found is None else found.decode()


# -- segments -------------------------------------------------------------------------------------------


class SegmentRow(tuple[Any, ...]):
    """A row's arguments, with its ``kind``: rows of kind +I and +U are added, of -U and -D retracted."""

    kind: RowKind

    @staticmethod
    def of(values: Iterable[Any], kind: RowKind) -> SegmentRow:
        """A row of ``values``."""
        row = SegmentRow(values)
        row.kind = kind
        return row

    @property
    def is_accumulate(self) -> bool:
        """True for +I and +U."""
        return self.kind in (RowKind.INSERT, RowKind.UPDATE_AFTER)

    @property
    def is_retract(self) -> bool:
        """True for -U and -D."""
        return not self.is_accumulate


@dataclass(frozen=True)
class KeySegment:
    """Rows of one key in their order, with the earlier accumulator of the key.

    ``accumulators``: none (nothing was accumulated yet), one, or several, which are to be merged first.
    ``key`` has one value per key column.
    """

    key: tuple[Any, ...]
    rows: Sequence[SegmentRow]
    accumulators: Sequence[Any]
    updated_values_after_each_row: bool = False


@dataclass(frozen=True)
class KeySegmentApplied:
    """The result of a segment: the accumulator, and the values at the start (None without an accumulator), at the end,
    and, if requested, after each row."""

    accumulator: Any
    starting_value: Any = None
    final_value: Any = None
    updated_values_after_each_row: Sequence[Any] | None = None


@dataclass(frozen=True)
class KeySegments(Sequence[KeySegment]):
    """n rows of u keys, segment by segment; as columns, or one ``KeySegment`` after the other.

    ``columns``: the arguments (n each). ``starts`` (u + 1): where each segment begins, and n. ``signs`` (n, int8): +1
    for rows that are added, -1 for retracted ones; ``kinds`` (n, int8): their row kinds, as ``RowKind`` numbers them,
    by default +I and -D, as for rows that enter an OVER frame and leave it.
    ``keys``: the key columns (u each). ``accumulators`` (u) of the accumulator type, null where there is none; or a
    list of them per key, all to be merged first.
    ``updated_values_after_each_row``: a value after each row is requested.
    """

    columns: Sequence[pa.Array]
    starts: npt.NDArray[np.int64]
    signs: npt.NDArray[np.int8]
    keys: Sequence[pa.Array]
    accumulators: pa.Array
    accumulator_type: pa.DataType
    updated_values_after_each_row: bool = False
    kinds: npt.NDArray[np.int8] | None = None
    _python: dict[str, list[Any]] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.signs)

    @property
    def segment_of_row(self) -> npt.NDArray[np.int64]:
        """The segment (n) of each row."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._segment(at) for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"segment {index} of {len(self)}")
        return self._segment(index % len(self))

    def __iter__(self) -> Iterator[KeySegment]:
        return map(self._segment, range(len(self)))

    def _segment(self, index: int) -> KeySegment:
        start, stop = int(self.starts[index]), int(self.starts[index + 1])
        values = self._values("rows", self.columns) or [()] * self.num_rows
        kinds = self.kinds
        if kinds is None:
            kinds = np.where(self.signs < 0, np.int8(RowKind.DELETE), np.int8(RowKind.INSERT))
        pairs = zip(values[start:stop], kinds[start:stop].tolist(), strict=True)
        rows = [SegmentRow.of(row, RowKind(kind)) for row, kind in pairs]
        (held,) = self._values("accumulators", [self.accumulators])[index]
        merging = self.accumulators.type != self.accumulator_type
        accumulators = [] if held is None else [self._mutable(one) for one in (held if merging else [held])]
        keys = self._values("keys", self.keys)
        return KeySegment(keys[index] if keys else (), rows, accumulators, self.updated_values_after_each_row)

    def _values(self, name: str, columns: Sequence[pa.Array]) -> list[Any]:
        found = self._python.get(name)
        if found is None:
            found = self._python[name] = list(zip(*map(python_values, columns), strict=True))
        return found

    def _mutable(self, value: Any) -> Any:
        if not pa.types.is_struct(self.accumulator_type):
            return value
        fields = {one.name: at for at, one in enumerate(self.accumulator_type)}
        return MutableRow.of([value[name] for name in fields], fields)


@dataclass(frozen=True)
class SegmentsApplied:
    """The result of ``KeySegments``, as columns: an accumulator (u) of the accumulator type and values of the result
    type; ``updated_values_after_each_row`` (n) if requested."""

    accumulators: pa.Array
    starting_values: pa.Array
    final_values: pa.Array
    updated_values_after_each_row: pa.Array | None = None


class BundledAggregateFunction(_Typed):
    """Adds many rows of many keys to accumulators in one call: calls a service, say, or computes with numpy.

    May be a base in addition to ``AggregateFunction``: where ``supports_bundling``, it is used instead of that one's
    methods.
    """

    def supports_bundling(self) -> bool:
        """Whether ``bundled_accumulate_retract`` is used."""
        return True

    def supports_retracting(self) -> bool:
        """Whether it can retract rows."""
        return False

    def supports_merging(self) -> bool:
        """Whether it can merge several accumulators of a key."""
        return False

    @abstractmethod
    def bundled_accumulate_retract(
        self, segments: KeySegments
    ) -> SegmentsApplied | Sequence[KeySegmentApplied]:
        """Apply the rows; return a ``SegmentsApplied``, or a ``KeySegmentApplied`` for each segment, in their order.

        May be an ``async def`` that calls a service: it then runs as ``BundleContext.call`` runs it.
        """
