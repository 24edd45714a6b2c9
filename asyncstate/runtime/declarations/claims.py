"""State in a checkpoint that no operator of the program claims: its operator was removed or has another uid.

Owns: ``UnclaimedState``; ``check_claimed`` and its error message.
Invariant: such state is never abandoned silently: unless the program says what becomes of it, it is refused.
Must not import Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final, Literal, TypeAlias, get_args

from asyncstate.errors import ConfigurationError, JobError

UnclaimedState: TypeAlias = Literal["refuse", "keep", "drop"]

_MIGRATE: Final = "python -m asyncstate state migrate"
_SIMILAR: Final = 0.5  # of difflib's ratio


def check_unclaimed_state(choice: object) -> None:
    """Raise ConfigurationError for an argument ``unclaimed_state`` that is none of the words."""
    if choice not in (words := get_args(UnclaimedState)):
        raise ConfigurationError(f"unclaimed_state is {choice!r}; give {' or '.join(map(repr, words))}")


def check_claimed(
    stored: Collection[str], claimed: Collection[str], choice: UnclaimedState
) -> frozenset[str]:
    """The uids in ``stored`` whose state is to be dropped; ``claimed``: the uids of the program's operators. Raises
    JobError if ``choice`` is "refuse" and there is unclaimed state."""
    unclaimed = sorted(set(stored) - set(claimed))
    if choice == "drop":
        return frozenset(unclaimed)
    if choice == "refuse" and unclaimed:
        raise JobError(_refused(unclaimed, sorted(set(claimed) - set(stored))))
    return frozenset()


def _refused(unclaimed: list[str], new: list[str]) -> str:
    several = "operators" if len(unclaimed) > 1 else "operator"
    renamed = [(uid, now) for uid in unclaimed if (now := _similar(uid, new, len(unclaimed)))]
    asked = "".join(f"Did you rename '{uid}' to '{now}'? " for uid, now in renamed)
    uid, now = renamed[0] if renamed else (unclaimed[0], "NEW_UID")
    return (
        f"the checkpoint has state of {several} {', '.join(map(repr, unclaimed))}, which the program does not have. "
        f"{asked}Restore the uid; or stop the query and move the state to another uid: {_MIGRATE} rename-operator "
        f"CHECKPOINT {uid} {now}; or drop it: {_MIGRATE} drop-operator CHECKPOINT {uid}. The job's unclaimed_state: "
        "'keep' retains it (also where a function applies an operator in some micro-batches only), 'drop' deletes it. "
        "Nothing was committed"
    )


def _similar(uid: str, new: list[str], unclaimed: int) -> str | None:
    close = difflib.get_close_matches(uid, new, n=1, cutoff=_SIMILAR)
    if close:
        return close[0]
    return new[0] if len(new) == unclaimed == 1 else None
