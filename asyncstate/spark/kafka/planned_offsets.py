"""Which offsets a micro-batch reads: plain rules over numbers.

Owns: ``limited``, ``ranges``, ``lost``, ``not_before``.
Invariant: a range depends on the two offsets alone, so that a replayed micro-batch has the same ranges; the rows of a
limited micro-batch are at most the limit.
Must not import pyspark and no client of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncstate.spark.kafka.source_options import Offsets


class Range(NamedTuple):
    """Offsets ``start`` to ``end``, which is not read. ``is_reset``: the partition has lost its earlier offsets."""

    topic: str
    partition: int
    start: int
    end: int
    is_reset: bool = False


def partitions_of(offsets: Offsets) -> Iterator[tuple[str, str, int]]:
    """Topic, partition and offset."""
    for topic, parts in offsets.items():
        for number, offset in parts.items():
            yield topic, number, offset


def limited(start: Offsets, last: Offsets, most: int) -> Offsets:
    """The offsets up to which at most ``most`` messages are read: one of each partition where that is possible, so that
    the watermark of the others does not pass its rows, and the rest in proportion to what waits in each.

    A partition that ``start`` does not have begins at 0.
    """
    waiting = {
        (topic, number): max(0, end - start.get(topic, {}).get(number, 0))
        for topic, number, end in partitions_of(last)
    }
    total = sum(waiting.values())
    if total <= most:
        return last
    count_waiting = sum(count > 0 for count in waiting.values())
    each = 1 if count_waiting <= most else 0
    rest, more = most - each * count_waiting, total - each * count_waiting
    share = {place: each + (count - each) * rest // more if count else 0 for place, count in waiting.items()}
    left = most - sum(share.values())
    for place in sorted(waiting, key=lambda place: (share[place] - waiting[place], place)):
        if left == 0:
            break
        if share[place] < waiting[place]:
            share[place] += 1
            left -= 1
    return {
        topic: {
            number: end - waiting[topic, number] + share[topic, number] if waiting[topic, number] else end
            for number, end in parts.items()
        }
        for topic, parts in last.items()
    }


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """What is read between two offsets. A partition that ``start`` does not have is new, and begins at 0; one whose
    offset goes back has been created again, and begins there too."""
    found = []
    for topic, number, last in partitions_of(end):
        first = start.get(topic, {}).get(number, 0)
        if last < first:
            found.append(Range(topic, int(number), 0, last, is_reset=True))
        elif last > first:
            found.append(Range(topic, int(number), first, last))
    return found


def not_before(last: Offsets, start: Offsets) -> Offsets:
    """``last``, with no partition before its offset in ``start``."""
    return {
        topic: {number: max(end, start.get(topic, {}).get(number, 0)) for number, end in parts.items()}
        for topic, parts in last.items()
    }


def lost(start: Offsets, last: Offsets) -> list[str]:
    """The partitions that are gone, or whose offsets went back, with what happened."""
    found = []
    for topic, number, first in partitions_of(start):
        end = last.get(topic, {}).get(number)
        if end is None:
            found.append(f"partition {number} of '{topic}' is gone")
        elif end < first:
            found.append(f"partition {number} of '{topic}' ends at offset {end}, and was read up to {first}")
    return found
