"""Aggregates and window functions as SQL texts: the operators' functions that they are.

Owns: ``aggregate_of``, which SQL statements use as well; ``OperatorExpressions``.
Invariant: a text is cut into parts and never rewritten. A column that is computed for an operator is named by its text,
so stored state is found again only by the same expression.
Must not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from asyncstate import operators as ops
from asyncstate.dataflow.arrow_sql import column_of
from asyncstate.errors import SchemaError, SqlError
from asyncstate.operators import Aggregate, OrderColumn
from asyncstate.spark.column_types import quoted
from asyncstate.sql_words import Words, tokens

_FUNCTIONS: Final = (
    "approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop covar_samp cume_dist "
    "dense_rank first_value kurtosis lag last_value lead max max_by median min min_by mode nth_value ntile "
    "percent_rank percentile percentile_disc rank row_number skewness stddev_pop stddev_samp string_agg sum var_pop "
    "var_samp"
)
"""Functions of operators that have the same name in SQL."""
_UNDERSCORED: Final = ("max", "min", "rank", "sum")
"""Those with an underscore after their name, since Python or another function has it."""
_WITH_OPTIONS: Final[Mapping[str, Callable[..., Aggregate]]] = {
    "first_in_frame": lambda column, ignore: ops.nth_value(column, ignore_nulls=ignore),
    "lag": lambda column, distance, default, ignore: ops.lag(column, distance, default, ignore_nulls=ignore),
    "last_in_frame": lambda column, ignore: ops.nth_value(column, from_last=True, ignore_nulls=ignore),
    "lead": lambda column, distance, default, ignore: ops.lead(
        column, distance, default, ignore_nulls=ignore
    ),
    "mode_descending": lambda column: ops.mode(column, descending=True),
    "nth_value": lambda column, n, ignore: ops.nth_value(column, n, ignore_nulls=ignore),
    "percentile_descending": lambda column, at: ops.percentile(column, at, descending=True),
    "percentile_disc_descending": lambda column, at: ops.percentile_disc(column, at, descending=True),
}
_OF_A_FRAME: Final = {"first_value": "first_in_frame", "last_value": "last_in_frame"}
_OTHER_NAMES: Final = {
    "any": "bool_or",
    "any_value": "first_value",
    "array_agg": "collect",
    "collect_list": "collect",
    "collect_set": "collect",
    "every": "bool_and",
    "first": "first_value",
    "last": "last_value",
    "listagg": "string_agg",
    "mean": "avg",
    "some": "bool_or",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
}
_NAMES: Final = {name: name for name in _FUNCTIONS.split()} | _OTHER_NAMES
_LITERALS: Final = {
    "first_in_frame": (1, (False,)),
    "lag": (1, (1, None, False)),
    "last_in_frame": (1, (False,)),
    "lead": (1, (1, None, False)),
    "nth_value": (1, (1, False)),
    "ntile": (0, ()),
    "percentile": (1, ()),
    "percentile_disc": (1, ()),
    "string_agg": (1, ("",)),
}
"""Functions with literal arguments: the position of the first one, and what they are if they are left out."""


def aggregate_of(
    function: str,
    columns: Sequence[str],
    literals: Sequence[Any] = (),
    *,
    order: Sequence[OrderColumn] = (),
    distinct: bool = False,
    where: str | None = None,
) -> Aggregate:
    """A call of the function with this name in SQL, over columns of the input; ``order``: of its values; ``where``: a
    boolean column."""
    own = f"{function}_" if function in _UNDERSCORED else function
    make = _WITH_OPTIONS.get(function) or getattr(ops, own)
    found: Aggregate = make(*columns, *literals, **({"order_by": order} if order else {}))
    found = found.distinct() if distinct else found
    return found if where is None else found.where(where)


class OperatorExpressions:
    """What goes before an operator, into it and after it.

    ``over``: the calls are those of OVER. ``computed``: columns to compute before it, by name. ``calls``: its
    aggregates, by the name of their result. ``results``: the texts of the columns that are wanted of it, by name."""

    def __init__(self, over: bool = False) -> None:
        self._over = over
        self.computed: dict[str, str] = {}
        self.calls: dict[str, Aggregate] = {}
        self.results: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def column(self, text: str) -> str:
        """The column of the input that has the value of ``text``."""
        plain = column_of(text.strip())
        if plain is not None:
            return plain
        name = self._name(text)
        self.computed[name] = text
        return name

    def _name(self, text: str) -> str:
        """The name of what has the value of ``text``. Raises SchemaError if another text has it already."""
        name = " ".join(text.split())
        other = self._texts.setdefault(name, text)
        if [one.text for one in tokens(other)] != [one.text for one in tokens(text)]:
            raise SchemaError(
                f"'{other}' and '{text}' differ only in the spaces of a string, so they would be one column; compute "
                "one of them before, by with_columns(...)"
            )
        return name

    def add(self, given: Aggregate | str, name: str | None = None) -> None:
        """Add a result. Raises SchemaError for what is not an aggregate, and for a name that is taken."""
        if isinstance(given, str) and name is not None:
            found = self._of_text(given, name)
        elif isinstance(given, Aggregate):
            name = given.name if name is None else name
            columns = tuple(map(self.column, given.columns))
            condition = None if given.condition is None else self.column(given.condition)
            self.calls[name] = replace(given, columns=columns, condition=condition, output=name)
            found = quoted(name)
        else:
            raise SchemaError(
                f"{given!r} is not an aggregate with a name; write name='sum(column)', name=sum_('column') or "
                "sum_('column')"
            )
        if name in self.results:
            raise SchemaError(f"there are two results '{name}'; give one of them another name")
        self.results[name] = found

    def _of_text(self, text: str, name: str) -> str:
        calls = list(_calls(text))
        if not calls:
            raise SchemaError(
                f"{name}='{text}' has no aggregate function; there are {', '.join(sorted(_NAMES))}"
            )
        if len(calls) == 1 and calls[0].text == text.strip() and not calls[0].is_list:
            self.calls[name] = self._declared(calls[0]).alias(name)
            return quoted(name)
        parts, at = [], 0
        for call in calls:
            result = self._name(call.text)
            self.calls[result] = self._declared(call).alias(result)
            own = f"coalesce({quoted(result)}, array())" if call.is_list else quoted(result)
            parts += [text[at : call.start], own]
            at = call.end
        return "".join([*parts, text[at:]])

    def _declared(self, call: _Call) -> Aggregate:
        function = _NAMES[call.name]
        function = _OF_A_FRAME.get(function, function) if self._over else function
        first, defaults = _LITERALS.get(function, (len(call.arguments), ()))
        given = [_literal(one, call) for one in call.arguments[first:]]
        if function == "string_agg" and given == [None]:  # SQL's delimiter NULL is empty
            given = []
        texts = [one for one in call.arguments[:first] if not (function == "count" and one in ("*", "1"))]
        where = None if call.where is None else self.column(call.where)
        if call.order and function != "string_agg":
            raise SchemaError(
                f"'{call.text}': only listagg() and string_agg() have WITHIN GROUP here; write percentile(column, 0.5) "
                "or mode(column)"
            )
        order = [one._replace(column=self.column(one.column)) for one in map(order_of, call.order)]
        distinct = call.distinct or call.name == "collect_set"
        try:
            return aggregate_of(
                function,
                [self.column(one) for one in texts],
                [*given, *defaults[len(given) :]],
                order=order,
                distinct=distinct,
                where=where,
            )
        except TypeError as error:
            raise SchemaError(
                f"'{call.text}': {call.name}() does not take {len(call.arguments)} arguments"
            ) from error


class _Call(NamedTuple):
    """A call of an aggregate function in a text, from ``start`` to ``end``."""

    name: str
    arguments: tuple[str, ...]
    distinct: bool
    order: tuple[str, ...]
    where: str | None
    text: str
    start: int
    end: int

    @property
    def is_list(self) -> bool:
        """Whether it collects values: SQL's list of no values is empty, and that of an operator null."""
        return _NAMES[self.name] == "collect"


def words_of(text: str) -> Words:
    """The words of a text. Raises SchemaError for one with a string or name that does not end."""
    words = Words(text)
    if text.strip() and not len(words):
        raise SchemaError(f"'{text}' is not Spark SQL: a quote or comment does not end")
    return words


def order_of(given: object, descending: bool = False) -> OrderColumn:
    """An expression of ORDER BY, also as text, with its direction and the position of nulls; ``descending``: the
    direction where none is given. Raises SchemaError for anything else."""
    if isinstance(given, OrderColumn):
        return given
    words = words_of(given if isinstance(given, str) else "")
    after, direction, nulls = words.ordered(0, len(words))
    if not after:
        raise SchemaError(f"{given!r} is not a column to order by; give 'name', 'name DESC' or desc('name')")
    falls = direction == "DESC" if direction else descending
    return OrderColumn(words.cut(0, after), falls, nulls == "FIRST" if nulls else not falls)


def _calls(text: str) -> Iterator[_Call]:
    """The calls of aggregate functions in a text, from left to right."""
    words, at = words_of(text), 0
    while at < len(words):
        if not _is_call(words, at):
            at += 1
            continue
        close = _closing(words, at + 1)
        nested = next((words.tokens[n].value for n in range(at + 2, close) if _is_call(words, n)), None)
        if nested is not None:
            raise SchemaError(
                f"'{text}': {nested}() is inside another aggregate; compute it with an agg() before"
            )
        distinct = words.word(at + 2) == "DISTINCT"
        arguments = tuple(words.cut(*one) for one in words.split(at + 2 + distinct, close))
        order, where, end = tuple[str, ...](), None, close
        if words.has(close + 1, "WITHIN GROUP ( ORDER BY"):
            end = _closing(words, close + 3)
            order = tuple(words.cut(*one) for one in words.split(close + 6, end))
        if words.has(end + 1, "FILTER ( WHERE"):
            begin, end = end + 4, _closing(words, end + 2)
            where = words.cut(begin, end)
        if words.word(end + 1) == "OVER":
            raise SchemaError(f"'{text}': write over(...).with_columns(...) of the stream for OVER")
        start, stop = words.spans[at][0], words.spans[end][1]
        name = words.tokens[at].value.lower()
        yield _Call(name, arguments, distinct, order, where, text[start:stop], start, stop)
        at = end + 1


def _is_call(words: Words, at: int) -> bool:
    one = words.tokens[at]
    return one.kind in ("word", "name") and one.value.lower() in _NAMES and words.word(at + 1) == "("


def _closing(words: Words, opening: int) -> int:
    try:
        return words.close(opening)
    except SqlError as error:
        raise SchemaError(f"'{words.text}' is not Spark SQL: a parenthesis is not closed") from error


def _literal(text: str, call: _Call) -> Any:
    found = list(tokens(text))
    if len(found) == 1 and found[0].kind in ("string", "raw"):
        return found[0].value
    if text.lower() in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text.lower()]
    if re.fullmatch(r"[+-]?\s*\d+", text):
        return int(text.replace(" ", ""))
    if re.fullmatch(r"[+-]?\s*(\d+\.\d*|\.\d+)", text):
        return float(text.replace(" ", ""))
    raise SchemaError(f"'{call.text}': {text} has to be a literal here")
