"""Who does the work.

Owns: ``Peer`` and ``PEERS``.
Must not import Spark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One engine in one setting.

    Attributes:
        ours: asyncstate; ``async_enabled`` is its switch, ``result`` names which of a work's results it makes. *floor*
            only brings the rows to Python: no stateful operator there can be quicker.
        slow: Python code runs for each record or key, in the peer's own way: it gets fewer rows.
        store: Where Spark keeps state, a name of ``spark_plans.STORES``.
        needs: A module without which the peer cannot run.
    """

    name: str
    title: str
    ours: bool = False
    async_enabled: bool = False
    result: str = ""
    slow: bool = False
    store: str = "changelog"
    needs: str | None = None

    @property
    def missing(self) -> str | None:
        """Why the peer cannot run here; None if it can."""
        if self.needs is None or _installed(self.needs):
            return None
        return f"it needs the module {self.needs}, which is not installed"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing, too
        return False


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("ours-sync", "asyncstate, sync", ours=True),
        Peer("ours-async", "asyncstate, async", ours=True, async_enabled=True),
        Peer("bundle-sync", "asyncstate, built in, sync", ours=True, result="bundle"),
        Peer("bundle-async", "asyncstate, built in, async", ours=True, async_enabled=True, result="bundle"),
        Peer("floor", "asyncstate, without state", ours=True, result="floor"),
        Peer("spark-heap", "Spark, heap", store="heap"),
        Peer("spark-changelog", "Spark, RocksDB, changelog"),
        Peer("spark-snapshot", "Spark, RocksDB, snapshots", store="snapshots"),
        Peer("tws-row", "transformWithState", slow=True, needs="google.protobuf"),
        Peer("tws-pandas", "transformWithStateInPandas", slow=True, needs="google.protobuf"),
        Peer("apply-pandas", "applyInPandasWithState", slow=True),
    )
}
"""By the name of the command line."""
