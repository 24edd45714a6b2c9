"""What all benchmarks are made of: turns, processes, the table, JSON, exit codes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import typer

from bench.frame import CaseError, Column, Report, Row, WrongResult, isolated, medians, ratio, turns
from bench.frame.measure import in_turns
from bench.frame.report import SHOWN, costs, draw, made, plain, short, sides, table, times
from bench.processor_time import Spent


@pytest.mark.long
def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str, seconds: float):  # type: ignore[no-untyped-def]
        def run(given: int) -> Spent:
            order.append((name, given))
            return Spent(seconds * given, None)

        return run

    spent = turns({"a": side("a", 1.0), "b": side("b", 2.0)}, 2, iter([10, 20, 30]))
    assert order == [("a", 10), ("b", 10), ("b", 20), ("a", 20), ("a", 30), ("b", 30)]
    assert spent == {"a": [Spent(20.0, None), Spent(30.0, None)], "b": [Spent(40.0, None), Spent(60.0, None)]}
    order.clear()
    turns({"a": side("a", 1.0), "b": side("b", 2.0)}, 1, iter([1, 2]), turned=False)
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_a_ratio_is_the_median_of_pairs_and_of_processors_where_they_are_known() -> None:
    mine = [Spent(2.0, 1.0), Spent(9.0, 1.0), Spent(4.0, 3.0)]
    others = [Spent(1.0, 1.0), Spent(3.0, 2.0), Spent(1.0, None)]
    assert ratio(mine, others) == (3.0, 2.0, 4.0)
    assert ratio(mine, others, cpu=True) == (0.75, 0.5, 1.0)
    assert ratio(mine, [Spent(1.0, None)] * 3, cpu=True) is None
    assert medians(mine, 2) == (2e6, 0.5e6)
    rows = sides({"base": others, "own": mine}, 1, "base", speed=True, scale=1)
    assert [row.facts["ratio"] for row in rows] == [1.0, 1 / 3]
    assert (rows[1].facts["low"], rows[1].facts["high"]) == (0.25, 0.5)


def doubled(numbers: list[int], place: str) -> dict[str, list[int]]:
    """Runs in a process of its own."""
    Path(place).write_text(str(os.getpid()))
    return {"doubled": [2 * number for number in numbers]}


def dies(code: int) -> None:
    """Ends its process."""
    print("last words", flush=True)
    os._exit(code)


def test_a_case_runs_in_a_process_of_its_own_and_one_that_dies_says_why(tmp_path: Path) -> None:
    sys.modules["tests.bench.test_frame"] = sys.modules[__name__]
    for function in (doubled, dies):
        function.__module__ = "tests.bench.test_frame"
    assert isolated(doubled, [1, 2], str(tmp_path / "pid")) == {"doubled": [2, 4]}
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    with pytest.raises(CaseError, match=r"ended with 3; .*\nlast words"):
        isolated(dies, 3)


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (plain, 12, "12"),
        (plain, 1.234, "1.23"),
        (plain, 12.34, "12.3"),
        (plain, 1234.5, "1,234"),
        (short, 1_234_567, "1.23M"),
        (short, 999_600, "1M"),
        (short, 9.0, "9"),
        (times, 1.504, "1.50x"),
        (times, 14.26, "14.3x"),
        (times, 146.2, "146x"),
        (SHOWN["percent"], -0.036, "-3.6%"),
        (SHOWN["mib"], 3 << 20, "3.00"),
    ],
)
def test_figures_have_about_three_digits(shown: object, value: float, text: str) -> None:
    assert shown(value) == text  # type: ignore[operator]


def test_a_table_fits_80_columns_and_cuts_no_name() -> None:
    long = "An operator with a name that is longer than the space that is left for it, async"
    columns = [Column(f"figure {number}", f"f{number}") for number in range(8)]
    facts = {f"f{number}": 1_000_000 + number for number in range(8)}
    rows = [
        Row(name="sync", group="Group", facts=facts),
        Row(name=long[:78], group="Group", facts=facts),
        Row(name="other", failed="it broke\nsecond line"),
        Row(name="absent", skipped="no module"),
    ]
    lines = table(rows, columns)
    assert all(len(line) <= 80 for line in lines), lines
    text = "\n".join(lines)
    assert long[:78] in text
    assert lines[3] == "Group"
    assert "other: FAILED: it broke" in lines
    assert "absent: left out: no module" in lines
    assert "second line" not in text


def test_a_spread_is_one_column_and_empty_columns_are_left_out() -> None:
    columns = [*costs("us"), Column("never", "nothing")]
    lines = table([Row(name="a", facts={"cost": 1.0, "ratio": 2.0, "low": 1.5, "high": 2.5})], columns)
    assert lines[-1].split() == ["a", "1.00", "2.00", "1.50-2.50"]
    assert "never" not in " ".join(lines)


def _run(tmp_path: Path, *failing: Exception) -> tuple[int, list[Row]]:
    try:
        with Report("some", tmp_path, seed=1) as report:
            report.section("title", [Column("fact", "fact")])
            for number, error in enumerate(failing):

                def measure(number: int = number, error: Exception = error):  # type: ignore[no-untyped-def]
                    yield Row(name=f"good {number}", facts={"fact": 7})
                    raise error

                report.case(f"bad {number}", measure)
            report.case("last", lambda: [Row(name="last", facts={"fact": 8})])
    except typer.Exit as exit_:
        return exit_.exit_code, report.rows
    return 0, report.rows


def test_a_case_that_fails_takes_nothing_from_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = _run(tmp_path, ValueError("no such thing"), CaseError("its process died"))
    assert code == 2
    assert [row.name for row in rows] == ["good 0", "bad 0", "good 1", "bad 1", "last"]
    document = msgspec.json.decode((tmp_path / "some.json").read_bytes())
    assert document["seed"] == 1
    assert msgspec.convert(document["results"], list[Row]) == rows
    said = capsys.readouterr().out
    assert "bad 0: FAILED: ValueError: no such thing" in said
    assert "bad 1: FAILED: its process died" in said
    assert "Traceback" not in said


def test_a_wrong_result_outweighs_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path)[0] == 0
    assert _run(tmp_path, ValueError("x"), WrongResult("3 rows are missing"))[0] == 1
    said = capsys.readouterr().out
    assert "bad 1: WRONG: 3 rows are missing" in said
    (kept,) = (line for line in said.splitlines() if "the files of the wrong ones" in line)
    assert Path(kept.rsplit(" ", 1)[1]).is_dir()


def test_an_interrupted_run_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("some", tmp_path)

    def run() -> None:
        with report:
            report.section("title", [Column("fact", "fact")])
            report.add(Row(name="one", facts={"fact": 7}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert "one" in capsys.readouterr().out
    assert (tmp_path / "some.json").exists()
    assert not report.folder.exists()


def test_a_folder_that_is_missing_is_made_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    assert made(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert (tmp_path / "new" / "folder").is_dir()
    assert made(None) is None
    (tmp_path / "file").touch()
    with pytest.raises(typer.BadParameter, match="writable folder"):
        made(tmp_path / "file" / "below")


def test_each_table_with_drawn_columns_has_a_picture(tmp_path: Path) -> None:
    rate = Column("rate", "rate", short, "low high")
    with Report("some", tmp_path) as report:
        for title, columns in (
            ("first", [rate]),
            ("none is drawn", [Column("rate", "rate")]),
            ("third", [rate]),
        ):
            report.section(title, columns)
            report.add(Row(name="sync", group="q4", facts={"rate": 200_000.0, "low": 1e5, "high": 3e5}))
            report.add(
                Row(name="sync", group="q18", facts={"rate": 9.0}), Row(name="async", failed="it broke")
            )
            report.rows[-1].failed = ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some-3.png", "some.json", "some.png"]
    for name in ("some.png", "some-3.png"):
        data = (tmp_path / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(data[16:20]) >= 1000


def test_a_picture_of_nothing_is_not_drawn(tmp_path: Path) -> None:
    assert not draw(tmp_path / "some.png", "title", [Row(name="a")], [Column("rate", "rate", bars="")])
    assert not any(tmp_path.iterdir())


def test_names_take_turns_and_who_fails_is_out_with_the_reason() -> None:
    order: list[tuple[str, int]] = []

    def work(name: str, number: int) -> None:
        order.append((name, number))
        if (name, number) == ("b", 1):
            raise CaseError("b is gone")

    assert in_turns(["a", "b", "c"], 3, work) == {"b": "b is gone"}
    assert order == [
        (name, number) for number, name in zip([0] * 3 + [1] * 3 + [2] * 2, "abccbaac", strict=True)
    ]
