"""Which micro-batch may follow what a target has: every target decides alike, and nothing is left out silently."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("pyspark")

from asyncstate.driver.write_marks import UNKNOWN, Mark, Origin, is_written, mark_from, mark_of
from asyncstate.errors import JobError
from tests.sinks.places import Place, changes

FIRST = Origin("shop", "c1", "d1", {}, is_first=True)
LATER = FIRST._replace(is_first=False)


def decided(batch_id: int, origin: Origin, mark: Mark | None, **more: bool) -> bool:
    return is_written("table totals", "w", batch_id, origin, mark, **more)


def test_the_same_driver_goes_on_and_repeats_its_last() -> None:
    assert not decided(7, LATER, None)
    assert not decided(8, LATER, Mark(7, "c1", "d1"))
    assert decided(8, LATER, Mark(8, "c1", "d1"))
    with pytest.raises(
        JobError, match="has micro-batch 8 of writer 'w', and the next is 7: the job was rolled back"
    ):
        decided(7, LATER, Mark(8, "c1", "d1"))


def test_the_next_driver_takes_what_the_last_one_may_have_written() -> None:
    after = LATER._replace(driver="d2", earlier={"d0": 3, "d1": 8})
    assert decided(8, after, Mark(8, "c1", "d1"))
    assert not decided(8, after, Mark(7, "c1", "d1"))
    with pytest.raises(JobError, match="was since rolled back to micro-batch 8, and the next is 9"):
        decided(9, after, Mark(9, "c1", "d1"))


def test_a_driver_that_the_checkpoint_does_not_know_has_a_copy_of_it() -> None:
    with pytest.raises(
        JobError, match="from a driver that this checkpoint does not know.*a copy of the checkpoint"
    ):
        decided(8, LATER, Mark(7, "c1", "another"))


def test_a_new_checkpoint_takes_over_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not decided(0, FIRST, Mark(7, "c0", "d9"))
    assert "from another checkpoint (c0), which this new checkpoint takes over" in caplog.text
    with pytest.raises(
        JobError, match=r"from another checkpoint \(c0\), and the next is 1 of c1: another job has"
    ):
        decided(1, LATER, Mark(7, "c0", "d9"))
    with pytest.raises(JobError, match="Write into another place"):
        decided(0, FIRST, Mark(7, "c0", "d9"), takes_over=False)


def test_a_table_that_lacks_micro_batches_is_told(caplog: pytest.LogCaptureFixture) -> None:
    after = LATER._replace(driver="d2", earlier={"d1": 8})
    with caplog.at_level(logging.WARNING):
        assert not decided(8, after, Mark(5, "c1", "d1"), has_gaps=True)
        assert not decided(6, after, Mark(5, "c1", "d1"))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert not decided(8, after, Mark(5, "c1", "d1"))
    assert "lacks those in between; if it was restored from a backup, roll the job back to 5" in caplog.text


def test_marks_are_texts_that_say_when_they_are_none() -> None:
    assert mark_of(mark_from(LATER, 8).text()) == Mark(8, "c1", "d1")
    with pytest.raises(JobError, match="another program or release wrote that"):
        mark_of("8")


def test_every_target_knows_jobs_checkpoints_and_drivers(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    target = place.target()
    assert target.write("w", 0, changes([(1, "first", None)]), FIRST)
    assert not target.write("w", 0, changes([(1, "again", None)]), FIRST)
    next_driver = LATER._replace(driver="d2", earlier={"d1": 1})
    assert target.write("w", 1, changes([(1, "second", None)]), next_driver)
    with pytest.raises(JobError, match="a driver that this checkpoint does not know"):
        target.write("w", 2, changes([(1, "of the first driver", None)]), LATER)
    assert target.write("w", 0, changes([(2, "of another job", None)]), Origin("bar", "c2", "d3", {}, True))
    assert place.rows() == {1: "second", 2: "of another job"}
    anew = Origin("shop", "c3", "d4", {}, is_first=True)
    if place.kind == "parquet":
        with pytest.raises(JobError, match="Write into another place"):
            target.write("w", 0, changes([(3, "anew", None)]), anew)
        return
    caplog.clear()
    assert target.write("w", 0, changes([(3, "anew", None)]), anew)
    assert "which this new checkpoint takes over" in caplog.text
    with pytest.raises(JobError, match="another job has taken over"):
        target.write("w", 2, changes([(1, "of the old checkpoint", None)]), next_driver)
    assert place.rows() == {1: "second", 2: "of another job", 3: "anew"}


def test_two_tables_of_a_database_have_marks_of_their_own(database: Place) -> None:
    database.run("DROP TABLE IF EXISTS more")
    database.run(
        "CREATE TABLE more (id bigint PRIMARY KEY, name varchar(40), total {})".format(
            "text" if database.kind == "sqlite" else "numeric(10, 2)"
        )
    )
    for table in ("totals", "more"):
        assert database.target(table).write("asyncstate", 0, changes([(1, table, None)]), UNKNOWN)
    assert database.run("SELECT name FROM more") == [("more",)]
    assert database.rows() == {1: "totals"}
