"""``udaf`` and ``udtaf``: a user-defined function as an aggregate of columns.

Owns: ``udaf``, ``udtaf`` and ``UserAggregate``, the kind of their aggregates.
Invariant: a function without a method that its use requires is refused before any row is read.
Must not import anything of ``asyncstate`` but ``errors`` and ``functions``.

Source: PyFlink's ``udaf`` and ``udtaf``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.functions.aggregate_functions import (
    AggregateFunction,
    BundledAggregateFunction,
    TableAggregateFunction,
    has_method,
    view_of,
)
from asyncstate.program_text import object_text

from ..aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from .accumulator import as_type
from .bundled import BundledAggregator
from .table_aggregate_function import TableAggregator
from .user_function import UserAggregator

ArrowType: TypeAlias = pa.DataType | pa.Schema | str | type
AnyFunction = AggregateFunction | BundledAggregateFunction


@dataclass(frozen=True)
class UserAggregate(AggregateKind):
    """A function with its types; called with columns, it returns an ``Aggregate`` of them."""

    function: AnyFunction
    result_type: pa.DataType | None
    accumulator_type: pa.DataType | None
    name: str

    def __call__(self, *columns: str) -> Aggregate:
        """The aggregate of these columns, in the order of the arguments of ``accumulate``."""
        for column in columns:
            if not isinstance(column, str):
                raise SchemaError(f"{self.name}: {column!r} is not a column; give names of columns")
        return Aggregate(self, columns)

    @property
    def text(self) -> str:
        """See ``AggregateKind``: the name, and the function's class with its plain attributes, but not its code."""
        return f"{self.name}[{object_text(self.function)}]"

    @property
    def user_function(self) -> AnyFunction:
        """The user-defined function that it runs."""
        return self.function

    @property
    def makes_rows(self) -> bool:
        """Whether the function is a TableAggregateFunction."""
        return isinstance(self.function, TableAggregateFunction)

    @property
    def is_bundled(self) -> bool:
        """Whether the function receives many rows of many keys at once."""
        return isinstance(self.function, BundledAggregateFunction) and self.function.supports_bundling()

    def bind(self, binding: InputBinding) -> AggregateOutput:
        """See ``AggregateKind``. Raises SchemaError for a missing type or method."""
        aggregate = binding.aggregate
        for column in aggregate.columns:
            binding.type_of(column)
        part = self._part(binding)
        if binding.retract and not part.retracts:
            raise binding.refuse(
                f"needs retractions, for a changelog or a bounded frame, which {type(self.function).__name__} does "
                f"not support: write its method {'supports_retracting' if self.is_bundled else 'retract'}"
            )
        index = binding.part(part)
        found = binding.part_at(index)
        if getattr(found, "function", None) != self.function:
            raise binding.refuse(
                f"has the name and columns of another function's, {type(found).__name__}; give udaf(..., name=...)"
            )
        return AggregateOutput(pa.field(aggregate.name, part.result_type), part=index)

    def _part(self, binding: InputBinding) -> UserAggregator | BundledAggregator:
        aggregate = binding.aggregate
        accumulator_type = self._type(
            "accumulator_type", self.accumulator_type, "get_accumulator_type", binding
        )
        result_type = self._type("result_type", self.result_type, "get_result_type", binding)
        where = [f"where.{aggregate.condition}"] if aggregate.condition else []
        distinct = ["distinct"] if aggregate.is_distinct else []
        prefix = ".".join(["udaf", self.name, ",".join(aggregate.columns), *where, *distinct])
        arguments = (aggregate.columns, aggregate.condition, accumulator_type, result_type)
        if self.makes_rows:
            self._check_methods(binding, "emit_value", "emit_update_with_retract")
            return TableAggregator(binding.owner, prefix, self.function, *arguments)  # type: ignore[arg-type]
        if not self.is_bundled:
            self._check_methods(binding, "get_value")
            return UserAggregator(binding.owner, prefix, self.function, *arguments)
        bundled = self.function.bundled_accumulate_retract  # type: ignore[union-attr]
        if inspect.isgeneratorfunction(bundled) or inspect.isasyncgenfunction(bundled):
            raise binding.refuse(
                f"has {type(self.function).__name__}.bundled_accumulate_retract as a generator; return the results of "
                "the segments"
            )
        if pa.types.is_struct(accumulator_type) and any(map(view_of, accumulator_type)):
            raise binding.refuse(
                "has a view in its accumulator, which bundled functions do not support; use a list"
            )
        return BundledAggregator(binding.owner, prefix, self.function, *arguments)

    def _check_methods(self, binding: InputBinding, *names: str) -> None:
        what = type(self.function).__name__
        for name in ("create_accumulator", "accumulate", "retract", "merge", *names):
            method = getattr(self.function, name, None)
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                raise binding.refuse(
                    f"has {what}.{name} as an async def, which nothing awaits; write a plain method, and call services "
                    "in a BundledAggregateFunction, in LookupJoin or with ctx.call"
                )
            if inspect.isgeneratorfunction(method) and name != "emit_value":
                raise binding.refuse(
                    f"has {what}.{name} as a generator, whose body would never run; write a method without yield"
                )
        for name in ("accumulate", *(["retract"] if has_method(self.function, "retract") else [])):
            self._check_arguments(binding, name)
        if not any(has_method(self.function, name) for name in names):
            raise binding.refuse(
                f"needs a method {' or '.join(names)}, which {type(self.function).__name__} lacks; write it"
            )

    def _check_arguments(self, binding: InputBinding, name: str) -> None:
        """Raise SchemaError if a method does not take this number of columns."""
        columns = binding.aggregate.columns
        try:
            signature = inspect.signature(getattr(self.function, name))
        except (TypeError, ValueError):
            return  # a callable without a signature
        try:
            signature.bind(None, *columns)
        except TypeError as error:
            raise binding.refuse(
                f"is over {len(columns)} columns ({', '.join(columns)}), but {type(self.function).__name__}.{name} "
                f"takes {name}{signature}: {error}; it needs the accumulator and one argument per column"
            ) from error

    def _type(
        self, argument: str, given: pa.DataType | None, method: str, binding: InputBinding
    ) -> pa.DataType:
        found = given if given is not None else getattr(self.function, method)()
        if (found_type := as_type(found, f"{self.name}: {argument}")) is None:
            raise binding.refuse(
                f"has no {argument}: give udaf(..., {argument}=...) or write {type(self.function).__name__}.{method}"
            )
        return found_type


def udaf(
    function: Any = None,
    *,
    result_type: ArrowType | None = None,
    accumulator_type: ArrowType | None = None,
    name: str | None = None,
) -> Any:
    """A user-defined aggregate function, to call with the columns that it aggregates.

    ``function``: an AggregateFunction or BundledAggregateFunction, or its class, which is then instantiated; without
    it, ``udaf`` is a decorator of such a class. Types are Arrow types (a schema for a struct), texts such as "bigint"
    or "struct<a: int>", or ``int``, ``float``, ``str``, ``bytes``, ``bool``; by default they come from the function's
    ``get_result_type`` and ``get_accumulator_type``. ``name`` (default: that of the class) is used in the state and in
    output columns.

    Raises SchemaError for anything else than such a function.

    >>> from asyncstate.functions import AggregateFunction
    >>> @udaf(result_type=pa.int64(), accumulator_type=pa.list_(pa.int64()))
    ... class Total(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return [0]
    ...     def accumulate(self, accumulator, value):
    ...         accumulator[0] += value or 0
    ...     def get_value(self, accumulator):
    ...         return accumulator[0]
    >>> Total("price").alias("total").name
    'total'
    """
    if function is None:
        return partial(udaf, result_type=result_type, accumulator_type=accumulator_type, name=name)
    if issubclass(function if isinstance(function, type) else type(function), TableAggregateFunction):
        raise SchemaError(f"udaf: {function!r} returns rows; use udtaf, in GroupTableAggregate or in windows")
    return _made(
        function, (AggregateFunction, BundledAggregateFunction), result_type, accumulator_type, name, "udaf"
    )


def udtaf(
    function: Any = None,
    *,
    result_type: ArrowType | None = None,
    accumulator_type: ArrowType | None = None,
    name: str | None = None,
) -> Any:
    """As ``udaf``, for a TableAggregateFunction: its rows are those of GroupTableAggregate, or of each window if it is
    the only aggregate of WindowAggregate or GroupWindowAggregate. The result type is that of a row, a struct or a
    schema."""
    if function is None:
        return partial(udtaf, result_type=result_type, accumulator_type=accumulator_type, name=name)
    return _made(function, (TableAggregateFunction,), result_type, accumulator_type, name, "udtaf")


def _made(
    function: Any,
    kinds: tuple[type[AnyFunction], ...],
    result_type: ArrowType | None,
    accumulator_type: ArrowType | None,
    name: str | None,
    maker: str,
) -> UserAggregate:
    if isinstance(function, type) and issubclass(function, kinds):
        function = function()
    if not isinstance(function, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise SchemaError(f"{maker}: {function!r} is not of type {wanted}; give an instance, or the class")
    return UserAggregate(
        function,
        as_type(result_type, f"{maker}: result_type"),
        as_type(accumulator_type, f"{maker}: accumulator_type"),
        name or type(function).__name__,
    )
