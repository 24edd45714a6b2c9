"""Running a stream to the end of what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from asyncstate.spark.task_errors import restore


def drained(df: DataFrame, checkpoint: Path) -> list[list[dict[str, Any]]]:
    """The rows of each micro-batch that has any, up to what is there now. Raises the source's own error."""
    found: list[list[dict[str, Any]]] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        read = [row.asDict(recursive=True) for row in rows.collect()]
        if read:
            found.append(read)

    writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        raise restore(str(error)) or error from None
    finally:
        query.stop()
    return found


def values(batches: list[list[dict[str, Any]]]) -> list[str]:
    """The values of all rows, in order."""
    return sorted(bytes(row["value"]).decode() for batch in batches for row in batch)
