"""Turns off Spark's byte counting for Arrow batches where they cannot become too large.

Owns: ``ArrowBatches``, which lifts the session's bound in bytes while a stage runs alone.
Invariant: results never depend on it; the session's settings are restored afterwards, whatever happens. The bound in
bytes is lifted only where the bound in rows implies it, and nothing else of the job's plan runs in Python. For columns
with a fixed width that is certain; with texts and lists it holds as long as rows are at most four times as wide as the
widest batch of the previous micro-batch, which the workers measure.
Must not import storage.

Spark adds up the bytes of a batch after each row unless ``maxBytesPerBatch`` is the largest int: a fifth of the JVM's
time when rows of two numbers go through an exchange to Python.
"""

from __future__ import annotations

import functools
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from asyncstate.spark.compatibility import is_connect, query_of_this_thread, setting_of
from asyncstate.spark.python_task import regular_inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncstate.operator import InputSpec

BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNBOUNDED: Final = str(2**31 - 1)
_PYTHON: Final = ("PYTHON_UDF",)
_MARGIN: Final = 2  # Arrow's buffers grow by doubling
_KIND_BYTES: Final = 7  # a row kind has two characters; its offset, its validity
_TEXT_MARGIN: Final = 4  # rows of a micro-batch may be this much wider than those of the previous one


class ArrowBatches:
    """Lifts the bound for stages of one job, whose query was started on ``session``. Thread-safe."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._running = 0
        self._lifted: tuple[SparkSession, str] | None = None
        self._source_is_plain: bool | None = None
        self._seen: dict[str, float] = {}

    @contextmanager
    def stage(
        self, frames: Sequence[DataFrame], stages: Sequence[tuple[str, Sequence[InputSpec]]]
    ) -> Iterator[None]:
        """While the rows that ``frames`` begin with go to Python: the bound in bytes is lifted if it is redundant.

        ``stages``: the uid and inputs of each operator that gets rows in the same Spark job. Jobs read the setting when
        they are submitted. While another stage runs, the session's setting stays.
        """
        with self._lock:
            self._running += 1
            self._restore()
            widths = [self._width(uid, inputs) for uid, inputs in stages]
            if self._running == 1 and all(widths):
                self._lift(frames, max(widths))
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._restore()

    def saw(self, uid: str, bytes_a_row: float) -> None:
        """The widest batch of operator ``uid`` in the micro-batch that has just run, by its mean row; 0: none was large
        enough to measure."""
        if bytes_a_row:
            self._seen[uid] = bytes_a_row

    def _width(self, uid: str, inputs: Sequence[InputSpec]) -> int:
        return row_bytes(inputs) or math.ceil(_TEXT_MARGIN * self._seen.get(uid, 0.0))

    def _restore(self) -> None:
        if self._lifted is not None:
            session, bound = self._lifted
            self._lifted = None
            session.conf.set(BYTES, bound)

    def _lift(self, frames: Sequence[DataFrame], width: int) -> None:
        """Lift the bound for rows of ``width`` bytes, if it is redundant."""
        session = frames[0].sparkSession
        if is_connect(session):
            return  # what else runs in the plan cannot be seen
        most, bound = int(str(session.conf.get(ROWS))), setting_of(session, BYTES)
        allowed = None if bound is None else size_of(bound)
        if bound is None or allowed is None or most <= 0 or most * width * _MARGIN > allowed:
            return
        if self._source_is_plain is None:
            self._source_is_plain = _is_plain_source(self._session, frames[0])
        if self._source_is_plain and not any(map(_runs_python, frames)):
            self._lifted = session, bound
            session.conf.set(BYTES, UNBOUNDED)


def row_bytes(inputs: Sequence[InputSpec]) -> int | None:
    """Bytes in Arrow of a row that has the columns of all regular inputs; None if it has no fixed width."""
    regular = [inputs[index] for index in regular_inputs(inputs)]
    route = pa.int32()
    width = _sum([route, *(field.type for given in regular for field in given.row_schema)])
    return None if width is None else width + _KIND_BYTES * sum(given.changelog for given in regular)


def _sum(kinds: Sequence[pa.DataType]) -> int | None:
    widths = [width for kind in kinds if (width := _width(kind)) is not None]
    return sum(widths) if len(widths) == len(kinds) else None


def _width(kind: pa.DataType) -> int | None:
    """Bytes of a value and its validity."""
    if pa.types.is_struct(kind):
        fields = _sum([field.type for field in kind])
        return None if fields is None else 1 + fields
    if pa.types.is_null(kind):
        return 1
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        bits: int = kind.bit_width
        return 1 + -(-bits // 8)
    return None


def size_of(text: str) -> int | None:
    """Bytes from Spark's spelling of its default or a number; None for other units, which the user has chosen."""
    found = re.fullmatch(r"(\d+)b?", text.strip().lower())
    return int(found.group(1)) if found else None


def _is_plain_source(session: SparkSession, rows: DataFrame) -> bool:
    """False if the query's plan before the micro-batch, which its DataFrame does not show, may run Python."""
    try:
        query_id = query_of_this_thread(session)
        query = session.streams.get(query_id) if query_id else None
        if query is None:
            return False
        return not contains_any(rows, _PYTHON, query._jsq.streamingQuery().logicalPlan())
    except Exception:  # an unexpected Spark version: everything stays as it is
        return False


def _runs_python(rows: DataFrame) -> bool:
    try:
        return contains_any(rows, _PYTHON)
    except Exception:
        return True


def contains_any(df: DataFrame, patterns: tuple[str, ...], plan: Any = None) -> bool:
    """True if the analyzed plan of ``df`` (or another ``plan`` of Catalyst) has one of Catalyst's TreePatterns."""
    analyzed = df._jdf.queryExecution().analyzed() if plan is None else plan
    return bool(analyzed.containsAnyPattern(_tree_patterns(df.sparkSession.sparkContext._jvm, patterns)))


@functools.lru_cache(maxsize=8)
def _tree_patterns(jvm: Any, names: tuple[str, ...]) -> Any:
    """Catalyst's TreePatterns as Catalyst takes them. Cached: each name costs some calls into the JVM, for every
    stage."""
    enum = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return jvm.PythonUtils.toSeq([getattr(enum, name)() for name in names])
