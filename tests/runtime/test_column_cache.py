"""The cache of column states as a job sees it: the same rows and bytes, whatever fits, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from asyncstate.errors import OperatorError
from asyncstate.execution.bundle_reads import BundleReads
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext
from asyncstate.runtime.partition.restore_plans import TaskStores
from asyncstate.runtime.partition.worker_memory import WorkerMemory, worker_memory
from asyncstate.state import ColumnState, ColumnStateDescriptor, StateTtl
from asyncstate.state.column_cache import cache as cache_module
from asyncstate.testing import OperatorHarness, Tuning
from operators import Deduplicate, GroupAggregate, collect, count, max_, sum_
from tests.examples import share
from tests.pacers import AlwaysSlow
from tests.state.ttl_column_probe import ColumnBench, ColumnProbe

INPUT = pa.schema([("key", pa.string()), ("op", pa.string()), ("value", pa.int64())])
OUTPUT = pa.schema(
    [("key", pa.string()), ("number", pa.int64()), ("text", pa.string()), ("other", pa.int64())]
)
ROW = pa.schema([("number", pa.int64()), ("text", pa.string())])
OTHER = pa.schema([pa.field("other", pa.int64(), nullable=False)])
KEYS = [None, *"abcdefgh"]
OPS = ["add", "drop", "peek", "fail"]

Pushed = list[tuple[str | None, str, int]]
Held = dict[str | None, tuple[int | None, str | None, int | None]]


class Changes(BundleOperator):
    """Two states of a row a key. A bundle's reads are asked for first, all writes follow at once, and what the reads
    give is put out: what there was before the bundle. The op of a key's last row counts."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return OUTPUT

    def open(self, context: OperatorContext) -> None:
        self.rows: ColumnState = context.get_state(ColumnStateDescriptor("rows", ROW))
        self.others: ColumnState = context.get_state(ColumnStateDescriptor("others", OTHER))

    def prefetch(self, bundle: Bundle) -> None:
        self.rows.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        keys, last = bundle.keys, pa.array(bundle.keys.last_rows())
        ops = bundle.batch.column("op").take(last).to_pylist()
        if "fail" in ops:
            raise ValueError("a bad row")
        rows, others = self.rows.async_get(keys), self.others.async_get(keys)
        value = bundle.batch.column("value").take(last)
        text = pa.array([str(one) * (one % 9) if one % 4 else None for one in value.to_pylist()], pa.string())
        touched = np.array([op != "peek" for op in ops])
        keep = np.array([op == "add" for op in ops])[touched]
        chosen = pa.array(touched)
        if touched.any():
            self.rows.write(keys.select(touched), [value.filter(chosen), text.filter(chosen)], keep)
        self.others.put(keys, [value])

        def show(found: Any) -> None:
            ctx.emit([keys.columns[0], *found[0].columns, found[1].columns[0]])

        return rows.then_combine(others, lambda one, two: (one, two)).then_accept(show)


def _expected(held: Held, pushed: Pushed, bundle_size: int) -> tuple[Held, list[tuple[Any, ...]]]:
    """What the state is after the rows, and what is put out, by a plain loop."""
    held, shown = dict(held), []
    for start in range(0, len(pushed), bundle_size):
        last = {key: (op, value) for key, op, value in pushed[start : start + bundle_size]}
        for key, (op, value) in last.items():
            before = held.get(key, (None, None, None))
            shown.append((key, *before))
            number, text, _ = before
            if op == "add":
                number, text = value, str(value) * (value % 9) if value % 4 else None
            elif op == "drop":
                number = text = None
            held[key] = number, text, value
    return held, sorted(shown, key=str)


@pytest.fixture(params=["sync", "async", "async, slow reads"])
def enabled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs the test in sync mode, and in async mode with reads at once and with reads on threads."""
    if request.param == "async, slow reads":
        monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    return bool(request.param != "sync")


@pytest.fixture(autouse=True)
def _of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other tests have left in this process takes room, too. Tables are small and yet worth giving away."""
    monkeypatch.setattr(cache_module, "_BYTES_A_KEY", 1 << 30)
    worker_memory().columns.clear()
    yield
    worker_memory().columns.clear()


@pytest.fixture
def workers(enabled: bool) -> Iterator[list[WorkerMemory]]:
    """Two workers of one machine."""
    both = [WorkerMemory(worker_memory().pacer) for _ in range(2)]
    yield both
    for worker in both:
        worker.stores.close()


def _harness(
    operator: Any, enabled: bool, cache: int, schema: pa.Schema = INPUT, **options: Any
) -> OperatorHarness:
    settings = {"async-state.snapshot-interval": "3"}
    settings |= {f"async-state.{name.replace('_', '-')}": value for name, value in options.items()}
    parallelism = settings.pop("async-state.parallelism", 1)
    return OperatorHarness(
        operator,
        schema,
        ["key"],
        async_enabled=enabled,
        options=settings,
        tuning=Tuning(columns_bytes=cache),
        parallelism=parallelism,
        max_parallelism=8,
    )


pushes = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["add", "add", "drop", "peek"]), st.integers(0, 40)),
    max_size=30,
)
fates = st.sampled_from(
    ["commit", "commit", "fail", "replay", "restart", "rescale", "elsewhere", "handed over", "handed over"]
)
SIZES = [0, 1, 4 << 10, 1 << 20]


@pytest.mark.long
@given(
    story=st.lists(st.tuples(pushes, fates), min_size=1, max_size=7),
    cache=st.sampled_from(SIZES),
    bundle_size=st.sampled_from([2, 7, 1_000]),
    write_cache=st.sampled_from(["1kb", "1mb"]),
)
def test_rows_and_state_follow_a_model_whatever_becomes_of_attempts(
    enabled: bool, story: list[tuple[Pushed, str]], cache: int, bundle_size: int, write_cache: str
) -> None:
    options = {"bundle_size": str(bundle_size), "write_cache_size": write_cache}
    held: Held = {}
    harness = _harness(Changes(), enabled, cache, **options)
    workers = [harness.worker, WorkerMemory(worker_memory().pacer)]
    try:
        for pushed, fate in story:
            before = harness._manifest
            if fate == "fail":  # an attempt that has written much of it
                harness.push([*pushed, ("z", "add", 1)])
                harness.push([("a", "fail", 0)])
                with pytest.raises(OperatorError, match="a bad row"):
                    harness.end_batch()
                harness._pending = []
            if fate == "replay":  # a commit in whose place another one counts
                harness.push([(key, "add", 39) for key in KEYS])
                harness.end_batch()
                harness._manifest = before
            if fate in ("restart", "rescale"):
                parallelism = 3 - harness.parallelism if fate == "rescale" else harness.parallelism
                newer = harness.restore(harness.snapshot(), parallelism=parallelism)
                harness.close()
                harness = newer
            if fate == "elsewhere":  # the partition went to another worker, where nothing is known of it
                harness.worker.columns.clear()
            if fate == "handed over":  # to another worker, with what is known of it
                harness.worker = workers[harness.worker is workers[0]]
            if harness.parallelism > 1:  # each partition has bundles of its own
                pushed = list({row[0]: row for row in pushed}.values())
            harness.push(pushed)
            held, expected = _expected(held, pushed, bundle_size)
            assert sorted((row[1:] for row in harness.end_batch()), key=str) == expected
            assert _contents(harness) == held
    finally:
        harness.close()
        for worker in workers:
            worker.stores.close()


class Puts(Changes):
    """Writes rows without reading them."""

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        value = bundle.batch.column("value").take(pa.array(bundle.keys.last_rows()))
        self.rows.put(bundle.keys, [value, value.cast(pa.string())])
        self.others.put(bundle.keys, [value])


@pytest.mark.parametrize("cache", [0, 1, 2_000, 4_000, 8_000, 12_000, 1 << 20])
def test_rows_that_were_evicted_may_be_written_again_without_a_read(enabled: bool, cache: int) -> None:
    keys = [f"{key:03}" for key in range(100)]
    with _harness(Puts(), enabled, cache, bundle_size="100") as harness:
        harness.push([(key, "add", 1) for key in keys])
        harness.push([(key, "add", 2) for key in keys[:5]])
        harness.end_batch()
        with harness.restore(harness.snapshot(), operator=Reads()) as restored:
            restored.push([(key, "peek", 0) for key in keys])
            shown = sorted(row[1:] for row in restored.end_batch())
    numbers = [2] * 5 + [1] * 95
    assert shown == [(key, at, str(at), at) for key, at in zip(keys, numbers, strict=True)]


@pytest.mark.parametrize("cache", [4_000, 1 << 20])
def test_prefetched_rows_that_the_cache_knows_meanwhile_do_not_pile_up(
    cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slow mode bundles share keys, so a bundle writes what was prefetched for the next one."""
    held: list[int] = []
    begin = BundleReads.begin_prefetch

    def begin_and_count(reads: BundleReads) -> None:
        begin(reads)
        held.append(len(reads._ahead) + len(reads._ahead_before))

    monkeypatch.setattr(BundleReads, "begin_prefetch", begin_and_count)
    monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    with _harness(GroupAggregate([count(), sum_("value")]), True, cache, bundle_size="20") as harness:
        harness.push([(f"{key}", "", key) for key in range(200)])
        harness.end_batch()
        harness.worker.columns.clear()
        held.clear()
        harness.push([(f"{key * key % 97}", "", key) for key in range(1_000)])
        harness.end_batch()
    assert len(held) > 10
    assert max(held) <= 2


def _contents(harness: OperatorHarness) -> Held:
    """What is stored, as a new process reads it: by the operator itself, without writing it back."""
    restored = harness.restore(harness.snapshot(), operator=Reads())
    with restored:
        restored.push([(key, "peek", 0) for key in [*KEYS, "z"]])
        shown = restored.end_batch()
    return {row[1]: row[2:] for row in shown if any(part is not None for part in row[2:])}


class Reads(Changes):
    """Shows the states of keys and writes nothing."""

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        found = self.rows.get(bundle.keys), self.others.get(bundle.keys)
        ctx.emit([bundle.keys.columns[0], *found[0].columns, found[1].columns[0]])


SALES = pa.schema([("key", pa.int64()), ("amount", pa.int64()), ("text", pa.string())])
MAKERS = {
    "aggregates": lambda: GroupAggregate(
        [
            count().alias("n"),
            sum_("amount").alias("total"),
            max_("amount").alias("most"),
            collect("text").alias("all"),
        ]
    ),
    "last": lambda: Deduplicate(keep="last", time="processing"),
    "first": lambda: Deduplicate(keep="first", time="processing"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", list(MAKERS))
@settings(max_examples=share(5))
@given(seed=st.integers(0, 1_000), bundle_size=st.sampled_from(["3", "50"]))
def test_deltas_are_the_same_bytes_with_and_without_it(name: str, seed: int, bundle_size: str) -> None:
    random = np.random.default_rng(seed)
    inserts = name != "aggregates"
    stories = [
        [
            (int(key), int(amount), None if amount == 3 else "x" * int(amount))
            for key, amount in random.integers(0, 9, (random.integers(0, 40), 2))
        ]
        for _ in range(4)
    ]
    kinds = [["+I" if inserts or random.random() < 0.7 else "-D" for _ in rows] for rows in stories]
    outcomes = []
    for cache in SIZES:
        for enabled in (False, True):
            options = {"bundle_size": bundle_size, "on_missing_row": "count"}
            with _harness(MAKERS[name](), enabled, cache, SALES, **options) as harness, _deltas() as deltas:
                outcome: list[Any] = [deltas]
                for rows, given_kinds in zip(stories, kinds, strict=True):
                    harness.push(rows, kinds=given_kinds)
                    outcome.append((harness.end_batch(), harness.state_entries()))
                    changed = {name: harness.statistics()[name] for name in ("changes", "change_bytes")}
                    outcome.append(changed)
            outcomes.append(outcome)
    assert all(outcome == outcomes[0] for outcome in outcomes)


TTL_STORIES = st.lists(
    st.tuples(
        st.integers(0, 70),  # milliseconds after the one before
        st.sampled_from(["put", "put", "read", "peek", "remove"]),
        st.lists(
            st.tuples(st.integers(0, 9), st.sampled_from([-30, 0, 20])), max_size=12
        ),  # key, milliseconds ahead
        st.sampled_from(["same", "same", "handed over", "elsewhere", "restart"]),
    ),
    min_size=2,
    max_size=7,
)


@pytest.mark.parametrize("domain", ["processing", "event"])
@settings(max_examples=share(3))
@given(
    story=TTL_STORIES,
    cache=st.sampled_from(SIZES[1:]),
)
def test_with_a_ttl_everything_is_as_without_it(
    enabled: bool,
    domain: str,
    story: list[tuple[int, str, list[tuple[int, int]], str]],
    cache: int,
) -> None:
    ttl = StateTtl(100_000, domain)
    ended: list[tuple[int, str, list[tuple[int, int]], str]] = [(40, "nothing", [(0, 0)], "same")] * 6
    outcomes = [_ttl_outcome(ttl, domain, [*story, *ended], enabled, size) for size in (0, cache)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[1][-1][1] == {}  # nothing is left in the end


def _ttl_outcome(ttl: StateTtl, domain: str, story: Any, enabled: bool, cache: int) -> list[Any]:
    """What each micro-batch puts out, stores and removes."""
    settings: Any = {
        "options": {"async-state.iterate-response-batch-size": "2"},
        "tuning": Tuning(columns_bytes=cache),
    }
    workers = [WorkerMemory(worker_memory().pacer) for _ in range(2)]
    bench = ColumnBench(ColumnProbe(ttl), domain, async_enabled=enabled, worker=workers[0], **settings)
    now, outcome = 1_000, []
    for pause, op, rows, fate in story:
        now += pause
        if fate == "handed over":
            bench.harness.worker = workers[bench.harness.worker is workers[0]]
        elif fate == "elsewhere":
            bench.harness.worker.columns.clear()
        elif fate == "restart":
            newer = bench.restored()
            bench.harness.close()
            bench = newer
        found = bench.run(now, op, [(key, 1, ahead) for key, ahead in rows])
        outcome.append((sorted(found), bench.entries, bench.expired))
    bench.harness.close()
    for worker in workers:
        worker.stores.close()
    return outcome


def test_keys_with_a_ttl_are_answered_from_memory_and_cleaned_up_there(enabled: bool) -> None:
    rows = [(key, 1, None) for key in range(100)]
    with _harness(
        GroupAggregate([count().alias("n")], ttl="1 second"), enabled, 1 << 20, SALES, parallelism=2
    ) as harness:
        for _ in range(3):
            harness.push(rows)
            harness.end_batch()
            harness.advance_processing_time("500 milliseconds")
            assert harness.statistics()["store_reads"] == 0
        assert harness.statistics()["column_cache_hits"] == 100
        harness.advance_processing_time("2 seconds")
        harness.push(rows[:1])
        assert [row[2] for row in harness.end_batch()] == [1]
        assert harness.statistics()["counter.ttl_expired"] == 99
        assert harness.statistics()["scans"] == 0  # no key group was read to find them
        assert len(harness.state_entries()) == 1


@contextmanager
def _deltas() -> Iterator[list[list[tuple[bytes, bytes | None]]]]:
    """The changes that micro-batches commit, deletes included."""
    committed: list[list[tuple[bytes, bytes | None]]] = []
    commit = TaskStores.commit

    def noting(self: TaskStores, changes: Any) -> Any:
        committed.append(list(changes))
        return commit(self, changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskStores, "commit", noting)
        yield committed


def _rows(keys: Sequence[int]) -> list[tuple[str, str, int]]:
    return [(f"key-{key}", "add", 1) for key in keys]


def test_a_new_state_is_read_from_nowhere_and_a_restored_one_once(enabled: bool) -> None:
    with _harness(Changes(), enabled, 1 << 20) as harness:
        for expected in (0, 0):
            harness.push(_rows(range(20)))
            harness.end_batch()
            assert harness.statistics()["store_reads"] == expected
        assert harness.statistics()["column_cache_hits"] == 40
        assert harness.statistics()["column_cache_carried"] == 40
        with harness.restore(harness.snapshot()) as restored:
            for expected in (40, 0):
                restored.push(_rows(range(20)))
                restored.end_batch()
                assert restored.statistics()["store_reads"] == expected


def test_what_is_known_goes_with_the_store_to_the_worker_that_takes_it(
    enabled: bool, workers: list[WorkerMemory]
) -> None:
    with _harness(Changes(), enabled, 1 << 20, parallelism=2) as harness:
        for number in range(6):
            harness.worker = workers[number % 2]
            harness.push(_rows(range(20 + number)))
            harness.end_batch()
            figures = harness.statistics()
            assert figures["store_reads"] == 0
            assert figures["column_cache_hits"] == 2 * (20 + number)
            assert figures["column_cache_carried"] == (2 * (19 + number) if number else 0)
            assert workers[1 - number % 2].columns.size_bytes == 0


def test_few_keys_are_read_rather_than_all_that_is_known_copied(
    enabled: bool, workers: list[WorkerMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_BYTES_A_KEY", 1_000)
    with _harness(Changes(), enabled, 1 << 20) as harness:
        for number, (keys, reads) in enumerate([(5_000, 0), (5_000, 0), (3, 0), (3, 6), (5_000, 10_000)]):
            harness.worker = workers[number % 2]
            harness.push(_rows(range(keys)))
            harness.end_batch()
            assert harness.statistics()["store_reads"] == reads


def test_an_empty_first_micro_batch_leaves_the_state_new(enabled: bool) -> None:
    with _harness(Changes(), enabled, 1 << 20) as harness:
        harness.end_batch()
        harness.push(_rows(range(20)))
        harness.end_batch()
        assert harness.statistics()["store_reads"] == 0


def test_all_partitions_of_a_process_share_the_bound(enabled: bool) -> None:
    limit = 64 << 10
    with _harness(Changes(), enabled, 64 << 10, parallelism=2) as harness:
        for _ in range(3):
            harness.push(_rows(range(3_000)))
            harness.end_batch()
            assert worker_memory().columns.size_bytes <= limit
        figures = harness.statistics()
    assert figures["column_cache_bytes_limit"] <= limit
    assert figures["column_cache_evictions"] > 0


def test_switched_off_and_on_in_one_process_nothing_old_is_shown(enabled: bool) -> None:
    """The cache of bytes keeps nothing of what the other cache has changed."""
    harness = _harness(MAKERS["aggregates"](), enabled, 0, SALES)
    for total, cache in enumerate([0, 0, 1 << 20, 1 << 20, 4 << 10, 0, 0], 1):
        harness._config = structs.replace(harness._config, tuning=Tuning(columns_bytes=cache))
        harness.push([(key, 1, None) for key in range(50)])
        assert {row[2] for row in harness.end_batch() if row[0] != "-U"} == {total}
    harness.close()
