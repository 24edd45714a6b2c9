"""What the property is about: an operator, a history of its inputs, and what must come of them.

Owns: ``Example`` and ``Entries``, the type of the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from asyncstate.operator import Operator
from tests.properties.histories import History, Row, Table
from tests.properties.schedules import Shuffle
from tests.properties.views import View, as_they_are

MICROSECOND = pa.timestamp("us")


@dataclass(frozen=True)
class Example:
    """``expected``: the netted output for what the inputs' tables come to; after each micro-batch, or with event times
    at the end. None: ``output``, all of it.

    ``shuffle``: which orders of a micro-batch must not matter. ``times``: the event time column of each input.
    ``view``: what of the states must be the same. ``output_key``: the key of an output row, of which a bundle takes
    rows back before it adds any (None: not looked at). ``come_again``: rows of micro-batches before come once more
    and must be dropped. ``whole_updates``: no cut comes between -U and +U. ``around``: entered for each run.
    """

    make: Callable[[], Operator]
    inputs: Sequence[pa.Schema]
    key: Sequence[Sequence[str] | None]
    history: History
    expected: Callable[[list[Table]], Table] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    shuffle: Shuffle = "any"
    times: Sequence[int] | None = None
    view: View = as_they_are
    output_key: Callable[[Row], Any] | None = None
    come_again: bool = False
    whole_updates: bool = False
    output: Table | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


Entries = dict[str, st.SearchStrategy[Example]]


def floats() -> st.SearchStrategy[float]:
    """Floats of which sums are exact, with those that cannot be subtracted, and both zeros, which are equal."""
    return st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.25])


def small(low: int = 0, high: int = 3) -> st.SearchStrategy[int]:
    """A number of a few."""
    return st.integers(low, high)


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The value, or now and then null."""
    return st.one_of(values, values, values, st.none())
