"""Row kinds of a changelog.

Owns: the four kinds, their int8 codes inside the framework and their text in the ``row_kind`` column.
Imports nothing of the project.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

ROW_KIND_COLUMN = "row_kind"


class RowKind(enum.IntEnum):
    """What a changelog row does to the table it describes (Flink's ``RowKind``)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def text(self) -> str:
        """The short form used in the ``row_kind`` column: ``+I``, ``-U``, ``+U`` or ``-D``."""
        return ROW_KIND_TEXTS[self]

    @property
    def is_accumulate(self) -> bool:
        """True for ``+I`` and ``+U``: the row is added to the table."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)


def accumulates(kinds: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Where a row is added to the table (n): ``is_accumulate`` of each kind."""
    mask: npt.NDArray[np.bool_] = (kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER)
    return mask


ROW_KIND_TEXTS: tuple[str, str, str, str] = ("+I", "-U", "+U", "-D")
