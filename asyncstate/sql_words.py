"""The words of SQL texts, with their places, for what Spark's parser does not know.

Owns: ``tokens``, ``Token``; ``Words``.
Invariant: strings, quoted names and comments are never taken for words. A replaced part keeps its line breaks, so that
errors have the line of the user's text.

Source: the lexer of Spark's ``SqlBaseLexer.g4``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from asyncstate.errors import SqlError

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
    |(?P<hint>/\*\+)
    |(?P<comment>/\*)
    |(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<open>['"`])
    |(?P<word>\w[\w$]*)
    |(?P<sign><=>|=>|[|]>|.)""",
    re.VERBOSE | re.DOTALL,
)
NAMED_TIME: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""The beginning of a string that is a time by name, as in ``DATE 'today'``."""
_COMMENT: Final = re.compile(r"/\*|\*/")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b"}
_NAME: Final = re.compile(r"[A-Za-z_]\w*|`(?:[^`]|``)+`")
_ENDS: Final = re.compile(
    "JOIN|INNER|LEFT|RIGHT|FULL|CROSS|SEMI|ANTI|NATURAL|ASOF|WHERE|GROUP|HAVING|ORDER|LIMIT|OFFSET|UNION|INTERSECT|"
    "EXCEPT|MINUS|WINDOW|QUALIFY|SORT|CLUSTER|DISTRIBUTE|PIVOT|UNPIVOT|TABLESAMPLE|LATERAL|[,;)]|[|]>"
)
_AFTER_TABLE: Final = re.compile("ON|USING|FOR|WITH|MATCH_RECOGNIZE|MATCH_CONDITION|AS|[(]")


class Token(NamedTuple):
    """``kind``: word, sign, string, raw, name, hint; open: a string, name or comment that does not end."""

    kind: str
    text: str
    line: int
    start: int

    @property
    def end(self) -> int:
        """Where it ends in the text."""
        return self.start + len(self.text)

    @property
    def upper(self) -> str:
        """A word in capitals; of others what they are."""
        return self.text.upper() if self.kind == "word" else self.text

    @property
    def value(self) -> str:
        """A string or name without its quotes."""
        if self.kind == "raw":
            return self.text[2:-1]
        if self.kind == "name":
            return self.text[1:-1].replace("``", "`")
        if self.kind != "string":
            return self.text
        quote = self.text[0]
        inner = self.text[1:-1].replace(quote * 2, quote)
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner, flags=re.S)


def tokens(text: str) -> Iterator[Token]:
    """What a text consists of besides spaces and comments; one that is open is the last."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None  # the last alternative takes any character
        kind, end = str(found.lastgroup), found.end()
        depth = int(kind in ("comment", "hint"))
        while depth:
            mark = _COMMENT.search(text, end)
            if mark is None:
                kind, depth = "open", 0
            else:
                depth, end = depth + (1 if mark[0] == "/*" else -1), mark.end()
        if kind not in ("space", "comment"):
            yield Token(kind, text[at:end], line, at)
        if kind == "open":
            return
        line += text.count("\n", at, end)
        at = end


class Words:
    """``words``: in upper case, but quoted names and literals as they are; ``spans``: where each is in ``text``. A text
    with an open string has none: Spark's parser says what is wrong."""

    def __init__(self, text: str) -> None:
        found = list(tokens(text))
        self.text = text
        self.tokens = [] if found and found[-1].kind == "open" else found
        self.words = [one.upper for one in self.tokens]
        self.spans = [(one.start, one.end) for one in self.tokens]

    def __len__(self) -> int:
        return len(self.words)

    def word(self, at: int) -> str:
        """The word at a place; empty before the first one and after the last one."""
        return self.words[at] if 0 <= at < len(self.words) else ""

    def has(self, at: int, words: str) -> bool:
        """Whether these words are at a place."""
        return all(self.word(at + n) == one for n, one in enumerate(words.split()))

    def cut(self, begin: int, end: int) -> str:
        """The text of the words from ``begin`` to before ``end``."""
        return self.text[self.spans[begin][0] : self.spans[end - 1][1]] if begin < end else ""

    def line(self, at: int) -> int:
        """The line of a word, from 1."""
        return self.tokens[at].line

    def below(self, at: int, text: str, above: str = "") -> str:
        """The text at the line of a word, after what is ``above``."""
        return above + "\n" * (self.line(at) - 1 - above.count("\n")) + text

    def within(self, begin: int, end: int, parts: Iterable[tuple[int, int, str]]) -> str:
        """The text of some words, with others in place of parts of them."""
        text, stop = "", self.spans[begin][0] if begin < end else 0
        for first, after, new in parts:
            text += self.text[stop : self.spans[first][0]] + new
            stop = self.spans[after - 1][1]
        return text + self.text[stop : self.spans[end - 1][1]] if begin < end else ""

    def replaced(self, *parts: tuple[int, int, str]) -> str:
        """The text with others in place of some words."""
        text = self.text
        for begin, end, new in sorted(parts, reverse=True):
            lines = self.cut(begin, end).count("\n") - new.count("\n")
            start, stop = self.spans[begin][0], self.spans[end - 1][1]
            text = f"{text[:start]}{new}{' ' + chr(10) * lines if lines > 0 else ''}{text[stop:]}"
        return text

    def refusal(self, begin: int, end: int, what: str, remedy: str) -> SqlError:
        """The error for something that is not supported."""
        said = " ".join(self.cut(begin, min(end, len(self))).split())
        said = said if len(said) < 100 else f"{said[:97]}..."
        return SqlError(f"line {self.line(begin)}: {said}: not kept up to date: {what}; {remedy}")

    def is_name(self, at: int) -> bool:
        """Whether the word can be the name of a table or a column."""
        return _NAME.fullmatch(self.word(at)) is not None

    def outside(self, begin: int, end: int) -> Iterator[int]:
        """The places outside of brackets, without those of closing ones. A bracket that closes none is the last."""
        depth = 0
        for place in range(begin, end):
            closes = self.words[place] in (")", "]", "}")
            depth -= closes
            if depth < 0 or not (depth or closes):
                yield place
            if depth < 0:
                return
            depth += self.words[place] in ("(", "[", "{")

    def close(self, at: int) -> int:
        """The place of the bracket that closes the one at ``at``. Raises SqlError if there is none."""
        last = max(self.outside(at + 1, len(self)), default=-1)
        if self.word(last) != ")":
            raise self.refusal(at, len(self), "a bracket that is not closed", "close it")
        return last

    def table_expressions(self, at: int) -> Iterator[tuple[str, int, int]]:
        """The common table expressions that a query at a place can read, outer ones first: the name of each, and where
        ``name AS (query)`` begins and ends."""
        for clause in (place for place in range(at) if self.words[place] == "WITH"):
            begin = clause + 1 + (self.word(clause + 1) == "RECURSIVE")
            while self.is_name(begin):
                query = self.close(begin + 1) + 1 if self.word(begin + 1) == "(" else begin + 1
                end = self.close(query + 1) + 1 if self.has(query, "AS (") else at + 1
                if end > at or not self._is_around(clause, at):
                    break
                yield unquoted(self.cut(begin, begin + 1)), begin, end
                if self.word(end) != ",":
                    break
                begin = end + 1

    def _is_around(self, begin: int, at: int) -> bool:
        """Whether the brackets around one place are also around a later one."""
        *_, last = self.outside(begin, at)
        return self.words[last] not in (")", "]", "}")

    def split(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts between commas outside of brackets."""
        commas = [place for place in self.outside(begin, end) if self.words[place] == ","]
        cuts = pairwise([begin - 1, *commas, end])
        return ((one + 1, two) for one, two in cuts) if begin < end else iter(())

    def ordered(self, begin: int, end: int) -> tuple[int, str, str]:
        """An expression in ORDER BY: the place after it, then ASC or DESC, FIRST or LAST; empty if they are not
        there."""
        nulls = direction = ""
        if end - begin > 2 and self.word(end - 2) == "NULLS" and self.word(end - 1) in ("FIRST", "LAST"):
            nulls, end = self.word(end - 1), end - 2
        if end - begin > 1 and self.word(end - 1) in ("ASC", "DESC"):
            direction, end = self.word(end - 1), end - 1
        return end, direction, nulls

    def path(self, at: int) -> int:
        """The place after a name with dots that begins at ``at``; ``at`` if there is none."""
        if not self.is_name(at):
            return at
        while self.word(at + 1) == "." and self.is_name(at + 2):
            at += 2
        return at + 1

    def path_before(self, at: int) -> int:
        """Where a name with dots begins that ends before ``at``; ``at`` if there is none."""
        if not self.is_name(at - 1):
            return at
        at -= 1
        while self.word(at - 1) == "." and self.is_name(at - 2):
            at -= 2
        return at

    def relation_before(self, at: int) -> int:
        """Where a name with dots, or a part in brackets, begins that ends before ``at``; ``at`` if there is none."""
        depth = 0
        for place in range(at - 1, -1, -1) if self.word(at - 1) == ")" else ():
            depth += (self.words[place] == ")") - (self.words[place] == "(")
            if not depth:
                return place
        return self.path_before(at)

    def alias(self, at: int) -> tuple[str, int]:
        """The alias at a place, with or without AS, and the place after it; empty if there is none."""
        word = self.word(at)
        begin = at + (word == "AS")
        if not self.is_name(begin) or (
            begin == at and (_ENDS.fullmatch(word) or _AFTER_TABLE.fullmatch(word))
        ):
            return "", at
        return self.cut(begin, begin + 1), begin + 1

    def condition_end(self, at: int) -> int:
        """The place after the condition that begins at ``at``."""
        for place in self.outside(at, len(self)):
            word, after = self.words[place], self.word(place + 1)
            is_call = word in ("LEFT", "RIGHT") and after == "("
            if _ENDS.fullmatch(word) and self.word(place - 1) != "." and not is_call:
                return place
        return len(self)


def unquoted(name: str) -> str:
    """A name without backquotes, in lower case."""
    return (name[1:-1].replace("``", "`") if name[:1] == "`" else name).lower()
