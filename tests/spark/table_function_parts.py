"""Process table functions that the tests run on Spark; in a module of their own, for Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pyarrow as pa

from asyncstate import MapView, RecordContext, Row, Timer
from asyncstate.functions import ProcessTableFunction, SetTable, StateHint, TableHint

COUNTS = pa.schema([("k", pa.int64()), ("what", pa.string()), ("count", pa.int64())])
Rules = Annotated[Row, TableHint("broadcast", notify_stateful_sets=True)]


@dataclass
class Seen:
    """How many rows a set has had, and of how many rules it knows."""

    rows: int = 0
    rules: int = 0


class Watched(ProcessTableFunction):
    """The number of each row in its set, of two tables; the rules that a set knows once the watermark has passed."""

    output = COUNTS
    side_outputs: ClassVar[dict[str, pa.Schema]] = {"right": COUNTS}

    def eval(
        self,
        left: SetTable | None,
        rules: Rules | None,
        right: SetTable | None,
        seen: Seen | None,
        known: Annotated[MapView[int, int], StateHint(broadcast=True)],
        ctx: RecordContext,
    ) -> Iterator[tuple[int, str, int]]:
        if rules is not None:
            if seen is None:
                known[rules.id] = rules.k
            else:
                seen.rules = len(list(known.keys()))
            return
        assert seen is not None
        seen.rows += 1
        ctx.timers.register_event_time(0)
        if right is not None:
            ctx.emit(right.k, "right", seen.rows, output="right")
        else:
            yield ctx.key[0], "left", seen.rows

    def on_timer(self, timer: Timer, seen: Seen, ctx: RecordContext) -> Iterator[tuple[int, str, int]]:
        yield ctx.key[0], "rules", seen.rules
