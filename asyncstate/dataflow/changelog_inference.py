"""Changelog inference: the changelog mode and the unique keys of each node's rows.

Owns: ``node_changes``, which derives the properties of a node's output from those of its inputs, and the check of
what a source declares; ``changes_by_itself``.
Invariant: jobs and tests both infer here, from the same declarations; an invalid declaration is refused. A property
that is not certain is left out.
Must not import Spark.

Source: Flink's ``FlinkChangelogModeInferenceProgram``, ``FlinkRelMdUniqueKeys`` and ``FlinkRelMdUpsertKeys``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlglot.expressions as exp

from asyncstate.changelog import (
    INSERT_ONLY,
    RETRACT,
    ROW_KIND_COLUMN,
    Changelog,
    ChangelogMode,
    union_of,
    upserts_way_out,
)
from asyncstate.dataflow.nodes import Apply, Node, Sink, Source, Transform, Union
from asyncstate.dataflow.sql_text import parsed_sql, plain_column, star_leaves_out
from asyncstate.errors import JobError, SchemaError
from asyncstate.sql_words import NAMED_TIME

_VARIES: Final = {
    *("Anonymous", "Subquery"),  # their values are not known
    *("Localtime", "Localtimestamp", "SessionUser"),
    *("Rand", "Randn", "Randstr", "Shuffle", "Uniform", "Uuid"),
}
"""Nodes of sqlglot whose value differs between evaluations, in addition to those named ``Current...``."""
_OF_THE_SESSION: Final = {
    f"Current{what}" for what in ("Catalog", "Database", "Role", "Schema", "Timezone", "User")
}
"""Nodes with such a name whose value stays the same."""

_GENERATOR: Final = re.compile(
    r"\b((?:pos)?explode(?:_outer)?|inline(?:_outer)?|stack|variant_explode(?:_outer)?)\s*\(", re.IGNORECASE
)
"""Functions that make any number of rows of one, in SQL text or the text of a Column."""
_VARYING: Final = {
    *("curdate", "now", "rand", "random", "monotonically_increasing_id", "spark_partition_id"),
    *("input_file_name", "input_file_block_start", "input_file_block_length"),
}
"""Functions of Spark that sqlglot may not know."""
_VARYING_CALL: Final = re.compile(
    rf"\b({'|'.join(sorted(_VARYING))}|randn|randstr|uniform|uuid|shuffle|current_(date|time|timestamp)|"
    r"localtime|localtimestamp)\s*\(",
    re.IGNORECASE,
)
"""All such functions in the text of a Column."""


def declared_mode(
    source: str, mode: ChangelogMode | str | None, changelog: bool | None
) -> ChangelogMode | None:
    """The changelog mode that a source declares; ``changelog`` is the short form. Raises JobError for an invalid
    mode."""
    texts = {one.text: one for one in ChangelogMode}
    found = texts.get(mode) if isinstance(mode, str) else mode
    if (mode is not None and found is None) or not isinstance(found, ChangelogMode | None):
        raise JobError(
            f"source '{source}': mode is {mode!r}; give 'insert-only', 'retract' or 'upsert', or leave it out: rows "
            f"with a column {ROW_KIND_COLUMN} are then 'retract', others 'insert-only'"
        )
    if changelog is None:
        return found
    declared = ChangelogMode.RETRACT if changelog else ChangelogMode.INSERT_ONLY
    if found is not None and (found is ChangelogMode.INSERT_ONLY) == bool(changelog):
        raise JobError(
            f"source '{source}': mode is {found.text!r} and changelog is {changelog}; give one of them"
        )
    return declared if found is None else found


def declared_key(source: str, primary_key: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The primary key that a source declares. Raises JobError if it is not a list of columns."""
    if primary_key is None:
        return None
    columns = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
    if not columns or not all(isinstance(name, str) for name in columns):
        raise JobError(
            f"source '{source}': primary_key is {primary_key!r}; give a column or a list of columns"
        )
    return columns


def source_changes(node: Source, columns: Sequence[str], has_kinds: bool) -> Changelog:
    """What a source with these ``columns`` declares. Raises SchemaError if its rows do not match the declaration."""
    key = node.primary_key
    for name in key or ():
        if name not in columns:
            raise SchemaError(
                f"there is no column '{name}', which is declared as its primary_key; there are "
                f"{', '.join(columns)}"
            )
    mode = node.mode
    if mode is None:
        mode = ChangelogMode.RETRACT if has_kinds else ChangelogMode.INSERT_ONLY
    if mode is ChangelogMode.RETRACT and not has_kinds:
        raise SchemaError(
            f"it is declared as a changelog but has no column '{ROW_KIND_COLUMN}' (+I, -U, +U, -D); add one, or leave "
            "changelog out"
        )
    if mode is ChangelogMode.INSERT_ONLY and has_kinds:
        raise SchemaError(
            f"it is declared with changelog=False but has the column '{ROW_KIND_COLUMN}'; drop the column, or leave "
            "changelog=False out"
        )
    origin = f"source '{node.name}'"
    if mode is ChangelogMode.UPSERT:
        if key is None:
            raise SchemaError(
                "it is declared as upserts, but without the key by which rows replace each other; give primary_key"
            )
        return replace(Changelog.upsert(*key), origin=origin).without_nulls_in(key)
    return Changelog(mode, () if key is None else (key,), origin=origin).without_nulls_in(key or ())


def operator_changes(node: Node, changes: Changelog) -> Changelog:
    """What an operator or a side output declares about its rows, with its name."""
    if isinstance(node, Apply):
        return replace(changes, origin=f"operator '{node.name}' ({type(node.operator).__name__})")
    return replace(changes, origin=f"side output '{node.name}'")


def node_changes(
    node: Node, inputs: Sequence[Changelog], columns: Sequence[str], has_kinds: bool
) -> Changelog:
    """The changelog properties downstream of a transformation, a union or a sink.

    ``columns``: the columns of its first input; ``has_kinds``: whether its output has a column ``row_kind``. Raises
    SchemaError for an invalid combination."""
    if isinstance(node, Union):
        return _union(node, inputs)
    if isinstance(node, Sink) or not isinstance(node, Transform):
        return inputs[0]
    if node.kind == "transform":
        return _transformed(node, inputs, has_kinds)
    (given,) = inputs
    if node.kind == "where":
        return _filtered(node, given, columns)
    if node.kind == "drop":
        return _dropped(node, given, columns)
    return _projected(node, given, columns)


def _union(node: Union, inputs: Sequence[Changelog]) -> Changelog:
    found = union_of(inputs)
    if found is None:
        upserts = next(one for one in inputs if one.is_upsert)
        raise SchemaError(
            f"the rows of {upserts.origin} are {upserts.text}, which does not identify a row across all streams of "
            f"the union; {upserts_way_out(upserts)}"
        )
    return found


def _transformed(node: Transform, inputs: Sequence[Changelog], has_kinds: bool) -> Changelog:
    if node.changes is not None:
        if node.changes.mode is not ChangelogMode.INSERT_ONLY and not has_kinds:
            raise SchemaError(
                f"its changes are declared as {node.changes.text}, but the function returns no column "
                f"'{ROW_KIND_COLUMN}'"
            )
        return replace(node.changes, origin=node.changes.origin or f"'{node.name}'")
    upserts = next((one for one in inputs if one.is_upsert), None)
    if upserts is not None:
        raise SchemaError(
            f"the function gets {upserts.text} of {upserts.origin}, and its result for that key is not known; declare "
            f"it with transform(..., changes=Changelog.upsert(...)), or {upserts_way_out(upserts)}"
        )
    if not has_kinds or all(one.is_insert_only for one in inputs):
        return replace(INSERT_ONLY, origin=f"'{node.name}'")
    return replace(RETRACT, origin=f"'{node.name}'").filtered(None)


def _filtered(node: Transform, given: Changelog, columns: Sequence[str]) -> Changelog:
    (condition,) = node.expressions
    by = _columns_of(condition, columns)
    if given.upsert_key is not None and (by is None or not by <= set(given.upsert_key)):
        raise SchemaError(
            f"the rows of {given.origin} are {given.text}, and the condition uses columns outside that key: when an "
            f"update no longer meets it, the old row would stay. {_sentence(upserts_way_out(given))}"
        )
    if not given.is_insert_only and changes_by_itself(condition):
        raise SchemaError(
            f"the rows of {given.origin} are changes ({given.text}), and the condition has another value each time: a "
            "row could pass it, and its retraction not. Put the value into a column of the source; a condition on the "
            "time is kept up to date by job.sql"
        )
    return given.filtered(by).without_nulls_in(_without_nulls(condition, columns))


def _dropped(node: Transform, given: Changelog, columns: Sequence[str]) -> Changelog:
    if ROW_KIND_COLUMN in node.expressions and not given.is_insert_only:
        raise SchemaError(
            f"the rows of {given.origin} are changes ({given.text}), which without '{ROW_KIND_COLUMN}' would all be "
            "insertions; keep the column. To treat the changes themselves as rows, use transform(...)"
        )
    gone = {name.lower() for name in node.expressions if isinstance(name, str)}
    return _passed_through(given, {name: (name,) for name in columns if name.lower() not in gone})


def _projected(node: Transform, given: Changelog, columns: Sequence[str]) -> Changelog:
    names = [name for name in columns if name != ROW_KIND_COLUMN]
    given = _generated(node, given)
    passed: dict[str, tuple[str, ...]] = {}
    makes_kinds = False
    if node.kind == "with_columns":
        replaced = {name.lower() for name in node.named}
        passed = {name: (name,) for name in names if name.lower() not in replaced}
        makes_kinds = ROW_KIND_COLUMN in node.named
    for old, new in passed_columns(node, columns):
        if new == ROW_KIND_COLUMN:
            makes_kinds |= old != ROW_KIND_COLUMN
        elif old in names:
            passed[old] = (*passed.get(old, ()), new)
    if makes_kinds:  # computed by a user's expression
        return replace(RETRACT, origin=f"'{node.name}'").filtered(None)
    return _passed_through(given, passed)


def _generated(node: Transform, given: Changelog) -> Changelog:
    """The facts after a selection that may make several rows of one: no key of the rows is unique then."""
    texts = map(str, [*node.expressions, *node.named.values()])
    generator = next(filter(None, map(_GENERATOR.search, texts)), None)
    if generator is None:
        return given
    if given.upsert_key is not None:
        raise SchemaError(
            f"the rows of {given.origin} are {given.text}, and {generator[1]} makes several rows of one: when an "
            f"update makes fewer, the old ones would stay. {_sentence(upserts_way_out(given))}"
        )
    return given.with_keys(())


def passed_columns(node: Transform, columns: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (column, name after the selection) of the columns that a ``select`` or ``with_columns`` names and passes
    unchanged; ("", name) for a computed value."""
    found: list[tuple[str, str]] = []
    for one in node.expressions if node.kind != "with_columns" else ():
        star = parsed_sql(one)
        if isinstance(star, exp.Star):
            found += [(name, name) for name in columns if not star_leaves_out(star, name)]
        else:
            found.append(plain_column(one))
    for name, one in node.named.items():
        old, _ = plain_column(one)
        found.append((old if old in columns else "", name))
    return found


def _passed_through(given: Changelog, passed: Mapping[str, Sequence[str]]) -> Changelog:
    found = given.projected(passed)
    if found is None:
        lost = [name for name in given.upsert_key or () if not passed.get(name)]
        raise SchemaError(
            f"the rows of {given.origin} are {given.text}, but column '{lost[0]}' of that key is changed; keep it as "
            f"SQL text ('{lost[0]}'), or {upserts_way_out(given)}"
        )
    return found


def changes_by_itself(expression: Any) -> bool:
    """Whether a SQL text or a Column has a function whose value is known to differ from one evaluation to the next."""
    if not isinstance(expression, str):
        return not callable(expression) and _VARYING_CALL.search(str(expression)) is not None
    parsed = parsed_sql(expression)
    return parsed is not None and any(
        (_varies(node) and not isinstance(node, exp.Anonymous | exp.Subquery))
        or (isinstance(node, exp.Anonymous) and node.name.lower() in _VARYING)
        for node in parsed.walk()
    )


def _columns_of(condition: Any, columns: Sequence[str]) -> set[str] | None:
    """Those of ``columns`` that a condition reads; None if they are not known, or if the condition's value may change
    from one evaluation to the next."""
    parsed = parsed_sql(condition)
    if parsed is None or any(map(_varies, parsed.walk())):
        return None
    known = {name.lower(): name for name in columns}
    found = {known.get(column.parts[0].name.lower(), "") for column in parsed.find_all(exp.Column)}
    return found or None


def _without_nulls(condition: Any, columns: Sequence[str]) -> set[str]:
    """Those of ``columns`` that have no nulls where a condition is true, since it says so: ``k IS NOT NULL``."""
    parsed = parsed_sql(condition)
    parts = parsed.flatten() if isinstance(parsed, exp.And) else [parsed]
    checks = [part.this.unnest() for part in parts if isinstance(part, exp.Not)]
    checked = [one.this for one in checks if isinstance(one, exp.Is) and isinstance(one.expression, exp.Null)]
    names = {one.name.lower() for one in checked if isinstance(one, exp.Column) and len(one.parts) == 1}
    return {column for column in columns if column.lower() in names}


def _varies(node: exp.Expression) -> bool:
    name = type(node).__name__
    if name.startswith("Current"):
        return name not in _OF_THE_SESSION
    return name in _VARIES or _is_time_by_name(node)


def _is_time_by_name(node: exp.Expression) -> bool:
    """Whether it is a date or a time such as ``DATE 'today'``."""
    if not isinstance(node, exp.Cast) or not isinstance(node.this, exp.Literal):
        return False
    return node.to.this in exp.DataType.TEMPORAL_TYPES and NAMED_TIME.match(node.this.name) is not None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
