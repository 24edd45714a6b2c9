"""How a sink of Kafka ends its transaction, with a client that fails at each step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from asyncstate.errors import AsyncStateError, ConfigurationError, StoreError
from asyncstate.spark.sinks import KafkaAppendTarget, KafkaTarget

ROWS = pa.table({"id": [1, 2]})
SECRET = "keep-this-to-yourself"


class Client:
    """A producer and a consumer. ``fails``: by the name of a call, what it raises the first ``times`` times."""

    def __init__(self, fails: dict[str, BaseException], mark: Any = None, times: int = 1_000) -> None:
        self.fails, self.mark, self.times = fails, mark or TopicPartition("t", 0, -1001), times
        self.calls: list[str] = []
        self.made: list[dict[str, Any]] = []

    def __call__(self, settings: dict[str, Any]) -> Client:
        self.made.append(settings)
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.calls.append(name)
            if name in self.fails and self.calls.count(name) <= self.times:
                raise self.fails[name]
            return [self.mark] if name == "committed" else None

        return call


def error(code: int = KafkaError._TIMED_OUT, *, aborts: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, f"as planned, with {SECRET}", txn_requires_abort=aborts))


def written(monkeypatch: pytest.MonkeyPatch, client: Client, topic: str = "t") -> Client:
    monkeypatch.setattr(confluent_kafka, "Producer", client)
    monkeypatch.setattr(confluent_kafka, "Consumer", client)
    target = KafkaAppendTarget("nowhere:1", topic, {"sasl.password": SECRET})
    assert target.append("w", 3, ROWS)
    return client


@pytest.mark.parametrize(
    ("call", "raised", "ends", "said"),
    [
        ("init_transactions", error(), False, "nothing was committed"),
        ("produce", error(KafkaError.MSG_SIZE_TOO_LARGE), True, "the transaction was not committed"),
        ("produce", ZeroDivisionError("in an encoder"), True, "in an encoder"),
        ("produce", KeyboardInterrupt("by a person"), True, "by a person"),
        ("send_offsets_to_transaction", error(), True, "the transaction was not committed"),
        ("commit_transaction", error(), False, "is known when the micro-batch is repeated"),
        ("commit_transaction", error(aborts=True), True, "the transaction was not committed"),
    ],
)
def test_a_transaction_that_fails_is_ended(
    monkeypatch: pytest.MonkeyPatch, call: str, raised: BaseException, ends: bool, said: str
) -> None:
    """Otherwise readers of the topic would wait until the brokers end it."""
    client = Client({call: raised})
    kind = StoreError if isinstance(raised, KafkaException) else type(raised)
    with pytest.raises(kind, match=said) as failed:
        written(monkeypatch, client)
    assert client.calls.count("abort_transaction") == ends
    assert client.calls[-1] == "close"
    assert SECRET not in f"{failed.value}{failed.value.__cause__}"


def test_the_first_failure_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client({"produce": error(KafkaError.MSG_SIZE_TOO_LARGE), "abort_transaction": error()})
    with pytest.raises(StoreError, match="MSG_SIZE_TOO_LARGE"):
        written(monkeypatch, client)
    assert client.calls[-2:] == ["abort_transaction", "close"]


def test_a_mark_that_cannot_be_read_is_not_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "as planned")
    client = Client({}, SimpleNamespace(offset=-1001, metadata=None, error=failed))
    with pytest.raises(StoreError, match="as planned.*nothing was committed"):
        written(monkeypatch, client)
    assert "begin_transaction" not in client.calls


STEPS = ("init_transactions", "committed", "send_offsets_to_transaction", "commit_transaction")
PASSING = (
    KafkaError(KafkaError.NOT_COORDINATOR),
    KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True),
)


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("failure", PASSING, ids=lambda failure: failure.name())
def test_what_passes_is_asked_again(monkeypatch: pytest.MonkeyPatch, call: str, failure: KafkaError) -> None:
    """As the group's coordinator moves from one broker to another."""
    monkeypatch.setattr("asyncstate.spark.sinks.kafka._RETRY_SECONDS", 0.001)
    client = written(monkeypatch, Client({call: KafkaException(failure)}, times=2))
    assert [client.calls.count(step) for step in STEPS] == [3 if step == call else 1 for step in STEPS]
    assert "abort_transaction" not in client.calls


@pytest.mark.parametrize("call", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_transaction_that_has_to_be_aborted_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    client = Client({call: error(KafkaError.NOT_COORDINATOR, aborts=True)}, times=1)
    with pytest.raises(StoreError, match="NOT_COORDINATOR.*the transaction was not committed"):
        written(monkeypatch, client)
    assert [client.calls.count(step) for step in (call, "abort_transaction")] == [1, 1]


@pytest.mark.parametrize("call", STEPS)
def test_what_never_passes_is_bounded(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr("asyncstate.spark.sinks.kafka._RETRY_SECONDS", 0.001)
    monkeypatch.setattr("asyncstate.spark.sinks.kafka._SECONDS", 0.02)
    client = Client({call: KafkaException(PASSING[0])})
    with pytest.raises(StoreError, match="NOT_COORDINATOR"):
        written(monkeypatch, client)
    assert client.calls.count(call) > 1


def test_sinks_of_two_topics_do_not_end_each_others_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs often have the same name, and their sinks too."""
    ids = [
        made["transactional.id"]
        for topic in ("t", "u")
        for made in written(monkeypatch, Client({}), topic).made
        if "transactional.id" in made
    ]
    assert ids == ["asyncstate-w/t", "asyncstate-w/u"]


@pytest.mark.parametrize("kind", [KafkaTarget, KafkaAppendTarget])
def test_options_that_cannot_be_kept_are_refused(kind: Any) -> None:
    for name in ("transactional.id", "group.id", "partitioner", "bootstrap.servers"):
        with pytest.raises(ConfigurationError, match=f"{kind.__name__}: leave out the option {name}"):
            kind("nowhere:1", "t", {name: "mine"})
    with pytest.raises(ConfigurationError, match=f"{kind.__name__}: option sasl.password is None"):
        kind("nowhere:1", "t", {"sasl.password": None})
    target = kind("nowhere:1", "t", {"no.such.option": "x", "sasl.password": SECRET})
    check = getattr(target, "check_append", None) or (lambda schema: target.check(schema, ("id",)))
    with pytest.raises(ConfigurationError, match=r"Kafka topic t: .*no\.such\.option.*librdkafka"):
        check(ROWS.schema)
    with pytest.raises(AsyncStateError, match=r"no\.such\.option"):
        KafkaAppendTarget("nowhere:1", "t", {"no.such.option": "x"}).append("w", 0, ROWS)
