"""Bytes of keys and values, and the key groups.

Owns: the exact bytes in the store. A leaf: imports nothing of the project except ``errors``.
"""

from asyncstate.codec.arrow_types import (
    check_key_type,
    check_value_schema,
    check_value_type,
    field_from_text,
    field_to_text,
    schema_from_text,
    schema_to_text,
    type_from_text,
    type_to_text,
)
from asyncstate.codec.ddl import ArrowType, SchemaLike, TypeLike, read_schema, read_schemas, read_type
from asyncstate.codec.evolution import Refusal, TypeChange, check_evolution, refusals
from asyncstate.codec.hashing import (
    BROADCAST_GROUP,
    check_max_parallelism,
    hash_columns,
    key_group,
    key_groups,
    partitions_of,
)
from asyncstate.codec.key_batch import KeyBatch, UserKeyBatch
from asyncstate.codec.keys import (
    GROUP_BYTES,
    STATE_ID_AT,
    STATE_PREFIX_BYTES,
    KeyCodec,
    decode_namespace,
    encode_namespace,
    group_prefixes,
    prefix_end,
)
from asyncstate.codec.scalars import PlainValues, plain_key, plain_values
from asyncstate.codec.values import PickleCodec, RowCodec, ValueCodec

__all__ = [
    "BROADCAST_GROUP",
    "GROUP_BYTES",
    "STATE_ID_AT",
    "STATE_PREFIX_BYTES",
    "ArrowType",
    "KeyBatch",
    "KeyCodec",
    "PickleCodec",
    "PlainValues",
    "Refusal",
    "RowCodec",
    "SchemaLike",
    "TypeChange",
    "TypeLike",
    "UserKeyBatch",
    "ValueCodec",
    "check_evolution",
    "check_key_type",
    "check_max_parallelism",
    "check_value_schema",
    "check_value_type",
    "decode_namespace",
    "encode_namespace",
    "field_from_text",
    "field_to_text",
    "group_prefixes",
    "hash_columns",
    "key_group",
    "key_groups",
    "partitions_of",
    "plain_key",
    "plain_values",
    "prefix_end",
    "read_schema",
    "read_schemas",
    "read_type",
    "refusals",
    "schema_from_text",
    "schema_to_text",
    "type_from_text",
    "type_to_text",
]
