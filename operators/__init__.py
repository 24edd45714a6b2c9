"""Built-in operators for keyed streams: what they emit and when.

Only re-exports. Operators stand on ``asyncstate.operator`` and the state objects; they know no engine, no
store and no Spark.
"""

from .aggregate.aggregates import avg, count, max_, min_, sum_
from .aggregate.collected import collect, first_value, last_value, string_agg
from .aggregate.declared import Aggregate
from .aggregate.group import GroupAggregate
from .aggregate.incremental import IncrementalGroupAggregate
from .aggregate.moments import bool_and, bool_or, stddev_pop, stddev_samp, var_pop, var_samp
from .aggregate.sketch import approx_count_distinct
from .aggregate.table import GroupTableAggregate
from .aggregate.user.udaf import udaf, udtaf
from .core.ordering import OrderColumn, asc, desc
from .join.interval.operator import IntervalJoin
from .join.lookup.operator import LookupJoin, StatelessLookupJoin
from .join.lookup.requests import LookupCache, Retry
from .join.regular import Join
from .join.temporal import TemporalJoin
from .match.measures import first, last, match_number
from .match.operator import Match
from .match.pattern import Pattern, variable
from .match.skips import skip_past_last, skip_to_first, skip_to_last, skip_to_next
from .match.so_far import MatchSoFar
from .over.frames import range_, rows, unbounded
from .over.functions import dense_rank, lag, lead, rank_, row_number
from .over.operator import OverAggregate
from .process.keyed import (
    BroadcastProcess,
    CoFlatMap,
    CoMap,
    CoProcess,
    KeyedFilter,
    KeyedFlatMap,
    KeyedMap,
    KeyedProcess,
    KeyedReduce,
)
from .process.table_function import TableFunction
from .process.windows import assigners, evictors, triggers
from .process.windows.functions import WindowApply, WindowProcess
from .rank.operator import Limit, Rank, SortLimit
from .sort.operator import Sort, TemporalSort
from .upsert.deduplicate import Deduplicate
from .upsert.materialize import UpsertMaterialize
from .upsert.normalize import ChangelogNormalize
from .window.aggregate import WindowAggregate
from .window.counts import count_hop, count_tumble
from .window.group_window import GroupWindowAggregate
from .window.join import WindowJoin
from .window.rank import WindowDeduplicate, WindowRank
from .window.table_function import WindowTableFunction
from .window.windows import cumulate, hop, session, tumble

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
    "Match",
    "MatchSoFar",
    "OrderColumn",
    "OverAggregate",
    "Pattern",
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
    "first",
    "first_value",
    "hop",
    "lag",
    "last",
    "last_value",
    "lead",
    "match_number",
    "max_",
    "min_",
    "range_",
    "rank_",
    "row_number",
    "rows",
    "session",
    "skip_past_last",
    "skip_to_first",
    "skip_to_last",
    "skip_to_next",
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
    "variable",
]
