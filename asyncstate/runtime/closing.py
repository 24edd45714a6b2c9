"""The end of an operator's life: what ``open`` took is released, whatever happened meanwhile.

Owns: ``closed_at_the_end``.
Invariant: ``close`` is called once for each ``open``, also when that fails, and never hides what failed before it.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from asyncstate.errors import OperatorError
from asyncstate.operator import Operator


@contextmanager
def closed_at_the_end(uid: str, operator: Operator) -> Iterator[None]:
    """Call ``operator.close()`` behind the block, in which the operator is opened and run.

    Raises OperatorError when ``close`` fails; where the block has failed, that is a note of the block's error.
    """
    try:
        yield
    except BaseException as error:
        try:
            operator.close()
        except Exception as closing:
            error.add_note(f"operator '{uid}': close() failed as well: {type(closing).__name__}: {closing}")
        raise
    try:
        operator.close()
    except Exception as closing:
        raise OperatorError(
            f"operator '{uid}' ({type(operator).__name__}): close() failed: {type(closing).__name__}: {closing}. "
            "The micro-batch is not committed; fix the operator and start the query again"
        ) from closing
