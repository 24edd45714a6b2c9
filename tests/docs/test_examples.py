"""Runs docs/examples as a user runs them: each makes its own input, ends by itself, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
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
    assert {example.name for example in EXAMPLES} >= {"debezium_orders.py", "shop_leaders.py"}


@pytest.mark.spark
@pytest.mark.timeout(_SECONDS_MAX + 20)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_print_what_they_say(example: Path, tmp_path: Path) -> None:
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ran = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": search_path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert [line.rstrip() for line in ran.stdout.splitlines() if line.strip()] == _printed(example)
