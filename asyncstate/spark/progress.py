"""What a micro-batch did: the figures of its operators and where its time went.

Owns: ``BatchStatistics`` and the summing of commit records into it.
Must not import pyspark.
"""

from __future__ import annotations

import msgspec


class OperatorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one micro-batch: ``sums`` over its partitions, ``peaks`` the highest of them.

    ``plan_seconds`` is the driver's work before the stage starts, ``stage_seconds`` the stage with its
    exchange.
    """

    uid: str
    operator: str
    parallelism: int
    plan_seconds: float
    stage_seconds: float
    sums: dict[str, float]
    peaks: dict[str, float]


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch. Times of ``watermark`` are microseconds since the epoch.

    ``seconds`` is the whole of it: finding the base version, the user's function with the stages inside it
    (``function_seconds``), and the commit (``commit_seconds``).
    """

    job: str
    batch_id: int
    watermark: int
    final: bool
    seconds: float
    function_seconds: float
    commit_seconds: float
    operators: dict[str, OperatorStatistics]

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()
