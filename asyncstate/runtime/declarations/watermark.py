"""The watermark of a job: the progress of its sources, which of them hold it back, and which are idle.

Owns: ``WatermarkSource``, the declaration of a source; ``advance_sources``, the rule by which event times advance the
sources; ``watermark_after``, ``watermark_holders`` and ``why_watermark_waits``, which follow from a manifest.
Invariants: the watermark of a micro-batch depends only on the previous manifest, and never goes back. A source that
is no longer declared does not hold it back.
Must not import Spark.

Source: ``WatermarkStrategy.withIdleness`` of Flink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from asyncstate.display import time_text
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import ConfigurationError, JobError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.runtime.declarations.declared_inputs import Delay, delay_us
from asyncstate.runtime.task_spec import CommitRecord
from asyncstate.storage import Manifest


class WatermarkSource(NamedTuple):
    """``delay_us``: how far a source's watermark lags its highest event time, microseconds of event time.
    ``idle_after_us``: after how long without events it is idle (None: never), microseconds of processing time."""

    delay_us: int
    idle_after_us: int | None = None


class SourceTimes(NamedTuple):
    """The manifest's entries for the sources, by name.

    ``reached``: the highest event time minus the delay, MIN_WATERMARK before the first event. ``heard``: for a source
    that can be idle, the start of the last micro-batch in which it had an event. ``idle``: the names of idle sources.
    """

    reached: dict[str, int]
    heard: dict[str, int]
    idle: list[str]


def watermark_source(
    event_time: str | None, watermark_delay: Delay, idle_after: Duration | None
) -> WatermarkSource | None:
    """The declaration of a source; None if it does not advance the watermark.

    Raises JobError and ConfigurationError for invalid declarations.
    """
    if watermark_delay is None:
        if idle_after is not None:
            raise JobError(
                "idle_after without watermark_delay: a source without a watermark cannot be idle; give "
                "watermark_delay too, or leave idle_after out"
            )
        return None
    if event_time is None:
        raise JobError("watermark_delay without event_time; name the timestamp column too")
    if idle_after is None:
        return WatermarkSource(delay_us(watermark_delay))
    length = microseconds(idle_after, "source", "idle_after", ConfigurationError)
    if length <= 0:
        raise ConfigurationError(f"source: idle_after is {idle_after!r}; give a duration above zero")
    return WatermarkSource(delay_us(watermark_delay), length)


def input_sources(
    uid: str, delays: Sequence[int | None], records: Sequence[CommitRecord]
) -> Iterator[tuple[str, WatermarkSource, int | None]]:
    """The inputs of operator ``uid`` that have a delay (microseconds): name, declaration, highest event time.

    An input is named ``uid:input``.
    """
    for index, delay in enumerate(delays):
        if delay is not None:
            seen = [time for record in records if (time := record.max_event_times[index]) is not None]
            yield f"{uid}:{index}", WatermarkSource(delay), max(seen, default=None)


def advance_sources(
    base: Manifest | None,
    declared: Mapping[str, WatermarkSource],
    seen: Mapping[str, int | None],
    processing_time: int,
    restarted: bool = False,
) -> SourceTimes:
    """The entries for the sources ``declared`` in the manifest of the micro-batch after ``base``.

    ``seen``: the highest event time of each in this micro-batch, None if it had none. ``restarted``: it is the first
    micro-batch of a driver. The time in which no driver ran counts as time without events only from the second one on:
    Spark may have chosen the rows of the first one before the previous driver ended.
    """
    before = SourceTimes({}, {}, []) if base is None else SourceTimes(base.sources, base.heard, base.idle)
    known = processing_time
    if restarted and base is not None and base.processing_time is not None:
        known = base.processing_time
    after = SourceTimes({}, {}, [])
    for name, source in declared.items():
        time = seen.get(name)
        reached = MIN_WATERMARK if time is None else time - source.delay_us
        after.reached[name] = max(reached, before.reached.get(name, MIN_WATERMARK))
        if source.idle_after_us is not None:
            heard = before.heard.get(name, processing_time) if time is None else processing_time
            after.heard[name] = heard
            if known - heard >= source.idle_after_us:
                after.idle.append(name)
    return after


def watermark_after(previous: Manifest | None) -> int:
    """The watermark (microseconds) of the micro-batch that follows ``previous``; it never goes back.

    It is the minimum over the sources that are not idle; a source without any event yet holds it at MIN_WATERMARK. It
    does not change while all sources are idle.
    """
    if previous is None:
        return MIN_WATERMARK
    reached = min(_awake(previous).values(), default=MIN_WATERMARK)
    return reached if previous.watermark is None else max(reached, previous.watermark)


def watermark_holders(previous: Manifest | None) -> dict[str, int]:
    """The sources that the watermark after ``previous`` waits for, and the event time that each has reached."""
    awake = {} if previous is None else _awake(previous)
    lowest = min(awake.values(), default=MIN_WATERMARK)
    return {name: reached for name, reached in awake.items() if reached == lowest}


def why_watermark_waits(previous: Manifest | None) -> str | None:
    """What the watermark after ``previous`` waits for, in a sentence; None if there are no sources."""
    if previous is None or not previous.sources:
        return None
    holders = watermark_holders(previous)
    if not holders:
        return "the watermark does not advance: all sources are idle"
    names = " and ".join(f"'{name}'" for name in holders)
    what, has = ("source", "has") if len(holders) == 1 else ("sources", "have")
    reached = time_text(next(iter(holders.values())), MIN_WATERMARK, MAX_WATERMARK)
    so_far = "had no events yet" if MIN_WATERMARK in holders.values() else f"reached {reached}"
    return f"the watermark waits for {what} {names}, which {has} {so_far}"


def _awake(manifest: Manifest) -> dict[str, int]:
    return {name: reached for name, reached in manifest.sources.items() if name not in manifest.idle}
