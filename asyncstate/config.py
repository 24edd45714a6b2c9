"""Configuration: the ``async-state.*`` keys, their defaults, ranges and units, resolved once on the driver.

Owns: ``Config`` (frozen), the shares of memory that it gives to the parts of a worker, ``Tuning``, the table
``OPTIONS`` and ``resolve``.
Invariant: a ``Config`` in hand has been checked; whichever way it was made, each value is in its range.
May import only ``durations``, ``errors`` and ``locations`` of ``asyncstate``, msgspec and the standard library.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.inspect import BoolType, IntType, LiteralType, Metadata, NoneType, Type, UnionType, type_info

from asyncstate.durations import microseconds
from asyncstate.errors import ConfigurationError
from asyncstate.locations import redact

PREFIX = "async-state."
SPARK_PREFIX = "spark."
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MEANT = re.compile(r"(spark\.)?async[-_.]?state\.", re.IGNORECASE)

_UNITS: Final[Mapping[str, dict[str, int]]] = {
    "bytes": {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30},  # as in Spark
    "ms": {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000},
}
"""By the last word of a field's name: the units that a text may name, the field's own first."""

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Rows = Annotated[int, Meta(ge=1, le=10_000_000)]
_Parallelism = Annotated[int, Meta(ge=1, le=32_768)]
_Size = Annotated[int, Meta(ge=0, le=1 << 40)]
_WritesSize = Annotated[int, Meta(ge=1 << 10, le=1 << 40)]
_UpToHour = Annotated[int, Meta(ge=1, le=3_600_000)]
_Path = Annotated[str, Meta(pattern=r"\S")]


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tests and benchmarks set of the engine; no key sets it.

    ``batch_hot_reads``: no stored value is kept in memory and every read of the store waits, also while it is quick;
    this shows what relies on a read being answered at once. ``fusion``: parts of a graph may run in one task.
    ``direct_reads``: RocksDB reads around the operating system's page cache. ``io_threads``: the most threads of a
    partition that read at once. ``watchdog_ms``: the micro-batch fails if records wait and no read completes for this
    long. A field in bytes replaces a share of ``async-state.memory``; None leaves it.
    """

    batch_hot_reads: bool = False
    fusion: bool = True
    direct_reads: bool = False
    io_threads: int = 256
    watchdog_ms: int = 60_000
    columns_bytes: int | None = None
    blocks_bytes: int | None = None
    open_stores_bytes: int | None = None
    gathered_bytes: int | None = None
    bundle_bytes: int | None = None
    broadcast_bytes: int | None = None


class Shares(NamedTuple):
    """Bytes that the parts of a worker may take.

    ``cache``: stored values that were read or written. ``columns``: rows of column states. ``blocks``: RocksDB's
    blocks, filters and indexes, of which ``open_stores`` may be those of stores that stay open between micro-batches.
    ``writes``: what a partition writes in a micro-batch. ``decoded``: of ``cache``, Python objects of one state.
    ``gathered``: rows that wait for others of their micro-batch. ``bundle``: rows of a bundle and their state.
    ``broadcast``: rows of a broadcast input.
    """

    cache: int
    columns: int
    blocks: int
    open_stores: int
    writes: int
    decoded: int
    gathered: int
    bundle: int
    broadcast: int


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one operator in one job; ``docs/configuration.md`` says what each means.

    The key of ``buffer_timeout_ms`` is ``async-state.buffer-timeout``: without the unit at the end of the name, and
    with a dot after ``bundled_agg``. None means ``auto``, or a folder that is not given. ``tuning`` has no key. Raises
    ConfigurationError if a value is out of range or two contradict each other.
    """

    checkpoint_dir: Annotated[
        _Path | None, "Folder or URI of the [checkpoint](checkpoints.md); driver and workers must reach it."
    ] = None
    local_dir: Annotated[
        _Path | None,
        "Folder on each worker's own disk for its stores; losing it costs a restore, never data.",
    ] = None
    memory_bytes: Annotated[
        Annotated[int, Meta(ge=16 << 20, le=1 << 40)],
        "Memory of a worker process for state and rows, over all its partitions; [shared out](state-cache.md#memory).",
    ] = 1 << 30
    cache_size_bytes: Annotated[
        _Size | None, "Of it, for stored values between micro-batches; `auto`: an eighth, `0b`: none."
    ] = None
    read_cache_size_bytes: Annotated[
        _Size | None, "Of the cache, for decoded values of each state object; `auto`: all, `0b`: none."
    ] = None
    write_cache_size_bytes: Annotated[
        _WritesSize | None,
        "Of it, for what a partition writes in a micro-batch; more goes to disk. `auto`: a quarter.",
    ] = None
    enabled: Annotated[
        bool, "Batch and overlap state requests (async). Results and stored bytes are the same."
    ] = False
    in_flight_limit: Annotated[
        _Count, "Records of a partition that may be in flight at once; further input waits."
    ] = 6_000
    buffer_size: Annotated[_Count, "State requests that are sent to the store together."] = 1_000
    buffer_timeout_ms: Annotated[
        _UpToHour, "A buffer that does not fill is sent to the store after this time."
    ] = 1_000
    iterate_response_batch_size: Annotated[_Count, "Entries that a state iterator loads at a time."] = 1_000
    bundle_size: Annotated[_Rows, "Maximum rows of a bundle."] = 500_000
    bundled_agg_size: Annotated[_Rows, "Maximum rows that a BundledAggregateFunction gets at a time."] = (
        100_000
    )
    bundled_agg_allow_latency_ms: Annotated[
        _UpToHour | None, "How long it waits for that many rows; `auto`: until the micro-batch ends."
    ] = None
    on_missing_row: Annotated[
        Literal["count", "warn", "fail"],
        "[Retractions without a matching row](order-and-time.md): count them, also warn, or fail.",
    ] = "warn"
    snapshot_interval: Annotated[
        _Count | None,
        "Micro-batches from one snapshot to the next; `auto`: 10, up to 40 while [they change little]"
        "(checkpoints.md#snapshots-and-deltas).",
    ] = None
    retained_versions: Annotated[_Count, "Committed micro-batches that can be restored; at least two."] = 10
    executor: Annotated[
        Literal["auto", "local", "spark"],
        "Where [operators run](performance.md#small-micro-batches); `auto`: in the driver while rows are few.",
    ] = "auto"
    parallelism: Annotated[
        _Parallelism | None,
        "Partitions of the state; `auto`: as in the checkpoint, at first Spark's default parallelism. Can change at a "
        "restart.",
    ] = None
    max_parallelism: Annotated[
        _Parallelism, "Key groups, the upper bound of partitions. Fixed by the first micro-batch."
    ] = 128
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            option.check(getattr(self, name), option.key)
        if self.parallelism is not None and self.parallelism > self.max_parallelism:
            raise ConfigurationError(
                f"async-state.parallelism is {self.parallelism}, more than async-state.max-parallelism "
                f"({self.max_parallelism}); lower the first, or raise the second before the job's first batch"
            )
        shares = self.shares
        if shares.cache + shares.writes > self.memory_bytes // 4 * 3:
            sizes = ("cache_size_bytes", shares.cache), ("write_cache_size_bytes", shares.writes)
            named = " and ".join(f"{OPTIONS[name].key} ({OPTIONS[name].show(size)})" for name, size in sizes)
            raise ConfigurationError(
                f"{named} are more than three quarters of async-state.memory "
                f"({OPTIONS['memory_bytes'].show(self.memory_bytes)}); raise async-state.memory or lower them"
            )

    @property
    def shares(self) -> Shares:
        """What each part of a worker may take of ``async-state.memory``."""
        sizes = self.cache_size_bytes, self.read_cache_size_bytes, self.write_cache_size_bytes
        return _shares(self.memory_bytes, sizes, self.tuning)

    def __repr__(self) -> str:
        # The URI of a checkpoint may hold credentials.
        shown = (f"{name}={_shown(getattr(self, name))!r}" for name in self.__struct_fields__)
        return f"Config({', '.join(shown)})"


@functools.lru_cache(maxsize=64)  # a micro-batch asks seven times
def _shares(memory_bytes: int, given: tuple[int | None, int | None, int | None], tuning: Tuning) -> Shares:
    eighth = memory_bytes // 8
    cache, writes = _given(given[0], eighth), _given(given[2], 2 * eighth)
    # Where cache and writes are given more than usual, these have less.
    part = max(min(eighth, (memory_bytes - eighth - cache - writes) // 4), 0)
    waits = tuning.batch_hot_reads  # what is answered without the store would hide a read that waits
    return Shares(
        cache=0 if waits else cache,
        columns=0 if waits else _given(tuning.columns_bytes, part),
        blocks=_given(tuning.blocks_bytes, eighth),
        open_stores=_given(tuning.open_stores_bytes, eighth // 2),
        writes=writes,
        decoded=0 if waits else min(_given(given[1], cache), writes),
        gathered=_given(tuning.gathered_bytes, 2 * part),
        bundle=_given(tuning.bundle_bytes, part // 2),
        broadcast=_given(tuning.broadcast_bytes, part // 2),
    )


def _given(size: int | None, usual: int) -> int:
    return usual if size is None else size


@dataclass(frozen=True)
class Option:
    """One key: the values it takes and what it does. Read from the annotation of a ``Config`` field; ``hint``: its type
    with its bounds, ``kind``: what msgspec knows of it, ``takes_none``: whether None means auto or not given."""

    key: str
    hint: Any
    kind: Type
    takes_none: bool
    units: dict[str, int]
    doc: str

    @property
    def accepts(self) -> str:
        """The values, for the page of the keys."""
        if isinstance(self.kind, BoolType):
            return "`true`, `false`"
        if isinstance(self.kind, LiteralType):
            return ", ".join(f"`{word}`" for word in self.kind.values)
        if isinstance(self.kind, IntType):
            return self._range() + (", `auto`" if self.takes_none else "")
        return "a path"

    def convert(self, given: object, spelling: str) -> object:
        """The checked value of what was given as a text or a Python value under ``spelling``."""
        if given is None:
            raise ConfigurationError(f"{spelling}: None does not fit; leave the key out to get the default")
        value = given
        if isinstance(given, os.PathLike):
            value = os.fspath(given)
        elif isinstance(given, str):
            value = self._parsed(given.strip())
        elif isinstance(given, timedelta) and "ms" in self.units and not given % timedelta(milliseconds=1):
            value = given // timedelta(milliseconds=1)
        self.check(value, spelling, given)
        if self.key == f"{PREFIX}local-dir":
            return os.path.abspath(str(value))
        return value

    def check(self, value: object, spelling: str, given: object = None) -> None:
        """Raise ConfigurationError for a value of another type or out of range; ``given``: what was written for it."""
        how = self._how()
        try:
            msgspec.convert(value, self.hint)
        except msgspec.ValidationError:
            pass
        else:
            if self.key != f"{PREFIX}local-dir" or value is None:
                return
            if not str(value).startswith("~") and not _URI.match(str(value)):
                return
            how = (
                "the full path of a folder on each worker's own disk: not a URI, and without ~, which is "
                "another folder on each machine"
            )
        raise ConfigurationError(
            f"{spelling}: {value if given is None else given!r} does not fit; write {how}"
        )

    def show(self, value: object) -> str:
        """A value as one would write it."""
        if value is None:
            return "auto" if isinstance(self.kind, IntType) else _ABSENT[self.key]
        if isinstance(value, bool):
            return str(value).lower()
        for unit, factor in reversed(self.units.items()):
            assert isinstance(value, int)
            if value and value % factor == 0:
                return f"{value // factor}{unit}"
        return f"{value}{next(iter(self.units), '')}"

    def _parsed(self, text: str) -> object:
        """What ``text`` says; what says nothing is left as it is, for ``check``."""
        if isinstance(self.kind, BoolType):
            return {"true": True, "false": False}.get(text.lower(), text)
        if isinstance(self.kind, LiteralType):
            return text.lower()
        if not isinstance(self.kind, IntType):
            return text
        if self.takes_none and text.lower() == "auto":
            return None
        if "ms" in self.units:
            try:
                length = microseconds(text, "", "", ConfigurationError)
            except ConfigurationError:
                return text
            return text if length % 1_000 else length // 1_000
        found = re.fullmatch(r"([+-]?[0-9]+)\s*([a-zA-Z]*)", text)
        factor = (self.units or {"": 1}).get(found.group(2).lower()) if found else None
        return text if found is None or factor is None else int(found.group(1)) * factor

    def _range(self) -> str:
        assert isinstance(self.kind, IntType)
        return f"{self.show(self.kind.ge)} to {self.show(self.kind.le)}"

    def _how(self) -> str:
        if isinstance(self.kind, BoolType):
            return "true or false"
        if isinstance(self.kind, LiteralType):
            return " or ".join(map(str, self.kind.values))
        if not isinstance(self.kind, IntType):
            return "the path of a folder"
        number = "a whole number without a unit"
        if self.units:
            example = "64mb" if "mb" in self.units else "10s or '10 minutes'"
            number = f"a whole number with a unit ({', '.join(self.units)}), such as {example},"
        return f"{number} from {self._range()}" + (", or auto" if self.takes_none else "")


_ABSENT: Final = {
    "async-state.checkpoint-dir": "none; a job needs one",
    "async-state.local-dir": "`asyncstate-<uid>` in the temporary directory",
}
"""What happens without a folder."""


def _option(name: str, hint: Any) -> Option:
    """The option of a ``Config`` field."""
    words, last = name, name.rpartition("_")[2]
    if last in _UNITS:
        words = name.removesuffix(f"_{last}")
    key = PREFIX + words.replace("bundled_agg_", "bundled_agg.").replace("_", "-")
    kind = type_info(hint)
    types = kind.types if isinstance(kind, UnionType) else (kind,)
    (own,) = (
        one.type if isinstance(one, Metadata) else one for one in types if not isinstance(one, NoneType)
    )
    return Option(key, hint, own, len(types) > 1, _UNITS.get(last, {}), hint.__metadata__[-1])


OPTIONS: dict[str, Option] = {
    name: _option(name, hint)
    for name, hint in get_type_hints(Config, include_extras=True).items()
    if name != "tuning"
}
"""The options by ``Config`` field, in the order of the documentation."""

_DEFAULTS: dict[str, object] = {info.name: info.default for info in msgspec.structs.fields(Config)}
_FIELDS: dict[str, str] = {option.key: name for name, option in OPTIONS.items()}

_REMOVED: Mapping[str, str] = {
    "store": "a worker always keeps its state in RocksDB, where small state stays in memory",
    "epoch-mode": "the timers of one time always start after all earlier ones have finished",
    "batch-hot-reads": "a test gives OperatorHarness(tuning=Tuning(batch_hot_reads=True))",
    "fusion": (
        "operators are always fused where they can be; a test gives PipelineHarness and OperatorHarness a "
        "Tuning"
    ),
    "rocksdb.direct-reads": "RocksDB reads through the operating system's page cache",
    "rocksdb.block-cache-size": "RocksDB's block cache gets an eighth of async-state.memory; set that",
    "column-cache-size": "column states get an eighth of async-state.memory; set that",
    "open-stores-size": "open stores get a sixteenth of async-state.memory; set that",
    "gather-memory": "buffered rows get a quarter of async-state.memory; set that",
    "bundle-memory": "a bundle gets a sixteenth of async-state.memory; set that, or async-state.bundle-size",
    "broadcast-size-limit": "broadcast rows get a sixteenth of async-state.memory; set that",
    "io-parallelism": "the number of threads that read follows from how long a read takes",
    "watchdog-timeout": "a micro-batch fails if records wait and no read completes for a minute",
    "call-limit": "set the attribute call_limit of the operator, or LookupJoin(call_limit=)",
    "call-timeout": "set the attribute call_timeout of the operator, or ctx.call(timeout_seconds=)",
    "unclaimed-state": (
        "give StreamingJob(unclaimed_state='keep') or 'drop', or `sql run --unclaimed-state`, for one start"
    ),
    "local-aggregation": "set the attribute local_aggregation of the operator: 'auto', 'always' or 'never'",
    "checkpoint.retry-attempts": "a request to an object store is always tried 5 times, within a minute",
    "checkpoint.retry-timeout": "a request to an object store is always tried 5 times, within a minute",
}
"""Keys that there were, without the prefix, each with what is so now."""


def default_text(name: str) -> str:
    """The default of a ``Config`` field as one would write it."""
    return OPTIONS[name].show(_DEFAULTS[name])


def resolve(
    operator_options: Mapping[str, object], session: Mapping[str, object], tuning: Tuning | None = None
) -> Config:
    """The one Config of an operator, from its own options and the session's configuration.

    For each key: operator option, else ``spark.async-state.x`` or ``async-state.x`` of the session, else the
    default. Values are texts or Python values. ``tuning``: what a test or benchmark sets. Keys of the session that are
    not ours are left alone. Raises
    ConfigurationError for an unknown key, a value that does not fit, or two spellings that disagree.
    """
    for key in operator_options:
        if not isinstance(key, str):
            raise ConfigurationError(
                f"the options have the key {key!r}; a key is a string, such as async-state.enabled"
            )
        if not _is_ours(key):
            raise _unknown(key)
    settings: dict[str, Any] = _collect(session) | _collect(operator_options)
    return Config(**settings, tuning=tuning or Tuning())


def _collect(settings: Mapping[str, object]) -> dict[str, object]:
    """What one place sets, by ``Config`` field; both spellings at once must agree."""
    found: dict[str, object] = {}
    spellings: dict[str, str] = {}
    for spelling in sorted(filter(_is_ours, settings)):
        key = spelling.removeprefix(SPARK_PREFIX)
        if key not in _FIELDS:
            raise _unknown(spelling)
        name = _FIELDS[key]
        value = OPTIONS[name].convert(settings[spelling], spelling)
        other = spellings.setdefault(name, spelling)
        if found.setdefault(name, value) != value:
            raise ConfigurationError(
                f"{other} is {_shown(settings[other])!r} but {spelling} is {_shown(settings[spelling])!r}; "
                f"set one of them, or both to the same value"
            )
    return found


def _shown(given: object) -> object:
    return redact(given) if isinstance(given, str) else given


def own_settings(session: Mapping[str, object]) -> dict[str, object]:
    """The settings of a session that ``resolve`` reads."""
    return {key: value for key, value in session.items() if _is_ours(key)}


def _is_ours(key: str) -> bool:
    """Whether a setting is meant for asyncstate; a misspelled prefix counts, so that it is reported."""
    return _MEANT.match(key) is not None


def _unknown(spelling: str) -> ConfigurationError:
    key = spelling.removeprefix(SPARK_PREFIX)
    removed = _REMOVED.get(key.removeprefix(PREFIX))
    if removed is not None:
        return ConfigurationError(f"{spelling} has been removed; leave it out: {removed}")
    near = difflib.get_close_matches(key, _FIELDS, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ConfigurationError(
        f"unknown configuration key {spelling}.{hint} The keys are: {', '.join(_FIELDS)}"
    )
