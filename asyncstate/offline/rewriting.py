"""Stored entries of one state with a field changed, for migrations.

Owns: ``StateRewriter``: the effect of a field change on each kind's layout.
Invariant: rewritten entries have the bytes that a state with the new declaration would have written for the same
values, lists as if written at once.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import RowCodec, schema_to_text, type_to_text
from asyncstate.codec.value_columns import LARGE_BINARY, binary_rows, storage_dtype
from asyncstate.errors import CodecError, SchemaError, StateDeclarationError
from asyncstate.offline.field_migrations import CastField, FieldEdit, LossyCastError, edited, edited_schema
from asyncstate.state.columnar.list_blocks import NewBlocks, empty_heads
from asyncstate.state.expiring.expiry import STAMP_BYTES
from asyncstate.state.keyed.chunks import COUNT_BYTES, append_all, chunk_key, elements, framed
from asyncstate.state.ranges import pages_of
from asyncstate.state.stored_lists import FoundLists, block_key, block_lists, element_lists, rows_of
from asyncstate.state.versions import COMPUTED_KEY, PICKLED, VALUE, declared, older_values, value_schema

Entry = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]

_PAGE: Final = 4096
_ENTRY_KINDS: Final = ("value", "map", "reducing", "aggregating", "broadcast", "column", "column-map")
_ROW_KINDS: Final = ("column", "list-column", "column-map")


class StateRewriter:
    """Applies ``edit`` to a state of ``kind`` with the type texts ``types``.

    ``types`` of the object are the texts afterwards, with one version. ``shown_key`` makes a store key readable, for
    the error about a value. Raises StateDeclarationError naming ``owner`` for a change that is not possible.
    """

    def __init__(
        self, owner: str, kind: str, types: dict[str, str], edit: FieldEdit, shown_key: Callable[[bytes], str]
    ) -> None:
        self._owner = owner
        self._shown_key = shown_key
        self._kind = kind
        if kind not in (*_ENTRY_KINDS, "list", "list-column") or types.get(VALUE) == PICKLED:
            what = "pickled values have" if types.get(VALUE) == PICKLED else f"a state of kind {kind} has"
            raise StateDeclarationError(f"{owner}: {what} no fields to change; drop the state")
        schema = value_schema(types[VALUE])
        self._edit = self._rooted(edit, schema)
        self._old = RowCodec(schema, [value_schema(text) for text in older_values(types)], owner=owner)
        try:
            changed = edited_schema(schema, self._edit)
        except SchemaError as error:
            message = str(error).replace(f"'{VALUE}.", "'")
            raise StateDeclarationError(f"{owner}: {message}") from error
        self._new = RowCodec(changed, owner=owner)
        text = schema_to_text(changed) if kind in _ROW_KINDS else type_to_text(changed.field(0).type)
        self.types = {**declared(types), VALUE: text}
        self._stamp_bytes = STAMP_BYTES if "ttl" in types else 0
        self._has_computed_key = COMPUTED_KEY in types

    def _rooted(self, edit: FieldEdit, schema: pa.Schema) -> FieldEdit:
        """``edit`` adapted to ``schema``: the fields of a struct that is the value are below ``value``."""
        if self._kind in _ROW_KINDS:
            return edit
        if pa.types.is_struct(schema.types[0]):
            return dataclasses.replace(edit, field=f"{VALUE}.{edit.field}")
        if not isinstance(edit, CastField) or edit.field != VALUE or edit.to.endswith(" not null"):
            raise StateDeclarationError(
                f"{self._owner}: it holds a {schema.types[0]}, which has no fields; only its type can be cast: "
                f"cast-field with the field '{VALUE}' and a nullable type"
            )
        return edit

    def rewritten(self, entries: Iterable[Entry]) -> Iterator[Change]:
        """The changes for ``entries``, which are in store order and hold complete lists; the result is in store
        order."""
        stored = iter(entries)
        if self._has_computed_key:
            for _ in stored:
                raise self._not_rewritten()
            return
        if self._kind in _ENTRY_KINDS:
            while page := list(itertools.islice(stored, _PAGE)):
                values = self._recoded([value for _, value in page], [key for key, _ in page])
                yield from zip((key for key, _ in page), values, strict=True)
            return
        if self._kind == "list":
            for key, head, chunks in element_lists(stored, self._owner):
                yield from self._list(key, head, chunks)
        else:
            for found in block_lists(pages_of(stored, _PAGE), self._owner):
                yield from self._blocks(found)

    def _not_rewritten(self) -> StateDeclarationError:
        return StateDeclarationError(
            f"{self._owner}: keys with many rows have them by a digest of their columns, with which changed rows would "
            "not be found; nothing was changed. Keep the columns as they are and convert them after the operator, or "
            "drop its states, so that it starts empty"
        )

    def _recoded(self, values: list[bytes], keys: list[bytes]) -> list[bytes]:
        """Values, elements or rows in the new form; ``keys`` has the store key of each."""
        skip = self._stamp_bytes
        columns, _ = self._old.decode([value[skip:] for value in values])
        try:
            _, changed = edited(list(self._old.schema), columns, self._edit)
        except LossyCastError as error:
            assert isinstance(self._edit, CastField)
            raise CodecError(
                f"{self._owner}: field '{self._edit.field.removeprefix(VALUE + '.')}' is {error.value!r} for key "
                f"{self._shown_key(keys[error.row])}, which {self._edit.to} cannot hold; nothing was changed. Choose a "
                "wider type, or let the running job repair the value first"
            ) from error
        recoded = self._new.encode(changed, num_rows=len(values))
        return [value[:skip] + new for value, new in zip(values, recoded, strict=True)] if skip else recoded

    def _list(self, key: bytes, head: bytes, chunks: list[bytes]) -> Iterator[Change]:
        found = [element for chunk in chunks for element in elements(chunk, 0, bytes, self._owner)]
        found += elements(head, COUNT_BYTES, bytes, self._owner)
        written: list[Change] = []
        frames = map(framed, self._recoded(found, [key] * len(found)))
        new_head = append_all(
            None, frames, lambda index, chunk: written.append((chunk_key(key, index), chunk))
        )
        yield key, new_head
        yield from written
        for index in range(len(written), len(chunks)):
            yield chunk_key(key, index), None

    def _blocks(self, found: FoundLists) -> Iterator[Change]:
        heads, stored = found.heads, rows_of(*found, self._owner)
        if heads.elsewhere.any():
            raise self._not_rewritten()
        keys = [heads.store_keys[index] for index in stored.key_index.tolist()]
        recoded = pa.array(self._recoded(binary_rows(stored.rows), keys), LARGE_BINARY)
        fixed = all(storage_dtype(field.type) is not None for field in self._new.schema)
        counts = np.bincount(stored.key_index, minlength=len(heads.blocks))
        new = NewBlocks(empty_heads(heads.store_keys), counts, recoded, fixed)
        chunks = zip(new.chunk_keys, new.chunks, strict=True)
        numbers = zip(new.chunk_counts.tolist(), heads.chunks.tolist(), strict=True)
        for key, head, (now, before) in zip(heads.store_keys, new.heads, numbers, strict=True):
            yield key, head
            yield from itertools.islice(chunks, now)
            yield from ((block_key(key, index), None) for index in range(now, before))
