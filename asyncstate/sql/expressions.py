"""Catalyst's expressions as Spark SQL texts.

Owns: ``Expressions``: texts over the columns of a plan, and the check that a text means its expression.
Invariant: a text that Spark would read as another expression is refused.

Spark's ``sql`` is written for people. What it loses is put back here (the type of a decimal), or replaced where it
names an internal function; the rest is found by reading all texts of a statement again.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

from asyncstate.errors import SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.sql.catalyst import NOW, Catalyst, items, option, sql_errors
from asyncstate.sql_words import Words

_TRANSPARENT: Final = {
    *("KnownFloatingPointNormalized", "NormalizeNaNAndZero", "KnownNotNull", "KnownNullable"),
    *("KnownNotContainsNull", "ArrayDistinctKey", "Alias"),
}
_SUBQUERIES: Final = {
    *("Exists", "ListQuery", "InSubquery", "DynamicPruningSubquery", "LateralSubquery", "ScalarSubquery"),
}
COMPARISONS: Final = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
"""Catalyst's comparisons, and their signs."""
_LAMBDA: Final = "lambdafunction("
_OR_NULL: Final = {
    **{"ElementAt": "try_element_at", "GetArrayItem": "get", "Add": "try_add", "Subtract": "try_subtract"},
    **{"Multiply": "try_multiply", "Divide": "try_divide", "Remainder": "try_mod", "Cast": "try_cast"},
}
"""Functions that are null where they fail. Spark's own text of one is that of the function that fails."""
NESTED: Final = ("array<", "map<", "struct<")
"""How the texts of nested types begin."""
_UNTYPED: Final = ("NULL", "ARRAY()", "MAP()")
_FAILS: Final = re.compile(r'"(?:failOnError|ansiEnabled)":(\w+)')
ID: Final = re.compile(r"#\d+L?")
"""The number of a column in the texts of Catalyst."""
_COALESCE_OF_ONE: Final = re.compile(r"\bcoalesce\((\w+)\)")


def kind_of(node: Any) -> str:
    """The class of an expression or plan, without its package."""
    return str(node.getClass().getSimpleName()).rstrip("$")


def id_of(attribute: Any) -> int:
    """The id of a named expression."""
    return int(attribute.exprId().id())


def type_of(expression: Any) -> str:
    """Its type as Spark DDL text."""
    return str(expression.dataType().catalogString())


def ids_in(expression: Any) -> set[int]:
    """The ids of the attributes that it reads."""
    return {id_of(one) for one in items(expression.references().toSeq())}


def children(expression: Any) -> Sequence[Any]:
    """The direct parts of an expression."""
    return items(expression.children())


def walk(expression: Any) -> Iterator[Any]:
    """The expression and all of its parts."""
    yield expression
    for one in children(expression):
        yield from walk(one)


def conjuncts(condition: Any) -> list[Any]:
    """The conditions that AND combines."""
    if condition is None:
        return []
    if kind_of(condition) == "And":
        return [*conjuncts(condition.left()), *conjuncts(condition.right())]
    if kind_of(condition) == "Literal" and condition.toString() == "true":
        return []
    return [condition]


def disjuncts(condition: Any) -> list[Any]:
    """The conditions that OR combines."""
    if kind_of(condition) != "Or":
        return [condition]
    return [*disjuncts(condition.left()), *disjuncts(condition.right())]


def is_only_valid(condition: Any, own: Collection[int]) -> bool:
    """Whether a condition says only that these columns, or fields of them, are not null."""
    if kind_of(condition) != "IsNotNull" or not ids_in(condition) or not ids_in(condition) <= set(own):
        return False
    return all(kind_of(one) in ("AttributeReference", "GetStructField") for one in walk(condition.child()))


def fragment(node: Any) -> str:
    """The line and the text of the statement that a plan or expression comes from; empty if Spark does not say."""
    origin = node.origin()
    line = option(origin.line())
    if line is None:
        return ""
    found = " ".join(str(origin.context().fragment()).split()).replace(NOW, "now()")
    if not found:
        return f"line {line}"
    return f"line {line}: {found if len(found) < 100 else found[:97] + '...'}"


def refusal(what: str, remedy: str, node: Any = None) -> SqlError:
    """The error for something that is not supported, with its place in the statement."""
    where = "" if node is None else fragment(node)
    return SqlError(f"{where or 'the statement'}: not kept up to date: {what}; {remedy}")


def literal_of(text: str) -> str:
    """A string as a literal."""
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inner}'"


def leaves(text: str, kind: Any, is_nullable: bool = True) -> list[tuple[str, str, Any]]:
    """Values that are the same where two of a type are, and can be keys: of a struct whether it is null, which is no
    type of Catalyst but None, and those of its fields. (text, type, type of Catalyst)"""
    if str(kind.typeName()) != "struct":
        return [(text, str(kind.catalogString()), kind)]
    found: list[tuple[str, str, Any]] = [(f"({text}) IS NULL", "boolean", None)] if is_nullable else []
    for field in items(kind.toSeq()):
        found += leaves(f"({text}).{quoted(str(field.name()))}", field.dataType())
    return found


def from_leaves(columns: Iterator[str], kind: Any, is_nullable: bool = True) -> str:
    """The text of the value whose leaves are these columns."""
    if str(kind.typeName()) != "struct":
        return quoted(next(columns))
    null = quoted(next(columns)) if is_nullable else ""
    parts = []
    for field in items(kind.toSeq()):
        parts.append(f"{literal_of(str(field.name()))}, {from_leaves(columns, field.dataType())}")
    made = f"named_struct({', '.join(parts)})"
    return f"IF({null}, NULL, {made})" if null else made


class Expressions:
    """The texts of one statement."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._x = catalyst.expression_classes
        self._parsed: dict[str, Any] = {}
        self._texts: dict[str, Any] = {}
        self._columns: dict[str, Any] = {}
        self._retyped = False
        self.varying: dict[str, Any] = {}
        """Expressions whose value differs from one evaluation to the next, by their texts."""

    def generator(self, expression: Any, names: Mapping[int, str], replaced: Mapping[int, str]) -> str:
        """The text of a generator, of which only the arguments are checked."""
        for one in children(expression):
            self.text(one, names, replaced)
        return _with_lambdas(str(self._rebuilt(expression, names, replaced).sql()))

    def text(
        self, expression: Any, names: Mapping[int, str], replaced: Mapping[int, str] | None = None
    ) -> str:
        """The expression over columns with these names; ``replaced``: the texts of aggregates and subqueries, by id."""
        is_varying = not expression.deterministic()
        self._retyped = False
        made = self._rebuilt(expression, names, replaced or {})
        found = _with_lambdas(str(made.sql()))
        if "collate(" in found and any(kind_of(one) == "Collate" for one in walk(expression)):
            raise refusal(
                "COLLATE", "texts are compared by their bytes; compare lower(c) instead", expression
            )
        if is_varying:
            self.varying.setdefault(found, expression)
        probe: dict[int, str | None] = dict.fromkeys(replaced or {})
        if replaced:  # what is checked has columns in place of aggregates and subqueries
            made = self._rebuilt(expression, names, probe)
        checked = _with_lambdas(str(made.sql())) if replaced else found
        # A random function gets another seed each time it is read, so there is nothing to compare.
        if kind_of(made) != "AttributeReference" and checked not in self._texts and not is_varying:
            self._texts[checked] = self._rebuilt(expression, names, probe, False) if self._retyped else made
        return found

    def read(self, text: str) -> Any:
        """The expression that a text of ours is, parsed only."""
        if text not in self._parsed:
            self._parsed[text] = self._catalyst.expression(text)
        return self._parsed[text]

    def check(self) -> None:
        """Read all texts again. Raises SqlError if Spark would read one as another expression."""
        if not self._texts:
            return
        fields = [
            StructField(name, _parse_datatype_json_string(kind.json()))
            for name, kind in self._columns.items()
        ]
        rows = self._catalyst.no_rows(StructType(fields))
        texts = list(self._texts)
        try:
            with sql_errors():
                checked = rows.selectExpr(*[f"{text} AS `{number}`" for number, text in enumerate(texts)])
        except SqlError as error:
            raise SqlError(
                f"the statement uses a function that cannot be written as text: {error}"
            ) from error
        plan = self._catalyst.optimized(checked._jdf.queryExecution().analyzed())
        if kind_of(plan) != "Project":
            raise SqlError(f"the texts of the statement became {kind_of(plan)}; write it in another way")
        with self._catalyst.active():
            for text, again in zip(texts, items(plan.projectList()), strict=True):
                mine, other = _shape(self._texts[text]), _shape(self._rebuilt(again, None, {}, False))
                if mine != other:
                    raise SqlError(
                        f"{text}: Spark reads this text as {other}, and the statement has {mine}; write it in "
                        "another way"
                    )

    def _rebuilt(
        self, e: Any, names: Mapping[int, str] | None, replaced: Mapping[int, str | None], typed: bool = True
    ) -> Any:
        """With our names of columns (None: as they are), and ``typed`` literals: with a CAST where the text of a
        literal loses its type."""
        kind = kind_of(e)
        if kind == "AttributeReference":
            if names is None:
                return e
            own = id_of(e)
            if own in replaced:
                return self._replacement(e, own, replaced)
            if own not in names:
                raise refusal(f"{e.toString()} is not a column here", "report this statement", e)
            self._columns[names[own]] = e.dataType()
            return e.withName(names[own]).withQualifier(self._catalyst.seq([]))
        if kind == "AggregateExpression":
            return self._replacement(e, int(e.resultId().id()), replaced)
        if kind == "ScalarSubquery" and id_of(e) in replaced:
            return self._replacement(e, id_of(e), replaced)
        if kind in _SUBQUERIES:
            raise refusal(f"a subquery ({kind}) stays in an expression", "write it as a join", e)
        if kind in _TRANSPARENT or (
            kind == "Cast" and type_of(e) == type_of(e.child())
        ):  # of what may be null
            return self._rebuilt(e.child(), names, replaced, typed)
        if kind == "PreciseTimestampConversion":
            inner = self._rebuilt(e.child(), names, replaced, typed)
            return self._x.UnixMicros(inner) if type_of(e) == "bigint" else self._x.MicrosToTimestamp(inner)
        if kind == "NamedLambdaVariable" and typed:
            self._retyped = True
            return self.read(quoted(str(e.name())))
        if kind in _OR_NULL and typed and self._is_null_where_it_fails(e, kind):
            name, of = _OR_NULL[kind], children(e)
            if kind_of(of[0]) == "StringSplitSQL":
                name, of = "split_part", (*children(of[0]), of[1])
            self._retyped = True
            given = ", ".join(str(self._rebuilt(one, names, replaced).sql()) for one in of)
            return self.read(f"{name}({given}{f' AS {e.dataType().sql()}' if kind == 'Cast' else ''})")
        if kind in ("Cast", "Literal") and typed and type_of(e).startswith(NESTED):
            given = str((self._rebuilt(e.child(), names, replaced) if kind == "Cast" else e).sql())
            if kind == "Cast" or given in _UNTYPED:  # Spark leaves out casts to such types
                self._retyped = True
                return self._x.PrettyAttribute(f"CAST({given} AS {type_of(e)})", e.dataType())
        if kind == "Literal" and typed and type_of(e).startswith("decimal"):
            self._retyped = True
            return self.read(f"CAST({e.sql()} AS {e.dataType().sql()})")
        if kind == "Literal" and typed and self._is_another_time(e):
            self._retyped = True
            return self.read(f"timestamp_micros({e.value()}L)")
        parts = children(e)
        if not parts:
            return e
        new = [self._rebuilt(one, names, replaced, typed) for one in parts]
        if all(map(operator.is_, new, parts)):
            return e
        if kind == "CreateNamedStruct":  # struct(a) has the name of its column, which has another one now
            return self._x.CreateNamedStruct(self._catalyst.seq(new))
        return e.withNewChildren(self._catalyst.seq(new))

    def _is_null_where_it_fails(self, e: Any, kind: str) -> bool:
        if kind in ("ElementAt", "GetArrayItem"):
            return not e.failOnError()
        mode = str(e.evalMode().toString())
        if mode != "LEGACY" or kind != "Cast" or type_of(e.child()) != "string":
            return mode == "TRY"
        return bool(self._catalyst.session.conf.get("spark.sql.ansi.enabled") == "true")  # of try_to_date

    def _is_another_time(self, literal: Any) -> bool:
        """Whether a time is written as another one: a local time that there is twice, when summer time ends."""
        if type_of(literal) != "timestamp" or literal.value() is None:
            return False
        return bool(self.read(str(literal.sql())).value() != literal.value())

    def _replacement(self, e: Any, own: int, replaced: Mapping[int, str | None]) -> Any:
        """What is in place of an aggregate or a subquery: its text, or without one a column of its type."""
        text = replaced[own]
        if text is not None:
            return self.read(text)
        name, kind, catalyst = f"replaced_{own}", e.dataType(), self._catalyst
        self._columns[name] = kind
        new = self._x.NamedExpression.newExprId()
        return self._x.AttributeReference(name, kind, True, catalyst.no_metadata, new, catalyst.seq([]))


def _with_lambdas(text: str) -> str:
    """The text with ``(x, y) -> body`` for each ``lambdafunction(body, x, y)``, as Spark writes it."""
    while _LAMBDA in text:  # a literal may have the word
        words = Words(text)
        at = next((at for at in reversed(range(len(words))) if words.has(at, "LAMBDAFUNCTION (")), None)
        if at is None:
            return text
        close = words.close(at + 1)
        body, *names = (words.cut(*one) for one in words.split(at + 2, close))
        given = names[0] if len(names) == 1 else f"({', '.join(names)})"
        text = words.replaced((at, close + 1, f"{given} -> {body}"))
    return text


def _shape(expression: Any) -> str:
    """The expression, its type and which parts of it may fail, without ids. Spark leaves a coalesce of one column where
    the others are not needed, and drops it when it reads that again."""
    text = _COALESCE_OF_ONE.sub(r"\1", ID.sub("", str(expression.toString()))).replace("try_cast(", "cast(")
    fails = " ".join(_FAILS.findall(str(expression.toJSON())))
    return f"{text}: {type_of(expression)}{f', of which parts may fail: {fails}' if 'false' in fails else ''}"
