"""Where the stages of a micro-batch run: in the driver's process, or in tasks of the cluster.

Owns: ``ExecutorChoice`` and its constants; ``SourcesChoice``, whether the rows of all sources come here at once.
Invariant: the choice never changes results or state, so attempts at a micro-batch may choose differently.
Must not import Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Literal

from asyncstate.driver.executor import Prepared
from asyncstate.runtime import CommitRecord, TaskSpec, state_bytes, why_no_stores

ROWS_MAX: Final = 50_000
"""Rows of a stage above which it runs on the cluster: at 80,000 rows of one stage two cores are as quick."""
ROWS_MAX_GIVEN: Final = 1_000_000
"""The same where the configuration asks for the driver's process."""
BYTES_MAX: Final = 64 << 20
"""Bytes of the rows of an input, and of those that a stage emits, above which it runs on the cluster: the driver holds
them in memory, more than once."""
BYTES_MAX_GIVEN: Final = 1 << 30
"""The same where the configuration asks for the driver's process."""
SECONDS_MAX: Final = 0.5
"""Seconds that the tasks of a stage may take one after the other: above it, running them at once saves more than their
fixed cost."""
PARTITIONS_MAX: Final = 64
"""Each partition has a store to open, also without rows, and the driver opens one after the other."""

STATE_BYTES_MAX: Final = 256 << 20
"""Stored bytes of a stage's operators above which it stays on the cluster, if the driver has a disk of its own: it
would fetch all of them."""

Reports = Sequence[tuple[Prepared, Sequence[CommitRecord]]]
"""For each operator of a stage, and of those that feed it, the reports of its partitions."""
Setting = Literal["auto", "local", "spark"]

_log = logging.getLogger(__name__)


class ExecutorChoice:
    """The choice for the stages of one job, by the uid of their first operator."""

    def __init__(self, setting: Setting, shares_disk: bool = True) -> None:
        """``shares_disk``: the driver's process is on the machine of all tasks."""
        self._setting = setting
        self._shares_disk = shares_disk
        self._places: dict[str | None, bool] = {}
        """For each folder of local stores, whether this process can use it."""
        self._back_below: dict[str, int] = {}
        """For each stage that runs on the cluster, the rows below which it comes back."""

    @property
    def rows_max(self) -> int:
        """The rows that a stage in the driver's process may have."""
        return ROWS_MAX_GIVEN if self._setting == "local" else ROWS_MAX

    @property
    def source_rows_max(self) -> int:
        """The rows of all sources that may come to the driver's process at once: those of several stages."""
        return 4 * self.rows_max

    @property
    def bytes_max(self) -> int:
        """The bytes that an input of a stage in the driver's process may have, and what the stage emits."""
        return BYTES_MAX_GIVEN if self._setting == "local" else BYTES_MAX

    def is_local(self, uid: str, partitions: int, specs: Sequence[TaskSpec] = ()) -> bool:
        """Whether to try the driver's process. ``specs``: of the operators of the stage."""
        if self._setting != "auto":
            return self._setting == "local"
        if partitions > PARTITIONS_MAX or uid in self._back_below:
            return False
        return self._shares_disk or self._can_store(specs)

    def _can_store(self, specs: Sequence[TaskSpec]) -> bool:
        if sum(map(state_bytes, specs)) > STATE_BYTES_MAX:
            return False
        return all(self._can_use(folder) for folder in {spec.local_dir for spec in specs})

    def _can_use(self, folder: str | None) -> bool:
        if folder not in self._places:
            reason = why_no_stores(folder)
            self._places[folder] = reason is None
            if reason is not None:
                _log.warning(
                    "operators run on the executors also in small micro-batches, since the driver cannot have stores: "
                    "%s. Set async-state.executor to spark, or make async-state.local-dir a folder of the driver's "
                    "machine, too",
                    reason,
                )
        return self._places[folder]

    def fits(self, uid: str, rows: int, size_bytes: int) -> bool:
        """Whether the driver's process may run the stage with such an input. One that does not fit runs on the cluster,
        until it has half of the rows."""
        if rows > self.rows_max:  # how many there were is not known
            self._back_below[uid] = self.rows_max // 2
        elif size_bytes > self.bytes_max:
            self.too_large(uid, rows)
        else:
            return True
        return False

    def too_large(self, uid: str, rows: int) -> None:
        """The stage, which got so many ``rows``, has too many bytes: it runs on the cluster until it has half of the
        rows; an empty micro-batch is always small enough."""
        self._back_below[uid] = max(rows // 2, 1)

    def ran_locally(self, uid: str, reports: Reports, seconds: float) -> None:
        """Note what the tasks took. A slow stage goes to the cluster, until it has half of these rows."""
        if seconds > SECONDS_MAX:
            self.too_large(uid, _rows_of(reports))

    def ran_on_cluster(self, uid: str, reports: Reports) -> None:
        """Note the rows of a stage that ran on the cluster. One that gets the first rows only stays there: how many
        there were is not known."""
        limited = any(spec.limit is not None for one, _ in reports for spec in one.spec.inputs)
        if not limited and _rows_of(reports) < self._back_below.get(uid, 0):
            del self._back_below[uid]


class SourcesChoice:
    """Whether the rows of all sources come to the driver's process at once, rather than those of each input of a stage.

    They do once all stages of a micro-batch have run here. If they are too many, the job tries again after 1, 2, 4 and
    at most 64 micro-batches.
    """

    def __init__(self) -> None:
        self._here = self._elsewhere = False
        self._failed = self._waits = 0

    def begin(self) -> bool:
        """Whether they come in the micro-batch that begins."""
        tries = self._here and not self._elsewhere
        self._here = self._elsewhere = False
        if tries and self._waits:
            self._waits -= 1
            return False
        return tries

    def ran(self, here: bool) -> None:
        """Note where a stage ran."""
        self._here |= here
        self._elsewhere |= not here

    def came(self, fitted: bool) -> None:
        """Note whether they were few enough."""
        self._failed = 0 if fitted else min(self._failed + 1, 7)
        self._waits = 0 if fitted else 1 << (self._failed - 1)


def _rows_of(reports: Reports) -> int:
    """The most rows that reached an operator, before any partial aggregation."""
    return max(
        sum(
            int(record.statistics.get("local_rows_in") or record.statistics.get("rows_in") or 0)
            for record in records
        )
        for _, records in reports
    )
