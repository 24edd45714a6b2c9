"""Arrow types and schemas from Spark's notation: "bigint", "account string, amount decimal(10, 2)".

Owns: ``read_type``, ``read_schema`` and ``read_schemas``; every parameter for a type or schema is read by one of them.
Invariant: a text gives the types that Spark sends to Python for it: timestamps in UTC, strings and binaries of the
usual width; a text without such a type is refused with the position in the text.
Must not import anything of the project except ``errors``. sqlglot, which parses texts of more than one word, is
imported on demand: tasks that do not need it start faster.

Source: Spark SQL's data types; ``StructType.fromDDL``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

import pyarrow as pa
from typing_extensions import TypeVar

from asyncstate.errors import SchemaError

if TYPE_CHECKING:
    from sqlglot.expressions import Expression

T = TypeVar("T")
P = TypeVar("P", default=Any)


class ArrowType(Protocol):
    """Protocol by which type checkers recognize pyarrow types; no Python class matches it."""

    @property
    def num_fields(self) -> int:
        """The number of child fields of a ``pyarrow.DataType``."""

    @property
    def bit_width(self) -> int:
        """The bits per value of a ``pyarrow.DataType``."""


TypeLike: TypeAlias = type[P] | ArrowType | str | None
"""A pyarrow type, a Spark DDL text such as "bigint" or "array<string>", or ``int``, ``float``, ``str``, ``bytes`` or
``bool`` for the widest type of that kind. None if it is omitted."""
SchemaLike: TypeAlias = pa.Schema | str
"""A pyarrow schema, or a Spark DDL text such as "account string, amount bigint"."""

_OF_PYTHON: Final[dict[Any, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
}
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_WORDS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "dec": pa.decimal128(10, 0),
    "numeric": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _TIMESTAMP,
    "timestamp_ltz": _TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
"""Spark's type names."""
_PARSED: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMPTZ": _TIMESTAMP,
    "TIMESTAMPLTZ": _TIMESTAMP,
    "TIMESTAMPNTZ": pa.timestamp("us"),
}
"""sqlglot's names of the same types, and of strings with a length, which Arrow does not bound."""
_PRECISION_MAX: Final = 38
_STRUCT: Final = "struct<"
_TYPE: Final = (
    "the type",
    "a type of Spark SQL, such as 'bigint', 'decimal(10, 2)' or 'array<struct<a: int>>'",
)
_COLUMNS: Final = ("the columns", "names and types of Spark SQL, such as 'account string, amount bigint'")
_QUOTE: Final = "; put names that are not plain words in backquotes"


def read_type(given: T | TypeLike, what: str) -> T | pa.DataType:
    """The type that a text or a Python class denotes; any other value unchanged.

    Raises SchemaError that begins with ``what`` and shows the position in the text.

    >>> read_type("map<string, array<int>>", "state 'm'")
    MapType(map<string, list<item: int32>>)
    """
    if isinstance(given, type):
        return _OF_PYTHON.get(given, given)
    return _type_of(given, what) if isinstance(given, str) else given


def read_schema(given: T | SchemaLike, what: str) -> T | pa.Schema:
    """The schema that a text denotes; any other value unchanged. Raises SchemaError as ``read_type``.

    >>> read_schema("account string, amount bigint not null", "the output").names
    ['account', 'amount']
    """
    return _schema_of(given, what) if isinstance(given, str) else given


def read_schemas(given: Any, what: str) -> Any:
    """``read_schema`` of each value of a dict by name; any other value unchanged."""
    if not isinstance(given, Mapping):
        return given
    return {name: read_schema(schema, f"{what} '{name}'") for name, schema in given.items()}


@functools.lru_cache(maxsize=1024)  # bind and open read the same texts in every micro-batch
def _type_of(text: str, what: str) -> pa.DataType:
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    reader = _Reader(text, what, _TYPE)
    return reader.type_of(reader.parsed(""))


@functools.lru_cache(maxsize=1024)
def _schema_of(text: str, what: str) -> pa.Schema:
    reader = _Reader(text, what, _COLUMNS)
    if not text.strip() or text.rstrip().endswith(","):
        reader.refuse("lack a column at their end")
    return pa.schema(reader.fields_of(reader.parsed(_STRUCT)))


def _place(text: str, found: dict[str, Any], shift: int) -> str:
    """The position where the parser stopped, counted from 1."""
    token, line, column = found.get("highlight", ""), found.get("line", 1), found.get("col", 0)
    start = column - len(token) + 1 - (shift if line == 1 else 0)
    lines = text.split("\n")
    if not token or line > len(lines) or start < 1 or start > len(lines[line - 1]):
        return "at the end"
    where = f"line {line}, position {start}" if len(lines) > 1 else f"position {start}"
    return f"at {where} ({token!r})"


class _Reader:
    """Converts one text to Arrow types."""

    def __init__(self, text: str, what: str, wanted: tuple[str, str]) -> None:
        self._text, self._what = text, what
        self._subject, self._advice = wanted

    def refuse(self, reason: str, advice: str = "") -> NoReturn:
        """Raise SchemaError for this text."""
        raise SchemaError(
            f"{self._what}: {self._subject} {self._text!r} {reason}; write {self._advice}{advice}"
        )

    def parsed(self, prefix: str) -> Expression:
        """The syntax tree of the text; with the prefix ``struct<`` the text is the inside of a struct."""
        import sqlglot
        from sqlglot.errors import ParseError, TokenError
        from sqlglot.expressions import DataType

        inside = f"{prefix}{self._text}{'>' if prefix else ''}"
        try:
            return sqlglot.parse_one(inside, into=DataType, dialect="spark")
        except (ParseError, TokenError) as error:
            found: dict[str, Any] = next(iter(getattr(error, "errors", [])), {})
        self.refuse(f"cannot be read {_place(self._text, found, len(prefix))}", _QUOTE)

    def type_of(self, node: Any) -> pa.DataType:
        """The type of a node."""
        name = getattr(node.this, "name", None) or str(node.this)
        parts = node.expressions
        if name == "STRUCT":
            return pa.struct(self.fields_of(node))
        if name == "ARRAY" and len(parts) == 1:
            return pa.list_(self.type_of(parts[0]))
        if name == "MAP" and len(parts) == 2:
            return pa.map_(self.type_of(parts[0]), self.type_of(parts[1]))
        if name == "DECIMAL":
            return self._decimal(parts)
        found = _PARSED.get(name)
        if found is None:
            self.refuse(f"cannot have '{node.sql('spark')}', for which there is no type in Arrow")
        return found

    def fields_of(self, node: Any) -> list[pa.Field]:
        """The columns of a struct."""
        return [self._field(column) for column in node.expressions]

    def _field(self, column: Any) -> pa.Field:
        from sqlglot.expressions import ColumnDef, CommentColumnConstraint, NotNullColumnConstraint

        if not isinstance(column, ColumnDef) or column.args.get("kind") is None:
            self.refuse(f"cannot have '{column.sql('spark')}' without both a name and a type")
        nullable = True
        for constraint in (one.args["kind"] for one in column.args.get("constraints") or ()):
            if isinstance(constraint, NotNullColumnConstraint) and not constraint.args.get("allow_null"):
                nullable = False
            elif not isinstance(constraint, CommentColumnConstraint):
                self.refuse(f"cannot have more than NOT NULL and COMMENT at '{column.name}'")
        return pa.field(column.name.replace("``", "`"), self.type_of(column.args["kind"]), nullable)

    def _decimal(self, parts: list[Any]) -> pa.DataType:
        digits = [part.name for part in parts] + ["10", "0"][len(parts) :]
        precision, scale = [int(number) if number.isdecimal() else -1 for number in digits]
        if not 1 <= precision <= _PRECISION_MAX or not 0 <= scale <= precision:
            self.refuse(
                f"cannot have decimal({', '.join(digits)}): a decimal has 1 to {_PRECISION_MAX} digits, of "
                "which as many may follow the decimal point"
            )
        return pa.decimal128(precision, scale)
