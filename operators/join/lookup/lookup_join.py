"""LookupJoin: each row with what an external system returns for some of its columns.

Owns: ``LookupJoin`` and ``StatelessLookupJoin``: their checks, which rows send requests, their output and state.
``lookup_requests`` sends the requests.
Invariant: over a changelog a row is retracted with exactly the rows that were emitted for it, whatever the lookup would
return now; "nothing found" is stored as a separate row, so it differs from "not known".
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``lookups``, ``codec``, ``errors``.

Source: Flink's ``LookupJoinRunner``, ``AsyncLookupJoinRunner`` and ``KeyedLookupJoinWrapper``.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind, accumulates
from asyncstate.codec import SchemaLike, read_schema
from asyncstate.codec.sorting import rows_by
from asyncstate.durations import Seconds, seconds
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture, as_completed, combine_all
from asyncstate.lookups.lookup_source import Key, Lookup, Rows
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.specs import ERRORS_OUTPUT, with_error_columns
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ...core.arrays import (
    BoolArray,
    Int8Array,
    Int64Array,
    concat_rows,
    index_among,
    places_of,
    row_ids,
    take_rows,
)
from ...core.condition import ConditionLike, RowCondition, check_condition
from ...core.consolidation import ConsolidatedRows, net_by_content
from ...core.expiry_options import concat_stamps, row_stamps
from ...core.operator_checks import Named, check_choice, check_insert_only, check_number
from ...core.state_meaning import meaning
from ...core.stored_columns import StoredColumns
from ..join_inputs import joined_schema
from .answers import Answers
from .lookup_requests import LookupCache, Requests, Retry

LookupJoinKind = Literal["left", "inner"]
OnFailure = Literal["fail", "null", "output"]
LookupLike = Lookup | Callable[[Sequence[Key]], Any]
"""A ``Lookup``, or a function of a list of keys to the list of the rows of each, plain or ``async def``."""

_FIRST, _FOUND = "__asyncstate_first", "__asyncstate_found"


class LookupJoin(Named, BundleOperator):
    """Rows of one input, each with the rows that ``lookup`` finds for it: SQL's join with an external table.

    ``lookup`` gets a list of distinct keys, each a tuple of the values of the columns ``on`` (default: the operator's
    key), and returns a list with the list of rows of each key, in their order: tuples, or dicts by the names of
    ``columns``, the schema of a found row. It is a function, plain or ``async def``, or a ``Lookup`` of
    ``asyncstate.lookups``. The distinct keys of a bundle are requested once, at most ``batch`` per request;
    at most ``call_limit`` requests of a partition run at once. A key with a null is not requested and finds nothing.

    ``how``: left pads rows that find nothing with nulls, inner drops them. Rows that do not meet ``where`` (a pyarrow
    expression or a function, which must return the same for the same row) request nothing and find nothing.

    ``ordered=False`` (insert-only inputs): rows are emitted per request, as answers arrive. ``retry``: requests that
    raise are sent again; ``retry_empty``: keys without rows are requested again. ``timeout`` (seconds, a text or
    timedelta): how long a request may take with its retries. ``cache``: which answers to cache.

    ``on_failure``: what happens to the rows of a request that finally fails. "fail": the micro-batch fails; "null":
    their keys find nothing, which is not cached; "output" (insert-only inputs): they go to the side output ``errors``,
    with ``error_type`` and ``error_message`` after their columns. The counter ``lookups_failed`` counts their distinct
    keys.

    >>> from asyncstate.testing import OperatorHarness
    >>> bids = pa.schema([("auction", pa.int64()), ("price", pa.int64())])
    >>> titles = {1: [("a lamp",)]}
    >>> join = LookupJoin(lambda keys: [titles.get(auction) for auction, in keys], pa.schema([("title", pa.string())]))
    >>> with OperatorHarness(join, bids, ["auction"]) as harness:
    ...     harness.push([(1, 10), (2, 7)])
    ...     print(harness.end_batch())
    [('+I', 1, 10, 'a lamp'), ('+I', 2, 7, None)]

    Output: the input's columns, then ``columns``, with ``suffixes`` after names that both have; rows keep their kinds.

    State, over a changelog only: ``joined``, one list per key of the rows that are there with what was found for each.
    A retraction removes an equal row, the oldest of them, and requests nothing; one whose row is not there is dropped
    and counted (``retractions_without_state``). ``ttl``: each row expires independently. Raises SchemaError for
    parameters that do not fit, and OperatorError for lookups that fail or return rows that do not fit.
    """

    def __init__(
        self,
        lookup: LookupLike,
        columns: SchemaLike,
        *,
        on: Sequence[str] | None = None,
        how: LookupJoinKind = "left",
        ordered: bool = True,
        where: ConditionLike | None = None,
        batch: int = 1,
        call_limit: int = 100,
        retry: Retry | None = None,
        retry_empty: Retry | None = None,
        timeout: Seconds | None = None,
        cache: LookupCache | None = None,
        on_failure: OnFailure = "fail",
        suffixes: tuple[str, str] = ("", "_right"),
        ttl: Ttl = None,
    ) -> None:
        check_choice(how, get_args(LookupJoinKind), "how", self.owner)
        check_condition(where, self.owner)
        check_number(batch, 1, "batch", self.owner)
        check_number(call_limit, 1, "call_limit", self.owner)
        if not isinstance(lookup, Lookup) and not callable(lookup):
            raise SchemaError(
                f"{self.owner}: lookup is {lookup!r}; give a function of a list of keys, or a Lookup"
            )
        columns = read_schema(columns, f"{self.owner}: columns")
        if not isinstance(columns, pa.Schema) or not len(columns):
            raise SchemaError(
                f"{self.owner}: columns is {columns!r}; give the pyarrow schema of the rows that the lookup returns, "
                "or a string such as 'name string'"
            )
        _check_type(retry, Retry, "retry", "Retry(attempts=3, delay='1 second')", self.owner)
        _check_type(retry_empty, Retry, "retry_empty", "Retry(attempts=3, delay='1 second')", self.owner)
        _check_type(cache, LookupCache, "cache", "LookupCache(rows=10_000)", self.owner)
        check_choice(on_failure, get_args(OnFailure), "on_failure", self.owner)
        if on is not None and (isinstance(on, str) or not isinstance(on, Sequence) or not on):  # type: ignore[redundant-expr]
            raise SchemaError(f"{self.owner}: on is {on!r}; give a list of columns, or None for the key")
        self.lookup = lookup
        self.call_limit = call_limit
        self.columns = columns
        self.on = None if on is None else tuple(on)
        self.how: LookupJoinKind = how
        self.ordered = ordered
        self.where = where
        self.batch = batch
        self.retry = retry
        self.retry_empty = retry_empty
        self.timeout = None if timeout is None else seconds(timeout, self.owner, "timeout", above_zero=True)
        self.cache = cache
        self.on_failure: OnFailure = on_failure
        self._name = (
            uuid.uuid4().hex
        )  # travels with the operator: a worker process finds its cached answers by it
        self.suffixes = suffixes
        self.ttl = as_bundle_ttl(self.owner, ttl)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns, then those of the answer."""
        spec = inputs[0]
        for name in self._on(spec):
            spec.column(name)
        if not self._on(spec):
            raise SchemaError(
                f"{self.owner}: {spec.name} has no key; name the columns that are sent with on="
            )
        if isinstance(self.lookup, Lookup):
            keys = [spec.schema.field(name) for name in self._on(spec)]
            self.lookup.check(pa.schema(keys), self.columns)
        if self.on_failure == "output":
            check_insert_only(spec, f"{self.owner}(on_failure={self.on_failure!r})", "on_failure='null'")
        if not self.ordered:
            check_insert_only(spec, f"{self.owner}(ordered=False)", "ordered=True")
        if self.where is not None:
            RowCondition(self.where, spec.schema, self.owner).check()
        found = InputSpec(self.columns, (), name="the lookup")
        joined = joined_schema(self.how, [spec, found], self.suffixes, self.owner)
        # A key may have several answers, so no unique key is known.
        goes_aside = self.on_failure == "output"
        aside = {ERRORS_OUTPUT: with_error_columns(self.owner, spec.schema)} if goes_aside else {}
        return OutputSpec(joined, aside, changes=spec.changes.with_keys(()))

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows of a changelog are stored; of an insert-only input none are."""
        spec = inputs[0]
        if not spec.changelog:
            return meaning(self, input="insert-only")
        return meaning(self, input="changelog", how=self.how, where=self.where, on=self._on(spec))

    def keyed_output(self, inputs: Sequence[InputSpec]) -> Sequence[tuple[str, ...]]:
        """See ``Operator``: the input's key, whose columns come first."""
        names = self.bind(inputs).schema.names
        return [tuple(names[inputs[0].schema.get_field_index(name)] for name in inputs[0].key)]

    def _on(self, spec: InputSpec) -> Sequence[str]:
        return spec.key if self.on is None else self.on

    def open(self, context: OperatorContext) -> None:
        """Declare the state, if there is one."""
        spec = context.inputs[0]
        names = spec.schema.names
        self._on_at = [names.index(name) for name in self._on(spec)]
        self._where = None if self.where is None else RowCondition(self.where, spec.schema, self.owner)
        self._pads = self.how == "left"
        if isinstance(self.lookup, Lookup):
            groups, of = context.key_groups, context.max_parallelism
            # Without a key one partition has all rows.
            self.lookup.take_share(*((groups.start / of, len(groups) / of) if spec.key else (0.0, 1.0)))
        ask = self.lookup.lookup if isinstance(self.lookup, Lookup) else self.lookup
        self._requests = Requests(
            ask,
            self.owner,
            self.batch,
            self.retry,
            self.retry_empty,
            self.timeout,
            None if self.cache is None else self.cache.answers(self._name),
            None if self.on_failure == "fail" else context.counter("lookups_failed").add,
        )
        self._state: ListColumnState | None = None
        if spec.changelog:
            self._open_state(context, spec)

    def _open_state(self, context: OperatorContext, spec: InputSpec) -> None:
        self._payload = StoredColumns(spec)
        kept = [field.name for field in self._payload.fields]
        # The position in the log is not part of a row: a retraction has its own.
        self._content_at = [at for at, name in enumerate(kept) if name not in spec.sequence]
        # The sequence is part of the row, so one that comes again replaces its equal, however bundles are cut.
        # With a ttl it lives on.
        self._refresh = bool(spec.sequence) or self.ttl is not None
        # Its retraction would not show what was emitted for a row that is not stored.
        self._keeps_silent = self._pads and bool(spec.sequence)
        found = [field.with_nullable(True) for field in list(context.output_schema)[len(spec.schema) :]]
        marks = [pa.field(_FIRST, pa.bool_()), pa.field(_FOUND, pa.bool_())]
        stored = pa.schema([*self._payload.fields, *found, *marks])
        self._missing = context.missing_rows()
        self._state = context.get_state(ListColumnStateDescriptor("joined", stored, ttl=self.ttl))

    async def open_calls(self) -> None:
        """Make what ``ctx.call`` functions share (an HTTP client, a connection pool); on their event loop, before the
        task's first call."""
        if isinstance(self.lookup, Lookup):
            await self.lookup.open()

    async def close_calls(self) -> None:
        """Close what ``open_calls`` made; on the same event loop, when the task ends or fails."""
        if isinstance(self.lookup, Lookup):
            await self.lookup.close()

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        if self._state is not None:
            self._state.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        if not bundle.num_rows:
            return None
        if self._state is not None:
            return self._change(self._state, bundle, self._asks(bundle), ctx)
        return (
            self._join(bundle, self._asks(bundle), ctx) if self.ordered else self._as_they_come(bundle, ctx)
        )

    def _asks(self, bundle: Bundle) -> BoolArray:
        """The rows (n) that may find something."""
        asks = np.ones(bundle.num_rows, np.bool_)
        if self._where is not None:
            asks &= self._where.mask(bundle.batch.columns)
        for at in self._on_at:
            asks &= bundle.batch.column(at).is_valid().to_numpy(zero_copy_only=False)
        return asks

    def _distinct(self, bundle: Bundle, rows: Int64Array) -> tuple[list[Key], Int64Array]:
        """The distinct keys of some rows, in order of their first row, and the index of the key of each row."""
        columns = take_rows([bundle.batch.column(at) for at in self._on_at], rows)
        ids = row_ids(columns, np.zeros(len(rows), np.int64))
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(first)
        values = [column.to_pylist() for column in take_rows(columns, first[order])]
        return list(zip(*values, strict=True)), places_of(order)[inverse]

    def _answers(self, keys: list[Key], ctx: BundleContext) -> StateFuture[Answers]:
        """A future of the rows found for all of ``keys``."""
        parts = self._requests.start(keys, ctx)

        def gather(found: list[list[Rows]]) -> Answers:
            rows: list[Rows] = [()] * len(keys)
            for (places, _), answers in zip(parts, found, strict=True):
                for place, answer in zip(places, answers, strict=True):
                    rows[place] = answer
            return Answers.of(keys, rows, self.columns, self.owner)

        return combine_all([future for _, future in parts]).then_apply(gather)

    # -- insert-only ---------------------------------------------------------------------------------------

    def _join(self, bundle: Bundle, asks: BoolArray, ctx: BundleContext) -> StateFuture[None]:
        rows = np.flatnonzero(asks)
        keys, of_row = self._distinct(bundle, rows)
        out = _Out(bundle.batch.columns, bundle.kinds)

        def emit_results(found: Answers) -> None:
            answered = self._without_failed(out, rows, of_row, found, ctx)
            pairs, answers = found.of_rows(of_row[answered], self._pads)
            self._emit(out, np.append(rows[answered][pairs], self._silent(asks)), answers, found.columns, ctx)

        return self._answers(keys, ctx).then_accept(emit_results)

    def _without_failed(
        self, out: _Out, rows: Int64Array, key: Int64Array, answers: Answers, ctx: BundleContext
    ) -> Int64Array:
        """Which of ``rows`` (n), of the keys ``key`` (n), to emit here; those whose request has failed go to the side
        output, if there is one."""
        failed = answers.failed[key]
        if self.on_failure != "output" or not failed.any():
            return np.arange(len(rows))
        gone, errors = rows[failed], [answers.errors[at] for at in key[failed]]
        texts = [pa.array(values, pa.string()) for values in zip(*filter(None, errors), strict=True)]
        ctx.emit([*take_rows(out.columns, gone), *texts], out.kinds[gone], output=ERRORS_OUTPUT)
        return np.flatnonzero(~failed)

    def _silent(self, asks: BoolArray) -> Int64Array:
        """The rows that request nothing but are emitted."""
        return np.flatnonzero(~asks) if self._pads else np.empty(0, np.int64)

    def _as_they_come(self, bundle: Bundle, ctx: BundleContext) -> Generator[StateFuture[None], None, None]:
        """As ``_join``, but request by request: emitted rows leave at the end of each step."""
        asks = self._asks(bundle)
        rows = np.flatnonzero(asks)
        keys, of_row = self._distinct(bundle, rows)
        out = _Out(bundle.batch.columns, bundle.kinds)
        order, starts = rows_by(of_row), np.append(0, np.cumsum(np.bincount(of_row)))
        nothing = [pa.array([], field.type) for field in self.columns]
        self._emit(out, self._silent(asks), np.empty(0, np.int64), nothing, ctx)

        def emit_results(places: list[int], found: list[Rows]) -> None:
            some = [keys[place] for place in places]
            answers = Answers.of(some, found, self.columns, self.owner)
            mine = [order[starts[place] : starts[place + 1]] for place in places]
            key = np.repeat(np.arange(len(places)), [len(part) for part in mine])
            own = rows[np.concatenate(mine)]
            answered = self._without_failed(out, own, key, answers, ctx)
            pairs, at = answers.of_rows(key[answered], self._pads)
            self._emit(out, own[answered][pairs], at, answers.columns, ctx)

        parts = [(places, future) for places, future in self._requests.start(keys, ctx) if places]
        steps = [future.then_accept(functools.partial(emit_results, places)) for places, future in parts]
        yield from as_completed(steps)

    def _emit(
        self, out: _Out, rows: Int64Array, answers: Int64Array, found: Sequence[pa.Array], ctx: BundleContext
    ) -> None:
        """Emit ``rows`` in their order; the first of them with the rows ``answers`` of ``found`` (-1: none)."""
        answers = np.append(answers, np.full(len(rows) - len(answers), -1, np.int64))
        order = rows_by(rows)
        joined = [*take_rows(out.columns, rows[order]), *take_rows(found, answers[order])]
        ctx.emit(joined, out.kinds[rows[order]])

    # -- changelogs ----------------------------------------------------------------------------------------

    def _change(
        self, state: ListColumnState, bundle: Bundle, asks: BoolArray, ctx: BundleContext
    ) -> Generator[StateFuture[Any], None, None]:
        heads = state.async_heads(bundle.keys)
        yield heads
        read = state.async_rows(heads.get())
        yield read
        kept = np.ones(len(asks), np.bool_) if self._keeps_silent else asks
        stored, rows = _Stored.of(read.get(), len(self._payload.fields)), np.flatnonzero(kept)
        net = self._net(stored, bundle, rows)
        self._missing.add(rows[net.missing], bundle)
        added = rows[net.added]
        asking = added[asks[added]]
        keys, of_row = self._distinct(bundle, asking)
        answers = self._answers(keys, ctx)
        yield answers
        pairs, at = answers.get().of_rows(of_row, True)
        new = _Pairs.of(asking[pairs], at, answers.get().columns, added[~asks[added]])
        gone = net.removed[stored.run]
        self._emit_changes(bundle, stored, gone, rows[net.cause], new, self._silent(kept), ctx)
        self._store(state, bundle, heads.get(), stored, gone, new)

    def _net(self, stored: _Stored, bundle: Bundle, rows: Int64Array) -> ConsolidatedRows:
        """The net change of the rows with requests, against the stored ones."""
        heads = np.flatnonzero(stored.first)
        given = take_rows(self._payload.of(bundle.batch), rows)
        columns = concat_rows(take_rows(stored.left, heads), given)
        key = np.concatenate([stored.rows.key_index[heads], bundle.keys.inverse[rows]]).astype(np.int64)
        content = row_ids([columns[at] for at in self._content_at], key)
        stored_content, given_content = content[: len(heads)], content[len(heads) :]
        return net_by_content(stored_content, given_content, bundle.accumulate[rows], self._refresh)

    def _emit_changes(
        self,
        bundle: Bundle,
        stored: _Stored,
        gone: BoolArray,
        cause: Int64Array,
        new: _Pairs,
        silent: Int64Array,
        ctx: BundleContext,
    ) -> None:
        """Emit retractions of the output of stored rows that are ``gone``, and the ``new`` pairs, in order of cause."""
        back = np.flatnonzero(gone & (stored.found | self._pads))
        nth = np.cumsum(np.bincount(stored.run[gone], minlength=stored.runs) > 0) - 1
        come = np.flatnonzero((new.at >= 0) | self._pads)
        caused = np.concatenate([cause[nth[stored.run[back]]], new.rows[come], silent])
        keys = take_rows(bundle.keys.columns, stored.rows.key_index[back])
        old = self._payload.row([*keys, *take_rows(stored.left, back)])
        left = concat_rows(old, take_rows(bundle.batch.columns, caused[len(back) :]))
        places = np.concatenate([np.arange(len(come)), np.full(len(silent), -1, np.int64)])
        shown = take_rows(take_rows(new.found, come), places) if len(come) else _nulls(new.found, len(silent))
        found = concat_rows(take_rows(stored.answer, back), shown)
        kinds = bundle.kinds[caused]
        taken = np.where(accumulates(kinds[: len(back)]), RowKind.UPDATE_BEFORE, kinds[: len(back)])
        kinds = np.concatenate([taken, kinds[len(back) :]]).astype(np.int8)
        order = rows_by(caused)
        ctx.emit(take_rows([*left, *found], order), kinds[order])

    def _store(
        self,
        state: ListColumnState,
        bundle: Bundle,
        heads: ListHeads,
        stored: _Stored,
        gone: BoolArray,
        new: _Pairs,
    ) -> None:
        """Write the lists of the keys that change: the rows that stay, then the new ones."""
        of_new = bundle.keys.inverse[new.rows].astype(np.int64)
        key = np.concatenate([stored.rows.key_index, of_new]).astype(np.int64)
        changed = np.zeros(len(bundle.keys), np.bool_)
        changed[key[: len(gone)][gone]] = True
        changed[of_new] = True
        if not changed.any():
            return
        stays = np.append(~gone, np.ones(len(of_new), np.bool_)) & changed[key]
        rows = np.flatnonzero(stays)
        rows = rows[rows_by(key[rows])]
        first = np.append(True, new.rows[1:] != new.rows[:-1])[: len(new.rows)]
        marks = [pa.array(first), pa.array(new.at >= 0)]
        added = [*take_rows(self._payload.of(bundle.batch), new.rows), *new.found, *marks]
        columns = take_rows(concat_rows(stored.rows.columns, added), rows)
        stamps = concat_stamps(stored.rows.stamps, row_stamps(state, bundle, self.ttl, new.rows))
        state.put(
            bundle.keys.select(changed),
            columns,
            index_among(changed)[key[rows]],
            heads.select(changed),
            None if stamps is None else stamps[rows],
        )


class StatelessLookupJoin(LookupJoin):
    """``LookupJoin`` for an insert-only input, without an exchange: rows are joined where they are.

    ``on`` names the columns that are sent, since there is no key; ``ttl`` has no effect, and ``on_failure`` is
    "fail" or "null".

    >>> from asyncstate.testing import OperatorHarness
    >>> bids = pa.schema([("auction", pa.int64()), ("price", pa.int64())])
    >>> titles = pa.schema([("title", pa.string())])
    >>> join = StatelessLookupJoin(lambda keys: [[(f"lot {lot}",)] for lot, in keys], titles, on=["auction"])
    >>> with OperatorHarness(join, bids, None, changelog=False) as harness:
    ...     harness.push([(1, 10), (2, 7)])
    ...     print(harness.end_batch())
    [('+I', 1, 10, 'lot 1'), ('+I', 2, 7, 'lot 2')]
    """

    stateless: ClassVar[bool] = True

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """See ``LookupJoin``; SchemaError for a changelog."""
        check_insert_only(inputs[0], self.owner, "LookupJoin")
        if self.on_failure == "output":
            raise SchemaError(
                f"{self.owner}: on_failure is {self.on_failure!r}, but without state there are no side outputs; give "
                "'fail' or 'null', or use LookupJoin"
            )
        if isinstance(self.lookup, Lookup) and self.lookup.requests_per_second is not None:
            raise SchemaError(
                f"{self.owner}: requests_per_second of {self.lookup!r} is divided among the partitions of a job, but "
                "without an exchange it is not known how many there are; use LookupJoin"
            )
        return super().bind(inputs)


def _check_type(given: object, kind: type, name: str, example: str, owner: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise SchemaError(f"{owner}: {name} is {given!r}; give {example}, or leave it out")


class _Out(NamedTuple):
    """Rows (n) to emit: their columns and kinds."""

    columns: Sequence[pa.Array]
    kinds: Int8Array


class _Pairs(NamedTuple):
    """New pairs (m) in order of the bundle rows: the row of each, the found row (-1: none), and its columns (null:
    none)."""

    rows: Int64Array
    at: Int64Array
    found: list[pa.Array]

    @staticmethod
    def of(rows: Int64Array, at: Int64Array, found: Sequence[pa.Array], silent: Int64Array) -> _Pairs:
        """``rows`` (m) with the rows ``at`` (m) of ``found``, and ``silent`` ones, which find nothing."""
        rows, at = np.append(rows, silent), np.append(at, np.full(len(silent), -1, np.int64))
        order = rows_by(rows)
        return _Pairs(rows[order], at[order], take_rows(found, at[order]))


@dataclass(frozen=True)
class _Stored:
    """Stored pairs (m) in runs, one per left row: columns of both, where runs begin, and whether they found rows."""

    rows: ListColumns
    left: list[pa.Array]
    answer: list[pa.Array]
    first: BoolArray
    found: BoolArray
    run: Int64Array

    @staticmethod
    def of(rows: ListColumns, width: int) -> _Stored:
        """``rows`` as they are stored, the left row in the first ``width`` columns."""
        first, found = (
            column.to_numpy(zero_copy_only=False).astype(np.bool_) for column in rows.columns[-2:]
        )
        return _Stored(rows, rows.columns[:width], rows.columns[width:-2], first, found, np.cumsum(first) - 1)

    @property
    def runs(self) -> int:
        """How many left rows there are."""
        return int(np.count_nonzero(self.first))


def _nulls(columns: Sequence[pa.Array], count: int) -> list[pa.Array]:
    return [pa.nulls(count, column.type) for column in columns]
