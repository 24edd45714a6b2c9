"""What the time of one of our micro-batches went into.

Owns: ``PARTS`` and ``parts_of``.
Invariant: the parts are seconds of wall clock: what partitions do side by side is divided by their number. "Spark",
what is left of the whole, is for the caller: the trigger, reading the files, the exchange, and the sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncstate.driver.progress import OperatorProgress
    from asyncstate.spark import Progress

PARTS: Final = ("Spark", "transfer", "restore", "state read", "merge", "write", "compaction", "commit")
"""In the order of a micro-batch. "transfer" is waiting for rows to come and for output to be taken; "restore" brings
the store up to the last commit; "merge" is the operator with keys and codecs; "write" the delta; "compaction" is
waiting for what is left of it; "commit" the manifest."""


def parts_of(batch: Progress) -> dict[str, float]:
    """Seconds by name, all but "Spark"."""
    parts = dict.fromkeys(PARTS[1:], 0.0)
    for operator in batch["operators"].values():
        for name, seconds in _of_operator(operator).items():
            parts[name] += seconds
    parts["commit"] += batch["commit_seconds"]
    return parts


def _of_operator(operator: OperatorProgress) -> dict[str, float]:
    def share(*names: str) -> float:
        seconds: float = sum(operator[name] or 0.0 for name in names) / operator["parallelism"]
        return seconds

    transfer = share("input_seconds", "output_seconds")
    read = share("read_batch_seconds", "io_wait_seconds")
    restore = share("restore_seconds")
    return {
        "transfer": transfer,
        "restore": restore,
        "state read": read,
        "merge": max(share("run_seconds") - transfer - read - restore, 0.0),
        "write": share("commit_seconds"),
        "compaction": share("compaction_seconds"),
    }
