"""Versions of a state's declared types: allowed changes, and how the checkpoint stores the versions.

Owns: the entries ``value version N`` of a state's type texts, and the errors for a declaration that stored values do
not fit. Invariant: a declared version keeps its number forever; stored values begin with it.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pyarrow as pa

from asyncstate.codec import Refusal, TypeChange, field_from_text, refusals, schema_from_text, type_from_text
from asyncstate.errors import StateDeclarationError

PICKLED: Final = "pickled"
VALUE: Final = "value"
COLUMN_TYPE: Final = "column type"
"""Compatibility tag of a state that stores only hashes of a column: no migration converts them to another type."""
COMPUTED_KEY: Final = "computed key"
"""The type text of a map whose user keys are computed of its rows, with the columns: no migration changes these."""
_VERSION: Final = "value version "
_TYPES: Final = ("key", VALUE, "namespaced", "layout", "ttl", "order", "row", COLUMN_TYPE)
"""The texts that describe how a state is stored; any other text is a compatibility tag, and may begin with anything."""
_ROOT: Final = "value."
_MIGRATE: Final = "python -m asyncstate state migrate"

Texts = dict[str, str]


def declared(types: Mapping[str, str]) -> Texts:
    """``types`` without the earlier versions: the texts of a descriptor."""
    return {part: text for part, text in types.items() if not part.startswith(_VERSION)}


def without_meaning(types: Mapping[str, str]) -> Texts:
    """``types`` without the compatibility tags that say what the stored values mean."""
    return {
        part: text for part, text in types.items() if part in (*_TYPES, COMPUTED_KEY) or " version " in part
    }


def older_values(types: Mapping[str, str]) -> list[str]:
    """The earlier declared texts of ``value``; the first one is version 0."""
    return [types[_VERSION + str(number)] for number in range(len(types) - len(declared(types)))]


def evolved(
    uid: str,
    name: str,
    types: Texts,
    stored: Mapping[str, str],
    *,
    place: str = "",
    may_add: Collection[str] | None = None,
) -> Texts:
    """The type texts to store when ``types`` are declared and ``stored`` are in the checkpoint.

    Raises StateDeclarationError with the difference and the next step, for types that stored values do not fit.
    ``place`` is the checkpoint location, for the commands in the error; ``may_add`` the only fields that may be added,
    None: any.
    """
    before = declared(stored)
    found = list(_differences(before, types, may_add))
    if found:
        raise StateDeclarationError(_refused(uid, name, found, place, _since(stored, types)))
    older = older_values(stored)
    if before.get(VALUE) != types.get(VALUE):
        older.append(before[VALUE])
    return {**types, **{_VERSION + str(number): text for number, text in enumerate(older)}}


def wrong_kind(uid: str, name: str, was: str, now: str, place: str) -> StateDeclarationError:
    """The error for a state of another kind than the stored one."""
    return StateDeclarationError(
        _refused(uid, name, [(f"kind is {now} but the checkpoint has {was}", "")], place)
    )


def value_schema(text: str) -> pa.Schema:
    """The schema of a ``value`` text: for a column state its own, for a type the one field ``value``."""
    if text == "" or text.startswith('"'):
        return schema_from_text(text)
    return pa.schema([pa.field("value", type_from_text(text))])


def _differences(before: Texts, now: Texts, may_add: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """The differences that stored values do not fit, each with the arguments of the migration that helps; "" for
    dropping."""
    for part in sorted({*before, *now}):
        was, is_ = before.get(part), now.get(part)
        if was == is_ or (was is None and part not in _TYPES):
            continue
        if part == "ttl":  # the duration and the other options are not stored and may differ
            yield f"it is declared with {_ttl_text(is_)} but the checkpoint has {_ttl_text(was)}", ""
        elif part != VALUE or was is None or is_ is None or PICKLED in (was, is_):
            yield f"{part} is {is_} but the checkpoint has {was}", "-" if part == COLUMN_TYPE else ""
        else:
            yield from _of_values(value_schema(was), value_schema(is_), may_add)


def _of_values(old: pa.Schema, new: pa.Schema, may_add: Collection[str] | None) -> Iterator[tuple[str, str]]:
    found = list(refusals(old, new))
    if may_add is not None:
        names = {*old.names, *may_add}
        added = [field for field in new if field.name not in names and field.nullable]
        found += [Refusal(TypeChange.ADDED, field.name, now=str(field.type)) for field in added]
    for refusal in found:
        yield str(refusal).replace(f"'{_ROOT}", "'"), _way_out(refusal, old, new)


def _way_out(refusal: Refusal, old: pa.Schema, new: pa.Schema) -> str:
    field = refusal.field.removeprefix(_ROOT)
    # A migration cannot reach fields inside lists and maps.
    if refusal.change is TypeChange.REMOVED and _reached(old, refusal.field):
        return f"drop-field {shlex.quote(field)}"
    if refusal.change in (TypeChange.RETYPED, TypeChange.NOT_NULL) and _reached(new, refusal.field):
        types = [field_from_text("field", text).type for text in (refusal.was, refusal.now)]
        nested = any(map(pa.types.is_nested, types))
        return "" if nested else f"cast-field {shlex.quote(field)} {shlex.quote(refusal.now)}"
    return "" if refusal.change is not TypeChange.MOVED else "-"


def _reached(schema: pa.Schema, path: str) -> bool:
    """Whether ``path`` goes through structs only."""
    fields = {field.name: field.type for field in schema}
    while path:
        names = [name for name in fields if path == name or path.startswith(f"{name}.")]
        if not names:
            return False
        name = max(names, key=len)
        kind, path = fields[name], path[len(name) + 1 :]
        fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    return True


def _since(stored: Mapping[str, str], types: Texts) -> str:
    """A hint for the error if the state had this declaration before."""
    older = older_values(stored)
    if types.get(VALUE) not in older:
        return ""
    return (
        f"This declaration is version {older.index(types[VALUE])} of the state; a newer program has written version "
        f"{len(older)}: run that, or roll the checkpoint back to an earlier version. "
    )


def _refused(uid: str, name: str, found: list[tuple[str, str]], place: str, since: str = "") -> str:
    where = f"{shlex.quote(place) if place else 'CHECKPOINT'} {uid} {name}"
    commands = [_command(arguments, where) for _, arguments in found if arguments != "-"]
    ways = "Declare it as it is stored, or give the state a new name or the operator a new uid to start empty"
    if commands and all(arguments for _, arguments in found):
        ways += f"; or stop the query and rewrite the stored state: {' && '.join(commands)}"
        if any(arguments.startswith("drop-field") for _, arguments in found):
            ways += " (rename-field, with the new name as the last argument, keeps the values)"
    elif commands:
        ways += f"; or stop the query and drop the stored state: {_command('', where)}"
    return (
        f"operator '{uid}', state '{name}': the declaration disagrees with the checkpoint: "
        f"{'; '.join(text for text, _ in found)}. {since}{ways}"
    )


def _command(arguments: str, where: str) -> str:
    name, _, rest = (arguments or "drop-state").partition(" ")
    return f"{_MIGRATE} {name} {where} {rest}".rstrip()


def _ttl_text(time: str | None) -> str:
    return "no ttl" if time is None else f"a ttl in {time} time"
