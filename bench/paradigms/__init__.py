"""The nine ways in which stateful operators use their state, each as an operator in a sync and an async form.

Owns: the operators of ``docs/paradigms``, of its tests and of ``python -m bench paradigms``.

Source: the appendix of FLIP-473.
"""

from bench.paradigms.base import ROWS, Form, Paradigm, Rejected
from bench.paradigms.loops import (
    DependentLoop,
    DependentTraversal,
    IndependentLoop,
    Traversal,
    UpdatingTraversal,
)
from bench.paradigms.points import Branches, Combined, Independent, Sequential

PARADIGMS: tuple[type[Paradigm], ...] = (
    Sequential,
    Branches,
    Independent,
    Combined,
    Traversal,
    DependentTraversal,
    DependentLoop,
    IndependentLoop,
    UpdatingTraversal,
)
"""By number."""

__all__ = ["PARADIGMS", "ROWS", "Form", "Paradigm", "Rejected"]
