"""State without its job: decode, inspect, check and migrate the contents of a checkpoint.

Owns: decoding stored entries by their declarations (``inspect``), versions and files of a checkpoint (``inspection``),
rewriting the stored entries of a state (``migration``).
Invariant: nothing here runs an operator, and only ``migration`` writes. Must not import Spark.
"""

from asyncstate.offline.inspect import TIMERS, TIMERS_STATE, StateDecoder, StateSize, state_size

__all__ = ["TIMERS", "TIMERS_STATE", "StateDecoder", "StateSize", "state_size"]
