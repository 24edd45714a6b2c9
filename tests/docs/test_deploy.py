"""Runs docs/install.md and docs/tasks/deploy.md as printed, on a standalone cluster on loopback.

The cluster's processes know nothing of this project: what its Python workers import is in the archive that the page
makes. Downloads the packages of asyncstate once, so it is slow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.cluster import LOOPBACK, Cluster
from tests.docs.test_commands import COMMANDS, ON_MACHINES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_SOURCES = ("asyncstate", "operators", "asyncstate_pytest.py", ".ci", "Makefile", "LICENSE", "README.md")
_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _program(path: Path, starts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{starts}" "$@"\n')
    path.chmod(0o755)


def _clone(folder: Path) -> Path:
    """A clone that has been set up: ``make`` finds this interpreter in its environment."""
    folder.mkdir()
    for name in (*_SOURCES, "pyproject.toml", "requirements.lock"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    _program(folder / ".venv" / "bin" / "python", sys.executable)
    (folder / ".venv" / ".asyncstate-ready").touch()
    return folder


def _environment(folder: Path, clone: Path, master: str) -> dict[str, str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    _program(folder / "bin" / "python3.11", getattr(sys, "_base_executable", sys.executable))
    path = (clone / "env" / "bin", folder / "bin", home / "bin", os.environ["PATH"])
    left = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    return left | {
        "PATH": os.pathsep.join(map(str, path)),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "MASTER": master,
    }


def _rows(folder: Path) -> Sequence[tuple[str, int]]:
    files = sorted(folder.rglob("*.json"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted((row["shop"], row["total"]) for row in rows)


def test_the_pages_install_and_deploy_a_job(tmp_path: Path) -> None:
    clone, data = _clone(tmp_path / "clone"), tmp_path / "data"
    (data / "sales").mkdir(parents=True)
    sales = [("ann", 5), ("bob", 2), ("ann", 7)]
    lines = [json.dumps({"shop": shop, "amount": amount}) for shop, amount in sales]
    (data / "sales" / "day.json").write_text("\n".join(lines))
    for name, program in _FILE.findall((ROOT / "docs/tasks/deploy.md").read_text("utf-8")):
        (clone / name).write_text(program)
    subprocess.run([sys.executable, "-m", "venv", clone / "env"], check=True)
    nothing = {"PYTHONPATH": "", "PYSPARK_PYTHON": "python3-is-not-used"}
    with Cluster(tmp_path / "cluster", environment=nothing) as cluster:
        environment = _environment(tmp_path, clone, cluster.master)
        for page in ON_MACHINES:
            for command in (one for one in COMMANDS if one.page == page and one.is_on_machines):
                text = command.text.replace(" /data/", f" {data}/")
                ran = subprocess.run(
                    text, shell=True, cwd=clone, env=environment, capture_output=True, text=True, check=False
                )
                assert ran.returncode == 0, f"{page}:{command.line}: {text}\n{ran.stdout}{ran.stderr[-6000:]}"
    assert _rows(data / "totals") == [("ann", 5), ("ann", 12), ("bob", 2)]
