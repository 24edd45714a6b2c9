"""The rule for names of jobs and operators: folders and files are named after them.

Owns: the rule for names. Must not import Spark.
"""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from asyncstate.errors import JobError

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
FILE_NAME_RULE: Final = "use at most 100 letters, digits, '_', '-' and '.', starting with a letter or digit"


def names_files(name: object) -> TypeGuard[str]:
    """Whether ``name`` is a valid file name on every system."""
    return isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None


def check_uid(uid: object) -> None:
    """Raise JobError unless ``uid`` can name files."""
    if not names_files(uid):
        raise JobError(
            f"uid {uid!r} cannot be used: it is part of the names of state files; {FILE_NAME_RULE}"
        )
