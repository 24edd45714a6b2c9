"""Sources of changelogs: the changes of a capture tool or a table's change feed, as rows with a ``row_kind``.

Owns: nothing; re-exports the public names.
Invariant: each is a function of a DataFrame to a DataFrame, bounded or streaming, that Spark runs in the JVM as part of
the plan that reads its rows: no state, no Python, no order.
Must not import runtime, storage or execution.

Source: Flink's formats debezium-json, maxwell-json and canal-json.
"""

from asyncstate.spark.sources.formats import POSITIONS, canal_json, debezium_json, json_rows, maxwell_json
from asyncstate.spark.sources.operations import delta_change_feed, operation_column

__all__ = [
    "POSITIONS",
    "canal_json",
    "debezium_json",
    "delta_change_feed",
    "json_rows",
    "maxwell_json",
    "operation_column",
]
