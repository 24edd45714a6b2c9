"""What every driver does between micro-batches, be it the Spark job or the harness: watermark and manifest.

Owns: the rules by which CommitRecords become the next Manifest, and the watermark of the next micro-batch.
Invariant: the manifest of a batch follows from the manifest before it and the batch's CommitRecords alone.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from asyncstate.config import Config
from asyncstate.errors import ConfigurationError, JobError
from asyncstate.figures import Figures, added, highest
from asyncstate.operator import MIN_WATERMARK
from asyncstate.runtime.broadcast_digest import check_digests
from asyncstate.runtime.spec import CommitRecord
from asyncstate.storage import Applied, Manifest, OperatorManifest, StateSpec


def watermark_after(previous: Manifest | None) -> int:
    """The watermark (microseconds) of the micro-batch that follows ``previous``; it never goes back.

    The minimum over the sources: one that has seen no event yet holds it at MIN_WATERMARK.
    """
    if previous is None:
        return MIN_WATERMARK
    reached = min(previous.sources.values(), default=MIN_WATERMARK)
    return reached if previous.watermark is None else max(reached, previous.watermark)


def previous_watermark(base: Manifest | None, uid: str | None = None) -> int:
    """The watermark of the batch that ``base`` committed, microseconds.

    With ``uid`` that of the last batch that applied the operator: what has come due since then is still to be done.
    """
    times = _times(base, uid)
    return MIN_WATERMARK if times is None or times.watermark is None else times.watermark


def previous_processing_time(base: Manifest | None, uid: str | None = None) -> int:
    """When that batch started, microseconds; MIN_WATERMARK before the first."""
    times = _times(base, uid)
    return MIN_WATERMARK if times is None or times.processing_time is None else times.processing_time


def _times(base: Manifest | None, uid: str | None) -> Manifest | Applied | None:
    stored = None if base is None or uid is None else base.operators.get(uid)
    return base if stored is None or stored.applied is None else stored.applied


def left_out(stored: OperatorManifest, base: Manifest) -> OperatorManifest:
    """The entry of an operator that the micro-batch behind ``base`` has not applied."""
    if stored.applied is not None:
        return stored
    return msgspec.structs.replace(stored, applied=Applied(base.watermark, base.processing_time))


def check_key_groups(place: str, latest: Manifest | None, config: Config) -> None:
    """Raise ConfigurationError if ``config`` has other key groups than ``latest``, which was read from ``place``.

    Keys would be looked for in groups in which they are not.
    """
    if latest is not None and latest.max_parallelism != config.max_parallelism:
        raise ConfigurationError(
            f"checkpoint {place} has {latest.max_parallelism} key groups, but async-state.max-parallelism is "
            f"{config.max_parallelism}; set it to {latest.max_parallelism}: it is fixed by the job's first batch"
        )


def advance_sources(
    sources: Mapping[str, int], uid: str, delays: Sequence[int | None], records: Sequence[CommitRecord]
) -> dict[str, int]:
    """``sources`` with what the inputs of operator ``uid`` have seen.

    ``delays`` has an entry an input: its watermark delay in microseconds, None where it is no source. A source is
    named ``uid:input`` and its value is its highest event time minus the delay.
    """
    advanced = dict(sources)
    for index, delay in enumerate(delays):
        if delay is None:
            continue
        name = f"{uid}:{index}"
        seen = [time for record in records if (time := record.max_event_times[index]) is not None]
        reached = max(seen) - delay if seen else MIN_WATERMARK
        advanced[name] = max(reached, advanced.get(name, MIN_WATERMARK))
    return advanced


def operator_after(
    uid: str,
    operator: str,
    batch_id: int,
    parallelism: int,
    records: Sequence[CommitRecord],
    schemas: Mapping[str, str],
    route: Sequence[int] = (),
) -> OperatorManifest:
    """The operator's entry in the manifest of ``batch_id``. Raises JobError unless each partition
    reported once, and all the same about broadcast state."""
    reported = sorted(record.partition for record in records)
    if reported != list(range(parallelism)):
        raise JobError(
            f"operator '{uid}': batch {batch_id} was reported by partitions {reported}, expected each of "
            f"0..{parallelism - 1} once; nothing was committed, start the query again"
        )
    check_digests(uid, records)
    return OperatorManifest(
        uid=uid,
        operator=operator,
        parallelism=parallelism,
        schema=dict(schemas),
        states=_agreed_states(uid, records),
        route=list(route),
        partitions=[
            msgspec.structs.replace(record.content, statistics=record.statistics)
            for record in sorted(records, key=lambda record: record.partition)
        ],
    )


def _agreed_states(uid: str, records: Sequence[CommitRecord]) -> list[StateSpec]:
    states = records[0].states
    for record in records[1:]:
        if record.states != states:
            raise JobError(
                f"operator '{uid}': partitions {records[0].partition} and {record.partition} declared different "
                "states; declare the same states in open() whatever the data"
            )
    return states


def sum_records(records: Sequence[CommitRecord]) -> tuple[Figures, Figures]:
    """Sums of ``statistics`` and maxima of ``peaks`` over the partitions."""
    return added(record.statistics for record in records), highest(record.peaks for record in records)
