"""What a query is started with: its trigger, and where Spark keeps its offsets.

Owns: ``trigger_of`` and ``query_place``. Invariant: settings that Spark could not use are refused before anything
starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError

from asyncstate.durations import microseconds
from asyncstate.errors import ConfigurationError
from asyncstate.locations import is_uri, redact
from asyncstate.spark.compatibility import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIGGERS: Final = ("processingTime", "availableNow", "once")
_PACKAGES: Final = {
    "s3": "Spark reads S3 as s3a://, with the package org.apache.hadoop:hadoop-aws",
    "s3a": "it needs the package org.apache.hadoop:hadoop-aws",
    "gs": "it needs Google's gcs-connector",
    "abfs": "it needs the package org.apache.hadoop:hadoop-azure",
    "abfss": "it needs the package org.apache.hadoop:hadoop-azure",
}


def trigger_of(given: object, job: str) -> dict[str, Any]:
    """The arguments of ``DataStreamWriter.trigger``. Raises ConfigurationError for an invalid trigger."""
    if given is None:
        return {}
    if isinstance(given, str):
        if re.sub(r"[^a-z]", "", given.lower()) == "availablenow":
            return {"availableNow": True}
        given = {"processingTime": given}
    if not isinstance(given, Mapping) or len(given) != 1 or not given.keys() <= set(_TRIGGERS):
        raise ConfigurationError(
            f"job '{job}': {given!r} is not a trigger; write a time such as '10 seconds', or 'availableNow' for all "
            "rows available now"
        )
    time = given.get("processingTime")
    if time is None:
        return dict(given)
    length_us = microseconds(time, f"job '{job}'", "trigger", ConfigurationError)
    if length_us < 0:
        raise ConfigurationError(f"job '{job}': trigger is {time!r}; write a time of 0 or more")
    return {"processingTime": f"{length_us // 1_000} milliseconds"}


def query_place(spark: SparkSession, checkpoint: str, chosen: str | None) -> str:
    """Where Spark keeps the offsets of the query of a job with this ``checkpoint``: as ``chosen``, or next to it.

    Raises ConfigurationError for a location that Spark cannot use.
    """
    if chosen is None and is_uri(checkpoint) and re.search("[?#]", checkpoint):
        raise ConfigurationError(
            f"the job's checkpoint {redact(checkpoint)} has options after '?', which Spark does not know, so the "
            "query's own checkpoint cannot be next to it; choose a location: start(query_checkpoint=...), such as "
            "'s3a://bucket/job-query' or a folder that outlives the driver"
        )
    place = chosen if chosen is not None else f"{checkpoint.rstrip('/')}-query"
    if is_uri(place) and not is_connect(spark):  # a server says it itself, when the query starts
        _check_scheme(spark, place)
    return place


def _check_scheme(spark: SparkSession, place: str) -> None:
    scheme = urlsplit(place).scheme.lower()
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(
            scheme, spark.sparkContext._jsc.hadoopConfiguration()
        )
    except Py4JError as error:
        package = _PACKAGES.get(scheme, "it needs a Hadoop package for that")
        raise ConfigurationError(
            f"Spark keeps the query's offsets in {redact(place)}, and this Spark cannot use {scheme}://: {package} "
            "(spark.jars.packages). Or choose another location: start(query_checkpoint=...)"
        ) from error
