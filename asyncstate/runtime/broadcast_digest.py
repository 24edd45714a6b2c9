"""Whether all partitions have done the same to broadcast state.

Owns: ``broadcast_digest`` and ``check_digests``, its two ends: in the task and on the driver.
Invariant: what is committed to broadcast state is the same in every partition, so that any one of them can stand
for all when the parallelism changes.
Must not import Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import xxhash

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import JobError
from asyncstate.runtime.spec import CommitRecord
from asyncstate.state.versions import PICKLED
from asyncstate.storage import Change, StateSpec

_STATE_ID_AT = len(BROADCAST_GROUP)


def broadcast_digest(changes: Sequence[Change], states: Sequence[StateSpec]) -> str:
    """A name for what sorted ``changes`` do to broadcast state; empty if nothing.

    Of pickled states only the keys count: equal objects may have different pickles in different processes.
    """
    first = bisect_left(changes, BROADCAST_GROUP, key=_key)
    if first == len(changes):
        return ""
    pickled = {state.id for state in states if state.types.get("value") == PICKLED}
    digest = xxhash.xxh3_128()
    for key, value in changes[first:]:
        shown = b"" if value is not None and key[_STATE_ID_AT] in pickled else value
        for part in (key, shown):
            digest.update(b"\x00" if part is None else b"\x01" + len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def check_digests(uid: str, records: Sequence[CommitRecord]) -> None:
    """Raise JobError unless all partitions report the same digest."""
    for record in records[1:]:
        if record.broadcast_digest != records[0].broadcast_digest:
            raise JobError(
                f"operator '{uid}': partitions {records[0].partition} and {record.partition} made different changes to "
                "broadcast state; let process_broadcast depend on its row and on broadcast state alone, not on the "
                "clock, on chance or on context.key_groups. Nothing was committed"
            )


def _key(change: Change) -> bytes:
    return change[0]
