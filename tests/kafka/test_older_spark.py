"""What Spark 3.5 does not have is said when it is asked for."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyspark")

from asyncstate.spark import kafka


def test_the_python_reader_says_what_to_use_without_data_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "asyncstate.spark.kafka.data_source", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)  # as where there is none
    with pytest.raises(ImportError, match="from 4.0 on; on Spark 3.5 use read_kafka"):
        _ = kafka.KafkaSource
