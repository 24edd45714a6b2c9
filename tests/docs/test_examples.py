"""Runs docs/examples as a user runs them: each makes its own input, ends by itself, and prints what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "examples"
TESTS = sorted(FOLDER.glob("test_*.py"))
EXAMPLES = sorted({*FOLDER.glob("*.py")} - {*TESTS})
_PRINTS = re.compile(r"^# Prints:\n((?:# [^\n]*\n)+)\Z", re.MULTILINE)
_SECONDS_MAX = 300


def _printed(example: Path) -> list[str]:
    """The lines that the example says it prints."""
    found = _PRINTS.search(example.read_text("utf-8"))
    assert found is not None, (
        f"{example.name}: end it with '# Prints:' and what it prints, a comment each line"
    )
    return [line.removeprefix("# ") for line in found[1].splitlines()]


def test_there_are_examples() -> None:
    """Without this, a folder that has moved would let the test below pass with nothing run."""
    assert {example.name for example in EXAMPLES} >= {"debezium_orders.py", "shop_leaders.py", "fraud.py"}
    assert TESTS


def _ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
    )


def _check_prints(example: Path, folder: Path) -> None:
    ran = _ran(folder, str(example))
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert [line.rstrip() for line in ran.stdout.splitlines() if line.strip()] == _printed(example)


def _named(examples: list[Path], with_spark: bool) -> Any:
    chosen = [example for example in examples if ("build_session" in example.read_text()) is with_spark]
    return pytest.mark.parametrize("example", chosen, ids=lambda example: example.stem)


@pytest.mark.spark
@pytest.mark.timeout(_SECONDS_MAX + 20)
@_named(EXAMPLES, with_spark=True)
def test_examples_on_spark_print_what_they_say(example: Path, tmp_path: Path) -> None:
    _check_prints(example, tmp_path)


@_named(EXAMPLES, with_spark=False)
def test_examples_in_one_process_print_what_they_say(example: Path, tmp_path: Path) -> None:
    _check_prints(example, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("tests", TESTS, ids=lambda tests: tests.stem)
def test_tests_of_examples_pass_where_a_user_has_them(tests: Path, tmp_path: Path) -> None:
    """In a folder of their own, beside what they test, without this project's settings."""
    for file in (tests, tests.with_name(tests.name.removeprefix("test_"))):
        shutil.copy(file, tmp_path)
    ran = _ran(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert " passed" in ran.stdout
