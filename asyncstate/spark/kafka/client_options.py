"""Options of Kafka's clients in both vocabularies, Java's and librdkafka's; what in them is secret.

Owns: ``to_librdkafka``, ``to_java``, ``check_client``, ``Redaction``.
Invariant: what has no counterpart is refused, or passed on under its own name; a value is never guessed. What decides
which messages are read is not the client's to say.
Must not import pyspark: workers import this module.

Source: Kafka's documentation of its clients, librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from asyncstate.errors import ConfigurationError

_SECRET: Final = re.compile(
    r"pass(word|phrase)|secret|token|jaas|credential|userinfo|user\.info|key\.pem|keystore\.key|oauthbearer\.config",
    re.I,
)
_LOGIN: Final = re.compile(r"\.(Plain|Scram)LoginModule\s+required\b(.*);\s*$", re.S)
_FIELD: Final = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")
_MODULES: Final = "org.apache.kafka.common.security"
_HIDDEN: Final = "*****"
_OURS: Final = {
    "auto.offset.reset": "startingOffsets says where a query begins, and failOnDataLoss what follows lost messages",
    "enable.auto.commit": "offsets are in the query's checkpoint",
    "enable.auto.offset.store": "offsets are in the query's checkpoint",
    "enable.partition.eof": "the source needs it",
    "metadata.broker.list": "give bootstrap.servers",
}
_HOST_CHECK: Final = "ssl.endpoint.identification.algorithm"
_LIBRDKAFKA_ONLY: Final = re.compile(
    r"(ssl\.(ca|certificate|key)|https\.ca)\.pem|https\.ca\.location|enable\.(ssl|sasl)\..*"
    r"|ssl\.(crl\.location|ca\.certificate\.stores|curves\.list|sigalgs\.list|providers|engine\..*)"
    r"|sasl\.kerberos\.(principal|keytab|kinit\.cmd)"
    r"|sasl\.oauthbearer\.(method|config|client\..*|scope|extensions|grant\.type|assertion\..*|metadata\..*)"
)
"""Of TLS and SASL. Java's clients would ignore them: a list of revoked certificates, for one."""
_JAVA_ONLY: Final = (
    "key.deserializer",
    "value.deserializer",
    "interceptor.classes",
    "sasl.login.callback.handler.class",
)


class Redaction:
    """Removes the values of secret options from texts."""

    def __init__(self, options: Mapping[str, str]) -> None:
        found = {str(value) for name, value in options.items() if is_secret(name) and len(str(value)) > 1}
        jaas = [value for name, value in options.items() if name.lower().endswith("sasl.jaas.config")]
        found |= {
            value for text in jaas for name, value in _FIELD.findall(text) if name == "password" and value
        }
        self._values = sorted(found, key=len, reverse=True)

    def __call__(self, text: object) -> str:
        """``text`` without secrets."""
        shown = str(text)
        for value in self._values:
            shown = shown.replace(value, _HIDDEN)
        return shown


def is_secret(name: str) -> bool:
    """Whether the value of the option is secret."""
    return _SECRET.search(name) is not None


def shown(options: Mapping[str, str]) -> dict[str, str]:
    """The options as they may be printed."""
    return {name: _HIDDEN if is_secret(name) else str(value) for name, value in options.items()}


def check_client(source: str, options: Mapping[str, str]) -> None:
    """Raise ConfigurationError for options of the client that would change which messages are read."""
    for name in options:
        if name.lower() in _OURS:
            raise ConfigurationError(f"{source}: leave out the client's option {name}: {_OURS[name.lower()]}")


def to_librdkafka(source: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options for librdkafka. Java's names for SASL and PEM files are translated.

    Raises ConfigurationError for what only Java's clients have.
    """
    check_client(source, options)
    found = dict(options)
    if found.get(_HOST_CHECK) == "":
        found[_HOST_CHECK] = "none"
    for name in _JAVA_ONLY:
        if name in found:
            raise ConfigurationError(f"{source}: kafka.{name} is an option of Java's clients; leave it out")
    jaas = found.pop("sasl.jaas.config", None)
    if jaas is not None:
        found.update(_login(source, jaas))
    for store, ours in (("ssl.truststore", "ssl.ca.location"), ("ssl.keystore", None)):
        place, kind = found.pop(f"{store}.location", None), found.pop(f"{store}.type", "JKS")
        if place is None:
            continue
        if kind.upper() != "PEM" or ours is None:
            raise ConfigurationError(
                f"{source}: kafka.{store}.location is a store of Java's clients ({kind}); give PEM files with "
                "kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location"
            )
        found[ours] = place
    return found


def _login(source: str, jaas: str) -> dict[str, str]:
    """User and password of a JAAS text."""
    matched = _LOGIN.search(jaas)
    given = dict(_FIELD.findall(matched.group(2))) if matched else {}
    if not {"username", "password"} <= set(given):
        raise ConfigurationError(
            f"{source}: kafka.sasl.jaas.config has no PlainLoginModule or ScramLoginModule with username and password; "
            "give kafka.sasl.username and kafka.sasl.password, or librdkafka's options for another mechanism"
        )
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", given[name]) for name in ("username", "password")}


def to_java(source: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options for Spark's own connector. librdkafka's names for SASL and TLS are translated.

    Raises ConfigurationError for a user without password, and for what Java's clients would ignore.
    """
    check_client(source, options)
    found = dict(options)
    if found.get(_HOST_CHECK) == "none":
        found[_HOST_CHECK] = ""
    for name in found:
        if _LIBRDKAFKA_ONLY.fullmatch(name):
            raise ConfigurationError(
                f"{source}: Spark's own connector has nothing for {name}, an option of librdkafka; give Java's options "
                "for it, or connector='python'"
            )
    mechanism = found.pop("sasl.mechanisms", None) or found.pop("sasl.mechanism", None)
    user, password = found.pop("sasl.username", None), found.pop("sasl.password", None)
    if mechanism is not None:
        found["sasl.mechanism"] = mechanism
    if user is not None or password is not None:
        if user is None or password is None:
            raise ConfigurationError(f"{source}: give both sasl.username and sasl.password")
        is_scram = (mechanism or "").upper().startswith("SCRAM")
        module = f"{_MODULES}.scram.ScramLoginModule" if is_scram else f"{_MODULES}.plain.PlainLoginModule"
        found["sasl.jaas.config"] = f"{module} required username={_text(user)} password={_text(password)};"
    authority = found.pop("ssl.ca.location", None)
    if authority is not None:
        found |= {"ssl.truststore.location": authority, "ssl.truststore.type": "PEM"}
    if "ssl.key.location" in found or "ssl.certificate.location" in found:
        raise ConfigurationError(
            f"{source}: Spark's own connector takes no ssl.key.location; put key and certificate into one PEM file, "
            "and give it with ssl.keystore.location and ssl.keystore.type=PEM"
        )
    return found


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
