"""What only classic sessions have is used where Spark Connect has another way, or is refused by name."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "asyncstate"
CLASSIC = {"_jconf", "_jdf", "_jsc", "_jsparkSession", "_jsq", "_jvm", "sparkContext"}
"""Attributes of sessions, DataFrames and queries that are ways into the JVM of the driver."""
GUARDS = {"is_connect", "context_of", "runs_locally"}
WITHOUT_GUARD = {
    "spark/local_frame.py": "rows of operators in the driver's process; runs_locally says where these are",
    "sql/catalyst.py": "Spark's optimizer, to compile statements; StreamingJob refuses that over Spark Connect",
    "sql/expressions.py": "as above",
    "sql/match.py": "as above",
}


def _names(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {
        node.id for node in nodes if isinstance(node, ast.Name)
    }


def _modules() -> dict[str, set[str]]:
    return {
        path.relative_to(PACKAGE).as_posix(): _names(ast.parse(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_each_way_into_the_jvm_is_guarded() -> None:
    unguarded = {name for name, found in _modules().items() if found & CLASSIC and not found & GUARDS}
    assert unguarded == WITHOUT_GUARD.keys()


def test_what_differs_between_sessions_has_a_way_for_each() -> None:
    tree = ast.parse(Path(PACKAGE, "spark", "compatibility.py").read_text())
    ways = {node.name: _names(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    unguarded = {name for name, found in ways.items() if found & CLASSIC and not found & GUARDS}
    assert unguarded == {"session_settings"}  # of Spark 3.5, which a job does not reach by Spark Connect
