"""What the watchdog says: which requests and calls have not been answered, for how long, and what to do.

Owns: the texts of stalls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from asyncstate.execution.calls import OutsideCall
from asyncstate.execution.failures import state_label
from asyncstate.execution.loop import Outstanding
from asyncstate.execution.reads import ListGet

_SHOWN: Final = 3


def unanswered(uid: str, state_names: Mapping[int, str], outstanding: Sequence[Outstanding]) -> str:
    """The message for what is ``outstanding``, the oldest first and by name."""
    calls = sum(type(waiting.ticket) is OutsideCall for waiting in outstanding)
    reads = len(outstanding) - calls
    waiting = " and ".join(
        f"{count} {what}" for count, what in ((reads, "list gets"), (calls, "outside calls")) if count
    )
    oldest = "; ".join(
        f"{_describe(each.ticket, state_names)}, for {each.seconds:.1f} s" for each in outstanding[:_SHOWN]
    )
    remedies = []
    if reads:
        remedies.append("check the disk under the local store, or raise async-state.watchdog-timeout")
    if calls:
        remedies.append(
            "let the functions of ctx.call await what they wait for and heed their cancellation, or make them plain "
            "functions, which run on threads"
        )
    return (
        f"operator '{uid}': {waiting} have not answered; the oldest: {oldest}. To do: {'; '.join(remedies)}"
    )


def _describe(ticket: Any, state_names: Mapping[int, str]) -> str:
    if isinstance(ticket, OutsideCall):
        return f"call of {ticket.name}" + ("" if ticket.record is None else f", key {ticket.record.key!r}")
    get: ListGet = ticket
    store_key, record = get.wanted.about(get.start)
    state = state_label(store_key, state_names)
    if record is None:
        return f"{state}, store key {store_key.hex()}"
    others = f" and {len(get.keys) - 1} more" if len(get.keys) > 1 else ""
    return f"{state}, key {record.key!r}{others}"
