"""``asyncstate.operators`` in a clone: the very modules of ``operators``, under a second name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import asyncstate.operators
import operators

ROOT = Path(__file__).resolve().parents[2]


def _python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """A new process that looks for modules in ``path`` first; like any ``python -c``, in its folder before that."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder) for folder in path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=path[0],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_has_both_names_and_is_loaded_once() -> None:
    assert sys.modules["asyncstate.operators"] is operators is asyncstate.operators
    names = [info.name for info in pkgutil.walk_packages(operators.__path__, "operators.")]
    assert len(names) > 100
    for name in names:
        other, module = importlib.import_module(f"asyncstate.{name}"), importlib.import_module(name)
        assert other is module
        assert module.__spec__ is not None
        assert (module.__name__, module.__spec__.name) == (name, name)


@pytest.mark.parametrize("first", ["operators.join.join_operator", "asyncstate.operators.join.join_operator"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    code = (
        f"import sys, {first}\n"
        "from asyncstate.operators.join.join_operator import Join\n"
        "import operators.join.join_operator, asyncstate.operators as named\n"
        "assert Join is operators.join.join_operator.Join is named.Join is operators.Join\n"
        "assert not [name for name in sys.modules if 'asyncstate.operators' in sys.modules[name].__name__]"
    )
    done = _python(code, ROOT)
    assert done.returncode == 0, done.stderr


def test_what_one_name_pickles_a_process_with_the_other_opens() -> None:
    pickled = pickle.dumps(asyncstate.operators.Join("left"))
    code = (
        "import asyncstate.operators, pickle\n"
        f"assert type(pickle.loads({pickled!r})) is asyncstate.operators.Join"
    )
    done = _python(code, ROOT)
    assert done.returncode == 0, done.stderr


def test_a_module_that_is_not_there_is_missed_under_the_name_that_was_asked_for() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'asyncstate.operators.nowhere'"):
        importlib.import_module("asyncstate.operators.nowhere")


def test_another_package_of_that_name_is_said_to_be_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "__init__.py").touch()
    done = _python("from asyncstate.operators import Join", tmp_path, ROOT)
    assert done.returncode == 1
    assert f"`import operators` finds {tmp_path}" in done.stderr
    assert "install asyncstate from its wheel" in done.stderr
