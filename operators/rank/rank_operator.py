"""Rank: the first N rows of each key in an order, kept up to date, with or without their numbers; SortLimit and Limit:
the first N of all rows, in an order or by arrival, which are rankings without a key that do not emit their numbers.

Owns: the operators. ``rank_plan`` and ``row_numbers`` define the ranking, ``rank_changes`` the output; rows are stored
by ``append_only`` (the best ones) or ``all_rows``.
Invariant: after every bundle the netted output is the ranking of the netted input.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import Changelog, RowKind
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth, rows_per_key, with_rows
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.partial_aggregation import PartialLimit, PartialStep
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..core.arrays import BoolArray, Int64Array, places_of
from ..core.operator_checks import KeepsKey, check_choice, check_number
from ..core.row_kinds import arrival_order
from ..core.sort_orders import ARRIVAL, OrderBy, order_columns
from ..core.state_meaning import meaning
from .append_only import BestRows, MergedRanking, RankState
from .limits import RankLimits, check_limit
from .rank_changes import Identity, output_changes
from .rank_plan import RankPlan, RankRows, RankSettings, partial_top_n
from .retractable.all_rows import AllRows
from .row_numbers import Ranked, RankFunction, RankTable


class Rank(KeepsKey, BundleOperator):
    """The rows of each key whose number in the order of ``order_by`` is in (offset, offset + n].

    Example, the ten highest bids on each auction with their places, with key="auction"::

        Rank([desc("price"), "time"], 10, rank_column="place")

    ``order_by``: a column, ``asc(column, nulls=...)``, ``desc(column, nulls=...)``, or a list of them; by default nulls
    come first ascending and last descending. ``n``: a number, or an integer column. With a column the first row of a
    key sets the key's N; rows with another value are ranked like all others and counted (``rows_with_another_limit``),
    rows with null are dropped (``rows_without_limit``). ``function``: "row_number" (rows of equal order in order of
    arrival), "rank" or "dense_rank", as in SQL. ``rank_column`` names the column of the numbers, after the others;
    without it they are not emitted.

    ``unique``: columns that identify a row within its key. A row replaces the previous one with the same values, and
    keeps its place if both are of equal order. A retraction removes only a row that is equal to it in all columns.
    Without ``unique`` a changelog input retracts rows by their whole content, the oldest of equal ones.
    ``monotonic=True`` promises that rows with a unique key only get better and are never deleted (as counts and maxima
    do). Of several rows in a bundle the best one counts, -U is ignored, and -D or a row that is worse than the stored
    one raises OperatorError.

    Output: the net change of a bundle, in order of the keys' first rows in it, for each key first all retractions, then
    all additions. If row numbers are emitted, -U and +U say that another row has a number, in order of the numbers, and
    +I and -D occur at the end. Otherwise -D for rows that leave, +I for rows that enter, and -U and +U for a row of the
    same ``unique`` columns that has changed. ``emit_update_before=False`` leaves -U out. Retractions of rows that are
    not there are dropped and counted (``retractions_without_state``).

    ``ttl``, with an insert-only input or ``monotonic``: each stored row expires independently. Expiry emits nothing: a
    reader of the output still has the row when others have taken its place. So neither ``rank_column`` nor ``offset``
    can be given with it, since the numbers of later rows change without an update in the output, and ``n`` is a number
    or a key column. A row that replaces an equal one of the same ``unique`` columns is emitted, too.

    State: with an insert-only input or ``monotonic``, only the rows with numbers up to offset + n. Otherwise all
    rows: the best ones and some spare ones in one list per key, the others separately. A bundle reads the others only
    if it retracts or replaces some of them, or as many of the best rows as there were spare ones (see ``all_rows``).

    Source: Flink's ``AppendOnlyTopNFunction``, ``UpdatableTopNFunction`` and ``RetractableTopNFunction``.
    """

    nets_output = True

    def __init__(
        self,
        order_by: OrderBy,
        n: int | str,
        *,
        offset: int = 0,
        function: RankFunction = "row_number",
        rank_column: str | None = None,
        unique: Sequence[str] | None = None,
        monotonic: bool = False,
        emit_update_before: bool = True,
        ttl: Ttl = None,
    ) -> None:
        check_choice(function, get_args(RankFunction), "function", self.owner)
        if not isinstance(n, str):
            check_number(n, 1, "n", self.owner)
        check_number(offset, 0, "offset", self.owner)
        _check_unique(unique, function, monotonic, self.owner)
        _check_expiring(ttl, rank_column, offset, self.owner)
        self.settings = RankSettings(
            order_columns(order_by, self.owner),
            n,
            offset,
            function,
            None if unique is None else tuple(unique),
            monotonic,
        )
        self.rank_column = rank_column
        self.emit_update_before = emit_update_before
        self.ttl = as_bundle_ttl(self.owner, ttl)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns, and ``rank_column`` if it is given."""
        spec = inputs[0]
        check_limit(self.settings.n, spec, self.owner)
        plan = RankPlan(self.settings, spec, self.owner)
        if self.ttl is not None:
            _check_can_expire(plan, spec)
        if self.rank_column is None:
            return OutputSpec(spec.schema, changes=self._changes(spec))
        if self.rank_column in spec.schema.names:
            raise SchemaError(
                f"{self.owner}: {spec.name} already has a column '{self.rank_column}'; give another rank_column"
            )
        schema = spec.schema.append(pa.field(self.rank_column, pa.int64(), nullable=False))
        return OutputSpec(schema, changes=self._changes(spec))

    def _changes(self, spec: InputSpec) -> Changelog:
        settings, is_numbered = self.settings, self.settings.function == "row_number"
        keys = list(spec.changes.unique_keys)
        if settings.unique is not None:
            keys.append((*spec.key, *settings.unique))
        if is_numbered and self.rank_column is not None:
            keys.append((*spec.key, self.rank_column))
        if is_numbered and settings.n == 1 and self.ttl is None:
            keys.append(spec.key)
        if not settings.order and is_numbered and not spec.changelog and self.ttl is None:
            return Changelog.insert_only(*keys)  # no row ranks before the rows that are there
        identity = self._identity
        if self.emit_update_before or identity == "nothing":
            return Changelog.retract(*keys)
        by = self.rank_column if identity == "number" else None
        own = settings.unique if by is None else (by,)
        return Changelog.upsert(*spec.key, *(name for name in own or () if name not in spec.key)).with_keys(
            keys
        )

    @property
    def _identity(self) -> Identity:
        """What identifies the shown row that another one replaces."""
        if self.rank_column is not None and self.settings.function == "row_number":
            return "number"
        return "unique" if self.settings.unique is not None else "nothing"

    def unique_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """The columns of ``unique``."""
        return [self.settings.unique]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows are stored, and what was emitted of them."""
        plan, settings = RankPlan(self.settings, inputs[0], self.owner), self.settings
        return meaning(
            self,
            ranking=plan.text,
            numbers="not emitted" if self.rank_column is None else "put out",
            monotonic=settings.monotonic,
        )

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: the best rows, or all."""
        settings = self.settings
        if self.ttl is not None:
            return None
        if RankPlan(settings, inputs[0], self.owner).keeps_all:
            return with_rows(inputs[0].changelog)
        if isinstance(settings.n, str):
            return rows_per_key(settings.n)
        if settings.function != "row_number":
            return StateGrowth(
                f"grows with the rows of the first {settings.offset + settings.n} ranks of each key"
            )
        return rows_per_key(settings.offset + settings.n)

    def partial_limit(self, inputs: Sequence[InputSpec]) -> PartialLimit | None:
        """The rows with numbers up to offset + n; all where a row may replace another one."""
        return None if self.settings.unique is not None else self.settings.partial_limit()

    def partial_step(self, given: InputSpec) -> PartialStep:
        """The step that makes the rows of ``given.row_schema`` from some rows of the input, if ``given.local`` is
        what ``partial_aggregation`` returned; or selects those that ``given.limit``, what ``partial_limit`` returned,
        lets through."""
        return partial_top_n(given)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        self._plan = RankPlan(self.settings, spec, self.owner)
        self._state: RankState = (
            AllRows(self._plan, context) if self._plan.keeps_all else BestRows(self._plan, context, self.ttl)
        )
        self._limits = RankLimits(self.settings.n, self.settings.offset, context)

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._state.prefetch(bundle.keys)
        self._limits.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        chosen = np.flatnonzero(self._taken(bundle))
        return self._rank(bundle, chosen, ctx) if len(chosen) else None

    def _taken(self, bundle: Bundle) -> BoolArray:
        """The rows that are ranked (n)."""
        named = self._limits.with_limit(bundle)
        taken = np.ones(bundle.num_rows, np.bool_) if named is None else named
        if not self.settings.monotonic:
            return taken
        if bool((bundle.kinds == RowKind.DELETE).any()):
            raise OperatorError(
                f"{self.owner}: a row is deleted (-D), but monotonic=True promises that rows only get better; leave "
                "monotonic out, which keeps all rows, and use a new uid"
            )
        return taken & bundle.accumulate

    def _rank(
        self, bundle: Bundle, chosen: Int64Array, ctx: BundleContext
    ) -> Generator[StateFuture[Any], None, None]:
        limits = self._limits.async_read(bundle.keys)
        yield limits
        ends = self._limits.ends(bundle, chosen, limits.get())
        columns = self._plan.payload.of(bundle.batch)
        if len(chosen) < bundle.num_rows:
            rows = pa.array(chosen)
            columns = [column.take(rows) for column in columns]
        table = RankTable(columns, bundle.keys.inverse[chosen].astype(np.int64), np.arange(len(chosen)))
        merged = yield from self._state.merge(bundle.keys, RankRows(table, bundle, chosen), ends)
        self._limits.forget(bundle.keys, merged.emptied)
        self._emit(bundle, merged, ends, ctx)

    def _emit(self, bundle: Bundle, merged: MergedRanking, ends: Int64Array, ctx: BundleContext) -> None:
        changes = output_changes(
            merged.table,
            self._in_output(merged.table, merged.before, ends),
            self._in_output(merged.table, merged.after, ends),
            self._identity,
            self._plan.unique_at,
            self.rank_column is not None,
            places_of(arrival_order(bundle.keys)),
            self.emit_update_before,
            renewed=self.ttl is not None,
        )
        if not len(changes.kinds):
            return
        owners = pa.array(changes.key)
        keys = [column.take(owners) for column in bundle.keys.columns]
        columns = self._plan.payload.row([*keys, *changes.columns])
        if self.rank_column is not None:
            columns.append(pa.array(changes.numbers))
        ctx.emit(columns, changes.kinds)

    def _in_output(self, table: RankTable, ranked: Ranked, ends: Int64Array) -> Ranked:
        last: npt.NDArray[np.int64] = ends[table.key[ranked.rows]]
        return ranked.chosen((ranked.numbers > self.settings.offset) & (ranked.numbers <= last))


class SortLimit(Rank):
    """SQL's ORDER BY .. LIMIT over all rows: rows number offset + 1 to offset + ``n`` in the order of ``order_by``.

    ``order_by`` is as in ``Rank``; of rows of equal order the earliest one is first. The input has no key, so one
    partition has all rows; over an insert-only input only offset + n of them are stored, and on Spark only that many
    are shuffled (``partial_limit`` of ``Rank``).

    Output: the input's columns, +I for rows that enter, -D for rows that leave: the net change of a bundle, retractions
    first. A changelog input retracts rows by their whole content, and the next row moves up.

    Source: Flink's ``StreamExecSortLimit``, and for ``Limit`` ``StreamExecLimit``, which are rankings there, too.

    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import desc
    >>> bids = pa.schema([("bidder", pa.string()), ("price", pa.int64())])
    >>> with OperatorHarness(SortLimit(desc("price"), 2), bids, None) as harness:
    ...     harness.push([("ann", 5), ("bob", 9), ("eve", 7)])
    ...     print(harness.end_batch())
    ...     harness.push([("bob", 9)], kinds=["-D"])
    ...     print(harness.end_batch())
    [('+I', 'bob', 9), ('+I', 'eve', 7)]
    [('-D', 'bob', 9), ('+I', 'ann', 5)]
    """

    def __init__(self, order_by: OrderBy, n: int, *, offset: int = 0) -> None:
        if isinstance(n, str):
            raise SchemaError(f"{self.owner}: n is {n!r}; give a number of at least 1")
        super().__init__(order_by, n, offset=offset)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns."""
        spec = inputs[0]
        if spec.key:
            raise SchemaError(
                f"{self.owner}: {spec.name} has the key ({', '.join(spec.key)}), but the limit is over all rows; "
                "leave the key out, or use Rank for the first rows of each key"
            )
        return super().bind(inputs)


class Limit(SortLimit):
    """SQL's LIMIT over all rows: rows number offset + 1 to offset + ``n`` in order of arrival.

    Input, output and state are those of ``SortLimit``. The order of the rows of one micro-batch is not defined; rows of
    earlier micro-batches come first.

    >>> from asyncstate.testing import OperatorHarness
    >>> words = pa.schema([("word", pa.string())])
    >>> with OperatorHarness(Limit(2), words, None) as harness:
    ...     harness.push([("a",), ("b",), ("c",)])
    ...     print(harness.end_batch())
    ...     harness.push([("a",)], kinds=["-D"])
    ...     print(harness.end_batch())
    [('+I', 'a'), ('+I', 'b')]
    [('-D', 'a'), ('+I', 'c')]
    """

    def __init__(self, n: int, *, offset: int = 0) -> None:
        super().__init__(ARRIVAL, n, offset=offset)


def _check_can_expire(plan: RankPlan, spec: InputSpec) -> None:
    n = plan.settings.n
    if isinstance(n, str) and n not in spec.key:
        raise SchemaError(
            f"{plan.owner}: n is '{n}', which each key takes from its first row, but a ttl expires that row; give a "
            "number or a key column, or leave ttl out"
        )
    if plan.keeps_all:
        raise SchemaError(
            f"{plan.owner}: rows of {spec.name} may be retracted or get worse, so all of them are kept and cannot "
            "expire; leave ttl out, or give an insert-only input or monotonic=True"
        )


def _check_expiring(ttl: Ttl, rank_column: str | None, offset: int, owner: str) -> None:
    if as_bundle_ttl(owner, ttl) is not None and (rank_column is not None or offset):
        raise SchemaError(
            f"{owner}: with a ttl rows expire without a retraction, which changes the numbers of later rows; leave "
            f"out {'rank_column' if rank_column is not None else 'offset'}, or ttl"
        )


def _check_unique(unique: Sequence[str] | None, function: str, monotonic: bool, owner: str) -> None:
    if unique is not None and (
        isinstance(unique, str) or not unique or not all(isinstance(name, str) for name in unique)
    ):
        raise SchemaError(f"{owner}: unique is {unique!r}; give a list of columns, or None")
    if monotonic and unique is None:
        raise SchemaError(
            f"{owner}: monotonic=True needs rows with a unique key; name its columns with unique"
        )
    if monotonic and function == "dense_rank":
        raise SchemaError(
            f"{owner}: with dense_rank a row that gets better can let others in, so the best rows alone are not "
            "enough; leave monotonic out"
        )
