"""``Operator.first_input``: all its rows of a micro-batch come before those of the others, at both grains."""

import pyarrow as pa
import pytest

from asyncstate import BundleOperator, RecordOperator
from asyncstate.errors import JobError
from asyncstate.testing import OperatorHarness

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Records(RecordOperator):
    num_inputs = 2
    first_input = 1

    def bind(self, inputs):
        return pa.schema([("input", pa.int64()), ("v", pa.int64())])

    def process(self, row, ctx):
        ctx.emit(ctx.input_index, row.v)


class Bundles(BundleOperator):
    num_inputs = 2
    first_input = 1

    def bind(self, inputs):
        return pa.schema([("input", pa.int64()), ("v", pa.int64())])

    def process_bundle(self, bundle, ctx):
        values = bundle.batch.column("v")
        ctx.emit([pa.array([bundle.input_index] * len(values), pa.int64()), values])


@pytest.mark.parametrize("operator", [Records, Bundles])
@pytest.mark.parametrize("options", [{}, {"async-state.bundle-size": "1"}])
def test_rows_of_the_first_input_come_before_the_others(operator, options, async_enabled):
    keys = [["k"], ["k"]]
    with OperatorHarness(
        operator(), [ROWS, ROWS], keys, async_enabled=async_enabled, options=options
    ) as harness:
        for v in range(3):
            harness.push([(1, v)], input=0)
            harness.push([(1, 10 + v)], input=1)
        rows = harness.end_batch()
    assert [row[1] for row in rows] == [1, 1, 1, 0, 0, 0]
    assert sorted(rows) == sorted([("+I", 1, 10 + v) for v in range(3)] + [("+I", 0, v) for v in range(3)])


def test_an_input_that_is_not_there_is_refused():
    class Wrong(Records):
        first_input = 2

    with pytest.raises(JobError, match="first_input is 2"):
        OperatorHarness(Wrong(), [ROWS, ROWS], [["k"], ["k"]])
