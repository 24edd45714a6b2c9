"""What a user asks of ``apply``: an operator, and what is declared of its inputs.

Owns: ``Call``, with what runs before and behind it in the same task, and how declarations become ``InputSpec``s.
Invariant: nothing runs here; what is wrong with a declaration is an error before any row is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from asyncstate.local_phase import LocalPhase
from asyncstate.operator import InputSpec, Operator
from asyncstate.runtime import (
    After,
    Delay,
    Keys,
    OrderBy,
    SequenceBy,
    drop_seen_of_inputs,
    keys_of_inputs,
    sequences_of_inputs,
    sort_keys_of_inputs,
    times_of_inputs,
)
from asyncstate.spark.exchange import input_spec
from asyncstate.storage import OperatorManifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Call(NamedTuple):
    """An operator and what is declared of it."""

    operator: Operator
    uid: str
    declared: Declared
    options: Mapping[str, object]

    @staticmethod
    def of(
        operator: Operator,
        *,
        uid: str,
        key: Keys = None,
        event_time: str | Sequence[str | None] | None = None,
        watermark_delay: Delay | Sequence[Delay] = None,
        order_by: OrderBy = None,
        sequence: SequenceBy = None,
        drop_seen: bool | Sequence[bool] = False,
        options: Mapping[str, object] | None = None,
    ) -> Call:
        """From the arguments of ``apply``."""
        declared = Declared(key, event_time, watermark_delay, order_by, sequence, drop_seen)
        return Call(operator, uid, declared, options or {})


class Before(NamedTuple):
    """What was done to an input in the task that it comes from: its columns were those of ``rows``, which has no rows;
    ``local`` is the local phase that has put its rows together."""

    rows: DataFrame
    local: LocalPhase | None


class Behind(NamedTuple):
    """An operator that runs in the task of the one before it, whose rows have the columns of ``rows``, which has no
    rows itself; ``after`` is done to its output there. ``route``: the key columns that it is routed by; empty: all."""

    call: Call
    rows: DataFrame
    after: After | None
    route: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The inputs of an operator, and the delay of each one's watermark in microseconds (None: it moves none)."""

    inputs: tuple[InputSpec, ...]
    delays: Sequence[int | None]


@dataclass(frozen=True)
class Declared:
    """What the user says of the inputs."""

    key: Keys
    event_time: str | Sequence[str | None] | None
    watermark_delay: Delay | Sequence[Delay]
    order_by: OrderBy
    sequence: SequenceBy
    drop_seen: bool | Sequence[bool]


def input_specs(uid: str, broadcast: int | None, inputs: Sequence[DataFrame], declared: Declared) -> Inputs:
    count = len(inputs)
    broadcast = (
        broadcast if broadcast in range(count) else None
    )  # what is wrong with it is for check_broadcast
    names = _names(uid, count, broadcast)
    keys = keys_of_inputs(uid, declared.key, count, broadcast)
    times, delays = times_of_inputs(uid, declared.event_time, declared.watermark_delay, count)
    orders = sort_keys_of_inputs(uid, declared.order_by, count)
    sequences = sequences_of_inputs(uid, declared.sequence, count)
    drops = drop_seen_of_inputs(uid, declared.drop_seen, sequences)
    specs = [
        replace(
            input_spec(df, keys[i], times[i], names[i], i == broadcast),
            order_by=orders[i],
            sequence=sequences[i],
            drop_seen=drops[i],
        )
        for i, df in enumerate(inputs)
    ]
    return Inputs(tuple(specs), delays)


def routed(specs: Inputs, route: tuple[str, ...], stored: OperatorManifest | None) -> Inputs:
    """The inputs, the only one routed by ``route``, or by what is stored."""
    first = specs.inputs[0]
    if stored is not None:
        route = tuple(first.key[at] for at in stored.route if at < len(first.key))
    return replace(specs, inputs=(replace(first, route_by=route), *specs.inputs[1:])) if route else specs


def _names(uid: str, count: int, broadcast: int | None) -> list[str]:
    """How errors call the inputs."""
    regular = count if broadcast is None else count - 1
    numbered = [f"{number}. " for number in range(1, regular + 1)]
    sides = {1: [""], 2: ["left ", "right "]}.get(regular, numbered)
    if broadcast is not None:
        sides.insert(broadcast, "broadcast ")
    return [f"the {side}input of operator '{uid}'" for side in sides]
