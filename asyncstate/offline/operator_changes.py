"""Offline changes of a whole operator's state: for an operator with a new uid, or one that was removed from the
program.

Owns: ``change_operator`` and ``RenameOperator``, ``DropOperator``, ``AcceptChange``, ``AcceptSink``.
Invariant: only the manifest changes, in one commit: if killed before it, nothing has happened, and older versions stay.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from asyncstate.config import Config
from asyncstate.errors import StateDeclarationError
from asyncstate.offline.inspection import Inspection, operator_of
from asyncstate.runtime import check_uid
from asyncstate.state.versions import without_meaning
from asyncstate.storage import Manifest, SinkManifest

_DROPPED: Final = "(state dropped)"


@dataclass(frozen=True)
class RenameOperator:
    """Keep the state under the uid ``to``."""

    to: str


@dataclass(frozen=True)
class DropOperator:
    """Drop the state, and the operator's watermark."""


@dataclass(frozen=True)
class AcceptChange:
    """Forget the recorded meaning of the state: that of the next program is accepted. Types are still compared."""


@dataclass(frozen=True)
class AcceptSink:
    """Forget the recorded meaning of a sink's rows: its contents are accepted for the next program, too."""


OperatorChange: TypeAlias = RenameOperator | DropOperator | AcceptChange | AcceptSink


def change_operator(
    place: str, uid: str, change: OperatorChange, *, config: Config | None = None, dry_run: bool = False
) -> int:
    """Apply ``change`` to operator ``uid``, or the sink of this name, in the checkpoint at ``place``. Returns the
    version that was replaced.

    Stop the query first. Older versions stay as they are, so rolling back to one undoes it. ``dry_run``: only check
    whether it is possible. Raises CheckpointError and StateDeclarationError if it is not; nothing was changed then.
    """
    inspection = Inspection(place, config)
    found = inspection.manifest()
    _changed(found, uid, change)  # refused before the job is stopped
    if dry_run:
        return found.batch_id
    checkpoint = inspection.checkpoint
    checkpoint.claim(found.job_id)
    newest = checkpoint.latest()  # the job may have committed before it was fenced off
    assert newest is not None, "a claim keeps all versions"
    changed = _changed(newest, uid, change)
    checkpoint.commit(changed)
    return changed.batch_id


def _changed(manifest: Manifest, uid: str, change: OperatorChange) -> Manifest:
    if isinstance(change, AcceptSink):
        return _accepted(manifest, uid)
    operator = operator_of(manifest, uid)
    others = {name: one for name, one in manifest.operators.items() if name != uid}
    if isinstance(change, AcceptChange):
        states = [
            msgspec.structs.replace(state, types=without_meaning(state.types)) for state in operator.states
        ]
        accepted = msgspec.structs.replace(operator, operator="", meaning={}, states=states)
        return msgspec.structs.replace(manifest, operators={**manifest.operators, uid: accepted})
    if isinstance(change, DropOperator):
        dropped = _with_sinks(msgspec.structs.replace(manifest, operators=others), uid, _DROPPED)
        return _with_sources(dropped, uid, lambda _: None)
    check_uid(change.to)
    if change.to in manifest.operators:
        raise StateDeclarationError(
            f"version {manifest.batch_id} already has an operator '{change.to}'; drop that first, or choose another "
            "uid"
        )
    renamed = {**others, change.to: msgspec.structs.replace(operator, uid=change.to)}
    changed = _with_sinks(msgspec.structs.replace(manifest, operators=renamed), uid, change.to)
    return _with_sources(changed, uid, lambda place: f"{change.to}:{place}")


def _accepted(manifest: Manifest, sink: str) -> Manifest:
    sinks = {} if manifest.graph is None else manifest.graph.sinks
    if manifest.graph is None or sink not in sinks:
        raise StateDeclarationError(
            f"version {manifest.batch_id} has no sink '{sink}'; its sinks are {', '.join(map(repr, sinks)) or 'none'}"
        )
    known = {**sinks, sink: SinkManifest(sinks[sink].changes)}
    return msgspec.structs.replace(manifest, graph=msgspec.structs.replace(manifest.graph, sinks=known))


def _with_sinks(manifest: Manifest, uid: str, to: str) -> Manifest:
    """The manifest with sinks that refer to ``to`` where they referred to ``uid``."""

    def renamed(given: str) -> str:
        owner, colon, side = given.partition(":")
        return f"{to}{colon}{side}" if owner == uid else given

    if manifest.graph is None:
        return manifest
    sinks = {
        name: msgspec.structs.replace(one, inputs=sorted(map(renamed, one.inputs)))
        if one.inputs is not None
        else one
        for name, one in manifest.graph.sinks.items()
    }
    return msgspec.structs.replace(manifest, graph=msgspec.structs.replace(manifest.graph, sinks=sinks))


def _with_sources(manifest: Manifest, uid: str, named: Callable[[str], str | None]) -> Manifest:
    """The manifest with the watermark sources of ``uid`` under another name; None: without them."""

    def now(name: str) -> str | None:
        owner, _, place = name.rpartition(":")
        return named(place) if owner == uid and place.isdecimal() else name  # else a source of such a name

    def renamed(times: dict[str, int]) -> dict[str, int]:
        return {new: time for name, time in times.items() if (new := now(name)) is not None}

    return msgspec.structs.replace(
        manifest,
        sources=renamed(manifest.sources),
        heard=renamed(manifest.heard),
        idle=[new for name in manifest.idle if (new := now(name)) is not None],
    )
