"""TemporalSort and Sort: emit the rows of the input in order.

Owns: both operators. The engine sorts the rows: the operators declare the order and pass the rows on.
Must not import anything of ``asyncstate`` but ``changelog``, ``errors`` and ``operator``.

Source: Flink's ``RowTimeSortOperator``, ``ProcTimeSortOperator`` and ``StreamSortOperator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from asyncstate.changelog import Changelog
from asyncstate.errors import SchemaError
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputOrder,
    InputSpec,
    OperatorContext,
    OutputSpec,
)

from ..core.arrays import row_ids, take_rows
from ..core.consolidation import net_by_content
from ..core.late_rows import check_late_output, with_late_output
from ..core.operator_checks import KeepsKey, TimeDomain, check_has_time, check_time_domain
from ..core.segments import content_of
from ..core.sort_orders import OrderBy, check_order, order_columns, sort_keys
from ..core.state_meaning import meaning


class TemporalSort(KeepsKey, BundleOperator):
    """The rows of an insert-only input in order of time, and of the columns of ``then`` if times are equal.

    ``time``: "event": a row is emitted when the watermark has passed its event time; rows that the watermark had passed
    before their micro-batch are counted (``late_rows_dropped``) and dropped, or go to the side output that
    ``late_output`` names. "processing": all rows of a micro-batch have its time, so they are emitted at its end in the
    order of ``then``. ``then`` is a column, ``asc(column)``, ``desc(column)`` or a list of these; rows that are equal
    in it are emitted in order of arrival.

    Without a key, the order is over all rows, in one partition; with a key, it holds per key.

    >>> import pyarrow as pa
    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import desc
    >>> bids = pa.schema([("item", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us"))])
    >>> with OperatorHarness(TemporalSort(desc("price")), bids, None, event_time="at") as harness:
    ...     harness.push([("pen", 3, 20), ("cup", 4, 10), ("hat", 7, 10), ("bag", 1, 30)])
    ...     harness.advance_watermark(20)
    ...     for row in harness.end_batch():
    ...         print(row)
    ('+I', 'hat', 7, 10)
    ('+I', 'cup', 4, 10)
    ('+I', 'pen', 3, 20)

    State: the buffered rows. Source: Flink's ``RowTimeSortOperator`` and ``ProcTimeSortOperator``. Raises SchemaError
    for columns that do not fit.
    """

    accepts_changelog: ClassVar[bool] = False

    def __init__(
        self, then: OrderBy | None = None, *, time: TimeDomain = "event", late_output: str | None = None
    ) -> None:
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        self.late_output = late_output
        self.time: TimeDomain = time
        self.then = () if then is None else order_columns(then, self.owner)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns."""
        (spec,) = inputs
        check_has_time(spec, self.time, self.owner)
        check_order(self.then, spec, self.owner)
        return with_late_output(spec.schema, self.late_output, spec, spec.changes)

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """For each input in order of event time, the side output for rows that are too late for it; None: dropped."""
        return [self.late_output]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return meaning(self, then=self.then, time=self.time)

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """By time, then by the other columns."""
        return [InputOrder(self.time, sort_keys(self.then))]

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Never called: all rows arrive in order."""

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        """Handle rows of ordered inputs that are due: one bundle per input, None where there are none."""
        (bundle,) = bundles
        if bundle is not None:
            ctx.emit(bundle.batch.columns)


class Sort(KeepsKey, BundleOperator):
    """All rows of a bounded input, emitted at its end in the order ``order_by``.

    ``order_by`` is a column, ``asc(column)``, ``desc(column)`` or a list of these; rows that are equal in it are
    emitted in order of arrival. The input ends with ``StreamingJob.finish()``. A changelog input is netted: only rows
    that were not retracted are emitted, as +I; retractions that match no row, in all columns but those of the input's
    ``sequence``, are dropped and counted (``retractions_without_state``).
    A column of that sequence cannot order a changelog.

    Without a key, the order is over all rows, in one partition; with a key, it holds per key.

    >>> import pyarrow as pa
    >>> from asyncstate.testing import OperatorHarness
    >>> words = pa.schema([("word", pa.string())])
    >>> with OperatorHarness(Sort("word"), words, None) as harness:
    ...     harness.push([("pen",), ("cup",)])
    ...     _ = harness.end_batch()
    ...     harness.push([("hat",)])
    ...     print(harness.finish())
    [('+I', 'cup'), ('+I', 'hat'), ('+I', 'pen')]

    State: the buffered rows. Source: Flink's ``StreamSortOperator``. Raises SchemaError for columns that do not fit.
    """

    def __init__(self, order_by: OrderBy) -> None:
        self.order_by = order_columns(order_by, self.owner)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns."""
        (spec,) = inputs
        check_order(self.order_by, spec, self.owner)
        by_position = next((one.column for one in self.order_by if one.column in spec.sequence), None)
        if spec.changelog and by_position is not None:
            raise SchemaError(
                f"{self.owner}: order_by names '{by_position}', which is in the sequence of {spec.name}: a "
                "retraction has another position than its row, so the two would not meet; leave the column out of "
                "one of them"
            )
        return OutputSpec(spec.schema, changes=Changelog.insert_only(*spec.changes.unique_keys))

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return meaning(self, order_by=self.order_by)

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """At the end, by the columns."""
        return [InputOrder("end", sort_keys(self.order_by))]

    def open(self, context: OperatorContext) -> None:
        """Nothing to declare: the engine buffers the rows."""
        (spec,) = context.inputs
        self._missing = context.missing_rows() if spec.changelog else None
        self._sequence = spec.sequence

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Never called: all rows arrive in order."""

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        """See ``BundleOperator``; rows that are equal, also in their order, arrive in one bundle."""
        (bundle,) = bundles
        if bundle is None:
            return
        columns = bundle.batch.columns
        if self._missing is not None and not bundle.insert_only:
            content = row_ids(content_of(bundle.batch, self._sequence), np.zeros(bundle.num_rows, np.int64))
            net = net_by_content(np.empty(0, np.int64), content, bundle.accumulate)
            self._missing.add(net.missing, bundle)
            columns = take_rows(columns, net.added)
        ctx.emit(columns)
