"""What the window aggregations share: their plan, their state's declarations, and the rows they put out.

Owns: ``WindowPlan``, ``WindowStateDescriptor``, ``WindowListDescriptor``; what functions over windows check alike.
Invariant: a state names its window, so that a checkpoint is never read with another one.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.operator import BundleContext, InputSpec
from asyncstate.state.columns import ColumnStateDescriptor
from asyncstate.state.list_columns import ListColumnStateDescriptor
from operators.aggregates import Aggregate, AggregatePlan, check_distinct_names
from operators.window_time import Domain
from operators.windows import WINDOW_TIME_US, SessionWindow, SlicedWindow, Window

Int64Array = npt.NDArray[np.int64]

WINDOW_COLUMNS = ("window_start", "window_end", "window_time")
OWNER = "WindowAggregate"


@dataclass(frozen=True)
class WindowStateDescriptor(ColumnStateDescriptor):
    """A column state of one window."""

    window: str = ""

    def type_texts(self) -> dict[str, str]:
        """Schema, layout and window."""
        return {**super().type_texts(), "window": self.window}


@dataclass(frozen=True)
class WindowListDescriptor(ListColumnStateDescriptor):
    """A list column state of one window."""

    window: str = ""

    def type_texts(self) -> dict[str, str]:
        """Schema, layout and window."""
        return {**super().type_texts(), "window": self.window}


class WindowPlan:
    """Window and aggregates bound to an input; SchemaError for what does not fit.

    ``stored``: the window as it is stored; in processing time a changelog has rows of its own for each window.
    """

    def __init__(
        self, window: Window, aggregates: Sequence[Aggregate], spec: InputSpec, domain: Domain
    ) -> None:
        check_event_time(spec, domain, OWNER)
        if isinstance(window, SessionWindow) and spec.changelog:
            _refuse_extremes(aggregates, spec)
        self.domain: Domain = domain
        self.changelog = spec.changelog
        self.stored = window
        if domain == "processing" and spec.changelog and isinstance(window, SlicedWindow):
            self.stored = window.whole()
        self.aggregation = AggregatePlan(aggregates, spec.schema, OWNER, retract=spec.changelog)
        self._time_type = window_time_type(spec)
        times = [pa.field(name, self._time_type) for name in WINDOW_COLUMNS]
        fields = [*spec.key_schema, *times, *self.aggregation.result_fields]
        _check_key_names(spec)
        check_distinct_names([field.name for field in fields], OWNER)
        self.schema = pa.schema(fields)

    @property
    def window_text(self) -> str:
        """Window and time as they are noted beside the state."""
        text = self.stored.text
        return text if self.domain == "event" else f"processing time {text}"

    def emit(
        self,
        ctx: BundleContext,
        keys: Sequence[pa.Array],
        starts: Int64Array,
        ends: Int64Array,
        states: Sequence[pa.Array],
    ) -> None:
        """Put out one row for each of r keys and windows."""
        times = [pa.array(column).view(self._time_type) for column in (starts, ends, ends - WINDOW_TIME_US)]
        ctx.emit([*keys, *times, *self.aggregation.results(states)])


def check_event_time(spec: InputSpec, domain: Domain, owner: str) -> None:
    """SchemaError for windows of event time over an input that declares none."""
    if domain == "event" and spec.event_time is None:
        raise SchemaError(
            f"{owner}: windows need an event time but {spec.name} declares none; name its event time column, "
            "or use time='processing'"
        )


def window_time_type(spec: InputSpec) -> pa.DataType:
    """The type of the window columns: the time zone is that of the event time, UTC without one."""
    zone = "UTC" if spec.event_time is None else spec.schema.field(spec.event_time).type.tz
    return pa.timestamp("us", zone)


def _refuse_extremes(aggregates: Sequence[Aggregate], spec: InputSpec) -> None:
    for aggregate in aggregates:
        if aggregate.function in ("min", "max"):
            raise SchemaError(
                f"{OWNER}: aggregate '{aggregate.name}' over session windows cannot take rows back, but "
                f"{spec.name} is a changelog; drop its row_kind column if every row is an insert, or use "
                "tumble, hop or cumulate"
            )


def _check_key_names(spec: InputSpec) -> None:
    for name in WINDOW_COLUMNS:
        if name in spec.key:
            raise SchemaError(
                f"{OWNER}: key column '{name}' of {spec.name} has the name of an output column; rename it "
                "before the operator"
            )
