"""What the plan of a DataFrame contains, and the planning of a stage that has nothing to adapt.

Owns: ``contains_any`` and ``adaptive_where_it_pays``.
Invariant: results never depend on it. The session's setting is as it was afterwards, whatever happens.
Must not import storage.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncstate.operator import InputSpec

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
# What Spark may plan an exchange of its own for, whose sizes adaptive execution looks at.
_EXCHANGING: Final = (
    "AGGREGATE",
    "DISTINCT_LIKE",
    "EXCEPT",
    "INTERSECT",
    "JOIN",
    "LIMIT",
    "PLAN_EXPRESSION",
    "REPARTITION_OPERATION",
    "SORT",
    "WINDOW",
)


def contains_any(df: DataFrame, patterns: tuple[str, ...], plan: Any = None) -> bool:
    """True if the analyzed plan of ``df`` (or another ``plan`` of Catalyst) has one of Catalyst's TreePatterns."""
    analyzed = df._jdf.queryExecution().analyzed() if plan is None else plan
    return bool(analyzed.containsAnyPattern(_tree_patterns(df.sparkSession.sparkContext._jvm, patterns)))


@functools.lru_cache(maxsize=8)
def _tree_patterns(jvm: Any, names: tuple[str, ...]) -> Any:
    """Catalyst's TreePatterns as it takes them. Kept: each name costs some calls into the JVM, for every stage."""
    enum = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return jvm.PythonUtils.toSeq([getattr(enum, name)() for name in names])


@contextmanager
def adaptive_where_it_pays(inputs: Sequence[DataFrame], specs: Sequence[InputSpec]) -> Iterator[bool]:
    """While a stage over ``inputs`` is planned: adaptive execution is off if the stage's exchange is the only one. Says
    whether it has been turned off.

    That one has a fixed number of partitions, so there is nothing to adapt, and Spark would run and wait for each side
    of it as a job of its own: a tenth of a small micro-batch (decision 0042).
    """
    session = inputs[0].sparkSession
    before = str(session.conf.get(ADAPTIVE))
    if before != "true" or _exchanges(inputs, specs):
        yield False
        return
    session.conf.set(ADAPTIVE, "false")
    try:
        yield True
    finally:
        session.conf.set(ADAPTIVE, before)


def _exchanges(inputs: Sequence[DataFrame], specs: Sequence[InputSpec]) -> bool:
    """Whether the plan before the stage's exchange may have another; True where that cannot be told."""
    if any(spec.local is not None for spec in specs):
        return True
    try:
        return any(
            contains_any(df, _EXCHANGING)
            for df, spec in zip(inputs, specs, strict=True)
            if not spec.broadcast
        )
    except Exception:  # another Spark than this was written for: everything stays as it is
        return True
