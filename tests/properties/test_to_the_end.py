"""A run to the end of the input gives, row by row, what one micro-batch of all rows and then the end give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec.times import integers
from asyncstate.operator import MIN_WATERMARK
from asyncstate.runtime import CommitRecord, run_to_the_end
from asyncstate.testing import OperatorHarness
from tests.properties.examples import Example
from tests.properties.runs import KEY_GROUPS, OutputRow, push
from tests.properties.test_every_operator import OPERATORS, examples_of


@pytest.mark.parametrize(
    ("operator", "entry"), [(operator, entry) for operator, entries in OPERATORS.items() for entry in entries]
)
def test_it_is_one_micro_batch_and_the_end(operator: str, entry: str, tmp_path: Path) -> None:
    @settings(settings.default, max_examples=max(3, examples_of(operator) // 2))
    @given(
        example=OPERATORS[operator][entry],
        async_enabled=st.booleans(),
        options=st.sampled_from([{}, {"async-state.write-cache-size": "1kb"}]),
    )
    def hold(example: Example, async_enabled: bool, options: dict[str, Any]) -> None:
        given = {**example.settings}
        with (
            example.around(),
            OperatorHarness(
                example.make(),
                list(example.inputs),
                list(example.key),
                async_enabled=async_enabled,
                max_parallelism=KEY_GROUPS,
                options={**given.pop("options", {}), **options, "async-state.local-dir": str(tmp_path)},
                **given,
            ) as harness,
        ):
            push(harness, example.history.records)
            rows, record = _to_the_end(harness, example)
            assert rows == harness.end_batch() + harness.finish()
            assert record.content.files() == []
        assert list(tmp_path.iterdir()) == []

    hold()


def _to_the_end(harness: OperatorHarness, example: Example) -> tuple[list[OutputRow], CommitRecord]:
    spec = harness._spec(None, MIN_WATERMARK)
    object.__setattr__(spec, "broadcast", harness._broadcast())
    object.__setattr__(spec, "local_dir", harness._config.local_dir)
    (batches,) = harness._exchange(spec.inputs)
    *rows, record = run_to_the_end(harness._operator(), spec, 0, iter(batches))
    assert isinstance(record, CommitRecord)
    return [row for batch in rows for row in _rows(batch)], record


def _rows(batch: Any) -> Iterator[OutputRow]:
    kinds = batch.column(ROW_KIND_COLUMN).to_pylist()
    return zip(kinds, *(integers(column).to_pylist() for column in batch.columns[:-1]), strict=True)
