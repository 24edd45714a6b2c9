"""Unmatched retractions: counted, logged as a warning, or refused, as ``async-state.on-missing-row`` sets.

Owns: ``UnmatchedRetractions``, through which an operator reports them, and ``warn_of_missing_rows``, the driver's
warning.
Invariant: the count is the sum over all partitions; there is one warning per micro-batch and operator.
Must not import Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncstate.changelog import ROW_KIND_TEXTS
from asyncstate.config import Config
from asyncstate.errors import OperatorError
from asyncstate.metrics import counters
from asyncstate.operator import Bundle, Counter
from asyncstate.runtime.task_spec import CommitRecord

COUNTER: Final = "retractions_without_state"
_TEXT_MAX: Final = 500
_ADVICE: Final = (
    "Its row was never added, came with other values, is in a later micro-batch, or has expired "
    "(docs/order-and-time.md describes the causes)."
)

_log = logging.getLogger(__name__)


class UnmatchedRetractions:
    """The implementation of ``operator.MissingRows`` in one task."""

    def __init__(self, uid: str, counter: Counter, config: Config) -> None:
        self._uid = uid
        self._counter = counter
        self._refuses = config.on_missing_row == "fail"
        self.example: str | None = None

    def add(self, rows: npt.NDArray[np.int64], bundle: Bundle) -> None:
        """Count retractions without a matching row: their indices (n) in the bundle."""
        if len(rows):
            if self.example is None:
                self.example = _row_text(bundle, int(rows[0]))
            self.count(len(rows))

    def count(self, number: int) -> None:
        """Count ``number`` retractions without a matching row."""
        self._counter.add(number)
        if number and self._refuses:
            raise OperatorError(
                f"operator '{self._uid}': {_found(number, self.example)}, and async-state.on-missing-row is fail. "
                f"{_ADVICE} Nothing was committed; fix the input, or set async-state.on-missing-row to warn or count "
                "to drop such rows"
            )


def warn_of_missing_rows(uid: str, batch_id: int, config: Config, records: Sequence[CommitRecord]) -> None:
    """Log one warning if an operator has dropped retractions in a micro-batch, unless they are only to be counted."""
    if config.on_missing_row == "count":
        return
    number = sum(counters(record.statistics).get(COUNTER, 0) for record in records)
    if number:
        example = next((record.missing_row for record in records if record.missing_row), None)
        _log.warning(
            "operator '%s', batch %d: %s; dropped, results may be wrong. %s Set async-state.on-missing-row to fail "
            "to fail the micro-batch, or to count to turn this warning off.",
            uid,
            batch_id,
            _found(number, example),
            _ADVICE,
        )


def _found(number: int, example: str | None) -> str:
    what = "a retraction finds" if number == 1 else f"{number:,} retractions find"
    shown = "" if example is None else f", for example {example}"
    return f"{what} no matching row{shown}"


def _row_text(bundle: Bundle, row: int) -> str:
    values = bundle.batch.slice(row, 1).to_pylist()[0]
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    text = f"{ROW_KIND_TEXTS[int(bundle.kinds[row])]} ({shown})"
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
