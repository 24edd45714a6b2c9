"""Built-in operators for keyed streams: what they emit and when.

Only re-exports. Operators stand on ``asyncstate.operator`` and the state objects; they know no engine, no
store and no Spark.
"""

from operators.aggregate.aggregates import avg, count, max_, min_, sum_
from operators.aggregate.collected import collect, first_value, last_value, string_agg
from operators.aggregate.declared import Aggregate
from operators.aggregate.group import GroupAggregate
from operators.aggregate.incremental import IncrementalGroupAggregate
from operators.aggregate.moments import bool_and, bool_or, stddev_pop, stddev_samp, var_pop, var_samp
from operators.aggregate.sketch import approx_count_distinct
from operators.aggregate.table import GroupTableAggregate
from operators.aggregate.user.udaf import udaf, udtaf
from operators.core.ordering import OrderColumn, asc, desc
from operators.join.interval.operator import IntervalJoin
from operators.join.lookup.operator import LookupJoin, StatelessLookupJoin
from operators.join.lookup.requests import LookupCache, Retry
from operators.join.regular import Join
from operators.join.temporal import TemporalJoin
from operators.over.frames import range_, rows, unbounded
from operators.over.functions import dense_rank, lag, lead, rank_, row_number
from operators.over.operator import OverAggregate
from operators.process.broadcast import BroadcastProcess
from operators.process.connected import CoFlatMap, CoMap, CoProcess
from operators.process.keyed import KeyedFilter, KeyedFlatMap, KeyedMap, KeyedProcess
from operators.process.reduce import KeyedReduce
from operators.process.table_function import TableFunction
from operators.process.windows import assigners, evictors, triggers
from operators.process.windows.functions import WindowApply, WindowProcess
from operators.rank.limit import Limit, SortLimit
from operators.rank.operator import Rank
from operators.sort.operator import Sort, TemporalSort
from operators.upsert.deduplicate import Deduplicate
from operators.upsert.materialize import UpsertMaterialize
from operators.upsert.normalize import ChangelogNormalize
from operators.window.aggregate import WindowAggregate
from operators.window.counts import count_hop, count_tumble
from operators.window.group_window import GroupWindowAggregate
from operators.window.join import WindowJoin
from operators.window.rank import WindowDeduplicate, WindowRank
from operators.window.table_function import WindowTableFunction
from operators.window.windows import cumulate, hop, session, tumble

__all__ = [
    "Aggregate",
    "BroadcastProcess",
    "ChangelogNormalize",
    "CoFlatMap",
    "CoMap",
    "CoProcess",
    "Deduplicate",
    "GroupAggregate",
    "GroupTableAggregate",
    "GroupWindowAggregate",
    "IncrementalGroupAggregate",
    "IntervalJoin",
    "Join",
    "KeyedFilter",
    "KeyedFlatMap",
    "KeyedMap",
    "KeyedProcess",
    "KeyedReduce",
    "Limit",
    "LookupCache",
    "LookupJoin",
    "OrderColumn",
    "OverAggregate",
    "Rank",
    "Retry",
    "Sort",
    "SortLimit",
    "StatelessLookupJoin",
    "TableFunction",
    "TemporalJoin",
    "TemporalSort",
    "UpsertMaterialize",
    "WindowAggregate",
    "WindowApply",
    "WindowDeduplicate",
    "WindowJoin",
    "WindowProcess",
    "WindowRank",
    "WindowTableFunction",
    "approx_count_distinct",
    "asc",
    "assigners",
    "avg",
    "bool_and",
    "bool_or",
    "collect",
    "count",
    "count_hop",
    "count_tumble",
    "cumulate",
    "dense_rank",
    "desc",
    "evictors",
    "first_value",
    "hop",
    "lag",
    "last_value",
    "lead",
    "max_",
    "min_",
    "range_",
    "rank_",
    "row_number",
    "rows",
    "session",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum_",
    "triggers",
    "tumble",
    "udaf",
    "udtaf",
    "unbounded",
    "var_pop",
    "var_samp",
]
