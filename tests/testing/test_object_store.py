"""Whole operators with their checkpoint in an object store: restart, rescale, failing requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import RecordContext, RecordOperator, Row, ValueStateDescriptor
from asyncstate.errors import CheckpointError
from asyncstate.storage import checkpoint_files
from asyncstate.testing import OperatorHarness
from tests.s3_server import SECRET_KEY, S3Server, faulty_proxy

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OPTIONS = {"async-state.snapshot-interval": 2}


class Totals(RecordOperator):
    """The total of each user."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("user", pa.string()), ("total", pa.int64())])

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        total = await self.total.async_value() + row.amount
        await self.total.async_update(total)
        ctx.emit(row.user, total)


def harness(checkpoint: str, folder: Path, **settings: Any) -> OperatorHarness:
    given = {"options": OPTIONS, **settings}
    return OperatorHarness(Totals(), SCHEMA, ["user"], checkpoint=checkpoint, folder=folder, **given)


@pytest.mark.long
def test_restart_on_other_machines_at_another_parallelism(
    place: str, async_enabled: bool, tmp_path: Path
) -> None:
    """Each step on a machine that has nothing but the checkpoint; snapshots in between."""
    users = [f"user-{number}" for number in range(20)]
    expected = dict.fromkeys(users, 0)
    for step, parallelism in enumerate([2, 2, 3, 1, 1, 1]):
        with harness(
            place, tmp_path / f"machine-{step}", parallelism=parallelism, async_enabled=async_enabled
        ) as h:
            h.push([(user, step + 1) for user in users[step:]])
            for user in users[step:]:
                expected[user] += step + 1
            assert sorted(h.end_batch()) == sorted(("+I", user, expected[user]) for user in users[step:])
            entries = h.state_entries()
    with harness(place, tmp_path / "again", parallelism=1, async_enabled=not async_enabled) as h:
        assert h.state_entries() == entries


def test_snapshots_go_from_place_to_place(s3: S3Server, tmp_path: Path) -> None:
    with harness(s3.place(), tmp_path / "one") as h:
        h.push([("a", 1)])
        h.end_batch()
        snapshot = h.snapshot()
        for place in (None, s3.place()):
            with h.restore(snapshot, checkpoint=place) as other:
                assert other.state_entries() == h.state_entries()
                other.push([("a", 1)])
                assert other.end_batch() == [("+I", "a", 2)]


def test_a_batch_whose_upload_fails_is_not_committed(
    s3: S3Server, async_enabled: bool, tmp_path: Path
) -> None:
    with faulty_proxy(s3) as proxy:
        place = s3.place(proxy.port)
        with harness(place, tmp_path, async_enabled=async_enabled) as h:
            h.push([("a", 1)])
            h.end_batch()
            proxy.fail("PUT", "state/", "403", times=1)
            h.push([("a", 1)])
            with pytest.raises(
                CheckpointError, match=r"could not write state/operator/0/delta-.*\*\*\*@"
            ) as why:
                h.end_batch()
            assert SECRET_KEY not in str(why.value)
        assert len(checkpoint_files(place).list("manifests/")) == 1
        with harness(place, tmp_path, async_enabled=async_enabled) as h:
            h.push([("a", 1)])
            assert h.end_batch() == [("+I", "a", 2)]
