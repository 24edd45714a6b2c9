"""Messages whose schema is in a schema registry, as JSON text.

Owns: ``SchemaRegistry``, ``decoded`` and the decoding of Avro, Protobuf and JSON in the registry's wire format.
Invariant: bytes that do not fit their schema give a reason, never an error; a registry that does not answer gives an
error, never a reason. The schema of each message is the one it was written with, so writers may change it at any time.
Must not import runtime, storage or execution; workers import this module.

Source: Confluent's wire format (a zero byte, the schema's id, for Protobuf the path of the message's type); Avro 1.12.
"""

from __future__ import annotations

import base64
import functools
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from asyncstate.errors import AsyncStateError, ConfigurationError, SchemaError, StoreError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.kafka.client_options import Redaction
from asyncstate.spark.sources.events import DECODED, UNDECODED
from asyncstate.spark.task_errors import marking, own_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Decode = Callable[[bytes], str]
"""From a message's bytes, without the wire format's head, to JSON text."""

_HEAD_BYTES: Final = 5
_TIMEOUT_SECONDS: Final = 30.0
_NOT_THERE: Final = (40401, 40402, 40403)
"""The registry's own codes for subjects, versions and schemas that it does not have. A 404 without one of them is from
another program, or another path."""
_FLOATS: Final = re.compile(r'"(float|double)"')
_DECIMALS: Final = re.compile(r'"logicalType"\s*:\s*"decimal"')
_USER: Final = re.compile(r"(?<=//)[^/@]*@")


class SchemaRegistry:
    """The registry at ``url``, which speaks the REST interface of Confluent's. ``options``: further options of
    confluent-kafka's client, such as ``{"basic.auth.user.info": "user:password"}`` and ``ssl.ca.location``."""

    def __init__(self, url: str, options: Mapping[str, str | int | float] | None = None) -> None:
        if not re.match(r"https?://", str(url)):
            raise ConfigurationError(
                f"SchemaRegistry: url {_USER.sub('', str(url))!r} does not begin with http:// or https://"
            )
        self.url = url
        self.options = {"timeout": _TIMEOUT_SECONDS, **(options or {})}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.place!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaRegistry) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.url, tuple(sorted((name, str(value)) for name, value in self.options.items()))

    @property
    def place(self) -> str:
        """The address without user and password."""
        return _USER.sub("", self.url)

    def client(self) -> Any:
        """confluent-kafka's client. Raises ConfigurationError without the package, and for invalid options."""
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigurationError(
                f"a schema registry needs packages that are not there ({error}); install them: pip install "
                "'asyncstate[kafka]'"
            ) from error
        try:
            return SchemaRegistryClient({"url": self.url, **self.options})
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(self.redacted(f"{self!r}: {error}")) from None

    def redacted(self, text: object) -> str:
        """``text`` without secrets."""
        secrets = {name: str(value) for name, value in self.options.items()}
        user = _USER.search(self.url)
        logins = [user.group()[:-1]] if user else []
        logins += [value for name, value in secrets.items() if name.endswith("user.info")]
        for number, login in enumerate(logins):
            secrets |= {f"userinfo {number}": login, f"password {number}": login.partition(":")[2]}
        return Redaction(secrets)(text)


def decoded(
    df: DataFrame, registry: SchemaRegistry, value: str = "value", *, decimals: str | None = None
) -> DataFrame:
    """``df`` with the JSON texts of the messages in the column ``value``, for ``json_rows`` and ``debezium_json``.

    ``decimals``: what ``debezium_json`` is given, if it is; "base64" makes Avro's decimals malformed, since they are
    texts, and a text such as "1250" is valid in both forms. Raises SchemaError unless ``value`` is binary. A message
    that does not fit its schema is malformed there.
    """
    kinds = dict(df.dtypes)
    if kinds.get(value) != "binary":
        raise SchemaError(
            f"the messages are in column '{value}', which is {kinds.get(value, 'not there')}; give the binary "
            f"column of Kafka's messages. There are {', '.join(df.columns)}"
        )
    registry.client()
    schema = f"{_ddl(df)}, {DECODED} string, {UNDECODED} string"
    return df.mapInArrow(_Decoding(registry, value, decimals == "base64", own_mark()), schema)


def _ddl(df: DataFrame) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in df.dtypes)


class _Decoding:
    """The function that tasks run."""

    def __init__(self, registry: SchemaRegistry, value: str, no_decimals: bool, mark: str) -> None:
        self._registry, self._value, self._no_decimals, self._mark = registry, value, no_decimals, mark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = decoder_of(self._registry, self._no_decimals)
        decoder.forget_reasons()
        for batch in batches:
            with marking(self._mark):
                found = [decoder.text_or_reason(value) for value in batch.column(self._value).to_pylist()]
            texts = pa.array([text for text, _ in found], pa.string())
            reasons = pa.array([reason for _, reason in found], pa.string())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, texts, reasons], [*batch.schema.names, DECODED, UNDECODED]
            )


@functools.cache
def decoder_of(registry: SchemaRegistry, no_decimals: bool = False) -> Decoder:
    """The decoder of this process: what an id means never changes."""
    return Decoder(registry, no_decimals)


class Decoder:
    """Decodes messages, and remembers their schemas by id. ``no_decimals``: Avro's decimals cannot be read."""

    def __init__(self, registry: SchemaRegistry, no_decimals: bool = False) -> None:
        self._registry, self._no_decimals = registry, no_decimals
        self._client = registry.client()
        self._compiled = (
            registry.client()
        )  # a client of its own: it keeps schemas by id alone, in whatever form
        self._known: dict[int, Decode | str] = {}

    def forget_reasons(self) -> None:
        """Ask again for schemas that could not be read: a registry may get them later."""
        self._known = {number: one for number, one in self._known.items() if not isinstance(one, str)}

    def text_or_reason(self, message: bytes | None) -> tuple[str | None, str | None]:
        """The JSON text, or why there is none; neither for no message (a tombstone)."""
        if message is None:
            return None, None
        if len(message) < _HEAD_BYTES or message[0] != 0:
            return (
                None,
                "the message does not begin with a zero byte and a schema's id: it was written without the registry",
            )
        number = int.from_bytes(message[1:_HEAD_BYTES], "big")
        decode = self._known.get(number)
        if decode is None:
            decode = self._known[number] = self._decode(number)
        if isinstance(decode, str):
            return None, decode
        try:
            return decode(message[_HEAD_BYTES:]), None
        except Exception as error:  # what the libraries raise for bytes that do not fit is not documented
            return None, f"the message does not fit schema {number}: {type(error).__name__}: {error}"

    def _decode(self, number: int) -> Decode | str:
        """How messages of a schema are decoded, or why they cannot be."""
        schema = self._asked(lambda: self._client.get_schema(number))
        if schema is None:
            return f"schema {number} is not in the registry at {self._registry.place}"
        kind = schema.schema_type or "AVRO"
        try:
            if kind == "AVRO":
                texts = [schema.schema_str, *self._avro_references(schema)]
                if self._no_decimals and any(map(_DECIMALS.search, texts)):
                    return f"schema {number} has decimals of Avro, which become texts; give decimals='text'"
                return _avro(texts)
            if kind == "PROTOBUF":
                return self._protobuf(number)
        except AsyncStateError:
            raise
        except Exception as error:  # what the libraries raise for schemas that are none is not documented
            return f"schema {number} ({kind}) cannot be read: {type(error).__name__}: {error}"
        return _json if kind == "JSON" else f"schema {number} is of type {kind}, which is not supported"

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """The registry's answer, None for what it does not have. Raises StoreError where it does not answer."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return ask()
        except SchemaRegistryError as error:
            if error.error_code in _NOT_THERE:
                return None
            raise StoreError(
                self._failed(f"answers {error.http_status_code}: {error.error_message}")
            ) from None
        except Exception as error:  # of the HTTP library, which is none of ours
            raise StoreError(self._failed(f"does not answer: {type(error).__name__}: {error}")) from None

    def _failed(self, what: str) -> str:
        return self._registry.redacted(
            f"the schema registry at {self._registry.place} {what}; check its address and rights. The micro-batch can "
            "be repeated"
        )

    def _avro_references(self, schema: Any) -> list[str]:
        """The texts of the schemas that ``schema`` refers to, those they refer to first."""
        found: list[str] = []
        for reference in schema.references or ():
            given = self._referred(reference, None)
            found += [*self._avro_references(given), given.schema_str]
        return found

    def _referred(self, reference: Any, form: str | None) -> Any:
        client = self._client if form is None else self._compiled
        found = self._asked(
            lambda: client.get_version(reference.subject, reference.version, deleted=True, fmt=form)
        )
        if found is None:
            raise KeyError(f"{reference.subject} version {reference.version}")
        return found.schema

    def _protobuf(self, number: int) -> Decode:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        schema = self._asked(lambda: self._compiled.get_schema(number, fmt="serialized"))
        own = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.schema_str))
        own.name = own.name or f"schema-{number}.proto"
        self._add(pool, schema, own, set())
        file = pool.FindFileByName(own.name)

        @functools.cache
        def message_of(path: tuple[int, ...]) -> Any:
            names = list(own.message_type)
            kind = names[path[0]]
            name = kind.name
            for index in path[1:]:
                kind = kind.nested_type[index]
                name = f"{name}.{kind.name}"
            package = f"{file.package}." if file.package else ""
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(package + name))

        return functools.partial(_protobuf_text, message_of)

    def _add(self, pool: Any, schema: Any, file: Any, added: set[str]) -> None:
        """Add the file and what it imports: from its references, or those that come with Protobuf."""
        from google.protobuf import descriptor_pb2

        references = {reference.name: reference for reference in schema.references or ()}
        for name in file.dependency:
            if name in added:
                continue
            added.add(name)
            if name in references:
                other = self._referred(references[name], "serialized")
                read = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(other.schema_str))
                read.name = name
                self._add(pool, other, read, added)
                continue
            known = descriptor_pb2.FileDescriptorProto()
            _known_file(name).CopyToProto(known)
            self._add(pool, schema, known, added)
        pool.Add(file)


def _known_file(name: str) -> Any:
    """A file that comes with Protobuf, or with the registry's client, which every schema may import."""
    import importlib

    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if module.startswith("confluent."):
        module = f"confluent_kafka.schema_registry.{module}"
    return importlib.import_module(module).DESCRIPTOR


def _avro(texts: Sequence[str]) -> Decode:
    """``texts``: the schema, then those that it refers to."""
    import fastavro

    text, *references = texts
    named: dict[str, Any] = {}
    for other in references:
        fastavro.parse_schema(msgspec.json.decode(other), named_schemas=named)
    schema = fastavro.parse_schema(msgspec.json.decode(text), named_schemas=named)
    encode = msgspec.json.Encoder().encode
    has_floats = any(map(_FLOATS.search, texts))

    def decode(message: bytes) -> str:
        stream = io.BytesIO(message)
        value: Any = fastavro.schemaless_reader(stream, schema, None)
        if stream.tell() != len(message):
            raise ValueError(f"{len(message) - stream.tell()} bytes follow the value")
        return encode(_with_texts(value) if has_floats else value).decode()

    return decode


def _with_texts(value: Any) -> Any:
    """Floats that JSON does not have as the texts that the readers take: "NaN", "Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _with_texts(one) for name, one in value.items()}
    return [_with_texts(one) for one in value] if isinstance(value, list) else value


def _json(message: bytes) -> str:
    return message.decode("utf-8")


def _protobuf_text(message_of: Callable[[tuple[int, ...]], Any], message: bytes) -> str:
    from google.protobuf import json_format

    path, at = _path(message)
    found = message_of(path).FromString(message[at:])
    text: str = json_format.MessageToJson(
        found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None
    )
    return text


def _path(message: bytes) -> tuple[tuple[int, ...], int]:
    """The path of the message's type, and where the message begins: zigzag numbers, their count first; no count is
    the first type."""
    count, at = _number(message, 0)
    if count == 0:
        return (0,), at
    path = []
    for _ in range(count):
        index, at = _number(message, at)
        if index < 0:
            raise ValueError(f"the path of the message's type has {index}")
        path.append(index)
    return tuple(path), at


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
