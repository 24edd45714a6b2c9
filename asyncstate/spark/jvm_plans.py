"""Calls into the JVM that every micro-batch repeats.

Owns: ``JvmPlans``: plans as pyspark's own methods build them, with few calls each, and a cache of their parts that stay
the same as long as a SparkContext lives.
Invariant: results never depend on the cache; nothing of a micro-batch is cached.
Must not import runtime's tasks or storage.

Each call takes 0.1 to 0.3 ms in both processes, and pyspark makes one for each name that it looks up, each element of a
list and each setting of a function.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql.types import StructType

_KEPT_MAX: Final = 256  # of each kind; a job has a handful
_BETWEEN: Final = "\x01"
_EVAL_TYPE: Final = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
_all: weakref.WeakKeyDictionary[SparkContext, JvmPlans] = weakref.WeakKeyDictionary()


def calls_of(df: DataFrame) -> JvmPlans:
    """The ``JvmPlans`` of the SparkContext of ``df``."""
    context = df.sparkSession.sparkContext
    found = _all.get(context)
    if found is None:
        found = _all[context] = JvmPlans(context)
    return found


class JvmPlans:
    """Plans and cache of one SparkContext; may be used from several threads."""

    def __init__(self, context: SparkContext) -> None:
        # Only JVM objects are cached: a reference to the context itself would keep it alive.
        jvm: Any = context._jvm
        self._jvm = jvm
        self._splitter = jvm.java.util.regex.Pattern.compile(_BETWEEN)
        self._no_list = jvm.java.util.ArrayList()
        self._python_function = jvm.org.apache.spark.api.python.SimplePythonFunction
        self._user_defined = jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction
        self._from_json = jvm.org.apache.spark.sql.types.DataType.fromJson
        self._to_seq = jvm.PythonUtils.toSeq
        self._expr = jvm.org.apache.spark.sql.functions.expr
        self._level = context._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK_DESER)
        self._command_bytes_max = int(jvm.PythonUtils.getBroadcastThreshold(context._jsc))
        kept = functools.lru_cache(_KEPT_MAX)
        self._column = kept(self._new_column)
        self._columns = kept(self._new_columns)
        self._environment = kept(self._new_environment)
        self._includes = kept(self._new_includes)
        self._type = kept(self._new_type)
        self._numbers: dict[tuple[Sequence[str], int], Any] = {}

    def select(self, df: DataFrame, columns: Sequence[str]) -> DataFrame:
        """``df.selectExpr(*columns)``, with the texts passed as one."""
        if any(_BETWEEN in text for text in columns):
            return df.selectExpr(*columns)
        return DataFrame(df._jdf.selectExpr(self._splitter.split(_BETWEEN.join(columns))), df.sparkSession)

    def by_id(self, df: DataFrame, partitions: int, number: str) -> DataFrame:
        """``df.repartitionById(partitions, expr(number))``."""
        return DataFrame(df._jdf.repartitionById(partitions, self._column(number)), df.sparkSession)

    def with_numbers(self, df: DataFrame, columns: Sequence[str], count: int) -> DataFrame:
        """The union of ``df`` and ``columns``, SQL texts over ``id``, for the numbers from 0 to ``count`` - 1."""
        numbers = self._numbers.get((columns, count))
        if numbers is None:
            numbers = self.select(df.sparkSession.range(0, count, 1, 1), columns)._jdf
            if len(self._numbers) < _KEPT_MAX:
                self._numbers[columns, count] = numbers
        return DataFrame(df._jdf.union(numbers), df.sparkSession)

    def map_in_arrow(
        self, df: DataFrame, function: Callable[..., Any], schema: StructType, columns: Sequence[str]
    ) -> DataFrame:
        """``df.select(*columns).mapInArrow(function, schema)``."""
        context = df.sparkSession.sparkContext
        name, kind = type(function).__name__, self._type(schema.json())
        python = self._python(context, (function, schema))
        made = self._user_defined(name, python, kind, _EVAL_TYPE, True, self._no_list, self._no_list)
        column = made.apply(self._columns(f"struct({', '.join(columns)})"))
        return DataFrame(df._jdf.mapInArrow(column, False, None), df.sparkSession)

    def keep(self, df: DataFrame) -> DataFrame:
        """Run ``df``, once, and keep its rows as Spark's rows: a local checkpoint."""
        return DataFrame(df._jdf.localCheckpoint(True, self._level), df.sparkSession)

    def observed(self, df: DataFrame, names: Collection[str]) -> dict[str, int | None]:
        """The metrics that Spark has observed under ``names`` in the action that ran ``df``, without those that it left
        out, as it does in plans that it knows to have no rows."""
        if not names:
            return {}
        found = df._jdf.queryExecution().observedMetrics()
        metrics = {name: found.get(name) for name in names}
        return {name: metric.get().get(0) for name, metric in metrics.items() if metric.isDefined()}

    def _python(self, context: SparkContext, command: tuple[Any, ...]) -> Any:
        """The function as the JVM ships it. If it is large, or holds broadcast variables, pyspark prepares it."""
        pickled, variables = cloudpickle.dumps(command), self._no_list  # type: ignore[no-untyped-call]
        if len(pickled) > self._command_bytes_max or any(True for _ in context._pickled_broadcast_vars):
            pickled, variables, _, _ = _prepare_for_python_RDD(context, command)
        return self._python_function(
            bytearray(pickled),
            self._environment(tuple(sorted(context.environment.items()))),
            self._includes(tuple(context._python_includes or ())),
            context.pythonExec,
            context.pythonVer,
            variables,
            context._javaAccumulator,
        )

    def _new_column(self, text: str) -> Any:
        return self._expr(text)

    def _new_type(self, text: str) -> Any:
        return self._from_json(text)

    def _new_columns(self, text: str) -> Any:
        return self._to_seq([self._column(text)])

    def _new_environment(self, variables: tuple[tuple[str, str], ...]) -> Any:
        found = self._jvm.java.util.HashMap()
        for name, value in variables:
            found.put(name, value)
        return found

    def _new_includes(self, names: tuple[str, ...]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for name in names:
            found.add(name)
        return found
