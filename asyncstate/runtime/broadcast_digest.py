"""Whether all partitions have done the same to broadcast state.

Owns: ``broadcast_digest`` and ``check_digests``, its two ends: in the task and on the driver.
Invariant: what is committed to broadcast state is the same in every partition, so that any one of them can stand
for all when the parallelism changes.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import JobError
from asyncstate.runtime.spec import CommitRecord
from asyncstate.state.versions import PICKLED
from asyncstate.storage import Changes, StateSpec, changes_from

_STATE_ID_AT = len(BROADCAST_GROUP)


def broadcast_digest(changes: Changes, states: Sequence[StateSpec]) -> str:
    """A name for what sorted ``changes`` do to broadcast state; empty if nothing.

    Of pickled states only the keys count: equal objects may have different pickles in different processes.
    """
    pickled = {state.id for state in states if state.types.get("value") == PICKLED}
    digest = None
    for key, value in changes_from(changes, BROADCAST_GROUP):
        digest = digest or xxhash.xxh3_128()
        shown = b"" if value is not None and key[_STATE_ID_AT] in pickled else value
        for part in (key, shown):
            digest.update(b"\x00" if part is None else b"\x01" + len(part).to_bytes(8, "big") + part)
    return digest.hexdigest() if digest else ""


def check_digests(uid: str, records: Sequence[CommitRecord]) -> None:
    """Raise JobError unless all partitions report the same digest."""
    for record in records[1:]:
        if record.broadcast_digest != records[0].broadcast_digest:
            raise JobError(
                f"operator '{uid}': partitions {records[0].partition} and {record.partition} made different changes to "
                "broadcast state; let process_broadcast depend on its row and on broadcast state alone, not on the "
                "clock, on chance or on context.key_groups. Nothing was committed"
            )
