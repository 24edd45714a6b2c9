"""The options of the Python data source, named as those of Spark's own connector.

Owns: ``SourceOptions``, read and checked from the texts that Spark passes on.
Invariant: an unknown option, or one that this source cannot keep, is refused before a broker is asked.
Must not import pyspark: workers import this module.

Source: Spark's Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from asyncstate.errors import ConfigurationError
from asyncstate.spark.kafka.client_options import Redaction, shown, to_librdkafka

NAME: Final = "asyncstate-kafka"
EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets that mean the first message, and the next one, in ``startingOffsets``."""
TIMEOUT_MS: Final = 30_000

_TOPICS: Final = ("subscribe", "subscribepattern", "assign")
_KNOWN: Final = {
    "startingoffsets": "startingOffsets",
    "startingtimestamp": "startingTimestamp",
    "startingoffsetsbytimestampstrategy": "startingOffsetsByTimestampStrategy",
    "failondataloss": "failOnDataLoss",
    "maxoffsetspertrigger": "maxOffsetsPerTrigger",
    "includeheaders": "includeHeaders",
    "timeoutms": "timeoutMs",
    "asyncstate.mark": "asyncstate.mark",
}
_ELSEWHERE: Final = {
    "minoffsetspertrigger": "set a trigger interval",
    "maxtriggerdelay": "set a trigger interval",
    "minpartitions": "give the topic more partitions",
    "maxrecordsperpartition": "set maxOffsetsPerTrigger",
    "startingoffsetsbytimestamp": "set startingTimestamp, which holds for all partitions",
    "endingoffsets": "it reads streams only",
    "endingtimestamp": "it reads streams only",
    "groupidprefix": "set kafka.group.id",
}

Offsets = dict[str, dict[str, int]]
"""By topic and partition, as text, the offset of the next message: the form of Spark's own connector."""


@dataclass(frozen=True)
class SourceOptions:
    """``client``: options for librdkafka. One of ``topics``, ``pattern`` and ``assigned`` is set. ``starting``:
    "earliest", "latest", or offsets; ``starting_ms``: a timestamp. ``max_rows``: of a micro-batch, 0 for all.
    ``timeout_ms``: the longest wait for an answer of the brokers."""

    client: Mapping[str, str] = field(repr=False)
    redacted: Redaction = field(repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    starting: str | Offsets = "latest"
    starting_ms: int | None = None
    is_latest_after: bool = False
    fails_on_loss: bool = True
    max_rows: int = 0
    headers: bool = False
    timeout_ms: int = TIMEOUT_MS
    mark: str = ""

    @property
    def begins_at_end(self) -> bool:
        """Whether a query without a checkpoint may begin where a partition ends, which is later each time."""
        if self.starting_ms is not None:  # of a partition without messages since then
            return self.is_latest_after
        given = {} if isinstance(self.starting, str) else self.starting
        return self.starting == "latest" or any(LATEST in parts.values() for parts in given.values())

    @property
    def place(self) -> str:
        """What is read, as errors name it."""
        named = ", ".join(self.topics or self.assigned or [f"/{self.pattern}/"])
        return f"Kafka source of {named} at {self.client.get('bootstrap.servers', 'no servers')}"


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of ``given``, whose names are read without regard to case, those of the client excepted.

    Raises ConfigurationError for a missing, unknown or invalid one; the message shows no secret.
    """
    given = dict(given)
    given |= _json("asyncstate.secrets", given.pop("asyncstate.secrets", "{}"))
    client = {name[6:]: str(value) for name, value in given.items() if name.lower().startswith("kafka.")}
    own = {name.lower(): str(value) for name, value in given.items() if not name.lower().startswith("kafka.")}
    own.pop("path", None)
    _check_names(own)
    if not client.get("bootstrap.servers", "").strip():
        raise ConfigurationError(
            f"{NAME}: option kafka.bootstrap.servers is missing; give host:port of a broker"
        )
    starting_ms = own.get("startingtimestamp")
    translated = to_librdkafka(NAME, client)
    return SourceOptions(
        client=translated,
        redacted=Redaction({**translated, **given}),
        **_topics(own),
        starting=_starting(own.get("startingoffsets", "latest")),
        starting_ms=None if starting_ms is None else _number("startingTimestamp", starting_ms, 0),
        is_latest_after=_word(own, "startingoffsetsbytimestampstrategy", "error", ("error", "latest"))
        == "latest",
        fails_on_loss=_word(own, "failondataloss", "true", ("true", "false")) == "true",
        max_rows=_number("maxOffsetsPerTrigger", own.get("maxoffsetspertrigger", "0"), 0),
        headers=_word(own, "includeheaders", "false", ("true", "false")) == "true",
        timeout_ms=_number("timeoutMs", own.get("timeoutms", str(TIMEOUT_MS)), 1),
        mark=own.get("asyncstate.mark", ""),
    )


def _check_names(own: Mapping[str, str]) -> None:
    for name in own:
        if name in _ELSEWHERE:
            raise ConfigurationError(
                f"{NAME}: option {name} is one of Spark's own connector, which this source does not have; "
                f"{_ELSEWHERE[name]}, or use that connector"
            )
        if name not in _KNOWN and name not in _TOPICS:
            known = ", ".join([*_TOPICS, *(text for text in _KNOWN.values() if "mark" not in text)])
            raise ConfigurationError(
                f"{NAME}: option '{name}' is unknown; known are {known}, and kafka.* for the client"
            )
    if sum(name in own for name in _TOPICS) != 1:
        raise ConfigurationError(
            f"{NAME}: give exactly one of the options subscribe, subscribePattern and assign"
        )


def _topics(own: Mapping[str, str]) -> dict[str, Any]:
    if "subscribe" in own:
        topics = tuple(name.strip() for name in own["subscribe"].split(",") if name.strip())
        if not topics:
            raise ConfigurationError(f"{NAME}: subscribe names no topic")
        return {"topics": topics}
    if "subscribepattern" in own:
        try:
            re.compile(own["subscribepattern"])
        except re.error as error:
            raise ConfigurationError(f"{NAME}: subscribePattern is no regular expression: {error}") from error
        return {"pattern": own["subscribepattern"]}
    found = _json("assign", own["assign"])
    good = all(
        isinstance(parts, list) and parts and all(type(one) is int for one in parts)
        for parts in found.values()
    )
    if not found or not good:
        raise ConfigurationError(
            f'{NAME}: assign is no JSON of topics and partitions; write it as {{"orders":[0,1]}}'
        )
    return {"assigned": {topic: tuple(sorted(set(parts))) for topic, parts in found.items()}}


def _starting(text: str) -> str | Offsets:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    found = _json("startingOffsets", text)
    for topic, parts in found.items():
        good = isinstance(parts, dict) and all(
            number.isdigit() and type(offset) is int and offset >= EARLIEST
            for number, offset in parts.items()
        )
        if not good:
            raise ConfigurationError(
                f"{NAME}: startingOffsets of topic '{topic}' is {parts!r}; give an offset for each partition, -2 for "
                "the earliest and -1 for the latest"
            )
    return found


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{NAME}: {name} is {text!r}, which is no JSON object"
            + ('; give earliest, latest or {"orders":{"0":23}}' if name == "startingOffsets" else "")
        )
    return found


def _number(name: str, text: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
        raise ConfigurationError(f"{NAME}: {name} is {text!r}; give a whole number from {least}")
    return int(text)


def _word(own: Mapping[str, str], name: str, otherwise: str, words: tuple[str, ...]) -> str:
    found = own.get(name, otherwise).lower()
    if found not in words:
        raise ConfigurationError(f"{NAME}: {_KNOWN[name]} is {own[name]!r}; give {' or '.join(words)}")
    return found


def printable(given: Mapping[str, str]) -> str:
    """The options as they may be printed."""
    return ", ".join(
        f"{name}={value!r}" for name, value in sorted(shown(given).items()) if "mark" not in name
    )
