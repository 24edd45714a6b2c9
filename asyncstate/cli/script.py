"""A file of SQL statements: their texts and places, the tables that it declares, and its settings.

Owns: ``Script``, ``ScriptStatement``, ``TableDeclaration``, ``Setting``, ``ScriptOption``; ``read_script``.
Invariant: a statement ends at a semicolon outside of strings, quoted names and comments; its text is as in the file. No
message has the value of an option.
Must not import Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from asyncstate.errors import SqlError
from asyncstate.sql_words import Token, tokens

_VARIABLE: Final = re.compile(r"\$\{(\w*)\}")
_END_OF_TYPE: Final = {
    "NOT",
    "NULL",
    "PRIMARY",
    "COMMENT",
    "GENERATED",
    "DEFAULT",
    "METADATA",
    "AS",
    "UNIQUE",
}
_IN_SPARK: Final = re.compile(
    r"CREATE (OR REPLACE )?((GLOBAL )?TEMP(ORARY)? VIEW \S+( \(.*\))? USING |TEMP(ORARY)? FUNCTION )", re.S
)


class ScriptOption(NamedTuple):
    """``secret``: parts of the value that come from the environment."""

    name: str
    value: str
    line: int
    secret: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScriptStatement:
    """A statement for Spark or for ``job.sql``. ``target``: of INSERT INTO; ``name``: of INSERT INTO that of its table,
    and a number from the second one on; of CREATE MATERIALIZED VIEW that of the view."""

    text: str
    line: int
    in_spark: bool
    target: str | None
    name: str | None = None


@dataclass(frozen=True)
class TableDeclaration:
    """``columns``: (name, Spark type, whether it can be null)."""

    name: str
    line: int
    columns: tuple[tuple[str, str, bool], ...]
    primary_key: tuple[str, ...]
    event_time: str | None
    watermark_delay: str | None
    connector: str
    options: tuple[ScriptOption, ...]

    @property
    def schema(self) -> str:
        """The columns as Spark DDL."""
        parts = [
            f"`{name.replace('`', '``')}` {kind}{'' if can_be_null else ' NOT NULL'}"
            for name, kind, can_be_null in self.columns
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class Script:
    """A file of statements; ``settings`` come in their order among the ``statements``."""

    name: str
    tables: tuple[TableDeclaration, ...] = ()
    statements: tuple[ScriptStatement | ScriptOption, ...] = field(default=())

    @property
    def settings(self) -> list[ScriptOption]:
        """All settings."""
        return [one for one in self.statements if isinstance(one, ScriptOption)]

    @property
    def targets(self) -> set[str]:
        """The tables that statements insert into, in lower case."""
        return {
            one.target.lower() for one in self.statements if isinstance(one, ScriptStatement) and one.target
        }

    def error(self, line: int, what: str) -> SqlError:
        """An error about a line of the file."""
        return SqlError(f"{self.name}:{line}: {what}")


def read_script(name: str, text: str) -> Script:
    """The statements of a file called ``name``. Raises SqlError, with the line."""
    script = Script(name)
    tables: list[TableDeclaration] = []
    statements: list[ScriptStatement | ScriptOption] = []
    counts: dict[str, int] = {}
    for given in _statements(script, text):
        words = [token.upper for token in given]
        if words[0] == "SET":
            statements.append(_setting(script, given, text))
        elif words[:2] == ["CREATE", "TABLE"] or words[:4] == ["CREATE", "OR", "REPLACE", "TABLE"]:
            tables.append(_Reader(script, given, text).table())
        else:
            whole = text[given[0].start : given[-1].end]
            in_spark = _IN_SPARK.match(" ".join(words)) is not None
            target = _target(given)
            own = _view(given) if target is None else target
            if target is not None:
                number = counts[target] = counts.get(target, 0) + 1
                own = target if number == 1 else f"{target}-{number}"
            statements.append(ScriptStatement(whole, given[0].line, in_spark, target, own))
    for number, table in enumerate(tables):
        if table.name.lower() in {one.name.lower() for one in tables[:number]}:
            raise script.error(table.line, f"there is a table '{table.name}' already")
    if not statements:
        raise SqlError(f"{name}: there is no statement; write INSERT INTO a table SELECT ...")
    return Script(name, tuple(tables), tuple(statements))


def _statements(script: Script, text: str) -> Iterator[list[Token]]:
    found: list[Token] = []
    for token in tokens(text):
        if token.kind == "open":
            what, end = ("comment", "; write */") if token.text[0] == "/" else (token.text, "")
            raise script.error(token.line, f"the {what} that begins here does not end{end}")
        if token.text != ";":
            found += [token] if token.kind != "hint" else []
        elif found:
            yield found
            found = []
    if found:
        yield found


def _setting(script: Script, tokens: Sequence[Token], text: str) -> ScriptOption:
    line = tokens[0].line
    at = next((number for number, token in enumerate(tokens) if token.text == "="), 0)
    if at < 2 or at + 1 == len(tokens):
        raise script.error(line, "write SET 'key' = 'value'")
    key, value = tokens[1:at], tokens[at + 1 :]
    return _option(script, _joined(key, text), value, text, line)


def _joined(tokens: Sequence[Token], text: str) -> str:
    return tokens[0].value if len(tokens) == 1 else text[tokens[0].start : tokens[-1].end]


def _option(script: Script, name: str, tokens: Sequence[Token], text: str, line: int) -> ScriptOption:
    value, secret = _joined(tokens, text), list[str]()

    def variable(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise script.error(
                line, f"'{name}' names the environment variable {found[1]!r}, which is not set"
            )
        secret.append(os.environ[found[1]])
        return secret[-1]

    return ScriptOption(name, _VARIABLE.sub(variable, value), line, tuple(secret))


def _target(tokens: Sequence[Token]) -> str | None:
    if [token.upper for token in tokens[:2]] != ["INSERT", "INTO"] or len(tokens) < 3:
        return None
    return _last_name(tokens, 3 if tokens[2].upper == "TABLE" and len(tokens) > 3 else 2)


def _view(tokens: Sequence[Token]) -> str | None:
    words = [token.upper for token in tokens[:6]]
    if words[:3] != ["CREATE", "MATERIALIZED", "VIEW"]:
        return None
    return _last_name(tokens, 6 if words[3:] == ["IF", "NOT", "EXISTS"] else 3)


def _last_name(tokens: Sequence[Token], at: int) -> str | None:
    """The last part of the name with dots that begins at ``at``."""
    while at + 2 < len(tokens) and tokens[at + 1].text == ".":
        at += 2
    return tokens[at].value if at < len(tokens) else None


class _Reader:
    """Reads CREATE TABLE."""

    def __init__(self, script: Script, tokens: Sequence[Token], text: str) -> None:
        self._script, self._tokens, self._text, self._at = script, tokens, text, 0
        self._columns: list[tuple[str, str, bool]] = []
        self._key: tuple[str, ...] = ()
        self._time: tuple[str, str] | None = None

    def table(self) -> TableDeclaration:
        """The declaration."""
        self._take("CREATE")
        if self._next() == "OR":
            self._take("OR", "REPLACE")
        self._take("TABLE")
        line, name = self._tokens[self._at].line, self._name("a name of the table")
        if self._next() == "(":
            self._take("(")
            self._column()
            while self._next() == ",":
                self._take(",")
                self._column()
            self._take(")")
        connector, options = "", list[ScriptOption]()
        while (word := self._next()) is not None:
            if word == "USING":
                self._take("USING")
                connector = self._name("a connector")
            elif word in ("OPTIONS", "WITH"):
                self._take(word)
                options += self._options()
            elif word == "COMMENT":
                self._at += 2
            else:
                raise self._error("USING connector OPTIONS (...), or WITH ('connector' = '...', ...)")
        given = [one for one in options if one.name.lower() == "connector"]
        if given and connector and given[0].value != connector:
            raise self._script.error(given[0].line, f"the connector is '{connector}' as well; name one")
        connector = connector or (given[0].value if given else "")
        if not connector:
            raise self._script.error(line, f"table '{name}' has no connector; add WITH ('connector' = '...')")
        for one in self._key:
            self._check_column(one, line)
        kept = tuple(one for one in options if one not in given)
        time, delay = self._time or (None, None)
        return TableDeclaration(
            name, line, tuple(self._columns), self._key, time, delay, connector.lower(), kept
        )

    def _column(self) -> None:
        word, line = self._next(), self._tokens[self._at].line if self._at < len(self._tokens) else 0
        after = self._tokens[self._at + 1].upper if self._at + 1 < len(self._tokens) else ""
        if word == "CONSTRAINT":
            self._at += 2
            word, after = self._next(), "KEY"
        if word == "PRIMARY" and after == "KEY":
            self._primary_key()
        elif word == "WATERMARK" and after == "FOR":
            self._take("WATERMARK", "FOR")
            column = self._name("the column of the event time")
            self._check_column(column, line)
            self._take("AS")
            if self._name("the column of the event time") != column:
                raise self._script.error(
                    line, f"write WATERMARK FOR {column} AS {column} - INTERVAL 5 SECONDS"
                )
            self._time = column, self._delay()
        else:
            name = self._name("a column")
            kind = self._type(name)
            can_be_null = True
            while (word := self._next()) not in (",", ")", None):
                if word == "NOT":
                    self._take("NOT", "NULL")
                    can_be_null = False
                elif word == "PRIMARY":
                    self._take("PRIMARY", "KEY")
                    self._not_enforced()
                    self._key = (*self._key, name)
                elif word == "COMMENT":
                    self._at += 2
                else:
                    raise self._error("the next column: values that are computed belong into a CREATE VIEW")
            self._columns.append((name, kind, can_be_null))

    def _primary_key(self) -> None:
        self._take("PRIMARY", "KEY", "(")
        found = [self._name("a column of the key")]
        while self._next() == ",":
            self._take(",")
            found.append(self._name("a column of the key"))
        self._take(")")
        self._not_enforced()
        self._key = tuple(found)

    def _not_enforced(self) -> None:
        if self._next() == "NOT" and self._tokens[self._at + 1].upper == "ENFORCED":
            self._at += 2

    def _delay(self) -> str:
        if self._next() != "-":
            return "0 seconds"
        self._take("-", "INTERVAL")
        amount, unit = self._tokens[self._at : self._at + 2]
        self._at += 2
        return f"{amount.value} {unit.value}".lower()

    def _type(self, name: str) -> str:
        begin, depth = self._at, 0
        while (word := self._next()) is not None:
            if depth == 0 and (word in (",", ")") or (word in _END_OF_TYPE and self._at > begin)):
                break
            depth += (word in ("(", "<")) - (word in (")", ">"))
            self._at += 1
        if self._at == begin:
            raise self._error(f"the type of column '{name}'")
        return self._text[self._tokens[begin].start : self._tokens[self._at - 1].end]

    def _options(self) -> Iterator[ScriptOption]:
        self._take("(")
        while self._next() not in (")", None):
            begin, self._at = self._at, self._at + 1
            while self._is_joined():  # a.b-c is one name
                self._at += 1
            name = _joined(self._tokens[begin : self._at], self._text)
            if self._next() == "=":
                self._take("=")
            begin = self._at
            while self._next() not in (",", ")", None):
                self._at += 1
            if self._at == begin:
                raise self._error(f"the value of option '{name}'")
            value = self._tokens[begin : self._at]
            yield _option(self._script, name, value, self._text, value[0].line)
            if self._next() == ",":
                self._take(",")
        self._take(")")

    def _is_joined(self) -> bool:
        """Whether the next token continues the name before it."""
        if self._next() in ("=", ",", ")", None):
            return False
        return self._tokens[self._at].start == self._tokens[self._at - 1].end

    def _check_column(self, name: str, line: int) -> None:
        if name not in [column for column, _, _ in self._columns]:
            known = ", ".join(column for column, _, _ in self._columns) or "none"
            raise self._script.error(line, f"there is no column '{name}'; the columns so far are {known}")

    def _next(self) -> str | None:
        return self._tokens[self._at].upper if self._at < len(self._tokens) else None

    def _take(self, *words: str) -> None:
        for word in words:
            if self._next() != word:
                raise self._error(word)
            self._at += 1

    def _name(self, what: str) -> str:
        if self._at == len(self._tokens) or self._tokens[self._at].kind not in ("word", "name"):
            raise self._error(what)
        self._at += 1
        return self._tokens[self._at - 1].value

    def _error(self, expected: str) -> SqlError:
        token = self._tokens[min(self._at, len(self._tokens) - 1)]
        place = "the end of the statement" if self._at >= len(self._tokens) else f"'{token.text}'"
        hidden = "a string" if token.kind in ("string", "raw") and self._at < len(self._tokens) else place
        return self._script.error(token.line, f"CREATE TABLE: here is {hidden}, expected is {expected}")
