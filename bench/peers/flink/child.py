"""What runs in Flink's Python: SQL statements, or the counter in PyFlink. Timed and, if asked for, with its rows.

Owns: the program ``python child.py TASK``, TASK being JSON. Must import nothing of this project: it is not installed
there. TASK has ``conf`` (Flink's settings) and ``runs``, a list of ``{"ddl": [...], "insert": statement}`` for SQL, or
``{"counter": folder, "columns": names, "rows": folder or null}``, or the same with ``mean``. A run with ``rows`` writes
them there as lines of JSON, with their ``row_kind``; without it they are dropped. ``processor_time`` is the path of
that module. Prints one line of JSON: the wall and processor seconds of each run (null: not reported by the system).
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


def _tables(settings: dict[str, str]) -> Any:
    from pyflink.table import EnvironmentSettings, TableEnvironment

    builder = EnvironmentSettings.new_instance().in_streaming_mode()
    return TableEnvironment.create(builder.with_configuration(_configuration(settings)).build())


def _run_sql(settings: dict[str, str], run: dict[str, Any]) -> float:
    tables = _tables(settings)
    tables.get_config().set_local_timezone("UTC")
    for statement in run["ddl"]:
        tables.execute_sql(statement)
    started = time.perf_counter()
    tables.execute_sql(run["insert"]).wait()
    return time.perf_counter() - started


def _queried(tables: Any, run: dict[str, Any], columns: str, query: str) -> float:
    """Seconds of a query whose rows are dropped or written down, timestamps as text."""
    started = time.perf_counter()
    if run["rows"] is None:
        tables.execute_sql(f"CREATE TABLE dropped ({columns}) WITH ('connector' = 'blackhole')")
        tables.execute_sql(f"INSERT INTO dropped {query}").wait()
    else:
        os.makedirs(run["rows"])
        path = f"{run['rows']}/part-0"
        with tables.execute_sql(query).collect() as rows, open(path, "w", encoding="utf-8") as out:
            for row in rows:
                named = {"row_kind": str(row.get_row_kind()), **dict(zip(run["columns"], row, strict=True))}
                out.write(json.dumps(named, default=str) + "\n")
    return time.perf_counter() - started


def _read(tables: Any, name: str, columns: str, folder: str) -> None:
    source = f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv'"
    tables.execute_sql(f"CREATE TABLE {name} ({columns}) WITH ({source})")


def _run_counter(settings: dict[str, str], run: dict[str, Any]) -> float:
    """Each row with how many of its key there have been: a ValueState, in Python processes."""
    from pyflink.common import Row, Types
    from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from pyflink.datastream.state import ValueStateDescriptor
    from pyflink.table import Schema, StreamTableEnvironment

    class Count(KeyedProcessFunction):  # type: ignore[misc]  # the base is Any here
        def open(self, runtime_context: Any) -> None:
            self.state = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> Any:
            count = (self.state.value() or 0) + 1
            self.state.update(count)
            yield Row(value[0], count)

    environment = StreamExecutionEnvironment.get_execution_environment(_configuration(settings))
    tables = StreamTableEnvironment.create(environment)
    _read(tables, "counted_rows", "`key` BIGINT", run["counter"])
    row = Types.ROW_NAMED(["key", "n"], [Types.LONG(), Types.LONG()])
    stream = tables.to_data_stream(tables.from_path("counted_rows"))
    counts = stream.key_by(lambda value: value[0], Types.LONG()).process(Count(), row)
    schema = Schema.new_builder().column("key", "BIGINT").column("n", "BIGINT").build()
    tables.create_temporary_view("counts", counts, schema)
    return _queried(tables, run, "`key` BIGINT, n BIGINT", "SELECT * FROM counts")


def _run_mean(settings: dict[str, str], run: dict[str, Any]) -> float:
    """A weighted mean a key: an aggregate function in Python processes."""
    from pyflink.table import AggregateFunction, DataTypes
    from pyflink.table.udf import udaf

    class Mean(AggregateFunction):  # type: ignore[misc]  # the base is Any here
        def create_accumulator(self) -> Any:
            return [0, 0]

        def accumulate(self, accumulator: Any, *args: Any) -> None:
            accumulator[0] += args[0] * args[1]
            accumulator[1] += args[1]

        def get_value(self, accumulator: Any) -> Any:
            return accumulator[0] / accumulator[1] if accumulator[1] else None

    tables = _tables(settings)
    sums = DataTypes.ARRAY(DataTypes.BIGINT())
    mean = udaf(Mean(), result_type=DataTypes.DOUBLE(), accumulator_type=sums, func_type="general")
    tables.create_temporary_function("mean", mean)
    _read(tables, "mean_rows", "`key` BIGINT, `value` AS MOD(`key` * 31, 1000003)", run["mean"])
    query = "SELECT `key`, mean(`value`, MOD(`value`, 7) + 1) AS m FROM mean_rows GROUP BY `key`"
    return _queried(tables, run, "`key` BIGINT, m DOUBLE", query)


def main() -> None:
    task = json.loads(sys.argv[1])
    os.environ["TZ"] = "UTC"
    time.tzset()
    cpu = runpy.run_path(task["processor_time"])["tree_seconds"]
    kinds = {"counter": _run_counter, "mean": _run_mean}
    seconds = []
    for run in task["runs"]:
        before = cpu(os.getpid())
        carry_out = next((work for kind, work in kinds.items() if kind in run), _run_sql)
        by_the_clock, after = carry_out(task["conf"], run), cpu(os.getpid())
        seconds.append((by_the_clock, None if before is None or after is None else after - before))
    print(_PREFIX + json.dumps(seconds))


if __name__ == "__main__":
    main()
