"""``python -m asyncstate state``: what the commands print, their exit codes, and what they leave alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner, Result

import asyncstate
from asyncstate import (
    InputSpec,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.cli import output
from asyncstate.cli.app import app
from asyncstate.errors import ConcurrentJobError
from asyncstate.storage import Checkpoint, LocalFiles
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, WindowAggregate, count, tumble

ROWS = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.int64())])


class Notes(RecordOperator):
    """A total and a map a key, and a timer."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))
        self.seen = context.get_state(MapStateDescriptor("seen", pa.int64(), pa.string()))

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        """Timers are only looked at."""

    def process(self, row: Row, ctx: RecordContext) -> Any:
        self.total.update((self.total.value() or 0) + row["v"])
        self.seen.put(row["v"], f"[{row['k']}]")
        ctx.timers.register_event_time(1_000_000 * row["v"])


@pytest.fixture
def harness(tmp_path: Path) -> OperatorHarness:
    """Three micro-batches, two partitions: versions 0, 1 and 2."""
    made = OperatorHarness(Notes(), ROWS, ["k", "n"], parallelism=2, folder=tmp_path)
    for batch in range(3):
        made.push([("ab"[v % 2], v % 3, v + 10 * batch) for v in range(1, 7)])
        made.end_batch()
    return made


@pytest.fixture
def place(harness: OperatorHarness, tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["state", *arguments], input=stdin)


def lines(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()  # the store's own copy may be a hard link to it
    file.write_bytes(bytes(data))


# list


def test_list_says_what_is_stored(place: str) -> None:
    (found,) = lines("list", place)
    assert (found["job"], found["versions"], found["version"]) == ("harness", [0, 1, 2], 2)
    (operator,) = found["operators"]
    assert (operator["uid"], operator["operator"], operator["parallelism"]) == ("operator", "Notes", 2)
    assert operator["key"] == "k string, n int32"
    states = {state["state"]: (state["kind"], state["types"]["value"]) for state in operator["states"]}
    assert states == {"total": ("value", "int64"), "seen": ("map", "string")}
    files = [path for path in Path(place, "state").rglob("*") if path.is_file()]
    assert operator["checkpoint_bytes"] <= sum(path.stat().st_size for path in files)
    assert operator["checkpoint_bytes"] > 0


def test_list_as_a_table(place: str) -> None:
    done = run("list", place, "--version", "1")
    assert done.exit_code == 0
    for text in ("job harness: versions 0, 1, 2; shown is 1", "operator (Notes)", "total", "seen", "map"):
        assert text in done.stdout


class Structs(Notes):
    """One state of the given type."""

    def __init__(self, type_: str) -> None:
        self.type = type_

    def open(self, context: OperatorContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", self.type, ttl="1 hour"))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        self.total.update({"count": row.v, **({"at last": None} if "at last" in self.type else {})})


def test_list_shows_types_with_fields_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in JSON and in the table, which is a line an entry; also what was declared before."""
    for type_ in ("struct<count: bigint>", "struct<count: bigint, `at last`: array<struct<t: timestamp>>>"):
        harness = OperatorHarness(Structs(type_), ROWS, ["k"], folder=tmp_path)
        harness.push([("a", 1, 1)])
        harness.end_batch()
    place = str(tmp_path / "checkpoint")
    (found,) = lines("list", place)
    (state,) = found["operators"][0]["states"]
    assert state["types"] == {
        "value": "struct<count: int64, `at last`: list<struct<t: timestamp[us, tz=UTC]>>>",
        "namespaced": "no",
        "ttl": "processing",
        "value version 0": "struct<count: int64>",
    }
    assert "\\" not in run("list", place, "--format", "json").stdout
    monkeypatch.setattr(output.console, "width", 200)  # it has taken that of the first command
    table = run("list", place).stdout
    for part, text in state["types"].items():
        assert f"{part}: {text}" in table


def test_list_shows_schemas_as_structs_and_leaves_other_texts(tmp_path: Path) -> None:
    windows = WindowAggregate(tumble("1 hour"), [count(), count("v")])
    with OperatorHarness(windows, "k string, v timestamp", ["k"], event_time="v", folder=tmp_path) as harness:
        harness.push([("a", 0)])
        harness.end_batch()
        (stored,) = [state.types for state in harness.states() if state.name == "slices"]
        (found,) = lines("list", str(tmp_path / "checkpoint"))
    (shown,) = [state["types"] for state in found["operators"][0]["states"] if state["state"] == "slices"]
    assert shown == stored | {"value": "struct<count1: int64 not null, `count.v`: int64 not null>"}


# show


def test_show_gives_entries_of_a_version(place: str) -> None:
    newest = {(row["key"]["k"], row["key"]["n"]): row["value"] for row in lines("show", place, "total")}
    assert newest == {("ab"[v % 2], v % 3): 3 * v + 30 for v in range(1, 7)}
    first = {row["value"] for row in lines("show", place, "total", "--version", "0")}
    assert first == set(range(1, 7))


def test_show_filters_by_key_and_stops_at_the_limit(place: str) -> None:
    rows = lines("show", place, "seen", "--key", "b", "--key", "2")
    assert [(row["user_key"], row["value"]) for row in rows] == [(5, "[b]"), (15, "[b]"), (25, "[b]")]
    assert len(lines("show", place, "seen", "--limit", "4")) == 4
    done = run("show", place, "seen", "--limit", "4")
    assert "there are more than 4" in done.stdout
    assert "[b]" in done.stdout
    assert "ttl_stamp" not in done.stdout


def test_show_refuses_a_key_of_another_shape(place: str) -> None:
    done = run("show", place, "seen", "--key", "b")
    assert done.exit_code == 2
    assert "--key is given 1 times, but the key has 2 columns" in done.stderr


@pytest.mark.parametrize("number", ["banana", "9" * 30, "1.5", ""])
def test_show_refuses_a_key_of_another_type(place: str, number: str) -> None:
    done = run("show", place, "seen", "--key", "b", "--key", number)
    assert done.exit_code == 2
    assert f"--key {number!r} is not a value of int32, the type of key column 'n'" in done.stderr


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.bool_(), "true", "yes"),
        (pa.float64(), "15e-1", "x"),
        (pa.timestamp("us"), "2024-05-06T07:08:09.000001", "now"),
        (pa.date32(), "2024-05-06", "06.05.2024"),
        (pa.decimal128(5, 2), "1.50", "1,5"),
        (pa.string(), "null", None),
    ],
)
def test_show_takes_keys_of_any_type(tmp_path: Path, kind: pa.DataType, good: str, bad: str | None) -> None:
    given = None if good == "null" else 1.5 if pa.types.is_floating(kind) else pa.scalar(good).cast(kind)
    schema = pa.schema([("k", kind)])
    with OperatorHarness(GroupAggregate([count()]), schema, ["k"], folder=tmp_path) as made:
        made.push(pa.RecordBatch.from_arrays([pa.array([given], kind)], schema=schema))
        made.end_batch()
        (state,) = [spec.name for spec in made.states()]
        assert len(lines("show", str(tmp_path / "checkpoint"), state, "--key", good)) == 1
        if bad is not None:
            done = run("show", str(tmp_path / "checkpoint"), state, "--key", bad)
            assert (done.exit_code, f"is not a value of {kind}" in done.stderr) == (2, True)


def test_show_timers(place: str) -> None:
    rows = lines("show", place, "@timers", "--limit", "100")
    assert sorted(row["value"]["time"] for row in rows) == sorted(
        1_000_000 * (v + 10 * batch) for batch in range(3) for v in range(1, 7)
    )


# stats


def test_stats_count_by_state_and_partition(place: str) -> None:
    rows = lines("stats", place)
    assert {(row["state"], row["partition"]) for row in rows} == {
        (state, partition) for state in ("total", "seen", "@timers") for partition in (0, 1)
    }
    sums = {
        state: tuple(sum(row[name] for row in rows if row["state"] == state) for name in ("keys", "entries"))
        for state in ("total", "seen", "@timers")
    }
    assert sums == {"total": (6, 6), "seen": (6, 18), "@timers": (6, 18)}
    assert run("stats", place).exit_code == 0


# verify


def test_verify_finds_nothing_in_a_good_checkpoint(place: str) -> None:
    done = run("verify", place)
    assert done.exit_code == 0
    assert "of 3 versions read, 0 problems" in done.stdout


@pytest.mark.parametrize("what", ["changed", "cut", "missing"])
def test_verify_names_a_damaged_file_and_the_versions_that_need_it(place: str, what: str) -> None:
    victim = next(path for path in sorted(Path(place).rglob("delta-*.sst")) if "-0000000001-" in path.name)
    if what == "changed":
        damage(victim)
    else:
        data = victim.read_bytes()
        victim.unlink()
        if what == "cut":
            victim.write_bytes(data[:-1])
    done = run("verify", place)
    assert done.exit_code == 1
    assert victim.name in done.stdout.replace("\n", "")
    assert "versions without a problem: 0" in done.stdout
    told = json.loads(run("verify", place, "--format", "json").stdout)
    assert [(Path(p["file"]).name, p["versions"]) for p in told["problems"]] == [(victim.name, [1, 2])]


def test_verify_tells_of_a_damaged_manifest(place: str) -> None:
    damage(max(Path(place, "manifests").iterdir()))
    done = run("verify", place)
    assert done.exit_code == 1
    assert "manifests/" in done.stdout
    assert "versions without a problem: 0, 1" in done.stdout


# rollback


def test_rollback_drops_newer_versions_and_fences_the_job(harness: OperatorHarness, place: str) -> None:
    done = run("rollback", place, "0", "--yes")
    assert done.exit_code == 0
    assert "back at version 0; dropped: 1, 2" in done.stdout
    assert "batch 1 again" in done.stdout
    assert "--spark-checkpoint" in done.stdout
    assert Checkpoint(LocalFiles(place)).versions() == [0]
    harness.push([("a", 0, 1)])
    with pytest.raises(ConcurrentJobError):
        harness.end_batch()


def test_a_job_goes_on_from_where_it_was_rolled_back_to(place: str, tmp_path: Path) -> None:
    assert run("rollback", place, "1", "--yes").exit_code == 0
    again = OperatorHarness(Notes(), ROWS, ["k", "n"], parallelism=2, folder=tmp_path)
    again.push([("a", 0, 100)])
    again.end_batch()
    totals = {tuple(row["key"].values()): row["value"] for row in lines("show", place, "total")}
    assert totals == {("ab"[v % 2], v % 3): 2 * v + 10 + (100 if v == 6 else 0) for v in range(1, 7)}


def test_rollback_asks_first(harness: OperatorHarness, place: str) -> None:
    done = run("rollback", place, "0", stdin="n\n")
    assert done.exit_code == 1
    assert "Forget versions 1, 2 of job 'harness' for good?" in done.stdout
    assert Checkpoint(LocalFiles(place)).versions() == [0, 1, 2]
    harness.push([("a", 0, 1)])
    harness.end_batch()  # it has not been fenced
    assert run("rollback", place, "0", stdin="y\n").exit_code == 0
    assert Checkpoint(LocalFiles(place)).versions() == [0]


def test_rollback_refuses_what_is_not_there(place: str) -> None:
    done = run("rollback", place, "7", "--yes")
    assert done.exit_code == 2
    assert "cannot roll back to version 7: the checkpoint holds [0, 1, 2]" in done.stderr
    assert run("rollback", place, "2", "--yes").stdout.startswith("version 2 is the newest")


# places


def test_no_checkpoint_is_an_error_and_makes_no_folder(tmp_path: Path) -> None:
    done = run("list", str(tmp_path / "nowhere"))
    assert done.exit_code == 2
    assert "there is no checkpoint folder" in done.stderr
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    done = run("list", str(tmp_path / "empty"))
    assert done.exit_code == 2
    assert "holds no version" in done.stderr


def test_commands_read_an_object_store(s3: Any) -> None:
    place = s3.place()
    with OperatorHarness(Notes(), ROWS, ["k", "n"], parallelism=2, checkpoint=place) as made:
        made.push([("a", 1, 5)])
        made.end_batch()
        made.push([("a", 1, 6)])
        made.end_batch()
    assert [row["value"] for row in lines("show", place, "total")] == [11]
    assert run("verify", place).exit_code == 0
    assert run("rollback", place, "0", "--yes").exit_code == 0
    assert [row["value"] for row in lines("show", place, "total")] == [5]


def test_it_runs_as_a_module_without_spark(place: str) -> None:
    code = (
        "import runpy, sys; sys.argv = ['asyncstate', 'state', 'stats', sys.argv[1]]\n"
        "try: runpy.run_module('asyncstate', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "@timers" in done.stdout


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom asyncstate.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "state"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the package {missing}, which is not installed" in done.stderr
    assert "pip install 'asyncstate[cli]'" in done.stderr
    told = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False
    )
    assert told.stdout == f"asyncstate {asyncstate.__version__}\n"


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "asyncstate"], [str(Path(sys.executable).parent / "asyncstate")]]
)
def test_both_ways_of_calling_it(command: list[str]) -> None:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"asyncstate {asyncstate.__version__}\n", "")
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert "state" in helped.stdout
    assert ("python -m asyncstate" in helped.stdout) == ("-m" in command)


_AT = datetime(2024, 5, 6, 7, 8, 9, 500_000)


@pytest.mark.parametrize(
    ("kind", "given", "ways", "bad"),
    [
        (pa.decimal128(5, 2), Decimal("1.50"), ["1.5", "1.50", "15e-1"], ["1.505", "12345", "1,5"]),
        (pa.timestamp("us"), _AT, ["2024-05-06 07:08:09.5", "2024-05-06T07:08:09.500000"], ["now"]),
        (pa.timestamp("ns"), _AT, ["2024-05-06T07:08:09.5"], ["2024-05-06T07:08:09.5Z"]),
        (
            pa.timestamp("us", "UTC"),
            _AT.replace(tzinfo=UTC),
            ["2024-05-06T07:08:09.5Z", "2024-05-06T09:08:09.5+02:00", "2024-05-06T07:08:09.5"],
            ["noon"],
        ),
        (pa.date32(), _AT.date(), ["20240506", "2024-05-06"], ["2024-13-01"]),
        (pa.binary(), b"\x00\xff", ["AP8="], ["\x00", "AP8", "é"]),
    ],
)
def test_show_takes_a_key_however_its_value_is_written(
    tmp_path: Path, kind: pa.DataType, given: Any, ways: list[str], bad: list[str]
) -> None:
    folder, schema = str(tmp_path / "checkpoint"), pa.schema([("k", kind)])
    with OperatorHarness(GroupAggregate([count()]), schema, ["k"], folder=tmp_path) as made:
        made.push([(given,)])
        made.end_batch()
        (state,) = [spec.name for spec in made.states()]
        for way in ways:
            assert len(lines("show", folder, state, "--key", way)) == 1, way
        for text in bad:
            done = run("show", folder, state, "--key", text)
            assert (done.exit_code, "the type of key column 'k'" in done.stderr) == (2, True), text


@pytest.mark.parametrize("form", ["json", "table"])
def test_texts_that_the_terminal_lacks_are_escaped(tmp_path: Path, form: str) -> None:
    with OperatorHarness(Notes(), ROWS, ["k", "n"], folder=tmp_path) as made:
        made.push([("\u00e9\u4e2d", 1, 5)])
        made.end_batch()
    command = [sys.executable, "-m", "asyncstate", "state", "show", str(tmp_path / "checkpoint"), "seen"]
    done = subprocess.run(
        [*command, "--format", form],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    if form == "json":
        assert json.loads(done.stdout)["value"] == "[\u00e9\u4e2d]"
    else:
        assert b"[\\xe9\\u4e2d]" in done.stdout


def test_a_limit_beyond_what_can_be_counted_is_refused(place: str) -> None:
    assert run("show", place, "seen", "--limit", str(2**63 - 1)).exit_code == 0
    done = run("show", place, "seen", "--limit", str(2**63))
    assert done.exit_code == 2
    assert "--limit" in done.output


def test_verify_says_with_its_exit_code_that_the_record_of_the_versions_is_damaged(place: str) -> None:
    damage(max(Path(place, "owners").glob("*.start.json")))
    done = run("verify", place)
    assert (done.exit_code, "is damaged: its checksum" in done.stdout) == (1, True)
    told = json.loads(run("verify", place, "--format", "json").stdout)
    assert (told["versions"], [one["file"] for one in told["problems"]]) == ([], ["owners"])
    assert run("list", place).exit_code == 2


def test_no_text_of_a_checkpoint_controls_the_terminal(tmp_path: Path) -> None:
    name = "k\x1b[31m"
    with OperatorHarness(
        GroupAggregate([count()]), pa.schema([(name, pa.string())]), [name], folder=tmp_path
    ) as made:
        made.push([("a\x1b]0;title\x07\x9b",)])
        made.end_batch()
        (state,) = [spec.name for spec in made.states()]
    folder = str(tmp_path / "checkpoint")
    for arguments in (
        ["list", folder],
        ["show", folder, state],
        ["show", folder, state, "--key", "a", "--key", "b"],
    ):
        done = run(*arguments)
        assert not set("\x1b\x07\x9b") & set(done.output)
    assert r"k\x1b[31m" in run("list", folder).stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room is simulated by Linux")
@pytest.mark.parametrize("arguments", [["stats"], ["show", "total", "--format", "json"]])
def test_an_output_that_cannot_be_written_is_said(place: str, arguments: list[str]) -> None:
    command, *more = arguments
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "asyncstate", "state", command, place, *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("The output cannot be written: ")
    assert "No space left" in done.stderr
