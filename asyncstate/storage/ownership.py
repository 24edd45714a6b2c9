"""The ownership of a checkpoint: claims, and the start of each epoch.

Owns: Epochs and the names below ``owners/``. Invariants: an epoch has at most one owner, though the store need not
support "create unless it exists": a claimant writes a claim under a unique name and then lists, so of two claimants the
later writer sees the other, and a claimant that sees another claim of its epoch, or a newer one, has lost it. An epoch
counts from its start record on, which is written once and names the versions that it takes over. Needs files that are
listed as soon as they are written. Must not import checkpoint.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from asyncstate.errors import CheckpointCorruptionError, CheckpointError, ConcurrentJobError
from asyncstate.storage.files import CheckpointFiles
from asyncstate.storage.manifest import EpochStart, Owner, decode_start, encode_start, other_format

_FOLDER: Final = "owners/"
_CLAIM: Final = re.compile(r"owners/(\d+)\.[0-9a-f]+\.claim\.json")
_START: Final = re.compile(r"owners/(\d+)\.start\.json")
_CLAIM_1: Final = re.compile(r"owners/epoch-\d+\.json")
_CLAIMS_MAX: Final = 30
_EPOCHS_KEPT: Final = 3
_WAIT_FIRST_SECONDS: Final = 0.02
_WAIT_MAX_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Listed:
    """One listing of ``owners/``: the claims of each epoch and the epochs that have started."""

    claims: dict[int, list[str]]
    starts: list[int]

    @property
    def newest(self) -> int:
        """The newest claimed epoch, 0 if none is."""
        return max(self.claims, default=0)


def wait_at_random(attempt: int) -> None:
    """Sleep before the next try of a claim: up to twice as long each time, at random, so that rivals separate."""
    time.sleep(random.uniform(0, min(_WAIT_MAX_SECONDS, _WAIT_FIRST_SECONDS * 2**attempt)))


class Epochs:
    """The epochs of one checkpoint. ``wait`` is called with the number of the lost try, from 0 on."""

    def __init__(self, files: CheckpointFiles, wait: Callable[[int], None] = wait_at_random) -> None:
        self._files = files
        self._wait = wait
        self._starts: dict[int, EpochStart] = {}

    def look(self) -> Listed:
        """List claims and starts. Raises CheckpointError for those of format 1."""
        claims: dict[int, list[str]] = {}
        starts = []
        for name in self._files.list(_FOLDER):
            if claim := _CLAIM.fullmatch(name):
                claims.setdefault(int(claim[1]), []).append(name)
            elif start := _START.fullmatch(name):
                starts.append(int(start[1]))
            elif _CLAIM_1.fullmatch(name):
                raise other_format(name, 1)
        return Listed(claims, sorted(starts))

    def claim(self, job_id: str) -> Owner:
        """Claim a new epoch. Raises ConcurrentJobError when others claim at the same time again and again."""
        for attempt in range(_CLAIMS_MAX):
            owner = self.try_claim(self.look().newest + 1, job_id)
            if owner is not None:
                return owner
            self._wait(attempt)
        raise ConcurrentJobError(
            f"job '{job_id}' could not claim the checkpoint {self._files.shown} in {_CLAIMS_MAX} tries: others keep "
            "claiming it. Make sure that only one query uses it, then restart it"
        )

    def try_claim(self, epoch: int, job_id: str) -> Owner | None:
        """Claim this epoch; None when another driver has claimed it too, or a newer one."""
        owner = Owner(epoch, job_id, socket.gethostname(), os.getpid(), time.time())
        name = f"{_FOLDER}{epoch:010d}.{uuid.uuid4().hex}.claim.json"
        self._files.put_bytes(name, msgspec.json.encode(owner))
        listed = self.look()
        if listed.newest > epoch:
            return None
        if name not in listed.claims.get(epoch, []):
            raise CheckpointError(
                f"{self._files.shown} does not list {name}, which was just written; a checkpoint needs a store with "
                "consistent listings"
            )
        return owner if listed.claims[epoch] == [name] else None

    def begin(self, start: EpochStart) -> None:
        """Write the start of an epoch that was claimed, and remove epochs long past."""
        self._files.put_bytes(_start_name(start.epoch), encode_start(start))
        self._starts = {start.epoch: start}
        listed = self.look()
        past = [epoch for epoch in {*listed.claims, *listed.starts} if epoch <= start.epoch - _EPOCHS_KEPT]
        claims = [name for epoch in past for name in listed.claims.get(epoch, [])]
        self._files.delete_files([*claims, *(_start_name(e) for e in past if e in listed.starts)])

    def started(self, listed: Listed) -> EpochStart | None:
        """The start of the newest epoch that has one."""
        if not listed.starts:
            return None
        epoch = listed.starts[-1]
        if epoch not in self._starts:
            name = _start_name(epoch)
            self._starts = {epoch: self._read_start(name)}
        return self._starts[epoch]

    def _read_start(self, name: str) -> EpochStart:
        try:
            return decode_start(self._files.get_bytes(name), name)
        except CheckpointCorruptionError as error:
            raise CheckpointCorruptionError(
                f"{error}. Only this file says which versions of {self._files.shown} are valid: restore it from a "
                "copy of the checkpoint, or start with a new checkpoint folder"
            ) from error

    def describe(self, listed: Listed) -> str:
        """Describe the claimant of the newest epoch."""
        epoch = listed.newest
        try:
            claim = self._files.get_bytes(listed.claims[epoch][0])
            owner = msgspec.json.decode(claim, type=Owner)
        except (CheckpointError, LookupError, ValueError):  # msgspec's errors are ValueErrors
            return f"epoch {epoch} has claimed it"
        return (
            f"job {owner.job_id!r} on {owner.host}, process {owner.process}, has claimed it (epoch {epoch})"
        )


def _start_name(epoch: int) -> str:
    return f"{_FOLDER}{epoch:010d}.start.json"
