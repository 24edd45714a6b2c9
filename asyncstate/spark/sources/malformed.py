"""The treatment of rows that a source cannot read: the query fails, they are dropped, or only they are returned.

Owns: the modes, and the error with an example that the JVM raises.
Invariant: a row is either read whole or malformed; ``drop`` and ``only`` split an input into two parts without overlap.
Must not import runtime, storage or execution.

Source: Spark's FAILFAST and DROPMALFORMED, and dead letter queues.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, get_args

from pyspark.sql import DataFrame

from asyncstate.errors import ConfigurationError
from asyncstate.metrics import DROPPED
from asyncstate.spark.column_types import quoted
from asyncstate.spark.task_errors import marked_in_sql

Malformed = Literal["fail", "drop", "only"]

REASON: Final = "malformed"
"""The string column that ``only`` adds: why the row cannot be read."""
EXAMPLE_CHARS: Final = 200
PLACE: Final = ("topic", "partition", "offset")
MARKED: Final = "asyncstate:malformed"
"""The struct column that the internal mode ``marked`` adds: null in good rows; in the one row of a malformed message,
the columns of the input and ``REASON``. So both are in one DataFrame, which a source of a graph is. The internal mode
``counted`` adds the column ``DROPPED`` instead, for rows that the graph counts and drops."""


def check_mode(source: str, mode: str) -> None:
    """Raise ConfigurationError unless ``mode`` is one."""
    if mode not in (*get_args(Malformed), "marked", "counted"):
        raise ConfigurationError(
            f"{source}: malformed={mode!r} is not one of {', '.join(get_args(Malformed))}; choose 'fail' (the query "
            "ends), 'drop' (malformed rows are left out) or 'only' (only malformed rows, with the reason)"
        )


def only_malformed(rows: DataFrame, columns: list[str], problem: str) -> DataFrame:
    """The ``columns`` of the rows that have a ``problem`` (the name of a column), and the problem."""
    kept = rows.where(f"{quoted(problem)} is not null")
    return kept.selectExpr(*map(quoted, columns), f"{quoted(problem)} as {REASON}")


def mark_of(columns: Collection[str], problem: str, example: str) -> str:
    """In SQL: the mark of a row to drop, null without a ``problem``: its place in Kafka, if ``columns`` has it,
    otherwise the beginning of the ``example``."""
    shown = f"concat({problem}, ', in: ', substr(coalesce({example}, 'null'), 1, {EXAMPLE_CHARS}))"
    if all(name in columns for name in PLACE):
        # A null would make the mark null, and so the row a good one.
        place = ", ', ', ".join(f"'{name} ', coalesce(string({name}), 'null')" for name in PLACE)
        shown = f"concat({place}, ': ', {problem})"
    return f"if({problem} is null, null, {shown}) as {quoted(DROPPED)}"


def text(value: str) -> str:
    """``value`` as a literal in SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def as_map(words: Mapping[str, str]) -> str:
    """``words`` as a map in SQL."""
    return f"map({', '.join(f'{text(word)}, {text(meaning)}' for word, meaning in words.items())})"


def raised(source: str, problem: str, example: str) -> str:
    """In SQL: fails the query with the ``problem`` and the beginning of the ``example``, both expressions."""
    shown = f"substr(coalesce({example}, 'null'), 1, {EXAMPLE_CHARS})"
    advice = text(
        ". Fix the source, or set malformed='drop' to leave such rows out; malformed='only' lists them"
    )
    message = f"concat({text(f'{source}: ')}, {problem}, ', in: ', {shown}, {advice})"
    return f"raise_error({marked_in_sql(message)})"
