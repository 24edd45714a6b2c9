"""How many examples a property gets where the profile's number is too many.

Owns: ``at_most`` and ``share``.
"""

from __future__ import annotations

from hypothesis import settings


def at_most(number: int) -> int:
    """``number`` examples, or those of the profile if they are fewer."""
    return min(number, settings.default.max_examples)


def share(parts: int) -> int:
    """A part of the profile's examples, at least one, and one more: hypothesis begins with the simplest example, which
    often has no rows, so that a single one would check nothing."""
    return 1 + max(1, settings.default.max_examples // parts)
