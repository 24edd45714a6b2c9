"""The fixed point of a batch of rules, and the places of nodes in a statement, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from asyncstate.sql.catalyst import fixed_point
from asyncstate.sql.expressions import fragment

ROUNDS = 100


@dataclass
class Plan:
    number: int
    has_places: bool = True

    def fastEquals(self, other: Plan) -> bool:  # noqa: N802 - Catalyst's name
        return self.number == other.number


@dataclass
class Rule:
    change: Callable[[int], int]
    given: list[int] = field(default_factory=list)

    def apply(self, plan: Plan) -> Plan:
        self.given.append(plan.number)
        return Plan(self.change(plan.number), has_places=False)


class Rules(list[Rule]):
    def foldLeft(self, plan: Plan, step: Callable[[Plan, Rule], Plan]) -> Plan:  # noqa: N802 - Scala's name
        return reduce(step, self, plan)


def result(rules: list[Rule], plan: Plan, rounds: int = ROUNDS) -> Plan:
    """What a batch of rules makes of a plan."""
    found: Plan = fixed_point(plan, Rules(rules), lambda given, rule: rule.apply(given), rounds)
    return found


def test_rules_that_undo_one_another_end_after_a_round() -> None:
    up, down = Rule(lambda n: n + 1), Rule(lambda n: n - 1)
    assert result([up, down], Plan(0)).number == 0
    assert up.given == [0]


@pytest.mark.parametrize(("rounds", "found"), [(1, 1), (2, 2), (ROUNDS, 3)])
def test_a_rule_that_changes_its_own_result_goes_on(rounds: int, found: int) -> None:
    rules = [Rule(lambda n: n), Rule(lambda n: min(n + 1, 3)), Rule(lambda n: n)]
    assert result(rules, Plan(0), rounds).number == found


@pytest.mark.parametrize("rules", [[], [Rule(lambda n: n)]])
def test_an_unchanged_plan_keeps_its_places(rules: list[Rule]) -> None:
    plan = Plan(0)
    assert result(rules, plan) is plan


def node_at(line: int | None, text: str) -> Any:
    """A node from this place, as Catalyst answers."""
    of_line = SimpleNamespace(isDefined=lambda: line is not None, get=lambda: line)
    context = SimpleNamespace(fragment=lambda: text)
    origin = SimpleNamespace(line=lambda: of_line, context=lambda: context)
    return SimpleNamespace(origin=lambda: origin)


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        (3, "a\n  + b", "line 3: a + b"),
        (3, "", "line 3"),
        (None, "", ""),
        (1, "x" * 120, f"line 1: {'x' * 97}..."),
    ],
)
def test_the_place_of_a_node_is_as_much_as_spark_says(line: int | None, text: str, said: str) -> None:
    assert fragment(node_at(line, text)) == said
