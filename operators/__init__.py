"""Built-in operators for keyed streams: what they emit and when.

Only re-exports. Operators stand on ``asyncstate.operator`` and the state objects; they know no engine, no
store and no Spark.
"""

from operators.aggregates import Aggregate, avg, count, max_, min_, sum_
from operators.deduplicate import Deduplicate
from operators.group_aggregate import GroupAggregate
from operators.join import Join
from operators.window_aggregate import WindowAggregate
from operators.windows import cumulate, hop, session, tumble

__all__ = [
    "Aggregate",
    "Deduplicate",
    "GroupAggregate",
    "Join",
    "WindowAggregate",
    "avg",
    "count",
    "cumulate",
    "hop",
    "max_",
    "min_",
    "session",
    "sum_",
    "tumble",
]
