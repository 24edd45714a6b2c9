"""What runs in Flink's Python: SQL statements, or the counter in PyFlink. Timed and, if asked for, with its rows.

Owns: the program ``python child.py TASK``, TASK being JSON.
Must import nothing of this project: it is not installed there.

TASK has ``conf`` (Flink's settings) and ``runs``, a list of ``{"ddl": [...], "insert": statement}`` for SQL, or
``{"counter": folder, "rows": path or null}``, or the same with ``mean``. A run with ``rows`` writes them there as lines
of JSON, row kind first; without it they are dropped. ``processor_time`` is the path of that module.
Prints one line of JSON: the wall and processor seconds of each run (null where the system does not report them).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from typing import Any

_PREFIX = "FLINK-SECONDS "


def _configuration(settings: dict[str, str]) -> Any:
    from pyflink.common import Configuration

    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    return configuration


def _run_sql(settings: dict[str, str], run: dict[str, Any]) -> float:
    from pyflink.table import EnvironmentSettings, TableEnvironment

    builder = EnvironmentSettings.new_instance().in_streaming_mode()
    tables = TableEnvironment.create(builder.with_configuration(_configuration(settings)).build())
    tables.get_config().set_local_timezone("UTC")
    for statement in run["ddl"]:
        tables.execute_sql(statement)
    started = time.perf_counter()
    tables.execute_sql(run["insert"]).wait()
    return time.perf_counter() - started


def _write_rows(result: Any, path: str) -> None:
    """Lines of [row kind, values...], timestamps as text."""
    with result.collect() as rows, open(path, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps([str(row.get_row_kind()), *list(row)], default=str) + "\n")


def _run_counter(settings: dict[str, str], run: dict[str, Any]) -> float:
    """Each row with how many of its key there have been: a ValueState, in Python processes."""
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from pyflink.datastream.state import ValueStateDescriptor
    from pyflink.table import Schema, StreamTableEnvironment

    class Count(KeyedProcessFunction):  # type: ignore[misc]  # the base is Any here
        def open(self, runtime_context: Any) -> None:
            self.state = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> Any:
            count = (self.state.value() or 0) + 1
            self.state.update(count)
            from pyflink.common import Row

            yield Row(value[0], count)

    environment = StreamExecutionEnvironment.get_execution_environment(_configuration(settings))
    tables = StreamTableEnvironment.create(environment)
    tables.execute_sql(
        "CREATE TABLE counted_rows (`key` BIGINT) WITH "
        f"('connector' = 'filesystem', 'path' = '{run['counter']}', 'format' = 'csv')"
    )
    row = Types.ROW_NAMED(["key", "n"], [Types.LONG(), Types.LONG()])
    stream = tables.to_data_stream(tables.from_path("counted_rows"))
    counts = stream.key_by(lambda value: value[0], Types.LONG()).process(Count(), row)
    tables.create_temporary_view(
        "counts", counts, Schema.new_builder().column("key", "BIGINT").column("n", "BIGINT").build()
    )
    started = time.perf_counter()
    if run["rows"] is None:
        tables.execute_sql("CREATE TABLE dropped (`key` BIGINT, n BIGINT) WITH ('connector' = 'blackhole')")
        tables.execute_sql("INSERT INTO dropped SELECT * FROM counts").wait()
    else:
        _write_rows(tables.execute_sql("SELECT * FROM counts"), run["rows"])
    return time.perf_counter() - started


def _run_mean(settings: dict[str, str], run: dict[str, Any]) -> float:
    """A weighted mean a key: an aggregate function in Python processes."""
    from pyflink.table import AggregateFunction, DataTypes, EnvironmentSettings, TableEnvironment
    from pyflink.table.udf import udaf

    class Mean(AggregateFunction):  # type: ignore[misc]  # the base is Any here
        def create_accumulator(self) -> Any:
            return [0, 0]

        def accumulate(self, accumulator: Any, *args: Any) -> None:
            accumulator[0] += args[0] * args[1]
            accumulator[1] += args[1]

        def get_value(self, accumulator: Any) -> Any:
            return accumulator[0] / accumulator[1] if accumulator[1] else None

    builder = EnvironmentSettings.new_instance().in_streaming_mode()
    tables = TableEnvironment.create(builder.with_configuration(_configuration(settings)).build())
    sums = DataTypes.ARRAY(DataTypes.BIGINT())
    mean = udaf(Mean(), result_type=DataTypes.DOUBLE(), accumulator_type=sums, func_type="general")
    tables.create_temporary_function("mean", mean)
    tables.execute_sql(
        "CREATE TABLE mean_rows (`key` BIGINT, `value` AS MOD(`key` * 31, 1000003)) WITH "
        f"('connector' = 'filesystem', 'path' = '{run['mean']}', 'format' = 'csv')"
    )
    query = "SELECT `key`, mean(`value`, MOD(`value`, 7) + 1) AS m FROM mean_rows GROUP BY `key`"
    started = time.perf_counter()
    if run["rows"] is None:
        tables.execute_sql("CREATE TABLE dropped (`key` BIGINT, m DOUBLE) WITH ('connector' = 'blackhole')")
        tables.execute_sql(f"INSERT INTO dropped {query}").wait()
    else:
        _write_rows(tables.execute_sql(query), run["rows"])
    return time.perf_counter() - started


def _run(settings: dict[str, str], run: dict[str, Any]) -> float:
    kinds = {"counter": _run_counter, "mean": _run_mean}
    return next((work for kind, work in kinds.items() if kind in run), _run_sql)(settings, run)


def main() -> None:
    """Execute the runs of the task in sequence."""
    task = json.loads(sys.argv[1])
    os.environ["TZ"] = "UTC"
    time.tzset()
    cpu = runpy.run_path(task["processor_time"])["tree_seconds"]
    seconds = []
    for run in task["runs"]:
        before = cpu(os.getpid())
        by_the_clock = _run(task["conf"], run)
        after = cpu(os.getpid())
        seconds.append((by_the_clock, None if before is None or after is None else after - before))
    print(_PREFIX + json.dumps(seconds))


if __name__ == "__main__":
    main()
