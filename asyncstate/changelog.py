"""Row kinds of a changelog, and the known facts of a stream of changes.

Owns: the four kinds, their int8 codes inside the framework and their text in the ``row_kind`` column; ``Changelog``,
the facts of a stream: its mode and its unique keys.
Imports nothing of the project but errors.

Source: Flink's ``RowKind``; the traits of its planner (``ModifyKindSet``, ``UpdateKind``) and its metadata of unique
keys and upsert keys (``FlinkRelMdUniqueKeys``, ``FlinkRelMdUpsertKeys``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncstate.errors import SchemaError

ROW_KIND_COLUMN = "row_kind"


def has_kinds(columns: Iterable[str], what: str = "") -> bool:
    """Whether rows of these ``columns`` have kinds: a column ``row_kind``. ``what``: their origin, for the error.

    Spark column names are case-insensitive. Raises SchemaError for this one in another spelling, since it may or may
    not be a changelog's.
    """
    found = [name for name in columns if name.lower() == ROW_KIND_COLUMN]
    strange = next((name for name in found if name != ROW_KIND_COLUMN), None)
    if strange is not None:
        of = f"{what}: " if what else ""
        raise SchemaError(
            f"{of}column '{strange}' differs only in case from '{ROW_KIND_COLUMN}', the changelog's own column; rename "
            f"it to '{ROW_KIND_COLUMN}' if it has row kinds (+I, -U, +U, -D), and to another name if not"
        )
    return bool(found)


class RowKind(enum.IntEnum):
    """The effect of a changelog row on the table it describes (Flink's ``RowKind``)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def text(self) -> str:
        """The short form used in the ``row_kind`` column: ``+I``, ``-U``, ``+U`` or ``-D``."""
        return ROW_KIND_TEXTS[self]

    @property
    def is_accumulate(self) -> bool:
        """True for ``+I`` and ``+U``: the row is added to the table."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)


def accumulates(kinds: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Where a row is added to the table (n): ``is_accumulate`` of each kind."""
    mask: npt.NDArray[np.bool_] = (kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER)
    return mask


ROW_KIND_TEXTS: tuple[str, str, str, str] = ("+I", "-U", "+U", "-D")


class ChangelogMode(enum.IntEnum):
    """How the rows of a stream change the table that they describe. A higher mode says less about a change."""

    INSERT_ONLY = 0
    """All rows are +I, and none is ever retracted."""
    RETRACT = 1
    """A row that is removed or replaced is retracted in full (-U, -D): the net of the rows is the table."""
    UPSERT = 2
    """A row (+I, +U) replaces the one with the same upsert key, a -D removes that row; there is no -U, and only the key
    of a -D counts. A micro-batch has at most one change of each key."""

    @property
    def text(self) -> str:
        """The name in arguments and in ``explain()``: ``insert-only``, ``retract`` or ``upsert``."""
        return self.name.lower().replace("_", "-")


Key = tuple[str, ...]
_KEYS_MAX: Final = 8
_NOT_IN_A_KEY: Final = "\0"


@dataclass(frozen=True)
class Changelog:
    """The known facts of a stream of rows: its mode, and what identifies a row of the table that they describe.

    ``unique_keys``: sets of columns; no two rows of the table have equal values in all columns of one. An empty set:
    the table has at most one row. ``upsert_key``: with mode UPSERT the columns by which rows replace each other.
    ``filtered_by``: columns by which rows were filtered one by one: of an update that changes them only one half may
    remain. ``never_null``: columns known to have no nulls. ``origin``: for errors, the node that the mode comes from.

    Make it with ``Changelog.insert_only``, ``Changelog.retract`` and ``Changelog.upsert``.
    """

    mode: ChangelogMode = ChangelogMode.INSERT_ONLY
    unique_keys: tuple[Key, ...] = ()
    upsert_key: Key | None = None
    filtered_by: frozenset[str] = frozenset()
    never_null: frozenset[str] = field(default=frozenset(), compare=False)
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if (self.mode is ChangelogMode.UPSERT) != (self.upsert_key is not None):
            raise SchemaError("a Changelog has an upsert key if its mode is upsert, and only then")
        own = [] if self.upsert_key is None else [self.upsert_key]
        object.__setattr__(self, "unique_keys", _minimal([*own, *self.unique_keys], own))

    @classmethod
    def insert_only(cls, *unique_keys: str | Sequence[str]) -> Changelog:
        """Rows that are never retracted."""
        return cls(ChangelogMode.INSERT_ONLY, tuple(map(_columns, unique_keys)))

    @classmethod
    def retract(cls, *unique_keys: str | Sequence[str]) -> Changelog:
        """Changes that retract the previous row."""
        return cls(ChangelogMode.RETRACT, tuple(map(_columns, unique_keys)))

    @classmethod
    def upsert(cls, *key: str) -> Changelog:
        """Changes that replace the row with the same values of the columns ``key``; no column: the only row."""
        return cls(ChangelogMode.UPSERT, (), key)

    @property
    def is_insert_only(self) -> bool:
        """Whether all rows are +I."""
        return self.mode is ChangelogMode.INSERT_ONLY

    @property
    def is_upsert(self) -> bool:
        """Whether changes do not contain the previous row."""
        return self.mode is ChangelogMode.UPSERT

    def identifies(self, columns: Iterable[str]) -> bool:
        """Whether the columns identify a row."""
        given = set(columns)
        return any(given.issuperset(key) for key in self.unique_keys)

    def upserts_by(self, columns: Iterable[str]) -> bool:
        """Whether the rows of an upsert stream replace each other by these columns: they identify a row, and no change
        of a row changes them."""
        given = set(columns)
        return self.upsert_key is not None and given <= set(self.upsert_key) and self.identifies(given)

    def with_keys(self, unique_keys: Iterable[Key], never_null: Iterable[str] = ()) -> Changelog:
        """The same with other unique keys, and these columns without nulls."""
        return replace(self, unique_keys=tuple(unique_keys), never_null=frozenset(never_null))

    def without_nulls_in(self, columns: Iterable[str]) -> Changelog:
        """The same with these columns, too, known to have no nulls."""
        return replace(self, never_null=self.never_null | frozenset(columns))

    def projected(self, names: Mapping[str, Sequence[str]]) -> Changelog | None:
        """The facts after a projection; ``names`` maps each column that passes unchanged to its new names. None: the
        upsert key is lost."""
        key = self.upsert_key
        if key is not None and not all(names.get(column) for column in key):
            return None
        kept = [one for one in self.unique_keys if all(names.get(column) for column in one)]
        return replace(
            self,
            unique_keys=tuple(tuple(names[column][0] for column in one) for one in kept),
            upsert_key=None if key is None else tuple(names[column][0] for column in key),
            filtered_by=frozenset(
                new
                for column in self.filtered_by
                for new in (names.get(column) or (f"{_NOT_IN_A_KEY}{column}",))
            ),
            never_null=frozenset(new for column in self.never_null for new in names.get(column, ())),
        )

    def filtered(self, columns: Iterable[str] | None) -> Changelog:
        """The facts after a filter on these columns; None: it is unknown on which."""
        if self.is_insert_only:
            return self
        by = {_NOT_IN_A_KEY} if columns is None else set(columns)
        return replace(self, filtered_by=self.filtered_by | by)

    @property
    def text(self) -> str:
        """In a few words, such as ``retract, unique (id)``."""
        if () in self.unique_keys:
            return f"{self.mode.text}, a single row"
        if self.upsert_key is not None:
            return f"upsert by {_key_text(self.upsert_key)}"
        keys = " and ".join(map(_key_text, self.unique_keys))
        return f"{self.mode.text}, unique {keys}" if keys else self.mode.text


def union_of(streams: Sequence[Changelog]) -> Changelog | None:
    """The facts of the union of several streams: the weakest mode, and no keys. None: one of them is an upsert stream,
    whose key does not identify a row among those of the others."""
    if any(one.is_upsert for one in streams):
        return None
    weakest = max(streams, key=lambda one: one.mode)
    return replace(
        weakest.with_keys(()),
        filtered_by=frozenset().union(*(one.filtered_by for one in streams)),
    )


def late_changes(streams: Sequence[Changelog]) -> Changelog:
    """The facts of the late rows of the streams (at least one), all together. Only one half of an update may be late,
    so nothing identifies a row among changes."""
    found = streams[0] if len(streams) == 1 else union_of(streams) or RETRACT
    return found.with_keys(()) if found.mode is ChangelogMode.RETRACT else found


def _minimal(keys: Sequence[Key], kept: Sequence[Key]) -> tuple[Key, ...]:
    """Without keys that contain another one, unless they are ``kept``; the first few."""
    found: list[Key] = []
    for key in keys:
        if any(set(other) == set(key) for other in found):
            continue
        if key in kept or not any(set(other) < set(key) for other in keys):
            found.append(key)
    return tuple(found[:_KEYS_MAX])


def _columns(key: str | Sequence[str]) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)


def _key_text(key: Key) -> str:
    return f"({', '.join(key)})"


def upserts_way_out(changes: Changelog) -> str:
    """What to do where upserts are not accepted."""
    key = ", ".join(repr(column) for column in changes.upsert_key or ())
    normalize = f"put ChangelogNormalize() {f'with key=[{key}]' if key else 'without a key'} between"
    if changes.origin.startswith("operator"):
        return f"leave emit_update_before=False out at {changes.origin}, or {normalize}"
    return normalize


INSERT_ONLY: Final = Changelog()
RETRACT: Final = Changelog(ChangelogMode.RETRACT)
