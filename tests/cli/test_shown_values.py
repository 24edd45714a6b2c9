"""``state show``: values as they are stored, keys that are found by what is printed of them, texts as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("typer")

from rich.console import Console
from typer.testing import CliRunner, Result

from asyncstate import (
    BroadcastStateDescriptor,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    ValueStateDescriptor,
)
from asyncstate.cli import inspecting, output
from asyncstate.cli.app import app
from asyncstate.offline.inspection import partition_sizes
from asyncstate.storage import Checkpoint, LocalFiles
from asyncstate.testing import OperatorHarness

NAN, INFINITE = float("nan"), float("inf")
FOR_EVER = 2**63 - 1


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["state", *arguments])


def lines(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


class Last(RecordOperator):
    """The last value a key, and what the broadcast input says."""

    num_inputs = 2
    broadcast_input = 1

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", self.kind))
        self.rules = context.get_state(BroadcastStateDescriptor("rules", pa.string(), pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.last.update(row["v"])

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        self.rules.put(row["rule"], 1)


def stored(folder: Path, keys: pa.Array, values: pa.Array) -> str:
    """A checkpoint whose state ``last`` has these values for these keys."""
    schema = pa.schema([("k", keys.type), ("v", values.type)])
    inputs = [schema, pa.schema([("rule", pa.string())])]
    with OperatorHarness(Last(values.type), inputs, [["k"], None], folder=folder, parallelism=2) as harness:
        harness.push(pa.RecordBatch.from_arrays([keys, values], schema=schema))
        harness.push([("fast",)], input=1)
        harness.end_batch()
    return str(folder / "checkpoint")


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["null", None, '"null"', "", '"', "true", "-1", "[us]"]),
        pa.array([b"\x9e\xe9\x65", None, b"", b"null"]),  # the first one's base64 is: null
        pa.array([NAN, None, INFINITE, -INFINITE, 0.1]),
        pa.array([NAN, None, 0.1], pa.float32()),
        pa.array([0, None, FOR_EVER, -FOR_EVER, 1], pa.timestamp("us", "UTC")),
        pa.array(
            [0, None, FOR_EVER, 1_700_000_000_123_456_789, 1_700_000_000_123_456_790], pa.timestamp("ns")
        ),
        pa.array([1_700_000_000_123_456_789, 1_700_000_000_123_456_000], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
        pa.array([Decimal("1E+2"), None, Decimal("0E+2")], pa.decimal128(5, -2)),
        pa.array([True, False, None]),
    ],
    ids=lambda keys: str(keys.type),
)
def test_each_key_is_found_by_what_is_printed_of_it(tmp_path: Path, keys: pa.Array) -> None:
    numbers = list(range(len(keys)))
    place = stored(tmp_path, keys, pa.array(numbers))
    rows = lines("show", place, "last")
    assert sorted(row["value"] for row in rows) == numbers
    for row in rows:
        key = row["key"]["k"]
        printed = json.dumps(key)
        assert [found["value"] for found in lines("show", place, "last", "--key", printed)] == [row["value"]]
        if isinstance(key, str) and key != "null" and not key.startswith('"'):
            assert lines("show", place, "last", "--key", key) == [row]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.timestamp("us"), "2024-05-06T07:08:09.1234567"),
        (pa.timestamp("ns"), "2024-05-06T07:08:09.1234567891"),
        (pa.timestamp("us"), "5 ms"),
        (pa.string(), '"a"b"'),
    ],
)
def test_no_key_is_taken_for_another_one(tmp_path: Path, kind: pa.DataType, text: str) -> None:
    place = stored(tmp_path, pa.array([1]).cast(kind), pa.array([1]))
    done = run("show", place, "last", "--key", text)
    assert (done.exit_code, f"is not a value of {kind}" in done.stderr) == (2, True)


def test_broadcast_state_is_not_asked_for_a_key(tmp_path: Path) -> None:
    place = stored(tmp_path, pa.array([1]), pa.array([1]))
    done = run("show", place, "rules", "--key", "fast")
    assert done.exit_code == 2
    assert "operator 'operator', state 'rules': broadcast state has no key; leave --key out" in done.stderr


_DEEP = pa.struct(
    [
        ("n", pa.float64()),
        ("pairs", pa.map_(pa.timestamp("us"), pa.float32())),
        ("days", pa.list_(pa.date32())),
        ("at", pa.struct([("fine", pa.timestamp("ns", "UTC"))])),
    ]
)


def test_what_json_has_no_form_of_is_text(tmp_path: Path) -> None:
    """Null is for what is null: a sum that a NaN has spoilt must not look as if there were none."""
    fine = {"fine": 123_456_789_000}  # rows have microseconds, and the state takes their number as its own
    values = [
        {"n": NAN, "pairs": [(FOR_EVER, NAN), (0, 1.5)], "days": [None], "at": fine},
        {"n": -INFINITE, "pairs": [], "days": [date(2024, 5, 6)], "at": None},
        {"n": None, "pairs": None, "days": None, "at": {"fine": None}},
    ]
    place = stored(tmp_path, pa.array([0, 1, 2]), pa.array(values, _DEEP))
    assert [
        row["value"] for row in sorted(lines("show", place, "last"), key=lambda row: row["key"]["k"])
    ] == [
        {
            "n": "NaN",
            "pairs": [[f"{FOR_EVER} us", "NaN"], ["1970-01-01T00:00:00", 1.5]],
            "days": [None],
            "at": {"fine": "1970-01-01 00:00:00.123456789Z"},
        },
        {"n": "-Infinity", "pairs": [], "days": ["2024-05-06"], "at": None},
        {"n": None, "pairs": None, "days": None, "at": {"fine": None}},
    ]


def test_tables_show_texts_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as markup nor as emoji, and without what would steer the terminal."""
    monkeypatch.setattr(output.console, "width", 200)
    texts = [":heart: [red]", "\\[bold]", "\x1b[31m\x07\x9b", "a\tb"]
    place = stored(tmp_path, pa.array([0, 1, 2, 3], pa.timestamp("us", "UTC")), pa.array(texts))
    assert "key k timestamp[us, tz=UTC], 2 partitions" in run("list", place).stdout
    shown = run("show", place, "last").stdout
    for text in (":heart: [red]", "\\[bold]", r"\x1b[31m\x07\x9b", r"a\tb"):
        assert text in shown
    assert "\x1b" not in shown


def test_json_says_that_there_is_more_beside_the_rows(tmp_path: Path) -> None:
    place = stored(tmp_path, pa.array(range(3)), pa.array(range(3)))
    done = run("show", place, "last", "--format", "json", "--limit", "2")
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == "there are more than 2; raise --limit to see them\n"
    assert run("show", place, "last", "--format", "json", "--limit", "3").stderr == ""


def test_stats_are_told_of_a_version_that_the_job_gives_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, *_ = [stored(tmp_path, pa.array([1]), pa.array([value])) for value in range(3)]
    job = Checkpoint(LocalFiles(place))
    job.claim()

    def while_retained(*arguments: Any) -> Any:
        found = list(partition_sizes(*arguments))
        if arguments[0].partition == 1:
            job.retain(1)
        return found

    monkeypatch.setattr(inspecting, "partition_sizes", while_retained)
    done = run("stats", place, "--version", "0")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "version 0")
    assert job.versions() == [2]


@pytest.mark.parametrize("width", [5, 20, 40])
def test_a_table_that_is_too_wide_has_a_line_for_each_value(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of rich would have columns of no width, and lose values."""
    monkeypatch.setattr(output, "console", Console(width=width, emoji=False))
    names = [f"column {number}" for number in range(12)]
    output.print_rows("rows", [{name: f"value of {name}" for name in names}, {names[0]: None}], names)
    said = capsys.readouterr().out.splitlines()
    assert [f"{name}: value of {name}" for name in names] == said[1:13]
    assert said[14:26] == [f"{name}: " for name in names]
