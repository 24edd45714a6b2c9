"""``state list``, ``state show`` and ``state stats``.

Owns: their output. Invariant: they read only; a running job is not affected. Must not import Spark.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer

from asyncstate.cli.output import Format, checked, print_json, print_rows, say
from asyncstate.codec.arrow_types import shown_text
from asyncstate.errors import StateDeclarationError
from asyncstate.offline.inspection import (
    Inspection,
    StatePartition,
    decoders,
    key_schemas,
    partition_sizes,
    read_partition,
)
from asyncstate.offline.json_text import plain
from asyncstate.offline.key_parser import WrittenKey
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.storage import Manifest, OperatorManifest, StateSpec

_OF_TYPE = re.compile(
    "(key|value|row)( version .*)?"
)  # the texts of a state that are types, current and earlier ones

Place = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The job's checkpoint: a folder or URI.")]
Version = Annotated[int | None, typer.Option("--version", help="A retained version; by default the newest.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="text for people, or json: one line per row.")]
Uid = Annotated[str | None, typer.Option("--uid", help="Only this operator.")]
LocalDir = Annotated[
    str | None,
    typer.Option(
        "--local-dir", help="Folder in which partitions are restored; by default the temporary folder."
    ),
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
    watermark = "not known" if found["watermark_us"] is None else f"{found['watermark_us']} us"
    say(f"job {found['job']}: versions {', '.join(map(str, found['versions']))}; shown is {found['version']}")
    say(
        f"watermark {watermark}, {found['max_parallelism']} key groups"
        f"{', finished' if found['final'] else ''}"
    )
    for operator in found["operators"]:
        title = (
            f"{operator['uid']} ({operator['operator']}): key {operator['key']}, {operator['parallelism']} partitions, "
            f"{operator['checkpoint_bytes']} bytes in {operator['files']} files"
        )
        rows = [
            {**state, "types": "\n".join(f"{name}: {text}" for name, text in state["types"].items())}
            for state in operator["states"]
        ]
        print_rows(title, rows, ["state", "kind", "types"])


def show(
    place: Place,
    state: Annotated[str, typer.Argument(help="The state's name; @timers shows the timers.")],
    uid: Uid = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="Only this key; for a key of several columns give the option once for each, in order.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=sys.maxsize, help="Maximum number of entries to show.")
    ] = 20,
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
        rows = _entries(pieces, wanted, local_dir)
        found = itertools.islice(rows, limit)
        if output is Format.JSON:
            for row in found:
                print_json(row)
        else:
            _print_entries(f"{pieces[0].uid}, {state}, version {pieces[0].version}", list(found))
        if next(rows, None) is not None:
            say(f"there are more than {limit}; raise --limit to see them", aside=output is Format.JSON)


def _print_entries(title: str, rows: Sequence[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else ["key"]
    print_rows(title, rows, names)


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
        manifest = inspection.manifest(version)
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
            for piece in inspection.partitions(manifest, uid)
            for decoder, size in partition_sizes(piece, local_dir)
        ]
    if output is Format.JSON:
        for row in rows:
            print_json(row)
        return
    print_rows(f"version {manifest.batch_id}", rows, list(rows[0]) if rows else ["operator"])


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
    files = {file for partition in operator.partitions for file in partition.files()}
    return {
        "uid": operator.uid,
        "operator": operator.operator,
        "parallelism": operator.parallelism,
        "key": ", ".join(f"{field.name} {field.type}" for field in key) or "none",
        "files": len({file.name for file in files}),
        "checkpoint_bytes": sum(file.size_bytes for file in files),
        "states": [_state(spec) for spec in operator.states],
    }


def _state(spec: StateSpec) -> dict[str, Any]:
    types = {
        part: shown_text(text) if _OF_TYPE.fullmatch(part) else text for part, text in spec.types.items()
    }
    return {"state": spec.name, "kind": spec.kind, "types": types}


def _entries(
    pieces: Sequence[StatePartition], wanted: WrittenKey | None, local_dir: str | None
) -> Iterator[dict[str, Any]]:
    for piece in pieces:
        for _, rows in read_partition(piece, local_dir):
            yield from plain(rows if wanted is None else wanted.rows_of(rows))


def _wanted_key(piece: StatePartition, key: list[str] | None) -> WrittenKey | None:
    """The key that ``--key`` names. Raises StateDeclarationError for an invalid key."""
    if not key:
        return None
    (decoder,) = decoders(piece)
    if decoder.state.kind == "broadcast":
        raise StateDeclarationError(f"{decoder.owner}: broadcast state has no key; leave --key out")
    return WrittenKey(decoder.owner, decoder.schema.field("key").type, key)
