"""Built-in operators for keyed streams: what they emit and when.

Only re-exports. Operators use ``asyncstate.operator`` and the state objects; they know no engine, no
store and no Spark.
"""

from .aggregate.aggregate_calls import Aggregate
from .aggregate.aggregates import avg, count, max_, min_, sum_
from .aggregate.bits import bit_and, bit_or, bit_xor
from .aggregate.collected import collect, first_value, last_value, string_agg
from .aggregate.group_aggregate import GroupAggregate
from .aggregate.group_table_aggregate import GroupTableAggregate
from .aggregate.higher_moments import corr, covar_pop, covar_samp, kurtosis, skewness
from .aggregate.incremental import IncrementalGroupAggregate
from .aggregate.moments import bool_and, bool_or, stddev_pop, stddev_samp, var_pop, var_samp
from .aggregate.order_statistics import map_agg, max_by, median, min_by, mode, percentile, percentile_disc
from .aggregate.sketch import approx_count_distinct
from .aggregate.user.udaf import udaf, udtaf
from .core.sort_orders import OrderColumn, asc, desc
from .join.dynamic_filter import DynamicFilter
from .join.interval.interval_join import IntervalJoin
from .join.join_operator import Join
from .join.lookup.lookup_join import LookupJoin, StatelessLookupJoin
from .join.lookup.lookup_requests import LookupCache, Retry
from .join.one_row_join import OneRowJoin
from .join.temporal_join import TemporalJoin
from .match.match_operator import Match
from .match.measures import first, last, match_number
from .match.partial_match import MatchSoFar
from .match.pattern import Pattern, variable
from .match.skips import skip_past_last, skip_to_first, skip_to_last, skip_to_next
from .over.frames import Frame, range_, rows, unbounded, whole
from .over.over_aggregate import OverAggregate
from .over.over_functions import (
    cume_dist,
    dense_rank,
    lag,
    lead,
    nth_value,
    ntile,
    percent_rank,
    rank_,
    row_number,
)
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
from .process.process_table_function import TableFunction
from .process.windows import assigners, evictors, triggers
from .process.windows.process_window import WindowApply, WindowProcess
from .rank.rank_operator import Limit, Rank, SortLimit
from .sort.sort_operators import Sort, TemporalSort
from .upsert.deduplicate import Deduplicate
from .upsert.materialize import UpsertMaterialize
from .upsert.normalize import ChangelogNormalize
from .window.counts import count_hop, count_tumble
from .window.group_window import GroupWindowAggregate
from .window.window_aggregate import WindowAggregate
from .window.window_join import WindowJoin
from .window.window_rank import WindowDeduplicate, WindowRank
from .window.window_table_function import WindowTableFunction
from .window.windows import SessionWindow, SlicedWindow, cumulate, hop, session, tumble

__all__ = [
    "Aggregate",
    "BroadcastProcess",
    "ChangelogNormalize",
    "CoFlatMap",
    "CoMap",
    "CoProcess",
    "Deduplicate",
    "DynamicFilter",
    "Frame",
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
    "OneRowJoin",
    "OrderColumn",
    "OverAggregate",
    "Pattern",
    "Rank",
    "Retry",
    "SessionWindow",
    "SlicedWindow",
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
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "collect",
    "corr",
    "count",
    "count_hop",
    "count_tumble",
    "covar_pop",
    "covar_samp",
    "cume_dist",
    "cumulate",
    "dense_rank",
    "desc",
    "evictors",
    "first",
    "first_value",
    "hop",
    "kurtosis",
    "lag",
    "last",
    "last_value",
    "lead",
    "map_agg",
    "match_number",
    "max_",
    "max_by",
    "median",
    "min_",
    "min_by",
    "mode",
    "nth_value",
    "ntile",
    "percent_rank",
    "percentile",
    "percentile_disc",
    "range_",
    "rank_",
    "row_number",
    "rows",
    "session",
    "skewness",
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
    "whole",
]
