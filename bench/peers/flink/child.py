"""What runs in Flink's Python: SQL statements, or the counter in PyFlink. Timed and, if asked for, with its rows.

Owns: the program ``python child.py TASK``, TASK being JSON.
Must import nothing of this project: it is not installed there.

TASK has ``conf`` (Flink's settings) and ``runs``, a list of ``{"ddl": [...], "query": ..., "rows": path or null}`` for
SQL or ``{"counter": folder, "rows": path or null}``. A run with ``rows`` writes them there as lines of JSON, row kind
first; without it they are dropped. Prints one line of JSON: the seconds of each run.
"""

from __future__ import annotations

import json
import os
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
    if run["rows"] is None:
        tables.execute_sql(f"INSERT INTO dropped {run['query']}").wait()
    else:
        _write_rows(tables.execute_sql(run["query"]), run["rows"])
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


def main() -> None:
    """Carry out the runs of the task, one behind the other."""
    task = json.loads(sys.argv[1])
    os.environ["TZ"] = "UTC"
    time.tzset()
    seconds = [(_run_counter if "counter" in run else _run_sql)(task["conf"], run) for run in task["runs"]]
    print(_PREFIX + json.dumps(seconds))


if __name__ == "__main__":
    main()
