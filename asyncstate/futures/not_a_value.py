"""A future is not a value to compute with.

Owns: ``NotAValue``.
Must not import anything of the project except ``errors``.
"""

from __future__ import annotations

from typing import NoReturn

from asyncstate.errors import FutureStateError


class NotAValue:
    """Operators on it raise a FutureStateError that says how to get the value."""

    __slots__ = ()

    def _refuse(self, *others: object) -> NoReturn:
        raise FutureStateError(
            f"{self!r} is the future of a value, not the value; await it, or compute with the value in then_apply"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = _refuse
    __neg__ = __abs__ = __round__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __getitem__ = _refuse
