"""The benchmark of feedback rules runs, with each rule on and off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.rules import RULES, WORKS, measure


@pytest.mark.parametrize("name", RULES)
def test_both_sides_of_a_rule_run(name: str) -> None:
    rule = RULES[name]
    work = replace(WORKS[rule.works[0]], rows=50)
    found = measure(rule, work, rule.modes[-1], pairs=1)
    assert 0 < found.low == found.value == found.high


def test_rules_name_works_that_there_are() -> None:
    assert {work for rule in RULES.values() for work in rule.works} <= WORKS.keys()
