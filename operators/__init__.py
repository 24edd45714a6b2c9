"""Built-in operators for keyed streams: what they emit and when.

Only re-exports. Operators stand on ``asyncstate.operator`` and the state objects; they know no engine, no
store and no Spark.
"""

from operators.aggregates import Aggregate, avg, count, max_, min_, sum_
from operators.broadcast_process import BroadcastProcess
from operators.connected import CoFlatMap, CoMap, CoProcess
from operators.deduplicate import Deduplicate
from operators.group_aggregate import GroupAggregate
from operators.interval_join import IntervalJoin
from operators.join import Join
from operators.keyed import KeyedFilter, KeyedFlatMap, KeyedMap, KeyedProcess
from operators.keyed_reduce import KeyedReduce
from operators.ordering import OrderColumn, asc, desc
from operators.rank import Rank
from operators.window_aggregate import WindowAggregate
from operators.window_functions import WindowApply, WindowProcess
from operators.windows import cumulate, hop, session, tumble

__all__ = [
    "Aggregate",
    "BroadcastProcess",
    "CoFlatMap",
    "CoMap",
    "CoProcess",
    "Deduplicate",
    "GroupAggregate",
    "IntervalJoin",
    "Join",
    "KeyedFilter",
    "KeyedFlatMap",
    "KeyedMap",
    "KeyedProcess",
    "KeyedReduce",
    "OrderColumn",
    "Rank",
    "WindowAggregate",
    "WindowApply",
    "WindowProcess",
    "asc",
    "avg",
    "count",
    "cumulate",
    "desc",
    "hop",
    "max_",
    "min_",
    "session",
    "sum_",
    "tumble",
]
