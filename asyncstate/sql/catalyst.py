"""Spark's analyzer and optimizer, driven rule by rule.

Owns: ``Catalyst``: a session with a stand-in for each source, and the optimized plan of a statement; ``Tree``, a
part of such a plan; ``SOURCE`` and ``COLUMN``, the metadata by which a plan's leaf is known as a source.
Invariant: rules that are not equivalences over a changelog, or that serve Spark's own execution, are left out. A
stand-in is neither a local relation, which rules would fold to nothing, nor a streaming one, in which the analyzer
refuses subqueries.

Spark's own optimizer does not let all of these rules be excluded. Its batches are public, so the fixed point of each is
computed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from asyncstate.errors import EnvironmentSetupError, SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.compatibility import without_error_log
from asyncstate.sql_words import NAMED_TIME, Words

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

SETTINGS: Final = ("spark.sql.ansi.enabled", "spark.sql.session.timeZone", "spark.sql.caseSensitive")
"""Settings that change what a statement means."""
CLOCK: Final = "asyncstate_clock"
"""The name of a table of one row, whose column ``now`` is the time of the micro-batch."""
NOW: Final = f"(SELECT now FROM {CLOCK})"
"""The text in place of ``now()``."""
SOURCE: Final = "asyncstate.source"
COLUMN: Final = "asyncstate.column"

_LEFT_OUT: Final = {
    *("RewriteDistinctAggregates", "DecimalAggregates", "NormalizeFloatingNumbers"),  # operators do it
    *("InferWindowGroupLimit", "LimitPushDown", "LimitPushDownThroughWindow"),
    *("InjectRuntimeFilter", "PartitionPruning", "CleanupDynamicPruningFilters"),
    *(
        "MergeScalarSubqueries",
        "MergeSubplans",
        "CombineJoinedAggregates",
        "PushPartialAggregationThroughJoin",
    ),
    *("RewriteAsOfJoin", "ComputeCurrentTime", "OptimizeCsvJsonExprs"),
    *("ExtractPythonUDFs", "ExtractPythonUDFFromAggregate", "ExtractGroupingPythonUDFFromAggregate"),
    "ExtractPythonUDFFromJoinCondition",
}
_places: Final[dict[str, Sequence[tuple[int, str]]]] = {}
"""By the text of a batch, without addresses: where in it these rules are, and their names."""
_SPARK_MIN: Final = 4
_ROUNDS_MAX: Final = 100
_CHANGING: Final = {
    "ComputeCurrentTime": re.compile(
        r"\b(current_timestamp|now|current_date|localtimestamp|current_time)(?=\()"
    ),
    "SpecialDatetimeValues": re.compile(r"\bcast\(\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE),
}
"""By the rule of Spark that evaluates it, what changes with time."""
_OF_FUNCTION: Final = ("inputParam", "returnType", "expression", "query")
_TIMES: Final = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_OF_PLAN: Final = re.compile(r"'|== SQL|JVM stacktrace|\s*(\+-|:-|at )")
"""How lines begin that follow a message."""


class Tree(JavaObject):  # type: ignore[misc]  # py4j has no types
    """A part of a plan in the JVM: a node, an expression, a list of them, a type. A method without arguments is called
    once, since each call is a round trip, plans never change, and reading one asks most questions many times."""

    def __init__(self, java: JavaObject) -> None:
        self.__dict__.update(java.__dict__, _java=java)  # py4j frees the JVM's object together with ``java``

    def __getattr__(self, name: str) -> Any:
        method, known = super().__getattr__(name), list[Any]()

        def answer(*given: Any) -> Any:
            if given:
                return _tree(method(*given))
            if not known:
                known.append(_tree(method()))
            return known[0]

        self.__dict__[name] = answer
        return answer


def _tree(value: Any) -> Any:
    return Tree(value) if type(value) is JavaObject else value


class Catalyst:
    """A copy of a Spark session in which a statement's sources are tables without rows."""

    def __init__(self, spark: SparkSession) -> None:
        if int(spark.version.split(".")[0]) < _SPARK_MIN:
            raise EnvironmentSetupError(
                f"SQL statements need Spark {_SPARK_MIN}.0 or newer, and this is {spark.version}; declare the graph "
                "with the methods of streams"
            )
        try:
            java = spark._jsparkSession
        except Exception as error:
            raise EnvironmentSetupError(
                "SQL statements need a classic Spark session, and this one is Spark Connect; declare the graph with "
                "the methods of streams"
            ) from error
        self.spark = spark
        self._user = java
        self._own: set[str] = set()
        self._schemas: dict[str, StructType] = {}
        self.java = java.cloneSession()
        self.session = SparkSession(spark.sparkContext, self.java)
        self.jvm = jvm = cast("Any", spark.sparkContext._jvm)
        # Found once: each part of such a name is a round trip.
        self.expression_classes = jvm.org.apache.spark.sql.catalyst.expressions
        self.no_metadata = jvm.org.apache.spark.sql.types.Metadata.empty()
        self._sessions = jvm.org.apache.spark.sql.classic.SparkSession
        self._lists = jvm.java.util.ArrayList
        self._to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        load = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass
        self._apply = _applying(jvm, spark.sparkContext._gateway, load)
        self._command = load("org.apache.spark.sql.catalyst.plans.logical.Command")
        self.functions: dict[str, str] = {}
        """The temporary functions that are SQL, by name what they are."""
        self._batches: list[tuple[int, Any]] | None = None
        # Plans and expressions are searched and compared as texts, which Spark cuts after 25 fields.
        self.session.conf.set("spark.sql.debug.maxToStringFields", str((1 << 31) - 1))

    def add(self, name: str, schema: StructType) -> None:
        """A stand-in for a source or a stored view with these columns, unless it is there."""
        if self._schemas.get(name) == schema:
            return
        self._schemas[name] = schema
        fields = [
            StructField(one.name, one.dataType, one.nullable, {SOURCE: name, COLUMN: one.name})
            for one in schema
        ]
        self.view(name, self.no_rows(StructType(fields)))

    def view(self, name: str, rows: DataFrame) -> None:
        """A name for rows, which views of the user's session do not hide."""
        rows.createOrReplaceTempView(quoted(name))
        self._own.add(name)

    def refresh(self) -> None:
        """Take over the functions, temporary views and settings that the user's session has by now."""
        for key in SETTINGS:
            self.session.conf.set(key, self.spark.conf.get(key) or "")
        theirs, ours = self._user.sessionState(), self.java.sessionState()
        kept = {name: option(ours.catalog().getRawTempView(name)) for name in self._own}
        theirs.catalog().copyStateTo(ours.catalog())
        for name, view in kept.items():
            ours.catalog().createTempView(name, view, True)
        self.functions.clear()
        registry = theirs.functionRegistry()
        for one in items(theirs.catalog().listTemporaryFunctions()):
            try:
                info = registry.lookupFunction(one)
            except Py4JJavaError:  # from Spark 4.3 on, names of functions have three parts
                made, some = self.jvm.org.apache.spark.sql.catalyst.FunctionIdentifier, self.jvm.scala.Option
                one = made(one.funcName(), some.apply("session"), some.apply("system"))
                info = registry.lookupFunction(one)
            if info.isDefined():
                builder = registry.lookupFunctionBuilder(one).get()
                ours.functionRegistry().registerFunction(one, info.get(), builder)
                self._note(str(one.funcName()), info.get())

    def _note(self, name: str, info: Any) -> None:
        """Remember what a function is, if its text becomes part of a plan."""
        if str(info.getClassName()).startswith("sqlFunction"):
            given = json.loads(info.getUsage())
            kept = {key: given.get(f"sqlFunction.{key}") for key in _OF_FUNCTION}
            self.functions[name] = json.dumps(kept, sort_keys=True)

    @property
    def is_fixed_zone(self) -> bool:
        """Whether all days of the session's time zone have 24 hours."""
        zone = self.session.conf.get("spark.sql.session.timeZone")
        times = self.jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
        return bool(times.getZoneId(zone).getRules().isFixedOffset())

    def no_rows(self, schema: StructType) -> DataFrame:
        """A table without rows."""
        with self.active():
            none = self.spark.sparkContext._jsc.emptyRDD().rdd()
            rows = self.java.internalCreateDataFrame(none, self.type(schema), False)
            return DataFrame(rows, self.session)

    def parsed(self, text: str, shown: str) -> Any:
        """The parsed statement; ``shown``: its text in errors. Raises SqlError."""
        words = Words(text)
        for at, (one, two) in enumerate(pairwise(words.tokens)):
            if one.upper in _TIMES and two.kind == "string" and NAMED_TIME.match(two.value):
                raise words.refusal(
                    *(at, at + 2, "a time that changes without a row"),
                    "compare with now() or current_date(), or put the time into a column of the source",
                )
        with sql_errors(shown):
            return self.java.sessionState().sqlParser().parsePlan(text)

    def expression(self, text: str) -> Any:
        """The parsed expression."""
        return self.java.sessionState().sqlParser().parseExpression(text)

    def with_columns(self, parsed: Any, names: Sequence[str]) -> Any:
        """The parsed query with other names of its columns; the analyzer refuses too few or too many."""
        named = self.jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedSubqueryColumnAliases
        return named(self.seq(names), parsed)

    def rows(self, plan: Any, text: str = "") -> DataFrame:
        """A parsed or optimized plan as a DataFrame. Raises SqlError if the analyzer refuses it, and for a command, as
        Spark would run it at once."""
        plans = [plan]
        for one in plans:  # those below come later in the list
            if self._command.isInstance(one) or str(one.nodeName()) == "InsertIntoStatement":
                raise SqlError(
                    f"{one.nodeName()} is no statement of a stream; use SELECT, CREATE VIEW, CREATE MATERIALIZED VIEW, "
                    "INSERT INTO or EXPLAIN"
                )
            plans += items(one.children())
        with sql_errors(text):
            return DataFrame(
                self.jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.java, plan), self.session
            )

    def analyzed(self, plan: Any, text: str = "") -> Any:
        """The analyzed plan of a parsed one. Raises SqlError."""
        found = self.rows(plan, text)._jdf.queryExecution().analyzed()
        with self.active():
            said, rules = found.toString(), self.jvm.org.apache.spark.sql.catalyst.optimizer
            # The text has other literals, too; a rule replaces only what changes.
            changing = [
                words[1]
                for name, pattern in _CHANGING.items()
                if (words := pattern.search(said)) is not None
                and not getattr(rules, name).apply(found).fastEquals(found)
            ]
        if changing:
            raise SqlError(
                f"{changing[0]} changes without a row that says so; put the time into a column of the source, or "
                "declare an event time and use windows"
            )
        return found

    def optimized(self, analyzed: Any, text: str = "") -> Any:
        """The plan after all rules that hold for changelogs. Raises SqlError if a rule refuses it."""
        plan = analyzed
        with self.active(), sql_errors(text):
            for limit, rules in self._rules():
                plan = fixed_point(plan, rules, self._apply, min(limit, _ROUNDS_MAX))
        return Tree(plan)

    def _rules(self) -> list[tuple[int, Any]]:
        """The batches of rules: how often each may run, and a Scala Seq."""
        if self._batches is None:
            self._batches = []
            left_out: list[str] = []
            optimizer = self.java.sessionState().optimizer()
            for batch in items(optimizer.defaultBatches()):
                rules = batch.rules()
                for place, name in reversed(_left_out_of(rules)):
                    left_out.append(name)
                    rules = rules.patch(place, rules.take(0), 1)
                self._batches.append((batch.strategy().maxIterations(), rules))
            # A rule gives subqueries to the optimizer, which leaves out only those that may be excluded.
            needed = set(optimizer.nonExcludableRules().mkString("\n").splitlines())
            excluded = ",".join(name for name in left_out if name not in needed)
            self.session.conf.set("spark.sql.optimizer.excludedRules", excluded)
        return self._batches

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this session the active one, whose configuration rules and texts follow. The user's is restored."""
        sessions, ours = self._sessions, SparkSession._activeSession
        before = option(sessions.getActiveSession())
        sessions.setActiveSession(self.java)
        try:
            yield
        finally:
            SparkSession._activeSession = ours
            if before is None:
                sessions.clearActiveSession()
            else:
                sessions.setActiveSession(before)

    def seq(self, values: Any) -> Any:
        """A Scala Seq."""
        found = self._lists()
        for one in values:
            found.add(one)
        return self._to_seq(found)

    def type(self, kind: DataType) -> Any:
        """The JVM's object of a type."""
        return self.jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())


def fixed_point(plan: Any, rules: Any, step: Any, rounds: int) -> Any:
    """The plan after at most ``rounds`` rounds of the rules, each applied by ``step``; fewer if a round leaves it as it
    is, also because its rules undo one another."""
    for _ in range(rounds):
        after = rules.foldLeft(plan, step)
        if after.fastEquals(plan):  # an equal one may have lost its places in the statement
            break
        plan = after
    return plan


def _applying(jvm: Any, gateway: Any, load: Any) -> Any:
    """A function of Scala, from a plan and a rule to what the rule makes of it: a round of rules is one call."""
    rule, node = (load(f"org.apache.spark.sql.catalyst.{name}") for name in ("rules.Rule", "trees.TreeNode"))
    kinds, order = gateway.new_array(jvm.java.lang.Class, 2), gateway.new_array(jvm.int, 2)
    kinds[0], kinds[1], order[0], order[1] = node, rule, 1, 0
    handles, of = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.invoke.MethodType.methodType
    apply = handles.publicLookup().findVirtual(rule, "apply", of(node, node))
    turned = handles.permuteArguments(apply, of(node, kinds), order)
    return jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(load("scala.Function2"), turned)


def _left_out_of(rules: Any) -> Sequence[tuple[int, str]]:
    """Places and names of the rules of a batch that are left out; each name is a round trip, so they are asked once."""
    text = re.sub(r"@[0-9a-f]+", "", rules.toString())
    if text not in _places:
        has_any = any(name in text for name in _LEFT_OUT)
        names = [str(one.ruleName()) for one in items(rules)] if has_any else []
        _places[text] = [(place, name) for place, name in enumerate(names) if _last(name) in _LEFT_OUT]
    return _places[text]


@contextmanager
def sql_errors(text: str = "") -> Iterator[None]:
    """Turn Spark's errors about a statement into SqlError."""
    with without_error_log():
        try:
            yield
        except PySparkException as error:
            raise SqlError(f"Spark says of the statement: {_message(error, text)}") from error
        except Py4JJavaError as error:
            java = error.java_exception
            if java.getClass().getSimpleName() == "UndeclaredThrowableException":  # thrown by a rule
                java = java.getCause()
            found = _message(convert_exception(java), text)
            raise SqlError(f"Spark says of the statement: {found}") from error


def items(seq: Any) -> Sequence[Any]:
    """The elements of a Scala Seq, which is asked once."""
    if "_elements" not in vars(seq):
        vars(seq)["_elements"] = [seq.apply(number) for number in range(seq.size())]
    found: Sequence[Any] = vars(seq)["_elements"]
    return found


def option(value: Any) -> Any:
    """The value of a Scala Option, or None."""
    return value.get() if value.isDefined() else None


def _last(rule: str) -> str:
    return rule.rsplit(".", 1)[-1].rstrip("$").rsplit("$", 1)[-1]


def _message(error: Exception, text: str) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    kept = [line.strip() for line in takewhile(lambda line: _OF_PLAN.match(line) is None, lines)]
    return f"{' '.join(kept) or type(error).__name__}{f' In: {text.strip()}' if text else ''}"
