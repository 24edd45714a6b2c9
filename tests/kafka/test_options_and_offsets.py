"""The source's rules over numbers and texts: offsets, options, both vocabularies of clients, secrets."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncstate.errors import ConfigurationError
from asyncstate.spark.kafka import read_kafka
from asyncstate.spark.kafka.client_options import Redaction, to_java, to_librdkafka
from asyncstate.spark.kafka.planned_offsets import Range, limited, lost, ranges
from asyncstate.spark.kafka.source_options import printable, source_options

OFFSETS = st.dictionaries(
    st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from("0123"), st.integers(0, 50), max_size=4)
)


@given(OFFSETS, OFFSETS, st.integers(1, 60))
def test_a_limit_is_kept_and_all_is_read_in_the_end(
    start: dict[str, dict[str, int]], more: dict[str, dict[str, int]], most: int
) -> None:
    last = {
        topic: {number: start.get(topic, {}).get(number, 0) + count for number, count in parts.items()}
        for topic, parts in more.items()
    }
    waiting = sum(count for parts in more.values() for count in parts.values())
    at, rounds = start, 0
    seen: list[tuple[str, int, int]] = []
    while read := ranges(at, end := limited(at, last, most)):
        rounds += 1
        assert sum(one.end - one.start for one in read) <= most
        seen += [(one.topic, one.partition, offset) for one in read for offset in range(one.start, one.end)]
        at = {topic: {**at.get(topic, {}), **parts} for topic, parts in end.items()}
    assert rounds == -(-waiting // most)
    assert sorted(seen) == sorted(
        (topic, int(number), start.get(topic, {}).get(number, 0) + ahead)
        for topic, parts in more.items()
        for number, count in parts.items()
        for ahead in range(count)
    )


def test_each_partition_goes_on_under_a_limit() -> None:
    """Its rows would else be late: the watermark follows the partitions with much to read."""
    last = {"a": {"0": 10**9, "1": 1, "2": 40}, "b": {"0": 0}}
    end = limited({}, last, 1_000)
    assert end["a"]["1"] == 1
    assert end["a"]["2"] >= 1
    assert sum(one.end - one.start for one in ranges({}, end)) == 1_000
    assert sum(one.end for one in ranges({}, limited({}, last, 2))) == 2


def test_partitions_that_are_new_gone_or_made_anew() -> None:
    start = {"a": {"0": 5, "1": 7}}
    assert ranges(start, {"a": {"0": 5, "1": 9, "2": 3}}) == [Range("a", 1, 7, 9), Range("a", 2, 0, 3)]
    assert ranges(start, {"a": {"0": 2}}) == [Range("a", 0, 0, 2, is_reset=True)]
    assert lost(start, {"a": {"0": 2}}) == [
        "partition 0 of 'a' ends at offset 2, and was read up to 5",
        "partition 1 of 'a' is gone",
    ]
    assert lost(start, {"a": {"0": 5, "1": 8}}) == []


SERVERS = {"kafka.bootstrap.servers": "broker:9092"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of the options subscribe"),
        ({"subscribe": "a", "subscribePattern": "a"}, "exactly one"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"assign": "[1]"}, "assign is '\\[1\\]', which is no JSON object"),
        ({"assign": '{"a":["0"]}'}, "assign is no JSON of topics"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "give earliest, latest or"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "give an offset for each partition"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1e6"}, "maxOffsetsPerTrigger is '1e6'"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "failOnDataLoss is 'no'; give true or false"),
        ({"subscribe": "a", "minPartitions": "4"}, "Spark's own connector, which this source does not have"),
        ({"subscribe": "a", "startingOffset": "latest"}, "option 'startingoffset' is unknown; known are"),
        ({"subscribe": "a", "kafka.value.deserializer": "x"}, "an option of Java's clients"),
        ({"subscribe": "a", "kafka.ssl.keystore.location": "x"}, "a store of Java's clients"),
        (
            {"subscribe": "a", "kafka.auto.offset.reset": "earliest"},
            "startingOffsets says where a query begins",
        ),
        (
            {"subscribe": "a", "kafka.sasl.jaas.config": "Krb5LoginModule required;"},
            "has no PlainLoginModule",
        ),
    ],
)
def test_options_that_cannot_be_kept_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        source_options({**SERVERS, **given})


def test_servers_are_needed() -> None:
    with pytest.raises(ConfigurationError, match="kafka.bootstrap.servers is missing"):
        source_options({"subscribe": "a"})


LOGIN = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": 'me "x"', "sasl.password": 'p\\a"qq'}


def test_a_login_is_the_same_in_both_vocabularies() -> None:
    java = to_java("test", {**LOGIN, "ssl.ca.location": "/ca.pem"})
    assert java == {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me \\"x\\"" password="p\\\\a\\"qq";',
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
    }
    assert to_librdkafka("test", java) == {**LOGIN, "ssl.ca.location": "/ca.pem"}
    assert (
        "plain.PlainLoginModule" in to_java("test", {**LOGIN, "sasl.mechanism": "PLAIN"})["sasl.jaas.config"]
    )
    with pytest.raises(ConfigurationError, match="both sasl.username and sasl.password"):
        to_java("test", {"sasl.username": "me"})
    with pytest.raises(ConfigurationError, match="takes no ssl.key.location"):
        to_java("test", {"ssl.key.location": "/key.pem"})
    none = {"ssl.endpoint.identification.algorithm": "none"}
    assert to_java("test", none) == {"ssl.endpoint.identification.algorithm": ""}
    assert to_librdkafka("test", to_java("test", none)) == none


@pytest.mark.parametrize(
    "name",
    [
        "ssl.crl.location",
        "ssl.ca.pem",
        "sasl.oauthbearer.method",
        "sasl.kerberos.keytab",
        "auto.offset.reset",
    ],
)
def test_what_javas_clients_would_ignore_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        to_java("test", {name: "x"})
    kept = {"sasl.oauthbearer.token.endpoint.url": "x", "sasl.oauthbearer.scope.claim.name": "x"}
    assert to_java("test", kept) == kept


def test_secrets_are_not_shown() -> None:
    options = {f"kafka.{name}": value for name, value in LOGIN.items()} | SERVERS | {"subscribe": "a"}
    found = source_options(options)
    jaas = {"kafka.sasl.jaas.config": to_java("test", LOGIN)["sasl.jaas.config"]}
    texts = [
        repr(found),
        printable(options),
        printable(jaas),
        found.redacted(f"wrong: {LOGIN['sasl.password']}"),
    ]
    for text in texts:
        assert "qq" not in text
    assert Redaction(jaas)('it was p\\\\a\\"qq') == "it was *****"
    translated = source_options({**jaas, **SERVERS, "subscribe": "a"})
    assert translated.redacted(f"wrong: {LOGIN['sasl.password']}") == "wrong: *****"
    others = {
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase": "hush",
        "kafka.sasl.oauthbearer.config": "hush",
    }
    assert "hush" not in printable(others)


class Reader:
    """A session whose reader keeps the options."""

    version = "4.0.0"

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.readStream = self.dataSource = self
        self.schema = None

    def register(self, source: object) -> None:
        pass

    def format(self, name: str) -> Reader:
        return self

    def options(self, **given: str) -> Reader:
        self.given = given
        return self

    def load(self) -> Reader:
        return self


def given(servers: Any = "broker:9092", topics: Any = "a", **more: Any) -> dict[str, str]:
    session: Any = Reader()
    read_kafka(session, servers, topics, **more)
    return dict(session.given)


def test_arguments_become_options() -> None:
    assert given(topics=re.compile("shop.*", re.I))["subscribePattern"] == "(?i:shop.*)"
    assert given(topics=re.compile("(?i)shop.*"))["subscribePattern"] == "(?i)shop.*"
    past = given(starting=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    assert past["startingTimestamp"] == "1577836800000"
    assert past["startingOffsetsByTimestampStrategy"] == "latest"
    assert given(starting={"a": {0: 5}})["startingOffsets"] == '{"a": {"0": 5}}'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topics": re.compile("a", re.DOTALL)}, "without flags other than"),
        ({"topics": re.compile(b"a")}, "give a pattern of text"),
        ({"servers": ["broker:9092"]}, "servers is \\['broker:9092'\\]"),
        ({"servers": " "}, "servers is ' '"),
        ({"starting": {"a": 5}}, "starting is {'a': 5}"),
        ({"starting": dt.datetime(2126, 1, 1, tzinfo=dt.UTC)}, "which is still to come"),
        ({"options": {"sasl.password": None}}, "option sasl.password is None"),
        ({"options": {"bootstrap.servers": "other:9092"}}, "give them with servers"),
        ({"options": {"auto.offset.reset": "earliest"}}, "leave out the client's option auto.offset.reset"),
        (
            {"options": {"auto.offset.reset": "earliest"}, "connector": "python"},
            "leave out the client's option",
        ),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        given(**wrong)


@pytest.mark.smoke
def test_spark_without_python_data_sources_can_read_topics() -> None:
    """Spark 3.5 reads them with its own connector."""
    program = """
import sys
sys.modules["pyspark.sql.datasource"] = None
from asyncstate.spark.kafka import Debezium, Json, KafkaStream, SchemaRegistry, read_kafka
import asyncstate.spark.sinks
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
