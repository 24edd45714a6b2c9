"""Random SQL statements, as many as are asked for: ``python -m tests.sql.fuzz COUNT [FIRST]``.

Runs the seeds from ``FIRST`` on, in turn of each kind of statement, over random rows, with restarts and rescaling, and
prints the seeds of those that are wrong. Ctrl-C ends it, and shows the result so far.
"""

from __future__ import annotations

import os
import sys
import tempfile

from asyncstate.errors import SqlError
from asyncstate.spark import build_session
from tests import class_archive
from tests.conftest import in_memory
from tests.sql import (
    random_changes,
    random_nested,
    random_patterns,
    random_queries,
    random_types,
    random_windows,
)

KINDS = random_queries, random_types, random_nested, random_windows, random_patterns, random_changes


def main() -> int:
    """Run many; the number of wrong ones."""
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if (memory := in_memory()) is not None:  # states are written as in a job, and nothing waits for a disk
        tempfile.tempdir = str(memory)
    os.environ.setdefault(class_archive.VARIABLE, class_archive.JVM_OPTIONS)
    spark, wrong, refused = build_session("queries", "local[1]", conf={"spark.ui.enabled": "false"}), [], 0
    for seed in range(first, first + count):
        try:
            KINDS[seed % len(KINDS)].run(spark, seed)
        except KeyboardInterrupt:
            count = seed - first
            break
        except SqlError as error:
            refused += 1
            print(f"seed {seed} is refused: {error}", flush=True)
        except Exception as error:
            wrong.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:900]}", flush=True)
    print(f"{count - refused - len(wrong)} right, {refused} refused, wrong: {wrong or 'none'}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
