"""The schemas of an operator as the manifest keeps them, and what a restart may change of them.

Owns: ``fingerprint`` and ``check_fingerprint``. Invariant: stored keys are read with the key that they were written
with. Must not import storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from asyncstate.codec import Change, refusals, schema_from_text, schema_to_text
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec, OutputSpec

_OUT: Final = "restore it, or give the operator a new uid to start with empty state"


def fingerprint(inputs: Sequence[InputSpec], output: OutputSpec) -> dict[str, str]:
    """The schemas of an operator as the manifest keeps them."""
    texts = {"output": _text("output", output.schema)}
    for name, schema in output.side_outputs.items():
        texts[f"output {name}"] = _text(f"side output '{name}'", schema)
    for index, spec in enumerate(inputs):
        texts[f"input{index}"] = _text(spec.name, spec.schema)
        texts[f"key{index}"] = _text(spec.name, spec.key_schema)
    return texts


def _text(what: str, schema: pa.Schema) -> str:
    for field in schema:
        try:
            schema_to_text(pa.schema([field]))
        except SchemaError as error:
            raise SchemaError(f"{what}: column '{field.name}': {error}") from error
    return schema_to_text(schema)


def check_fingerprint(uid: str, stored: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise SchemaError for another key, another number of inputs, or a column that became something else.

    Columns may come and go and be widened: whether the state can live with that is for the state's own types to say,
    field by field. Of the output nothing is stored. Behind a migration columns may have become anything.
    """
    stored = {what: text for what, text in stored.items() if what.startswith(("input", "key"))}
    now = {what: text for what, text in now.items() if what.startswith(("input", "key"))}
    for what in sorted({*stored, *now}, reverse=True):  # the keys first
        if what.startswith("input") and what not in stored and _count(stored) == _count(now):
            continue  # a migration has changed states for other columns
        if what not in stored or what not in now:
            raise SchemaError(
                f"operator '{uid}' had {_count(stored)} in its checkpoint and now has {_count(now)}; {_OUT}"
            )
        before, after = schema_from_text(stored[what]), schema_from_text(now[what])
        if not what.startswith("key"):
            _check_columns(uid, what, before, after)
        elif not before.equals(after):
            raise SchemaError(
                f"operator '{uid}': the key ({what}) was ({_fields(before)}) and is ({_fields(after)}); "
                f"stored keys and their partitions depend on it; {_OUT}"
            )


def _check_columns(uid: str, what: str, before: pa.Schema, after: pa.Schema) -> None:
    for field in before:
        index = after.get_field_index(field.name)
        if index < 0:
            continue
        for refusal in refusals(pa.schema([field]), pa.schema([after.field(index)])):
            if refusal.change is Change.RETYPED:
                # Also where no state has the column: what is pickled or computed from it would mix two meanings.
                raise SchemaError(
                    f"operator '{uid}', {what}: column '{refusal.field}' was {refusal.was} and is {refusal.now}; cast "
                    "it back, give the column a new name, or migrate the states that hold it"
                )


def _count(texts: Mapping[str, str]) -> str:
    return f"{sum(name.startswith('key') for name in texts)} inputs"


def _fields(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "none"
