"""A job from topic to topic, to be killed: sums by key, written once; a line on stdout for each committed micro-batch.

Run with JSON: folder, servers, source, target, connector ("python" or "spark"), max_rows, jars.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from asyncstate.spark import StreamingJob, build_session
from asyncstate.spark.kafka import Json
from asyncstate.spark.sinks import AppendSink, KafkaAppendTarget, KafkaTarget, UpsertSink
from operators import GroupAggregate, count, sum_


def main(given: dict[str, Any]) -> None:
    """Read to the end of what is there."""
    conf = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"}
    conf |= {"spark.ui.showConsoleProgress": "false", "spark.driver.bindAddress": "127.0.0.1"}
    conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g"}
    if given["jars"]:
        conf["spark.jars"] = given["jars"]
    spark = build_session("kafka-kills", "local[2]", conf)
    job = StreamingJob(
        spark,
        f"{given['folder']}/job",
        {"async-state.enabled": "true", "async-state.parallelism": 2},
        on_progress=lambda progress: print("micro-batch", progress["batch_id"], flush=True),
    )
    rows = job.kafka(
        "events",
        given["servers"],
        given["source"],
        Json("k bigint not null, v bigint not null"),
        starting="earliest",
        max_rows=given["max_rows"],
        connector=given["connector"],
    )
    sums = GroupAggregate([count().alias("n"), sum_("v").alias("total")])
    totals = rows.apply(sums, key="k", uid="totals")
    totals.to(UpsertSink("k", KafkaTarget(given["servers"], given["target"])), name="totals")
    log = KafkaAppendTarget(given["servers"], given["target"] + "-log", keys="k")
    totals.to(AppendSink(log, changes=True), name="log")
    job.await_termination(job.start(trigger="availableNow"))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
