"""Migrations of one state: what is stored afterwards is what a program declared like that would have written."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from asyncstate import StateTtl
from asyncstate.cli.app import app
from asyncstate.errors import ConcurrentJobError, StateDeclarationError
from asyncstate.offline import migration
from asyncstate.offline.migration import (
    CastField,
    DropField,
    DropState,
    Migration,
    RenameField,
    RenameState,
    migrate,
)
from asyncstate.storage import Checkpoint, LocalFiles, build_store
from asyncstate.testing import OperatorHarness
from tests.state.evolving import INPUTS, KEYS, KINDS, READ, Columns, Kinds

OLD = pa.struct(
    [("a", pa.int64()), ("b", pa.string()), ("s", pa.struct([("x", pa.float64()), ("y", pa.bool_())]))]
)
EDITS: dict[str, tuple[Migration, pa.DataType]] = {
    "drop": (DropField("b"), pa.struct([OLD.field("a"), OLD.field("s")])),
    "rename": (RenameField("b", "text"), pa.struct([OLD.field("a"), ("text", pa.string()), OLD.field("s")])),
    "cast": (CastField("a", "int16"), pa.struct([("a", pa.int16()), OLD.field("b"), OLD.field("s")])),
    "cast to text": (
        CastField("a", "string"),
        pa.struct([("a", pa.string()), OLD.field("b"), OLD.field("s")]),
    ),
    "drop inside": (
        DropField("s.x"),
        pa.struct([OLD.field("a"), OLD.field("b"), ("s", pa.struct([("y", pa.bool_())]))]),
    ),
    "cast inside": (
        CastField("s.x", "float32"),
        pa.struct(
            [OLD.field("a"), OLD.field("b"), ("s", pa.struct([("x", pa.float32()), ("y", pa.bool_())]))]
        ),
    ),
}


def old_value(number: int) -> dict[str, Any]:
    inside = None if number % 7 == 3 else {"x": number / 2, "y": None if number % 5 else True}
    return {"a": None if number % 11 == 5 else number, "b": f"text {number}" * 4, "s": inside}


def new_value(case: str, value: dict[str, Any]) -> dict[str, Any]:
    """The value as a program with the new type would have put it."""
    a, b, s = value["a"], value["b"], value["s"]
    return {
        "drop": {"a": a, "s": s},
        "rename": {"a": a, "text": b, "s": s},
        "cast": {"a": a, "b": b, "s": s},
        "cast to text": {"a": None if a is None else str(a), "b": b, "s": s},
        "drop inside": {"a": a, "b": b, "s": s and {"y": s["y"]}},
        "cast inside": {"a": a, "b": b, "s": s},
    }[case]


def filled(kind: pa.DataType, values: list[Any], **more: Any) -> OperatorHarness:
    """One key with a list of several chunks, others with little."""
    harness = OperatorHarness(Kinds(kind, values), INPUTS, KEYS, **more)
    harness.push([("rule", 1), ("other", 2)], input=1)
    harness.push([(1, at) for at in range(200)] + [(at % 20, at) for at in range(200, 250)])
    harness.end_batch()
    return harness


@pytest.mark.parametrize("case", EDITS)
def test_every_kind_is_as_if_declared_like_that(case: str) -> None:
    change, kind = EDITS[case]
    values = [old_value(number) for number in range(250)]
    new_values = [new_value(case, value) for value in values]
    with filled(OLD, values, parallelism=2) as old, filled(kind, new_values, parallelism=2) as new:
        snapshot = old.snapshot()
        for state in KINDS:
            migrate(str(snapshot / "checkpoint"), "operator", state, change)
        with old.restore(snapshot, operator=Kinds(kind, new_values)) as migrated:
            assert migrated.state_entries() == new.state_entries()
            assert migrated.states() == new.states()
            for harness in (migrated, new):
                harness.push([(1, 5), (1, READ), (3, READ)])
            assert migrated.end_batch() == new.end_batch()


WIDE = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("t", pa.string())])
NARROW = pa.schema([("k", pa.int64()), ("n", pa.int32()), ("t", pa.string())])


@pytest.mark.parametrize("ttl", [None, StateTtl("1 day")], ids=["for ever", "with a ttl"])
@pytest.mark.parametrize("text", ["t" * 60, ""])
def test_columns_are_as_if_declared_like_that(text: str, ttl: StateTtl | None, tmp_path: Path) -> None:
    rows = [(at % 3, at, text or None) for at in range(2500)] + [(9, None, "x")]
    with OperatorHarness(Columns(ttl=ttl), NARROW, ["k"]) as new:
        new.push(rows)
        new.end_batch()
        with OperatorHarness(Columns(ttl=ttl), WIDE, ["k"], folder=tmp_path) as old:
            old.push(rows)
            old.end_batch()
        for state in ("one", "many"):
            migrate(str(tmp_path / "checkpoint"), "operator", state, CastField("n", "int32"))
        with OperatorHarness(Columns(ttl=ttl), NARROW, ["k"], folder=tmp_path) as migrated:
            assert migrated.state_entries() == new.state_entries()
            migrated.push([(9, 1, "y")])
            assert [row[1:] for row in migrated.end_batch()] == [(9, 9, None, "x", 2), (9, 9, 1, "y", 2)]


def test_older_versions_of_values_are_rewritten_too(tmp_path: Path) -> None:
    newer = pa.struct([("a", pa.int64()), ("z", pa.int64())])
    settings: dict[str, Any] = {"folder": tmp_path}
    older = Kinds(pa.struct([("a", pa.int32())]), [{"a": 1}])
    with OperatorHarness(older, INPUTS, KEYS, **settings) as harness:
        harness.push([(1, 0)])
        harness.end_batch()
    with OperatorHarness(Kinds(newer, [{"a": 2, "z": 3}]), INPUTS, KEYS, **settings) as harness:
        harness.push([(2, 0)])
        harness.end_batch()
    for state in KINDS:
        migrate(str(tmp_path / "checkpoint"), "operator", state, RenameField("z", "zone"))
    renamed = pa.struct([("a", pa.int64()), ("zone", pa.int64())])
    with OperatorHarness(Kinds(renamed), INPUTS, KEYS, **settings) as harness:
        assert all("value version 0" not in spec.types for spec in harness.states())
        harness.push([(1, READ), (2, READ)])
        first, second = harness.end_batch()
        assert "'single': {'a': 1, 'zone': None}" in first[2]
        assert "'items': [{'a': 2, 'zone': 3}]" in second[2]


# -- the command line -----------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Of ``Kinds`` with plain int64 values, one of which does not fit 32 bits."""
    with OperatorHarness(Kinds(pa.int64(), [1, 2**40]), INPUTS, KEYS, folder=tmp_path) as harness:
        harness.push([(1, 0), (77, 1)])
        harness.end_batch()
    return str(tmp_path / "checkpoint")


def reopened(checkpoint: str, operator: Kinds) -> OperatorHarness:
    return OperatorHarness(operator, INPUTS, KEYS, folder=Path(checkpoint).parent)


def run(*arguments: str, code: int = 0, answer: str | None = None) -> str:
    done = CliRunner().invoke(app, ["state", "migrate", *arguments], input=answer)
    assert done.exit_code == code, done.output
    return re.sub(r"\s+", " ", done.output)


def test_a_lossy_cast_is_refused_with_its_key_and_changes_nothing(checkpoint: str) -> None:
    with reopened(checkpoint, Kinds(pa.int64())) as harness:
        before = harness.state_entries()
    text = run("cast-field", checkpoint, "operator", "single", "value", "int32", "--yes", code=2)
    assert "operator 'operator', state 'single'" in text
    assert f"is {2**40} for key" in text
    assert "nothing was changed" in text
    with reopened(checkpoint, Kinds(pa.int64())) as harness:
        assert harness.state_entries() == before


def test_the_printed_command_lets_the_program_go_on(checkpoint: str) -> None:
    """For each state the refusal names; it is done when none is refused any more."""
    program = Kinds(pa.int16(), [3])
    for _ in range(len(KINDS) - 1):
        with pytest.raises(StateDeclarationError) as refused:
            reopened(checkpoint, program)
        command = re.search(
            r"python -m asyncstate state migrate (\S+) CHECKPOINT (\S+) (\S+) (\S+) (\S+)", str(refused.value)
        )
        assert command
        run(command[1], checkpoint, *command.groups()[1:], "--yes", code=2)  # 2**40 is no int16
        run("drop-state", checkpoint, command[2], command[3], "--yes")
    run("cast-field", checkpoint, "operator", "rules", "value", "int16", "--yes")  # it is empty
    with reopened(checkpoint, program) as harness:
        harness.push([(1, READ), (1, 0), (1, READ)])
        (_, _, first), (_, _, second) = harness.end_batch()
        assert first.startswith("{'single': None")
        assert second.startswith("{'single': 3")


def test_a_state_is_renamed_or_dropped_and_the_others_stay(checkpoint: str) -> None:
    assert "Rename state 'items' to 'old_items'" in run(
        "rename-state", checkpoint, "operator", "items", "old_items", "--yes"
    )
    run("drop-state", checkpoint, "operator", "entries", "--yes")
    with reopened(checkpoint, Kinds(pa.int64(), [8])) as harness:
        harness.push([(1, READ)])
        (row,) = harness.end_batch()
        assert "'items': []" in row[2]
        assert "'entries': {}" in row[2]
        assert "'aging_items': [1]" in row[2]
        assert "old_items" in {spec.name for spec in harness.states()}


def test_nothing_happens_unless_confirmed(checkpoint: str) -> None:
    assert "Its query must be stopped" in run(
        "drop-state", checkpoint, "operator", "single", code=1, answer="n\n"
    )
    with reopened(checkpoint, Kinds(pa.int64())) as harness:
        assert "single" in {spec.name for spec in harness.states()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("drop-state", "nobody", "single"), "no operator 'nobody'; its operators are 'operator'"),
        (("drop-state", "operator", "nothing"), "no state 'nothing'; its states are 'single', 'spaced'"),
        (("rename-state", "operator", "single", "items"), "already has a state 'items'"),
        (("rename-state", "operator", "single", "a b"), "state name 'a b' is not allowed"),
        (("drop-field", "operator", "single", "a"), "holds a int64, which has no fields"),
        (
            ("cast-field", "operator", "single", "value", "int33"),
            "'int33' is not a type; write one of bool, int8",
        ),
    ],
)
def test_what_is_not_possible_is_said_before_the_job_is_stopped(
    checkpoint: str, arguments: tuple[str, ...], message: str
) -> None:
    command, *rest = arguments
    with reopened(checkpoint, Kinds(pa.int64(), [1])) as running:
        assert message in run(command, checkpoint, *rest, "--yes", code=2)
        running.push([(1, 0)])
        running.end_batch()  # it still owns the checkpoint


def test_a_running_job_cannot_commit_over_a_migration(checkpoint: str) -> None:
    with reopened(checkpoint, Kinds(pa.int64(), [1])) as running:
        migrate(checkpoint, "operator", "single", DropState())
        running.push([(1, 0)])
        with pytest.raises(ConcurrentJobError):
            running.end_batch()


def test_the_oldest_version_kept_can_be_migrated_after_a_rollback(tmp_path: Path) -> None:
    with reopened(str(tmp_path / "checkpoint"), Kinds(pa.int64(), [1])) as harness:
        for key in range(5):
            harness.push([(key, 0)])
            harness.end_batch()
    owner = Checkpoint(LocalFiles(tmp_path / "checkpoint"))
    owner.claim()
    owner.retain(2)
    owner.rollback(3)
    migrate(str(tmp_path / "checkpoint"), "operator", "single", RenameState("w"))
    with reopened(str(tmp_path / "checkpoint"), Kinds(pa.int64(), [1])) as harness:
        assert "w" in {spec.name for spec in harness.states()}
        harness.push([(9, 0)])
        harness.end_batch()
    assert owner.versions() == [3, 4]


def test_a_folder_without_a_checkpoint_is_named_and_none_is_made(tmp_path: Path) -> None:
    """Before anything is asked."""
    text = run("drop-state", str(tmp_path), "operator", "single", code=2)
    assert "holds no version of any job's state" in text
    text = run("drop-state", str(tmp_path / "nowhere"), "operator", "single", code=2)
    assert "there is no checkpoint folder" in text
    assert not (tmp_path / "nowhere").exists()


def test_the_local_folder_is_made_or_named(checkpoint: str, tmp_path: Path) -> None:
    run("drop-state", checkpoint, "operator", "single", "--yes", "--local-dir", str(tmp_path / "new" / "one"))
    (tmp_path / "file").write_text("")
    text = run(
        "drop-state", checkpoint, "operator", "items", "--yes", "--local-dir", str(tmp_path / "file"), code=2
    )
    assert "cannot create a scratch folder" in text


@pytest.mark.parametrize(
    ("kind", "value", "refused", "shown", "done"),
    [
        (pa.float64(), float("nan"), "bool", "'NaN'", "float32"),
        (pa.timestamp("us"), 2**63 - 1, "timestamp[ns]", "'9223372036854775807 us'", "timestamp[us, tz=UTC]"),
    ],
    ids=["a NaN is no truth value", "for ever is beyond nanoseconds"],
)
def test_values_that_python_cannot_compare_or_show(
    kind: pa.DataType, value: Any, refused: str, shown: str, done: str, tmp_path: Path
) -> None:
    with OperatorHarness(Kinds(kind, [value]), INPUTS, KEYS, folder=tmp_path) as harness:
        harness.push([(2, 0)])
        harness.end_batch()
    place = str(tmp_path / "checkpoint")
    text = run("cast-field", place, "operator", "single", "value", refused, "--yes", code=2)
    assert f"is {shown} for key" in text
    run("cast-field", place, "operator", "single", "value", done, "--yes")


def test_texts_that_are_no_numbers_are_refused_and_fields_must_exist(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.string())])
    with OperatorHarness(Kinds(kind, [{"a": "1"}, {"a": "one"}]), INPUTS, KEYS, folder=tmp_path) as harness:
        harness.push([(1, 0), (2, 1)])
        harness.end_batch()
    place = str(tmp_path / "checkpoint")
    assert "is 'one' for key" in run("cast-field", place, "operator", "items", "a", "int64", "--yes", code=2)
    assert "no field 'z'; the fields are 'a'" in run(
        "drop-field", place, "operator", "items", "z", "--yes", code=2
    )
    assert "is the only one; drop the state" in run(
        "drop-field", place, "operator", "items", "a", "--yes", code=2
    )
    migrate(place, "operator", "single", RenameState("text"))


def test_one_partition_at_a_time_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk needs room for one, not for the whole state."""
    with OperatorHarness(Kinds(pa.int64(), [1]), INPUTS, KEYS, folder=tmp_path, parallelism=4) as harness:
        harness.push([(key, 0) for key in range(40)])
        harness.end_batch()
    before = []

    def watched(*given: Any) -> Any:
        before.append(list((tmp_path / "scratch").rglob("*.sst")))
        return build_store(*given)

    monkeypatch.setattr(migration, "build_store", watched)
    place = str(tmp_path / "checkpoint")
    migrate(place, "operator", "single", CastField("value", "int32"), local_dir=str(tmp_path / "scratch"))
    assert before == [[]] * 4
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    ("was", "values", "now", "refused"),
    [
        (pa.decimal128(5, 2), [Decimal("7.00")], "int64", None),
        (pa.decimal128(5, 2), [Decimal("7.00"), Decimal("7.50")], "int64", "is Decimal('7.50') for key k=1"),
        (pa.date32(), [date(2024, 5, 6)], "string", None),
        (pa.timestamp("us"), [0, 2**63 - 1], "string", "is '9223372036854775807 us' for key k=1"),
        (pa.binary(), [b"1"], "int32", "'value' of binary cannot be cast to int32 and back"),
        (pa.decimal128(20, -2), [Decimal("5E+2")], "string", "cannot be cast to string"),
        (pa.string(), ["inf", "1.5"], "float64", None),
        (pa.string(), ["1", "1e999"], "float64", "is '1e999' for key k=1"),
    ],
)
def test_a_cast_keeps_each_value_or_says_which_one_it_cannot_keep(
    was: pa.DataType, values: list[Any], now: str, refused: str | None, tmp_path: Path
) -> None:
    with OperatorHarness(Kinds(was, values), INPUTS, KEYS, folder=tmp_path) as harness:
        harness.push([(at, at) for at in range(len(values))])
        harness.end_batch()
    place = str(tmp_path / "checkpoint")
    arguments = ("cast-field", place, "operator", "single", "value", now, "--yes")
    if refused is None:
        assert f"version 0, {len(values)} entries written" in run(*arguments)
    else:
        assert refused in run(*arguments, code=2)
