"""Operators that no job can run, in a module that Python workers can import."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from asyncstate.operator import RecordOperator


class EndsItsWorker(RecordOperator):
    """Ends the process it runs in."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("out", pa.int64())])

    def process(self, row: Any, ctx: Any) -> None:
        os._exit(3)


class HoldsALock(RecordOperator):
    """Holds what cannot be pickled."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("out", pa.int64())])

    def process(self, row: Any, ctx: Any) -> None: ...
