"""Configuration: the ``async-state.*`` keys, their defaults, ranges and units, resolved once on the driver.

Owns: ``Config`` (frozen), the table ``OPTIONS`` and ``resolve``.
Invariant: a ``Config`` in hand has been checked; whichever way it was made, each value is in its range.
May import only ``durations``, ``errors`` and ``places`` of ``asyncstate``, msgspec and the standard library.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Literal, get_type_hints

import msgspec

from asyncstate.durations import microseconds
from asyncstate.errors import ConfigurationError
from asyncstate.places import masked

PREFIX = "async-state."
SPARK_PREFIX = "spark."
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MEANT = re.compile(r"(spark\.)?async[-_.]?state\.", re.IGNORECASE)


@dataclass(frozen=True)
class Switch:
    """``true`` or ``false``; in Python a bool."""

    accepts: str = "`true` or `false`"

    def parse(self, text: str) -> object:
        return {"true": True, "false": False}.get(text.lower(), text)

    def check(self, value: object) -> None:
        if not isinstance(value, bool):
            raise ValueError("write true or false")

    def show(self, value: object) -> str:
        return str(value).lower()


@dataclass(frozen=True)
class Number:
    """A whole number in a range. With ``units`` a text must name one; a Python int is in the first of them.

    With ``auto``, 0 and the word ``auto`` leave the choice to the framework.
    """

    minimum: int
    maximum: int
    auto: bool = False
    units: Mapping[str, int] = field(default_factory=dict)

    @property
    def accepts(self) -> str:
        span = f"{self.show(self.minimum)} to {self.show(self.maximum)}"
        units = f" (units {', '.join(self.units)})" if self.units else ""
        return span + units + (", or `auto`" if self.auto else "")

    def parse(self, text: str) -> int:
        if self.auto and text.lower() == "auto":
            return 0
        found = re.fullmatch(r"([+-]?[0-9]+)\s*([a-zA-Z]*)", text)
        unit = found.group(2).lower() if found else ""
        if found is None or unit not in (self.units or {"": 1}):
            raise ValueError(f"write {self._how()}")
        return int(found.group(1)) * self.units.get(unit, 1)

    def check(self, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"write {self._how()}")
        if not (self.minimum <= value <= self.maximum or (self.auto and value == 0)):
            raise ValueError(f"the range is {self.accepts}".replace("`", ""))

    def show(self, value: object) -> str:
        assert isinstance(value, int)
        if self.auto and value == 0:
            return "auto"
        for unit, factor in reversed(tuple(self.units.items())):
            if value and value % factor == 0:
                return f"{value // factor}{unit}"
        return f"{value}{next(iter(self.units), '')}"

    def _how(self) -> str:
        if self.units:
            also = " or '10 minutes'" if isinstance(self, Milliseconds) else ""
            example = "64mb" if "mb" in self.units else self.show(self.maximum)
            return f"a whole number with a unit ({', '.join(self.units)}), such as {example}{also}"
        return "a whole number without a unit" + (" or auto" if self.auto else "")


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def accepts(self) -> str:
        return " or ".join(f"`{word}`" for word in self.words)

    def parse(self, text: str) -> object:
        return text.lower()

    def check(self, value: object) -> None:
        if value not in self.words:
            raise ValueError(f"write {' or '.join(self.words)}")

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class LocalFolder:
    """A path on the machine's own disk. A relative one begins at the driver's working directory. ``absent``: as of
    ``Folder``."""

    absent: str
    accepts: str = "a path on a local disk"

    def parse(self, text: str) -> object:
        self.check(text)
        return os.path.abspath(text)

    def check(self, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, str) or not value.strip():
            raise ValueError("write the path of a folder")
        if value.startswith("~"):
            raise ValueError(
                "nobody replaces ~, which is another folder on each machine; write the whole path"
            )
        if _URI.match(value):
            raise ValueError(
                "stores lie on each worker's own disk; write the path of a folder there, not a URI"
            )

    def show(self, value: object) -> str:
        return self.absent if value is None else str(value)


@dataclass(frozen=True)
class Folder:
    """A path or URI. None means not given; ``absent`` says what then happens."""

    absent: str
    accepts: str = "a path"

    def parse(self, text: str) -> object:
        return text

    def check(self, value: object) -> None:
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ValueError("write the path of a folder")

    def show(self, value: object) -> str:
        return self.absent if value is None else str(value)


def size(minimum: int, maximum: int) -> Number:
    """Bytes; 1 kb is 1024 bytes, as in Spark."""
    return Number(minimum, maximum, units={"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30})


@dataclass(frozen=True)
class Milliseconds(Number):
    """A Number of milliseconds, which may also be written as all other durations: "10 minutes", a timedelta."""

    def parse(self, text: str | timedelta) -> int:
        """See ``Number``."""
        try:
            length = microseconds(text, "", "", ConfigurationError)
        except ConfigurationError:
            return super().parse(str(text))
        if length % 1_000:
            raise ValueError("write whole milliseconds")
        return length // 1_000


def duration(minimum_ms: int, maximum_ms: int, auto: bool = False) -> Number:
    """Milliseconds."""
    units = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}
    return Milliseconds(minimum_ms, maximum_ms, auto, units)


@dataclass(frozen=True)
class Option:
    """One key: the values it takes and what it does. Read from the annotation of a ``Config`` field."""

    key: str
    kind: Switch | Number | Choice | Folder | LocalFolder
    doc: str

    def convert(self, given: object, spelling: str) -> object:
        """The checked value of what was given as a text or a Python value under ``spelling``."""
        try:
            if isinstance(given, os.PathLike):
                given = os.fspath(given)
            if isinstance(given, bool) and isinstance(self.kind, Choice):
                given = str(given)  # true and false may be two of the words
            if isinstance(given, timedelta) and isinstance(self.kind, Milliseconds):
                value: object = self.kind.parse(given)
            else:
                value = self.kind.parse(given.strip()) if isinstance(given, str) else given
            if value is None:
                raise ValueError("leave the key out to get the default")
            if value == 0 and isinstance(self.kind, Number) and self.kind.auto and not _says_auto(given):
                raise ValueError(f"the range is {self.kind.accepts}".replace("`", ""))
            self.kind.check(value)
        except ValueError as error:
            raise ConfigurationError(f"{spelling}: {given!r} does not fit; {error}") from None
        return value


def _says_auto(given: object) -> bool:
    return isinstance(given, str) and given.strip().lower() == "auto"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one operator in one job; ``docs/configuration.md`` says what each means.

    The key of ``buffer_timeout_ms`` is ``async-state.buffer-timeout``: without the unit, which stands last in
    the name, and with a dot after ``rocksdb`` or ``bundled_agg``, or before ``retry``. 0 in a field that takes ``auto``
    means auto. Raises ConfigurationError if a value is out of range or two contradict each other.
    """

    enabled: Annotated[
        bool,
        Switch(),
        "Complete state requests later, batched and overlapped (async), instead of running each at once "
        "(sync). Results and stored bytes are the same.",
    ] = False
    in_flight_limit: Annotated[
        int,
        Number(1, 1_000_000),
        "Records of a partition that may be under way at once; further input waits.",
    ] = 6_000
    buffer_size: Annotated[
        int, Number(1, 1_000_000), "State requests that are gathered before they go to the store together."
    ] = 1_000
    buffer_timeout_ms: Annotated[
        int, duration(1, 3_600_000), "A buffer that does not fill goes to the store after this long."
    ] = 1_000
    io_parallelism: Annotated[
        int,
        Number(1, 256, auto=True),
        "Threads of a partition that read from the store, at most; `auto` follows how long a read takes.",
    ] = 0
    batch_hot_reads: Annotated[
        bool,
        Switch(),
        "Let every read wait that memory cannot answer, also while the store is quick. For tests: it shows what relies "
        "on a read being answered at once.",
    ] = False
    epoch_mode: Annotated[
        Literal["serial", "parallel-between-epochs"],
        Choice(("serial", "parallel-between-epochs")),
        "Between two timer ticks. `serial`: the timers of a time start when all of the time before are done. "
        "The other: they overlap, in order only for each key. Records are always done before timers fire.",
    ] = "serial"
    iterate_response_batch_size: Annotated[
        int, Number(1, 1_000_000), "Entries that a state iterator loads at a time."
    ] = 1_000
    watchdog_timeout_ms: Annotated[
        int,
        duration(1_000, 86_400_000),
        "When records wait and no read completes for this long, or no call for this long after its timeout, the batch "
        "fails and names them.",
    ] = 60_000
    call_limit: Annotated[
        int,
        Number(1, 10_000),
        "Calls of `ctx.call` that a partition makes at once; further ones wait. Plain functions take a thread each.",
    ] = 100
    call_timeout_ms: Annotated[
        int,
        duration(1, 86_400_000),
        "A call of `ctx.call` that takes longer is cancelled and fails with TimeoutError, unless it is given another "
        "timeout. Also the time that `open_calls` and `close_calls` have.",
    ] = 60_000
    bundle_size: Annotated[
        int,
        Number(1, 10_000_000),
        "Rows that a bundle-grain operator gets at a time, at most. More rows are cheaper each: neighbouring keys "
        "share blocks, and rows of a key are put together.",
    ] = 500_000
    bundle_memory_bytes: Annotated[
        int,
        size(1 << 10, 1 << 40),
        "Bytes of a bundle: of its rows, and of the state that they read and write, judged by the micro-batch before. "
        "Where they are wide a bundle has fewer rows, but 1,000.",
    ] = 64 << 20
    bundled_agg_size: Annotated[
        int,
        Number(1, 10_000_000),
        "Rows that a BundledAggregateFunction gets at a time, at most, over all keys.",
    ] = 100_000
    bundled_agg_allow_latency_ms: Annotated[
        int,
        duration(1, 3_600_000, auto=True),
        "How long an operator with a BundledAggregateFunction waits for as many rows as it may get at a time, since "
        "the first of them came; `auto`: until the micro-batch has no more.",
    ] = 0
    gather_memory_bytes: Annotated[
        int,
        size(1 << 10, 1 << 40),
        "Memory for rows of one input and partition that are gathered in a micro-batch, because a changelog's rows of "
        "a key, or rows with a `sequence`, are handled together, or because another input's rows come first. Beyond it "
        "they go to disk, below `async-state.local-dir`, until the micro-batch ends.",
    ] = 256 << 20
    on_missing_row: Annotated[
        Literal["count", "warn", "fail"],
        Choice(("count", "warn", "fail")),
        "What is done about retractions whose row is not there. `count`: they are dropped and counted "
        "(`retractions_without_state`). `warn`: and one warning a micro-batch and operator shows an example. `fail`: "
        "the micro-batch fails; see [order-and-time.md](order-and-time.md).",
    ] = "warn"
    unclaimed_state: Annotated[
        Literal["refuse", "keep", "drop"],
        Choice(("refuse", "keep", "drop")),
        "What is done about state in the checkpoint whose uid no operator of the job has. `refuse`: the job does not "
        "start, or its first micro-batch fails. `keep`: it is carried along. `drop`: it is given up; see "
        "[schema changes](schema-changes.md#a-renamed-or-removed-operator).",
    ] = "refuse"
    local_aggregation: Annotated[
        Literal["auto", "true", "false"],
        Choice(("auto", "true", "false")),
        "Put rows of a key together before the exchange (two-phase aggregation), where the operator can. `auto`: over "
        "insert-only inputs, where the micro-batch before shows that it pays; see "
        "[two phases](operators/aggregate.md#two-phase-aggregation).",
    ] = "auto"
    fusion: Annotated[
        bool,
        Switch(),
        "In a job that is declared as a graph, run filters and projections behind an operator, and what the next "
        "operator can do to rows before the exchange, in the operator's own task; see "
        "[dataflow](dataflow.md#what-runs-where).",
    ] = True
    broadcast_size_limit_bytes: Annotated[
        int,
        size(1 << 10, 1 << 30),
        "Arrow bytes of a broadcast input in one micro-batch: the driver collects them and every task gets them. "
        "A larger input fails the batch.",
    ] = 64 << 20
    cache_size_bytes: Annotated[
        int,
        size(0, 1 << 40),
        "Memory of a worker process, over all its partitions, for stored values that it has read or written, absent "
        "ones included; kept from micro-batch to micro-batch. `0b` turns it off.",
    ] = 128 << 20
    column_cache_size_bytes: Annotated[
        int,
        size(0, 1 << 40),
        "Memory of a worker process, over all its partitions, for rows of column states (of bundle-grain operators, "
        "one row a key), kept as columns from micro-batch to micro-batch; see "
        "[state-cache.md](state-cache.md#column-states). `0b` turns it off.",
    ] = 128 << 20
    open_stores_size_bytes: Annotated[
        int,
        size(0, 1 << 40),
        "Memory of a worker process for stores that stay open from micro-batch to micro-batch: indexes and filters of "
        "their tables, which the block cache makes room for, and 1 MiB each. Beyond it those are closed that were not "
        "used for the longest time. `0b` closes each at the end of its micro-batch.",
    ] = 64 << 20
    write_cache_size_bytes: Annotated[
        int,
        size(1 << 10, 1 << 40),
        "Memory for what one partition writes in a micro-batch. Beyond it writes go to disk, below "
        "`async-state.local-dir`, until the micro-batch ends; results and stored bytes are the same.",
    ] = 256 << 20
    read_cache_size_bytes: Annotated[
        int,
        size(0, 1 << 40),
        "Memory of a state object for values it has decoded or been given, in each micro-batch, beside "
        "`async-state.cache-size`; at most `async-state.write-cache-size`. Only values that cannot be changed are "
        "kept, and only while it pays. `0b` turns it off.",
    ] = 4 << 20
    rocksdb_block_cache_size_bytes: Annotated[
        int, size(1 << 20, 1 << 40), "RocksDB's cache of blocks, filters and indexes, in each worker process."
    ] = 128 << 20
    rocksdb_direct_reads: Annotated[bool, Switch(), "Read around the operating system's page cache."] = False
    local_dir: Annotated[
        str | None,
        LocalFolder("`asyncstate-<uid>` in the worker's temporary directory"),
        "Folder on each worker's own disk for its stores; a relative path begins at the driver's working directory. "
        "Losing it costs a restore, never data. The default one "
        "belongs to the worker's user alone; of one that you give see to it that nobody else can write there.",
    ] = None
    checkpoint_dir: Annotated[
        str | None,
        Folder("none; a job needs one"),
        "Folder or URI (`s3://bucket/folder`, `gs://`, `hdfs://`, ...) that driver and workers reach: manifests, "
        "deltas and snapshots; see [checkpoints.md](checkpoints.md).",
    ] = None
    checkpoint_retry_attempts: Annotated[
        int,
        Number(1, 100),
        "Tries of a request to an object store that times out, is throttled, or meets a failing server or connection; "
        "the waits between grow, with jitter.",
    ] = 5
    checkpoint_retry_timeout_ms: Annotated[
        int, duration(1, 3_600_000), "After this long no further try of such a request is made."
    ] = 60_000
    snapshot_interval: Annotated[
        int,
        Number(1, 1_000_000),
        "Micro-batches from one snapshot to the next; a restore reads at most as many deltas.",
    ] = 10
    retained_versions: Annotated[
        int, Number(1, 1_000_000), "Committed micro-batches that stay restorable; older files are removed."
    ] = 10
    parallelism: Annotated[
        int,
        Number(1, 32_768, auto=True),
        "Partitions of the state; `auto` lets the job choose. May change at a restart.",
    ] = 0
    max_parallelism: Annotated[
        int,
        Number(1, 32_768),
        "Key groups, so the most partitions there can ever be. Fixed by the job's first batch.",
    ] = 128

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            try:
                option.kind.check(getattr(self, name))
            except ValueError as error:
                given = getattr(self, name)
                raise ConfigurationError(f"{option.key}: {given!r} does not fit; {error}") from None
        if self.parallelism > self.max_parallelism:
            raise ConfigurationError(
                f"async-state.parallelism is {self.parallelism}, more than async-state.max-parallelism "
                f"({self.max_parallelism}); lower the first, or raise the second before the job's first batch"
            )

    def __repr__(self) -> str:
        # The URI of a checkpoint may hold credentials.
        shown = (f"{name}={_shown(getattr(self, name))!r}" for name in self.__struct_fields__)
        return f"Config({', '.join(shown)})"


def _key_of(name: str) -> str:
    """The configuration key of a ``Config`` field."""
    words = re.sub("_(ms|bytes)$", "", name)
    return PREFIX + re.sub("^(rocksdb|bundled_agg|checkpoint(?=_retry))_", r"\1.", words).replace("_", "-")


OPTIONS: dict[str, Option] = {
    name: Option(_key_of(name), *hint.__metadata__)
    for name, hint in get_type_hints(Config, include_extras=True).items()
}
"""The options by ``Config`` field, in the order of the documentation."""

_DEFAULTS: dict[str, object] = {info.name: info.default for info in msgspec.structs.fields(Config)}
_FIELDS: dict[str, str] = {option.key: name for name, option in OPTIONS.items()}

_REMOVED: Mapping[str, str] = {
    "async-state.store": "a worker always keeps its state in RocksDB, where small state stays in memory "
    "(async-state.rocksdb.block-cache-size, async-state.column-cache-size)",
}
"""Keys that there were, each with what is so now."""


def default_text(name: str) -> str:
    """The default of a ``Config`` field as one would write it."""
    return OPTIONS[name].kind.show(_DEFAULTS[name])


def resolve(operator_options: Mapping[str, object], session: Mapping[str, object]) -> Config:
    """The one Config of an operator, from its own options and the session's configuration.

    For each key: operator option, else ``spark.async-state.x`` or ``async-state.x`` of the session, else the
    default. Values are texts or Python values. Keys of the session that are not ours are left alone. Raises
    ConfigurationError for an unknown key, a value that does not fit, or two spellings that disagree.
    """
    for key in operator_options:
        if not isinstance(key, str):
            raise ConfigurationError(
                f"the options have the key {key!r}; write the key's name, a text: async-state.enabled"
            )
        if not _is_ours(key):
            raise _unknown(key)
    return Config(**_collect(session) | _collect(operator_options))  # type: ignore[arg-type]


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
    return masked(given) if isinstance(given, str) else given


def _is_ours(key: str) -> bool:
    """Whether a setting is meant for us, also one whose prefix is misspelled: it is to be told, not left alone."""
    return _MEANT.match(key) is not None


def _unknown(spelling: str) -> ConfigurationError:
    key = spelling.removeprefix(SPARK_PREFIX)
    if key in _REMOVED:
        return ConfigurationError(f"{spelling} has been removed; leave it out: {_REMOVED[key]}")
    near = difflib.get_close_matches(key, _FIELDS, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ConfigurationError(
        f"unknown configuration key {spelling}.{hint} The keys are: {', '.join(_FIELDS)}"
    )
