"""The alert rules and the dashboard use metrics, labels and counters that a job exports."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from asyncstate.driver.progress import OF_PARTITIONS
from asyncstate.metrics import MetricKind
from asyncstate.runtime import TASK_METRICS
from asyncstate.spark.prometheus import PrometheusProgress

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "monitoring"
_METRIC = re.compile(r"asyncstate_\w+")
_COUNTERS = re.compile(r'counter=~?"([^"]*)"')
_LABELS = re.compile(r"(?:by|on) \(([^)]*)\)|[{,](\w+)=")


def _alerts() -> dict[str, str]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def _panels() -> dict[str, list[str]]:
    board = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in board["panels"]}


EXPRESSIONS = {**_alerts(), **{title: "\n".join(texts) for title, texts in _panels().items()}}


def _exported() -> dict[str, set[str]]:
    """Each sample's name with its labels, as a scrape would show them with every metric measured."""
    registry = CollectorRegistry()
    PrometheusProgress(registry)
    measured: dict[str, Any] = dict.fromkeys(TASK_METRICS, 1)
    assert set(measured) >= {*OF_PARTITIONS, "call_timeouts"}
    found: dict[str, set[str]] = {}
    for metric in {*registry._names_to_collectors.values()}:
        labels = set(metric._labelnames)
        for suffix in {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[
            metric._type
        ]:
            found[metric._name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_use_metrics_and_labels_that_are_exported(name: str) -> None:
    expression, exported = EXPRESSIONS[name], _exported()
    used = set(_METRIC.findall(expression))
    assert used
    assert used <= set(exported), "no such metric"
    labels = set().union(*(exported[metric] for metric in used))
    asked = {
        label.strip() for by, one in _LABELS.findall(expression) for label in (by.split(",") if by else [one])
    }
    assert asked <= labels, "no such label"


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_counters_are_rated_and_gauges_are_not(name: str) -> None:
    expression = EXPRESSIONS[name]
    for metric in _METRIC.findall(expression):
        is_counter = metric.endswith(("_total", "_bucket", "_sum", "_count"))
        inside = re.search(rf"(?:rate|increase)\({metric}\b", expression) is not None
        assert inside == is_counter, metric


def test_counters_of_operators_are_those_that_operators_count() -> None:
    named = {
        name for text in EXPRESSIONS.values() for part in _COUNTERS.findall(text) for name in part.split("|")
    }
    assert named >= {"late_rows", "late_rows_dropped", "null_windows"}
    written = {
        node.value
        for folder in ("asyncstate", "operators")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert named <= written


def test_rows_and_messages_that_are_dropped_raise_an_alert() -> None:
    used = set(_METRIC.findall("\n".join(_alerts().values())))
    assert used >= {"asyncstate_operator_counter_total", "asyncstate_source_rows_dropped_total"}


def test_metrics_that_are_no_names_of_the_progress_are_on_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    own = {"asyncstate_source_rows_dropped_total", "asyncstate_operator_counter_total"}
    assert own <= set(_METRIC.findall(page)) & set(_exported())


def test_every_alert_is_described() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    assert re.findall(r"^\| `(Asyncstate\w+)` \|", page, re.MULTILINE) == list(_alerts())


def test_kinds_of_metrics_have_the_kinds_of_samples() -> None:
    exported = _exported()
    for name, kind in TASK_METRICS.items():
        if kind is not MetricKind.LIMIT:
            assert f"asyncstate_{name}{'_total' if kind is MetricKind.COUNTER else ''}" in exported
