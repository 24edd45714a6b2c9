"""How operators record the meaning of their stored state: parameters as texts to compare after a restart.

Owns: ``meaning``.
Must not import anything of ``asyncstate`` but ``operator`` and ``program_text``.
"""

from __future__ import annotations

from typing import Final

from asyncstate.operator import Operator
from asyncstate.program_text import said

_OWN_PACKAGE: Final = __name__.split("operators", maxsplit=1)[0] + "operators"


def meaning(operator: Operator, **parts: object) -> dict[str, str]:
    """The texts of ``parts``, after the operator's name: that of the class in this package from which it derives.

    >>> from asyncstate.operators import Limit
    >>> meaning(Limit(3), n=3, null_safe=False, keep=None)
    {'operator': 'Limit', 'n': '3', 'null_safe': 'no', 'keep': 'none'}
    """
    return {"operator": _class_name(operator), **{name: said(part) for name, part in parts.items()}}


def _class_name(operator: Operator) -> str:
    own = (one for one in type(operator).__mro__ if one.__module__.startswith(_OWN_PACKAGE))
    return next(own, type(operator)).__name__
