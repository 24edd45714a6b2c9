"""The mark of a sink's last write: which micro-batch a target has, and whether the next one may follow it.

Owns: ``Origin``, ``Mark`` and ``is_written``, the one rule of all targets.
Invariant: a write that does not follow from the mark is refused, or the log says what it replaces.
Must not import pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from asyncstate.errors import JobError

_log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """Where a micro-batch comes from: the job, the id of its checkpoint, and the driver's id in this checkpoint.

    ``earlier``: the previous drivers, each with the last micro-batch that a target may have from it. ``is_first``: the
    checkpoint has no micro-batch before this one. All are empty for a micro-batch that is known by its number alone.
    """

    job: str = ""
    checkpoint: str = ""
    driver: str = ""
    earlier: Mapping[str, int] = {}
    is_first: bool = False

    def named(self, writer: str) -> str:
        """The name under which a target stores the mark: the writer, prefixed with its job if that is known."""
        return f"{self.job}/{writer}" if self.job else writer


UNKNOWN: Final = Origin()


class Mark(msgspec.Struct, frozen=True):
    """What a target stores per writer: its last micro-batch, with the checkpoint and the driver that wrote it."""

    batch_id: int
    checkpoint: str = ""
    driver: str = ""

    def text(self) -> str:
        """The mark as JSON, for targets that store text."""
        return msgspec.json.encode(self).decode()


def mark_of(text: str) -> Mark:
    """The inverse of ``Mark.text``. Raises JobError for a text that is not a mark."""
    try:
        return msgspec.json.decode(text, type=Mark)
    except msgspec.MsgspecError as error:
        raise JobError(
            f"the target keeps {text!r} where the sink's mark should be ({error}); another program or release wrote "
            "that: give the sink another writer"
        ) from error


def mark_from(origin: Origin, batch_id: int) -> Mark:
    """The mark that a target stores after it has written ``batch_id``."""
    return Mark(batch_id, origin.checkpoint, origin.driver)


def is_written(
    place: str,
    writer: str,
    batch_id: int,
    origin: Origin,
    mark: Mark | None,
    *,
    takes_over: bool = True,
    has_gaps: bool = False,
) -> bool:
    """Whether ``place``, which has ``mark`` of the writer, already has micro-batch ``batch_id``; if False, write it.

    The first micro-batch of a new checkpoint takes over from another checkpoint if ``takes_over``, with a log message.
    ``has_gaps``: micro-batches that change nothing leave no mark. Raises JobError if this micro-batch cannot follow the
    mark.
    """
    if mark is None:
        return False
    if mark.checkpoint != origin.checkpoint:
        _check_other_checkpoint(place, writer, batch_id, origin, mark, takes_over)
        return False
    if mark.driver != origin.driver:
        _check_other_driver(place, writer, batch_id, origin, mark)
    if batch_id < mark.batch_id:
        raise JobError(
            f"{place} has micro-batch {mark.batch_id} of writer '{writer}', and the next is {batch_id}: the job was "
            f"rolled back, or started with another checkpoint. {_TAKE_BACK}"
        )
    if mark.driver != origin.driver and mark.batch_id < batch_id - 1 and not has_gaps:
        _log.warning(
            "%s has micro-batch %d of writer '%s', and the next is %d: it lacks those in between; if it was "
            "restored from a backup, roll the job back to %d",
            place,
            mark.batch_id,
            writer,
            batch_id,
            mark.batch_id,
        )
    return batch_id == mark.batch_id


_TAKE_BACK = (
    "Remove the rows of the later micro-batches and the target's record of the writer (docs/sinks.md), or give the "
    "sink another writer; nothing was written"
)


def _check_other_checkpoint(
    place: str, writer: str, batch_id: int, origin: Origin, mark: Mark, takes_over: bool
) -> None:
    if not (origin.is_first and takes_over):
        raise JobError(
            f"{place} has micro-batch {mark.batch_id} of writer '{writer}' from another checkpoint ({_shown(mark)}), "
            f"and the next is {batch_id} of {origin.checkpoint or 'no checkpoint'}: "
            + (
                "another job has taken over, or two jobs write into one table. Stop the one that should not write"
                if takes_over
                else "its rows cannot be distinguished from the existing ones. Write into another place"
            )
            + ", or give the sink another writer; nothing was written"
        )
    _log.warning(
        "%s has micro-batch %d of writer '%s' from another checkpoint (%s), which this new checkpoint takes over: "
        "rows that only the old job wrote stay until they are deleted",
        place,
        mark.batch_id,
        writer,
        _shown(mark),
    )


def _check_other_driver(place: str, writer: str, batch_id: int, origin: Origin, mark: Mark) -> None:
    last = origin.earlier.get(mark.driver)
    if last is None:
        raise JobError(
            f"{place} has micro-batch {mark.batch_id} of writer '{writer}' from a driver that this checkpoint does "
            f"not know, and the next is {batch_id}: a copy of the checkpoint is in use, or another driver has taken "
            "it over. Stop the other one, or give this one's sink another writer and table; nothing was written"
        )
    if mark.batch_id > last:
        raise JobError(
            f"{place} has micro-batch {mark.batch_id} of writer '{writer}', but the checkpoint was since rolled back "
            f"to micro-batch {last}, and the next is {batch_id}. {_TAKE_BACK}"
        )


def _shown(mark: Mark) -> str:
    return mark.checkpoint or "written by number alone"
