"""How many examples a property gets where the profile's number is too many.

Owns: ``at_most``.
"""

from __future__ import annotations

from hypothesis import settings


def at_most(number: int) -> int:
    """``number`` examples, or those of the profile if they are fewer."""
    return min(number, settings.default.max_examples)
