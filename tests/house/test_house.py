"""The house itself: layers, generated pages, the lock, the JDK check, public names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {"", ".cfg", ".ini", ".lock", ".md", ".py", ".pyi", ".sh", ".toml", ".txt", ".yaml", ".yml"}
OURS = [".ci", "asyncstate", "bench", "docs", "operators", "tests"]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command as command; command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _empty_house(folder: Path) -> None:
    """The project's packages and contracts without a line of code, for a test to break."""
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    inner = ["codec", "execution", "runtime", "spark", "state", "storage", "testing"]
    for package in ["asyncstate", "operators", "bench", *(f"asyncstate/{name}" for name in inner)]:
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    leaves = ["changelog", "clock", "display", "durations", "errors", "flink_names", "locations", "row_shape"]
    for module in [*leaves, "config", "futures"]:
        (folder / "asyncstate" / f"{module}.py").touch()


def test_imports_respect_the_layers() -> None:
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


_BROKEN = [
    ("top", "asyncstate/state/x.py", "import operators"),
    ("layers", "asyncstate/codec/x.py", "import asyncstate.storage"),
    ("layers", "asyncstate/nowhere.py", ""),
    ("rocksdict", "asyncstate/runtime/x.py", "import rocksdict"),
    ("anyio", "operators/x.py", "from anyio import sleep"),
    ("pyspark", "asyncstate/storage/x.py", "import pyspark.sql"),
    ("operators", "operators/x.py", "import asyncstate.storage"),
    ("threads", "operators/x.py", "import threading"),
]
"""Contracts, and a module that breaks each."""


def test_nothing_breaks_a_contract_where_no_code_is(tmp_path: Path) -> None:
    _empty_house(tmp_path)
    named = dict.fromkeys(contract for contract, _, _ in _BROKEN)
    done = _lint(tmp_path, *(word for contract in named for word in ("--contract", contract)))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("contract", "module", "line"), _BROKEN)
def test_each_contract_is_able_to_fail(tmp_path: Path, contract: str, module: str, line: str) -> None:
    _empty_house(tmp_path)
    (tmp_path / module).write_text(line)
    done = _lint(tmp_path, "--contract", contract)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout


def test_generated_pages_are_in_step_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")  # where the script finds the module beside it
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    expected = _load(ROOT / ".ci" / "write_docs.py").configuration_page()
    assert page == expected, "run `make docs`"


def test_the_lock_pins_versions_and_names_no_place() -> None:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [
        line for line in pins if not re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+!]+( ; [^/@]+)?", line)
    ] == []
    names = {line.split("==")[0] for line in pins}
    assert {"pyspark", "py4j", "rocksdict", "pyarrow", "pytest", "ruff", "hatchling", "duckdb"} <= names


def test_no_file_names_a_package_registry() -> None:
    # Written in two halves, so that this file does not name one either.
    registries = re.compile(
        "|".join(["pypi" r"\.org", "pythonhosted" r"\.org", "(extra-)?index" r"-url[ =]+\S*:"])
    )
    files = [
        path for folder in OURS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
    ]
    files += [path for path in ROOT.iterdir() if not path.name.startswith(".git")]
    texts = [path for path in files if path.is_file() and path.suffix in TEXT_SUFFIXES]
    assert len(texts) > 10
    named = [
        str(path.relative_to(ROOT)) for path in texts if registries.search(path.read_text("utf-8", "replace"))
    ]
    assert named == []


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("sh: not found", None),
    ],
)
def test_the_jdk_check_reads_versions(text: str, major: int | None) -> None:
    assert _load(ROOT / ".ci" / "check_java.py").major_version(text) == major


def test_missing_servers_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    servers = _load(ROOT / ".ci" / "check_servers.py")
    monkeypatch.setattr(servers, "PROGRAMS", {"postgresql": "sh", "mariadb-server": "no such program"})
    monkeypatch.setattr(servers, "POMS", tmp_path)
    assert servers.main([]) == 1
    assert "mariadb-server not found; tests that need them cannot run" in capsys.readouterr().err
    monkeypatch.setattr(servers, "PROGRAMS", {"postgresql": "sh"})
    poms, jars = tmp_path / "poms" / "kafka", tmp_path / "jars" / "kafka"
    for folder in (poms, jars):
        folder.mkdir(parents=True)
        (folder / "pom.xml").write_text("version 1")
    monkeypatch.setattr(servers, "POMS", poms.parent)
    monkeypatch.setattr(servers, "JARS", jars.parent)
    assert servers.main([]) == 0
    (poms / "pom.xml").write_text("version 2")
    assert servers.main([]) == 1
    assert "kafka not found" in capsys.readouterr().err


def _check_java(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "check_java.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _fake_java(folder: Path, version: str, modules: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\ncase \"$1\" in -version) echo '{version}' >&2;; *) echo '{modules}';; esac\n"
    )
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "modules", "complaint"),
    [
        ('openjdk version "17.0.1"', "jdk.incubator.vector@17.0.1", None),
        ('openjdk version "11.0.2"', "jdk.incubator.vector@11", "is Java 11; Spark 4 needs 17 or newer"),
        ('openjdk version "21.0.2"', "java.base@21", "without the module jdk.incubator.vector"),
        ("Segmentation fault", "", "does not say its version"),
    ],
)
def test_the_jdk_check_says_what_is_wrong(
    tmp_path: Path, version: str, modules: str, complaint: str | None
) -> None:
    home = _fake_java(tmp_path / "jdk", version, modules)
    done = _check_java(JAVA_HOME=str(home), PATH="/usr/bin:/bin")
    assert done.returncode == (0 if complaint is None else 1)
    if complaint is not None:
        assert complaint in done.stderr
        assert "install" in done.stderr


@pytest.mark.parametrize("place", ["JAVA_HOME", "PATH"])
def test_a_missing_jdk_is_said_with_the_command_that_installs_one(tmp_path: Path, place: str) -> None:
    environment = (
        {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"} if place == "JAVA_HOME" else {"PATH": str(tmp_path)}
    )
    done = _check_java(**environment)
    assert done.returncode == 1
    assert "no java found" in done.stderr
    assert "jdk" in done.stderr.lower()


@pytest.mark.parametrize("package", ["asyncstate", "operators", "bench"])
def test_public_names_exist_and_say_what_they_are(package: str) -> None:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    for name in names:
        thing = getattr(module, name)
        assert not callable(thing) or (thing.__doc__ or "").strip(), f"{package}.{name} has no docstring"


def test_importing_the_package_loads_neither_spark_nor_rocksdb() -> None:
    code = "import sys, asyncstate; print(sorted({'pyspark', 'rocksdict', 'anyio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_version_is_the_package_metadata_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert importlib.import_module("asyncstate").__version__ == project["version"]


_OWNERS_OF_A_NAME = {
    "AggregateFunction": "Flink has two, too: of the DataStream API (state) and of the Table API (functions)",
    "Clock": "a source of the time, and the operator of now() in SQL, whose name is in checkpoints",
    "MicroBatch": "the driver's, and Spark's, which is derived from it",
}
"""Names of classes in several modules, and why. Nodes of SQL's plans (``ir.Join``) have the names of operators."""


def test_a_class_name_has_one_owner() -> None:
    owners: dict[str, set[str]] = {}
    plans = ROOT / "asyncstate" / "sql" / "ir.py"
    paths = [path for package in ("asyncstate", "operators") for path in (ROOT / package).rglob("*.py")]
    for path in paths:
        for node in ast.parse(path.read_text("utf-8")).body if path != plans else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    assert {name for name, modules in owners.items() if len(modules) > 1} == set(_OWNERS_OF_A_NAME)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 100
