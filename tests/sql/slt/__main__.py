"""``python -m tests.sql.slt ENGINE FILE|FOLDER...`` runs sqllogictest files of an engine: duckdb, risingwave or sqlite.

For each file: its statements, and how its queries went. Then how often each reason came. Options: ``--most N`` queries
of each file that are no views, ``--show KIND`` for the texts of all queries that ended like that. The exit code is 1
if a query is different or broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.sql.slt.runs import SltRun

KINDS = ("right", "refused", "dialect", "different", "broken", "skipped")


def main() -> int:
    """Run files; 1 if something is wrong."""
    from asyncstate.spark import build_session

    given = argparse.ArgumentParser(prog="python -m tests.sql.slt", description=__doc__)
    given.add_argument("engine", choices=("duckdb", "risingwave", "sqlite"))
    given.add_argument("paths", nargs="+", type=Path)
    given.add_argument("--most", type=int)
    given.add_argument("--show", action="append", default=["different", "broken"], choices=KINDS)
    asked = given.parse_args()
    files = [
        one
        for path in asked.paths
        for one in ([path] if path.is_file() else sorted([*path.rglob("*.slt"), *path.rglob("*.test")]))
    ]
    conf = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    spark = build_session("slt", "local[1]", conf=conf)
    kinds: Counter[str] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    views, began = 0, time.monotonic()
    for path in files:
        own: Counter[str] = Counter()
        start = time.monotonic()
        with SltRun(path, asked.engine, spark, asked.most) as run:
            for outcome in run.outcomes():
                own[outcome.kind] += 1
                if outcome.kind != "right":
                    reasons[outcome.kind, outcome.why] += 1
                if outcome.kind in asked.show:
                    print(
                        f"--- {outcome.kind}: {outcome.why}\n{outcome.record.place}\n{outcome.detail}\n",
                        flush=True,
                    )
            views += run.views
            found = ", ".join(f"{own[kind]} {kind}" for kind in KINDS if own[kind]) or "no queries"
            print(
                f"{path}: {run.statements} statements, {run.views} views; {found}; {time.monotonic() - start:.1f} s",
                flush=True,
            )
        kinds += own
    print(f"\n{len(files)} files, {views} materialized views, {time.monotonic() - began:.0f} s")
    print(", ".join(f"{kinds[kind]} {kind}" for kind in KINDS))
    for (kind, why), count in sorted(reasons.items(), key=lambda one: (KINDS.index(one[0][0]), -one[1])):
        print(f"{count:6} {kind}: {why}")
    return int(bool(kinds["different"] or kinds["broken"]))


if __name__ == "__main__":
    sys.exit(main())
