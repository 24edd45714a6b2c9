"""What a user gets: the wheel, in a virtual environment of its own, far from the clone.

The environment has the wheel and nothing else; the packages that it needs are those of the tests' own environment,
which stand behind it on the path. The clone is not on it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import asyncstate

ROOT = Path(__file__).resolve().parents[2]
TYPED = ROOT / "tests" / "typed" / "user_code.py"
_SECONDS_MAX = 300

pytestmark = [pytest.mark.long, pytest.mark.timeout(_SECONDS_MAX + 20)]


def _run(*command: str | Path, cwd: Path, clean: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``command``; ``clean``: as a user does, without what the tests' own environment says of Python."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {name: text for name, text in os.environ.items() if not clean or name not in hidden}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
    )


def _build(target: str, source: Path, into: Path) -> Path:
    done = _run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)
    assert done.returncode == 0, done.stderr
    (built,) = into.glob("asyncstate-*")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    venv.create(folder, symlinks=True)
    interpreter = folder / "bin" / "python"
    install = ("-m", "pip", "--python", interpreter, "install", "--quiet", "--no-index", "--no-deps", wheel)
    done = _run(sys.executable, *install, cwd=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    # A folder that a .pth file names is searched, but its own .pth files are not read: one of them names the clone.
    folders = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    (packages / "dependencies.pth").write_text("\n".join(folders) + "\n")
    return interpreter


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with a package called ``operators``, as people of Airflow have one."""
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "__init__.py").write_text('WHOSE = "the user\'s"\n')
    return tmp_path


def _names(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def test_the_wheel_has_the_package_alone_with_the_operators_in_it(wheel: Path) -> None:
    names = _names(wheel)
    assert {name.split("/")[0] for name in names} == {
        "asyncstate",
        "asyncstate_pytest.py",  # a plugin that pytest can load without loading asyncstate
        f"asyncstate-{asyncstate.__version__}.dist-info",
    }
    assert {"asyncstate/py.typed", "asyncstate/operators/__init__.py"} <= names.keys()
    assert "asyncstate/operators.py" not in names
    in_clone = {path.relative_to(ROOT).as_posix() for path in (ROOT / "operators").rglob("*.py")}
    assert {f"asyncstate/{name}" for name in in_clone} <= names.keys()


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = _build("sdist", ROOT, tmp_path)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert _names(_build("wheel", source, tmp_path / "again")) == _names(wheel)


def test_a_package_of_the_user_called_operators_is_left_alone(python: Path, project: Path) -> None:
    program = project / "program.py"
    program.write_text(
        "import importlib.util, operators, asyncstate, asyncstate.operators.join.join_operator\n"
        "from asyncstate.operators import Join\n"
        "assert asyncstate.operators.join.join_operator.Join is Join\n"
        "assert Join.__module__ == 'asyncstate.operators.join.join_operator'\n"
        "assert importlib.util.find_spec('bench') is None\n"
        "print(operators.WHOSE, asyncstate.__file__)\n"
    )
    done = _run(python, program, cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"the user's {python.parent.parent}")


def test_the_command_is_there(python: Path, project: Path) -> None:
    done = _run(python.parent / "asyncstate", "--version", cwd=project)
    assert (done.stdout, done.stderr) == (f"asyncstate {asyncstate.__version__}\n", "")
    done = _run(python, "-m", "asyncstate", "state", "--help", cwd=project)
    assert "rollback" in done.stdout


def test_a_pipeline_of_built_in_operators_runs(python: Path, project: Path) -> None:
    """Operators are pickled on their way to the partitions, by the name they have in the wheel."""
    page = (ROOT / "docs" / "operators" / "aggregate.md").read_text("utf-8")
    program = project / "program.py"
    program.write_text(_first_example(page, "python test"))
    done = _run(python, program, cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout in page


def _first_example(page: str, fence: str) -> str:
    found = re.search(rf"^```{fence}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.spark
def test_the_first_job_of_the_readme_runs(python: Path, project: Path) -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    program = project / "example.py"
    program.write_text(_first_example(page, "python test spark"))
    done = _run(python, program, cwd=project)
    assert done.returncode == 0, done.stderr[-4000:]
    tables = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    shown = _first_example(page, "text output")
    assert tables == [line.rstrip() for line in shown.splitlines() if line.strip()]


def test_mypy_knows_the_types_of_users_code(python: Path, project: Path) -> None:
    shutil.copy(TYPED, project / "user_code.py")
    (project / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-pyarrow.*,pandas.*]\nignore_missing_imports = true\n"
    )
    done = _run(sys.executable, "-m", "mypy", "--python-executable", python, "user_code.py", cwd=project)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_pyright_knows_the_types_of_users_code(python: Path, project: Path) -> None:
    shutil.copy(TYPED, project / "user_code.py")
    (project / "pyrightconfig.json").write_text(
        '{"include": ["user_code.py"], "reportUnnecessaryTypeIgnoreComment": "error"}'
    )
    done = _run(sys.executable, "-m", "pyright", "--pythonpath", python, "-p", project, cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout
