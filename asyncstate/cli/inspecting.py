"""``state list``, ``state show`` and ``state stats``.

Owns: what they print. Invariant: they read only; a running job does not notice. Must not import Spark.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

from asyncstate.cli.output import Format, checked, print_json, print_rows, say
from asyncstate.codec.types import is_bytes_type, shown_text
from asyncstate.errors import StateDeclarationError
from asyncstate.offline.inspection import (
    Inspection,
    StatePartition,
    decoders,
    key_schemas,
    partition_sizes,
    read_partition,
)
from asyncstate.offline.json_text import json_text, plain
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.storage import Manifest, OperatorManifest, StateSpec

_NULL = "null"  # how a key column without a value is shown
_OF_TYPE = re.compile("(key|value|row)( version .*)?")  # which texts of a state are types, now and before

Place = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The job's checkpoint: a folder or URI.")]
Version = Annotated[
    int | None, typer.Option("--version", help="A version that is kept; by default the newest.")
]
OutputFormat = Annotated[Format, typer.Option("--format", help="For people, or JSON: a line a row.")]
Uid = Annotated[str | None, typer.Option("--uid", help="Only this operator.")]
LocalDir = Annotated[
    str | None,
    typer.Option("--local-dir", help="Where partitions are restored; by default the temporary folder."),
]


def list_states(place: Place, version: Version = None, output: OutputFormat = Format.TABLE) -> None:
    """Versions, operators and their states, with kinds and types."""
    with checked():
        inspection = Inspection(place)
        manifest = inspection.manifest(version)
        found = _listing(inspection, manifest)
    if output is Format.JSON:
        print_json(found)
        return
    say(f"job {found['job']}: versions {', '.join(map(str, found['versions']))}; shown is {found['version']}")
    say(
        f"watermark {_shown_time(found['watermark_us'])}, {found['max_parallelism']} key groups"
        f"{', finished' if found['final'] else ''}"
    )
    for operator in found["operators"]:
        title = (
            f"{operator['uid']} ({operator['operator']}): key {operator['key']}, {operator['parallelism']} partitions, "
            f"{operator['checkpoint_bytes']} bytes in {operator['files']} files"
        )
        rows = [{**state, "types": _lines(state["types"])} for state in operator["states"]]
        print_rows(title, rows, ["state", "kind", "types"])


def show(
    place: Place,
    state: Annotated[str, typer.Argument(help="The state's name; @timers are the timers.")],
    uid: Uid = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Only this key; with several columns once for each, in their order."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many entries.")] = 20,
    version: Version = None,
    unpickle: Annotated[
        bool, typer.Option("--unpickle", help="Load pickled values: runs code from the checkpoint.")
    ] = False,
    output: OutputFormat = Format.TABLE,
    local_dir: LocalDir = None,
) -> None:
    """Entries of a state, decoded."""
    with checked():
        inspection = Inspection(place)
        pieces = inspection.partitions(inspection.manifest(version), uid, state, unpickle=unpickle)
        operators = {piece.uid for piece in pieces}
        if len(operators) > 1:
            raise StateDeclarationError(
                f"operators {sorted(operators)} have a state '{state}'; name one with --uid"
            )
        wanted = _wanted_key(pieces[0], key)
        rows = itertools.islice(_entries(pieces, wanted, local_dir), limit + 1)
        if output is Format.JSON:
            for row in itertools.islice(rows, limit):
                print_json(row)
            return
        found = list(rows)
    names = [name for name in found[0] if any(row[name] is not None for row in found)] if found else ["key"]
    print_rows(f"{pieces[0].uid}, {state}, version {pieces[0].version}", found[:limit], names)
    if len(found) > limit:
        say(f"there are more than {limit}; raise --limit to see them")


def stats(
    place: Place,
    uid: Uid = None,
    version: Version = None,
    output: OutputFormat = Format.TABLE,
    local_dir: LocalDir = None,
) -> None:
    """Keys, entries and bytes of each state in each partition, and the timers."""
    with checked():
        inspection = Inspection(place)
        rows = [
            {
                "operator": piece.uid,
                "state": decoder.state.name,
                "kind": decoder.state.kind,
                "partition": piece.partition,
                "keys": size.keys,
                "entries": size.entries,
                "bytes": size.size_bytes,
            }
            for piece in inspection.partitions(inspection.manifest(version), uid)
            for decoder, size in partition_sizes(piece, local_dir)
        ]
    if output is Format.JSON:
        for row in rows:
            print_json(row)
        return
    print_rows(
        f"version {inspection.manifest(version).batch_id}", rows, list(rows[0]) if rows else ["operator"]
    )


def _listing(inspection: Inspection, manifest: Manifest) -> dict[str, Any]:
    known = manifest.watermark not in (None, MIN_WATERMARK, MAX_WATERMARK)
    return {
        "job": manifest.job_id,
        "versions": inspection.versions,
        "version": manifest.batch_id,
        "final": manifest.final,
        "watermark_us": manifest.watermark if known else None,
        "max_parallelism": manifest.max_parallelism,
        "operators": [_operator(operator) for operator in manifest.operators.values()],
    }


def _operator(operator: OperatorManifest) -> dict[str, Any]:
    key = next((key for key in key_schemas(operator) if len(key)), pa.schema([]))
    files = {file.name: file.size_bytes for partition in operator.partitions for file in partition.files()}
    return {
        "uid": operator.uid,
        "operator": operator.operator,
        "parallelism": operator.parallelism,
        "key": ", ".join(f"{field.name} {field.type}" for field in key) or "none",
        "files": len(files),
        "checkpoint_bytes": sum(files.values()),
        "states": [_state(spec) for spec in operator.states],
    }


def _state(spec: StateSpec) -> dict[str, Any]:
    types = {
        part: shown_text(text) if _OF_TYPE.fullmatch(part) else text for part, text in spec.types.items()
    }
    return {"state": spec.name, "kind": spec.kind, "types": types}


def _lines(texts: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def _entries(
    pieces: Sequence[StatePartition], wanted: list[str], local_dir: str | None
) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        for _, rows in read_partition(piece, local_dir):
            for row in plain(rows):
                if not wanted or (row["key"] is not None and _texts(row["key"].values()) == wanted):
                    yield row


def _wanted_key(piece: StatePartition, key: list[str] | None) -> list[str]:
    """The texts of ``--key`` as keys are shown. Raises StateDeclarationError for what no key can be."""
    if not key:
        return []
    (decoder,) = decoders(piece)
    columns = list(decoder.schema.field("key").type)
    if len(key) != len(columns):
        raise StateDeclarationError(
            f"{decoder.owner}: --key is given {len(key)} times, but the key has {len(columns)} columns; give it "
            "once for each"
        )
    return [_key_text(decoder.owner, column, text) for column, text in zip(columns, key, strict=True)]


def _key_text(owner: str, column: pa.Field, text: str) -> str:
    if text == _NULL:
        return text
    try:
        if pa.types.is_integer(column.type):
            return str(pa.scalar(int(text), column.type).as_py())
        if pa.types.is_boolean(column.type) and text not in ("true", "false"):
            raise ValueError(text)
        if pa.types.is_floating(column.type):
            return json_text(pa.scalar(float(text), column.type).as_py())
        if pa.types.is_timestamp(column.type):
            return _time_text(text, column.type)
        if pa.types.is_date(column.type):
            return datetime.date.fromisoformat(text).isoformat()
        if pa.types.is_decimal(column.type):
            return str(pa.scalar(decimal.Decimal(text), column.type).as_py())
        if is_bytes_type(column.type):
            return base64.b64encode(base64.b64decode(text, validate=True)).decode()
    except (ValueError, ArithmeticError, pa.ArrowException):
        raise StateDeclarationError(
            f"{owner}: --key {text!r} is no {column.type}, the type of key column '{column.name}'; give such a value, "
            "as `state show` prints it"
        ) from None
    return text


def _time_text(text: str, kind: pa.DataType) -> str:
    """A time as `state show` prints those of a column of type ``kind``, whichever way ISO 8601 lets it be written."""
    time = datetime.datetime.fromisoformat(text)
    if kind.tz is not None and time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    elif kind.tz is None and time.tzinfo is not None:
        raise ValueError(text)
    column = pa.array([time], pa.timestamp("us", kind.tz)).cast(kind)
    (key,) = pa.StructArray.from_arrays([column], names=["key"]).to_pylist()  # as keys are stored and shown
    return _texts(key.values())[0]


def _texts(values: Any) -> list[str]:
    return [value if isinstance(value, str) else json_text(value).strip('"') for value in values]


def _shown_time(watermark_us: int | None) -> str:
    return "not known" if watermark_us is None else f"{watermark_us} us"
