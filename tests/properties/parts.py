"""What is cut into parts only where there is much of it, cut into parts of a few rows.

Owns: ``small_parts``. The bounds themselves need tens of thousands of rows before anything is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

_BOUNDS: Final = {
    "asyncstate.codec.key_batch._CODE_LIMIT": 50,
    "asyncstate.runtime.rows.sorted_inputs._PAGE_ROWS": 5,
    "asyncstate.runtime.rows.sorted_inputs._RANGE_PAGE_ROWS": 3,
    "asyncstate.runtime.partition.records._OUTPUT_ROWS": 3,
    "asyncstate.runtime.partition.records._PART_ROWS": 5,
    "asyncstate.runtime.partition.records._SLICE_ROWS": 2,
    "asyncstate.state.column_cache.vectors._CHUNK_BYTES_MAX": 100,
    "asyncstate.state.column_cache.vectors._GARBAGE_MIN": 2,
    "asyncstate.state.columnar.list_blocks.CHUNK_ROWS": 3,
    "asyncstate.state.columnar.list_blocks.TAIL_ROWS": 2,
    "asyncstate.state.keyed.chunks.CHUNK_BYTES": 64,
    "asyncstate.state.ranges._REMOVED_KEYS": 3,
    "asyncstate.state.stored_lists._TOGETHER_BYTES": 100,
    "asyncstate.runtime.rows.event_time_merge.HELD_MAX": 3,
    "asyncstate.state.views.bundle_maps.HELD_ENTRIES": 2,
    "asyncstate.storage.spill._PAGE_ENTRIES": 3,
    "operators.core.arrays._CODE_LIMIT": 50,
    "asyncstate.state.columnar.due_parts.PART_BYTES": 200,
    "operators.join.matches.PAIRS": 3,
    "operators.match.active_matches._PART_KEYS": 2,
    "operators.window.session_rows.PART_ROWS": 7,
    "operators.window.slices.MERGE_ROWS": 3,
}


@contextmanager
def small_parts() -> Iterator[None]:
    """Within it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in _BOUNDS.items():
            patch.setattr(name, bound)
        yield
