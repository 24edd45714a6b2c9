"""Configuration: precedence, units, ranges, spelling, the way to the tasks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.inspect import IntType

from asyncstate.config import OPTIONS, Config, Shares, Tuning, default_text, resolve
from asyncstate.durations import microseconds
from asyncstate.errors import ConfigurationError, SchemaError

GB, MB = 1 << 30, 1 << 20

DOCUMENTED_DEFAULTS = {
    "async-state.checkpoint-dir": None,
    "async-state.local-dir": None,
    "async-state.memory": GB,
    "async-state.cache-size": None,
    "async-state.read-cache-size": None,
    "async-state.write-cache-size": None,
    "async-state.enabled": False,
    "async-state.in-flight-limit": 6_000,
    "async-state.buffer-size": 1_000,
    "async-state.buffer-timeout": 1_000,
    "async-state.iterate-response-batch-size": 1_000,
    "async-state.bundle-size": 500_000,
    "async-state.bundled-agg.size": 100_000,
    "async-state.bundled-agg.allow-latency": None,
    "async-state.on-missing-row": "warn",
    "async-state.snapshot-interval": None,
    "async-state.retained-versions": 10,
    "async-state.executor": "auto",
    "async-state.parallelism": None,
    "async-state.max-parallelism": 128,
}


def test_the_keys_and_their_defaults_are_the_documented_ones() -> None:
    config = resolve({}, {})
    assert {option.key: getattr(config, name) for name, option in OPTIONS.items()} == DOCUMENTED_DEFAULTS
    assert config == Config()


def test_every_field_is_an_option_but_what_only_tests_set() -> None:
    assert {info.name for info in msgspec.structs.fields(Config)} == {*OPTIONS, "tuning"}


def test_the_memory_of_a_worker_is_shared_out() -> None:
    """By default and in proportion; open stores lie in the blocks, decoded values in the cache."""
    shares = resolve({}, {}).shares
    assert shares == Shares(
        cache=128 * MB,
        columns=128 * MB,
        blocks=128 * MB,
        open_stores=64 * MB,
        writes=256 * MB,
        decoded=128 * MB,
        gathered=256 * MB,
        bundle=64 * MB,
        broadcast=64 * MB,
    )
    assert resolve({"async-state.memory": "4gb"}, {}).shares == Shares(*(4 * size for size in shares))


@given(st.integers(16 * MB, GB), st.floats(0, 0.75), st.floats(0, 0.75))
def test_the_shares_stay_within_the_memory(memory: int, cache: float, writes: float) -> None:
    given = {"cache_size_bytes": int(memory * cache), "write_cache_size_bytes": int(memory * writes) + 1024}
    try:
        shares = Config(memory_bytes=memory, **given).shares
    except ConfigurationError:
        assert sum(given.values()) > memory // 4 * 3
        return
    assert (shares.cache, shares.writes) == tuple(given.values())
    rest = [shares.columns, shares.blocks, shares.gathered, shares.bundle, shares.broadcast]
    assert all(size > 0 for size in rest)
    assert sum(rest) + sum(given.values()) <= memory


def test_parts_beyond_the_memory_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"cache-size \(900mb\) .* async-state.memory \(1gb\); raise"
    ):
        resolve({"async-state.cache-size": "900mb"}, {})
    assert (
        resolve({"async-state.cache-size": "900mb", "async-state.memory": "4gb"}, {}).shares.cache == 900 * MB
    )


def test_where_every_read_is_to_wait_nothing_is_kept_in_memory() -> None:
    shares = resolve({}, {}, Tuning(batch_hot_reads=True)).shares
    assert (shares.cache, shares.columns, shares.decoded) == (0, 0, 0)
    assert shares.writes == Config().shares.writes


@pytest.mark.parametrize(
    ("operator", "session", "value"),
    [
        ({}, {}, 1_000),
        ({}, {"async-state.buffer-size": "7"}, 7),
        ({}, {"spark.async-state.buffer-size": "7"}, 7),
        ({"async-state.buffer-size": 5}, {"async-state.buffer-size": "7"}, 5),
        ({"async-state.buffer-size": 5}, {"spark.async-state.buffer-size": "7"}, 5),
        ({"spark.async-state.buffer-size": "5"}, {}, 5),
        ({"async-state.buffer-size": 1_000}, {"async-state.buffer-size": "7"}, 1_000),  # the default
    ],
)
def test_precedence(operator: dict[str, Any], session: dict[str, str], value: int) -> None:
    assert resolve(operator, session).buffer_size == value


@pytest.mark.parametrize("place", ["operator", "session"])
def test_two_spellings_that_disagree_are_refused_and_both_named(place: str) -> None:
    both = {"spark.async-state.enabled": "true", "async-state.enabled": "false"}
    with pytest.raises(ConfigurationError) as raised:
        resolve(both, {}) if place == "operator" else resolve({}, both)
    text = str(raised.value)
    assert "spark.async-state.enabled is 'true'" in text
    assert " async-state.enabled is 'false'" in f" {text}"


def test_two_spellings_of_the_same_value_agree_even_if_written_differently() -> None:
    both = {"spark.async-state.cache-size": "2mb", "async-state.cache-size": "2048kb"}
    assert resolve({}, both).cache_size_bytes == 2 * 1024 * 1024


def test_a_conflict_in_the_session_is_refused_even_if_the_operator_overrides_it() -> None:
    both = {"spark.async-state.enabled": "true", "async-state.enabled": "false"}
    with pytest.raises(ConfigurationError, match="set one of them"):
        resolve({"async-state.enabled": True}, both)


def test_other_keys_of_the_session_are_left_alone() -> None:
    session = {"spark.app.name": "x", "spark.sql.shuffle.partitions": "2", "async": "y", "asyncstates.z": "z"}
    assert resolve({}, session) == Config()


@pytest.mark.parametrize("spelling", ["async-state.buffersize", "spark.async-state.buffersize"])
def test_an_unknown_key_names_the_nearest_and_all(spelling: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        resolve({}, {spelling: "1"})
    text = str(raised.value)
    assert f"unknown configuration key {spelling}." in text
    assert "Did you mean async-state.buffer-size?" in text
    assert all(key in text for key in DOCUMENTED_DEFAULTS)


@pytest.mark.parametrize(
    "spelling", ["spark.asyncstate.enabled", "async_state.enabled", "spark.Async-State.enabled"]
)
def test_a_misspelled_prefix_is_told_and_not_left_alone(spelling: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{spelling}. Did you mean async-state.enabled"):
        resolve({}, {spelling: "true"})


@pytest.mark.parametrize("prefix", ["async-state.", "spark.async-state."])
@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("store", "in RocksDB"),
        ("epoch-mode", "timers"),
        ("batch-hot-reads", r"OperatorHarness\(tuning=Tuning\(batch_hot_reads=True\)\)"),
        ("fusion", "Tuning"),
        ("rocksdb.direct-reads", "page cache"),
        ("rocksdb.block-cache-size", "async-state.memory"),
        ("column-cache-size", "async-state.memory"),
        ("open-stores-size", "async-state.memory"),
        ("gather-memory", "async-state.memory"),
        ("bundle-memory", "async-state.memory"),
        ("broadcast-size-limit", "async-state.memory"),
        ("io-parallelism", "how long a read takes"),
        ("watchdog-timeout", "a minute"),
        ("call-limit", r"LookupJoin\(call_limit=\)"),
        ("call-timeout", r"ctx.call\(timeout_seconds=\)"),
        ("local-aggregation", "'auto', 'always' or 'never'"),
        ("checkpoint.retry-attempts", "5 times"),
        ("checkpoint.retry-timeout", "minute"),
    ],
)
def test_a_key_that_was_removed_says_what_to_do(prefix: str, key: str, advice: str) -> None:
    for operator, session in (({prefix + key: "1"}, {}), ({}, {prefix + key: "1"})):
        with pytest.raises(
            ConfigurationError, match=f"^{prefix}{key} has been removed; leave it out: .*{advice}"
        ):
            resolve(operator, session)


def test_an_operator_option_that_is_no_key_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown configuration key enabled"):
        resolve({"enabled": True}, {})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("enabled", "TRUE", True),
        ("enabled", " false ", False),
        ("buffer-timeout", "250ms", 250),
        ("buffer-timeout", "2s", 2_000),
        ("buffer-timeout", "3 min", 180_000),
        ("buffer-timeout", "1h", 3_600_000),
        ("cache-size", "0b", 0),
        ("cache-size", "512kb", 524_288),
        ("cache-size", "auto", None),
        ("memory", "1GB", 1_073_741_824),
        ("parallelism", "auto", None),
        ("parallelism", "Auto", None),
        ("parallelism", "8", 8),
        ("executor", "Local", "local"),
        ("checkpoint-dir", "s3://bucket/x", "s3://bucket/x"),
    ],
)
def test_texts(key: str, text: object, value: object) -> None:
    config = resolve({}, {f"async-state.{key}": text})
    name = next(name for name, option in OPTIONS.items() if option.key == f"async-state.{key}")
    assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("enabled", "yes"),
        ("enabled", 1),
        ("in-flight-limit", "0"),
        ("in-flight-limit", "-5"),
        ("in-flight-limit", "6e3"),
        ("in-flight-limit", "auto"),
        ("in-flight-limit", "10ms"),
        ("in-flight-limit", True),
        ("in-flight-limit", 2.5),
        ("buffer-size", ""),
        ("buffer-timeout", "1000"),
        ("buffer-timeout", "0ms"),
        ("buffer-timeout", "1mb"),
        ("buffer-timeout", "1.5s"),
        ("cache-size", "64"),
        ("cache-size", "64 mib"),
        ("cache-size", "-1b"),
        ("parallelism", "0"),
        ("parallelism", 0),
        ("executor", "parallel"),
        ("memory", "auto"),
        ("memory", "1mb"),
        ("checkpoint-dir", "  "),
        ("checkpoint-dir", None),
        ("parallelism", "40000"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_key_and_value(key: str, given: object) -> None:
    with pytest.raises(ConfigurationError) as raised:
        resolve({f"async-state.{key}": given}, {})
    assert f"async-state.{key}: {given!r} does not fit" in str(raised.value)


def test_ranges_hold_whichever_way_a_config_is_made() -> None:
    with pytest.raises(ConfigurationError, match="async-state.buffer-size: 0 does not fit"):
        Config(buffer_size=0)
    with pytest.raises(ConfigurationError, match="async-state.buffer-size: 0 does not fit"):
        msgspec.structs.replace(Config(), buffer_size=0)


def test_parallelism_beyond_the_maximum_is_refused() -> None:
    assert Config(parallelism=128).parallelism == 128
    with pytest.raises(ConfigurationError, match=r"parallelism is 129, more than .* \(128\)"):
        Config(parallelism=129)


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    assert resolve({"async-state.checkpoint-dir": tmp_path}, {}).checkpoint_dir == str(tmp_path)


def _values(name: str) -> st.SearchStrategy[Any]:
    kind = OPTIONS[name].kind
    assert isinstance(kind, IntType)
    assert kind.ge is not None
    assert kind.le is not None
    return st.integers(int(kind.ge), int(kind.le))


NUMBERS = [
    name
    for name, option in OPTIONS.items()
    if isinstance(option.kind, IntType) and name not in ("parallelism", "cache_size_bytes", "memory_bytes")
]


@given(st.fixed_dictionaries({}, optional={name: _values(name) for name in NUMBERS}), st.booleans())
def test_a_config_survives_being_written_as_texts(fields: dict[str, int], enabled: bool) -> None:
    fields["memory_bytes"] = 1 << 40
    fields.pop("write_cache_size_bytes", None)
    config = Config(enabled=enabled, **fields)  # type: ignore[arg-type]
    texts = {OPTIONS[name].key: OPTIONS[name].show(value) for name, value in fields.items()}
    again = resolve({}, {**texts, "async-state.enabled": str(enabled).lower()})
    assert again == config


def test_a_default_is_shown_as_one_would_write_it() -> None:
    assert default_text("buffer_timeout_ms") == "1s"
    assert default_text("memory_bytes") == "1gb"
    assert default_text("cache_size_bytes") == "auto"
    assert default_text("checkpoint_dir") == "none; a job needs one"
    assert default_text("parallelism") == "auto"


@pytest.mark.parametrize(
    "given", ["10 minutes", "600 seconds", timedelta(minutes=10), "10min", "600000ms", 600_000]
)
def test_durations_may_be_written_out(given: Any) -> None:
    assert resolve({"async-state.buffer-timeout": given}, {}).buffer_timeout_ms == 600_000
    latency = resolve({"async-state.bundled-agg.allow-latency": given}, {})  # a duration, or auto
    assert latency.bundled_agg_allow_latency_ms == 600_000


@pytest.mark.parametrize(
    "given", ["10", "ten minutes", "10 minuten", "5 microseconds", timedelta(microseconds=5)]
)
def test_what_is_no_duration_is_refused_with_how_to_write_one(given: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="async-state.buffer-timeout: .* does not fit; write .*10 minutes"
    ):
        resolve({"async-state.buffer-timeout": given}, {})
    with pytest.raises(ConfigurationError, match="async-state.cache-size"):
        resolve({"async-state.cache-size": timedelta(minutes=1)}, {})


def test_a_size_without_a_unit_is_shown_one_that_may_be_copied() -> None:
    """Not the largest that there is: 1024gb of cache is nobody's wish."""
    with pytest.raises(
        ConfigurationError, match="'64' does not fit; write a whole number with a unit .* such as 64mb"
    ):
        resolve({"async-state.cache-size": "64"}, {})


@pytest.mark.parametrize("given", ["~/state", "s3://bucket/state", "file:///state", " ", "hdfs://host/x"])
def test_stores_lie_on_a_disk_of_the_machine(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"async-state\.local-dir"):
        resolve({"async-state.local-dir": given}, {})
    with pytest.raises(ConfigurationError, match=r"async-state\.local-dir"):
        Config(local_dir=given)


def test_a_relative_local_folder_begins_where_the_driver_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve({"async-state.local-dir": "state/local"}, {}).local_dir == str(tmp_path / "state/local")


@pytest.mark.parametrize("key", [7, None, b"async-state.enabled", ("async-state.enabled",)])
def test_a_key_that_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(ConfigurationError, match="the options have the key"):
        resolve({key: "true"}, {})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [
        ("1h", 3_600_000_000),
        ("10 min", 600_000_000),
        ("10 minutes", 600_000_000),
        ("1h 30min", 5_400_000_000),
        ("250ms", 250_000),
        ("5 s", 5_000_000),
        ("1 hour", 3_600_000_000),
        ("2 d", 172_800_000_000),
    ],
)
def test_options_windows_and_ttl_take_the_same_lengths(text: str, expected_us: int) -> None:
    assert microseconds(text, "tumble", "size") == expected_us
    if expected_us <= 3_600_000_000:
        config = resolve({"async-state.buffer-timeout": text}, {})
        assert config.buffer_timeout_ms == expected_us // 1_000


@pytest.mark.parametrize("text", ["1", "h", "1 m", "1 hours ago", "1 secs", "5 mss", "1hour2", "1 month"])
def test_what_is_no_length_is_refused_everywhere(text: str) -> None:
    with pytest.raises(ConfigurationError):
        resolve({"async-state.buffer-timeout": text}, {})
    with pytest.raises(SchemaError, match="not a duration"):
        microseconds(text, "tumble", "size")
