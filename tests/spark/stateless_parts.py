"""Stateless operators that the tests run on Spark, in a module that Python workers can import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from asyncstate import Bundle, BundleContext, BundleOperator, InputSpec, RecordContext, RecordOperator, Row
from asyncstate.operator import OutputSpec


class Noted(BundleOperator):
    """The rows as they are; notes each run in the file ``log``. ``stateless`` may be taken back."""

    stateless = True

    def __init__(self, log: str, stateless: bool = True) -> None:
        self.log = log
        self.stateless = stateless  # type: ignore[misc]

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return inputs[0].schema

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        with open(self.log, "a") as log:
            log.write(f"{bundle.num_rows}\n")
        ctx.emit(bundle.batch.columns, bundle.kinds)


class Strict(RecordOperator):
    """``id`` of each row; fails at ``fail_at``, in the way that ``fail`` names."""

    stateless = True

    def __init__(self, fail_at: int = -1, fail: str = "raise") -> None:
        self.fail_at = fail_at
        self.fail = fail

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec("id bigint", changes=inputs[0].changes)

    def process(self, row: Row, ctx: RecordContext) -> None:
        if row.id == self.fail_at:
            if self.fail == "exit":
                os._exit(3)
            raise ValueError(f"no {row.id}, please")
        ctx.emit(row.id, kind=ctx.row_kind)
