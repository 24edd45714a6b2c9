"""What the watchdog says: which requests and calls have not been answered, for how long, and what to do.

Owns: the texts of stalls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from asyncstate.execution.bundle_reads import BundleChunk
from asyncstate.execution.calls import OutsideCall
from asyncstate.execution.failures import state_label
from asyncstate.execution.loop import Outstanding
from asyncstate.execution.range_reads import RangeChunk
from asyncstate.execution.read_ahead import AheadChunk

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
    if isinstance(ticket, BundleChunk | AheadChunk):
        return f"{state_label(ticket.first_key, state_names)}, store key {ticket.first_key.hex()}"
    requests = ticket.requests if isinstance(ticket, RangeChunk) else ticket
    first = requests[0]
    others = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    return f"{state_label(first.key, state_names)}, key {first.record.key!r}{others}"
