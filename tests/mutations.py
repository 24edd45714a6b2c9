"""``python -m tests.mutations [WORD ...]``: small faults, each put into a copy of the code; do the tests notice?

Owns: the list and its runner. Words choose the mutations whose file contains one of them.
Invariant: the tree itself is never written; a mutation counts as caught only if tests ran and failed. Its test files
run as in ``make test-all``, so what is caught here is caught by that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
_COPIED: Final = (
    "asyncstate",
    "operators",
    "bench",
    "tests",
    "docs",
    ".ci",
    "pyproject.toml",
    "README.md",
    "Makefile",
    "CHANGELOG.md",
)
_TIER: Final = "not slow and (not spark or smoke)"
_PASSED, _FAILED = 0, 1  # exit codes of pytest; all others mean that it could not run the tests
_SECONDS_MAX: Final = 300


class Mutation(NamedTuple):
    """``old``, which stands once in ``file``, becomes ``new``; one of ``tests`` (files below tests/) should fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _mutation(file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(file, old, new, tests)


MUTATIONS: Final = (
    # compaction of copies, memory
    _mutation(
        "asyncstate/storage/compaction.py",
        "        followed = record.followed(base)",
        "        followed = record",
        "storage/test_compaction.py",
    ),
    _mutation(
        "asyncstate/storage/compaction.py",
        "            if merged:\n                _know_checksums",
        "            if True:\n                _know_checksums",
        "storage/test_compaction.py",
    ),
    _mutation(
        "asyncstate/storage/compaction.py",
        "_link_all(source.kept, copy.kept)",
        "pass",
        "storage/test_compaction.py",
    ),
    _mutation(
        "asyncstate/storage/lease.py",
        "is_replaced=was_copy and lease",
        "is_replaced=False and lease",
        "storage/test_compaction.py",
    ),
    _mutation(
        "asyncstate/storage/rocksdb_options.py",
        "self.limit_bytes - sum(self._readers.values())",
        "self.limit_bytes",
        "storage/test_compaction.py",
    ),
    _mutation(
        "asyncstate/storage/memtable.py",
        "        self._let_go()\n",
        "",
        "runtime/test_released_writes.py",
    ),
    # codec
    _mutation(
        "asyncstate/codec/scalars.py", "low <= number <= high:", "low <= number:", "codec/test_values.py"
    ),
    _mutation(
        "asyncstate/codec/hashing.py",
        "return hashes if valid is None else np.where(valid, hashes, start)",
        "return hashes",
        "codec/test_hashing.py",
    ),
    _mutation(
        "asyncstate/codec/hashing.py", "if not 1 <= max_par", "if not 0 <= max_par", "codec/test_hashing.py"
    ),
    _mutation(
        "asyncstate/codec/values.py",
        "row[source] if convert is None else convert(row[source])",
        "row[source]",
        "codec/test_values.py",
        "state/test_evolution.py",
    ),
    # futures
    _mutation(
        "asyncstate/futures/combine.py",
        "        values[index] = value\n",
        "        values[-1 - index] = value\n",
        "futures/test_futures.py",
    ),
    _mutation(
        "asyncstate/futures/future.py",
        "other.then_apply(lambda result: (False, result))",
        "other.then_apply(lambda result: (True, result))",
        "futures/test_futures.py",
    ),
    # execution
    _mutation(
        "asyncstate/execution/in_flight.py",
        "while unreleased and unreleased[0].pending < 0:",
        "while unreleased:",
        "execution/test_controllers.py",
    ),
    _mutation(
        "asyncstate/execution/reads.py",
        "return len(self.requests) >= self._limits.buffer_size",
        "return len(self.requests) > self._limits.buffer_size",
        "execution/test_controllers.py",
    ),
    _mutation(
        "asyncstate/execution/reads.py",
        "for at in range(start, len(keys), size)]",
        "for at in range(start, len(keys) - 1, size)]",
        "execution/test_parts.py",
        "execution/test_controllers.py",
    ),
    _mutation(
        "asyncstate/execution/controller.py",
        "(reads.at_once and len(keys) < PREFETCH_ROWS_MIN)",
        "len(keys) < PREFETCH_ROWS_MIN",
        "execution/test_small_batches.py",
    ),
    _mutation(
        "asyncstate/execution/controller.py",
        "while self._bundle_calls:",
        "while False:",
        "execution/test_bundle_calls.py",
    ),
    _mutation(
        "asyncstate/runtime/rows/input_buffer.py",
        "self._independent and (self._always_independent or not retracts)",
        "self._independent",
        "runtime/test_first_input.py",
    ),
    # storage
    _mutation(
        "asyncstate/storage/manifest.py",
        "if xxhash.xxh3_128_hexdigest(payload) != envelope.checksum:",
        "if False:",
        "storage/test_checkpoint.py",
    ),
    _mutation(
        "asyncstate/storage/ownership.py",
        "return owner if listed.claims[epoch] == [name] else None",
        "return owner",
        "storage/test_drivers_model.py",
        "storage/test_checkpoint.py",
    ),
    _mutation(
        "asyncstate/storage/restore.py",
        "yield from store.iterate(start, end)",
        "yield from store.iterate(start)",
        "storage/test_snapshot_rescale.py",
    ),
    _mutation(
        "asyncstate/storage/memtable.py",
        "self._settled().update(dict.fromkeys(keys))",
        "pass",
        "storage/test_memtable.py",
    ),
    _mutation(
        "asyncstate/storage/value_cache.py",
        "        self.recent.update(entries)\n",
        "",
        "storage/test_memtable.py",
    ),
    _mutation(
        "asyncstate/storage/value_cache.py",
        "if self.without != state_ids:",
        "if not self.without:",
        "storage/test_worker_cache.py",
    ),
    _mutation(
        "asyncstate/storage/write_buffer.py",
        "            self._write_finished()\n            return False",
        "            return False",
        "storage/test_spilling.py",
    ),
    _mutation(
        "asyncstate/storage/write_buffer.py",
        "_state_of(self._held.sorted_keys) == _state_of(keys)",
        "not keys",
        "storage/test_memtable.py",
    ),
    _mutation(
        "asyncstate/execution/bundle_reads.py",
        "self._ahead_before, self._ahead = self._ahead, {}",
        "pass",
        "execution/test_spilled_reads.py",
    ),
    _mutation(
        "asyncstate/storage/write_buffer.py",
        "_RECOUNT_ROWS: Final = 2 ",
        "_RECOUNT_ROWS: Final = 1_000 ",
        "storage/test_spilling.py",
    ),
    _mutation(
        "asyncstate/storage/worker_cache.py",
        "if kept is not None and kept.lineage == lineage:",
        "if kept is not None:",
        "storage/test_worker_cache.py",
    ),
    # what a worker keeps of column states
    _mutation(
        "asyncstate/state/column_cache/keyed_columns.py",
        "            self.whole = False\n",
        "",
        "state/test_column_cache.py",
    ),
    _mutation(
        "asyncstate/state/column_cache/column_front.py",
        "if not new.any() or table.drops != asked.drops:",
        "if not new.any():",
        "state/test_column_cache.py",
    ),
    _mutation(
        "asyncstate/state/column_cache/keyed_columns.py",
        "            if right.all():",
        "            if True:",
        "state/test_column_cache.py",
    ),
    _mutation(
        "asyncstate/state/column_cache/column_front.py",
        "        return table.find(self.keys_of(store_keys)) < 0",
        "        return np.ones(len(store_keys), np.bool_)",
        "runtime/test_column_cache.py",
    ),
    _mutation(
        "asyncstate/state/columnar/state_columns.py",
        "stored.present & self._lifetime.live(stored.numpy(0).astype(np.int64, copy=False))",
        "stored.present",
        "runtime/test_column_cache.py",
    ),
    # what of it goes to another worker, and what is left of it
    _mutation(
        "asyncstate/storage/slots.py",
        "            self._of_parent += slot.disown()",
        "            pass",
        "storage/test_store_pool.py",
    ),
    _mutation(
        "asyncstate/storage/rocksdb.py",
        "        del cursor  #",
        "        pass  #",
        "storage/test_closed_stores.py",
    ),
    _mutation(
        "asyncstate/storage/store_pool.py",
        "    if of != lineage:\n",
        "    if not of:\n",
        "storage/test_store_pool.py",
    ),
    _mutation(
        "asyncstate/storage/slots.py",
        "            self.cached.unlink(missing_ok=True)  #",
        "            pass  #",
        "storage/test_store_pool.py",
    ),
    _mutation(
        "asyncstate/storage/lease.py",
        "lease.cached = read_cached(slot.cached, base.lineage)",
        "pass",
        "storage/test_compaction.py",
    ),
    _mutation(
        "asyncstate/driver/operator_manifests.py",
        "return base if stored is None or stored.applied is None else stored.applied",
        "return base",
        "spark/test_job.py",
    ),
    # state
    _mutation(
        "asyncstate/state/keyed/chunks.py",
        "return (sealed + 1).to_bytes(",
        "return sealed.to_bytes(",
        "state/test_programs.py",
    ),
    _mutation(
        "asyncstate/state/keyed/map_state.py",
        "return (self._get(self._entry(key)) if self._cache is None else self.get(key)) is not None",
        "return True",
        "state/test_states.py",
        "state/test_programs.py",
    ),
    _mutation(
        "asyncstate/state/keyed/map_state.py",
        "        if self.preserved:\n",
        "        if False:\n",
        "state/test_overlapping_iterations.py",
        "state/test_programs.py",
    ),
    _mutation(
        "asyncstate/storage/rocksdb.py",
        "db = self.db if self._blocks is None else self._blocks",
        "db = self.db",
        "storage/test_range_blocks.py",
    ),
    _mutation(
        "asyncstate/storage/rocksdb.py",
        "        self._drop_range_blocks()\n        # RocksDB unlinks",
        "        # RocksDB unlinks",
        "storage/test_range_blocks.py",
    ),
    _mutation(
        "asyncstate/state/expiring/ttl.py",
        "if not 0 < duration_us",
        "if not 0 <= duration_us",
        "state/test_ttl.py",
    ),
    _mutation(
        "asyncstate/state/expiring/expiry.py",
        'self._hidden_below = self._first_live_bytes if hides else b""',
        'self._hidden_below = b"" if hides else self._first_live_bytes',
        "state/test_ttl.py",
    ),
    _mutation(
        "asyncstate/state/keyed/reducing_state.py",
        "return value if stored is None else self._combined(stored, value)",
        "return value if stored is None else self._combined(value, stored)",
        "state/test_reducing_aggregating.py",
    ),
    _mutation(
        "asyncstate/state/keyed/decoded_cache.py",
        "if forgotten == self._forgotten and key not in self.values:",
        "if key not in self.values:",
        "state/test_decoded_cache.py",
    ),
    # runtime and configuration
    _mutation(
        "asyncstate/runtime/partition/task.py",
        "        controller.write_back()  # the next micro-batch reads it\n",
        "",
        "properties/test_to_the_end.py",
    ),
    _mutation(
        "asyncstate/runtime/partition/task.py",
        "rows = replace(spec, watermark=MIN_WATERMARK)",
        "rows = replace(spec, watermark=MAX_WATERMARK)",
        "properties/test_to_the_end.py",
    ),
    _mutation(
        "asyncstate/runtime/partition/bundles.py",
        "unique = None if operator.stateless else operator.unique_columns(spec.inputs)",
        "unique = operator.unique_columns(spec.inputs)",
        "runtime/test_stateless.py",
    ),
    _mutation(
        "asyncstate/runtime/declarations/watermark.py",
        "reached = min(_awake(previous).values(), default=MIN_WATERMARK)",
        "reached = max(_awake(previous).values(), default=MIN_WATERMARK)",
        "spark/test_job.py",
    ),
    _mutation(
        "asyncstate/runtime/declarations/watermark.py",
        "return reached if previous.watermark is None else max(reached, previous.watermark)",
        "return reached",
        "testing/test_harness.py",
    ),
    _mutation(
        "asyncstate/runtime/rows/sorted_inputs.py",
        "fields = [field.translate(_INVERTED) for field in fields]",
        "pass",
        "runtime/test_sorted_inputs.py",
    ),
    _mutation(
        "asyncstate/state/ranges.py",
        "prefix + encode_namespace(until + 1)",
        "prefix + encode_namespace(until)",
        "runtime/test_sorted_inputs.py",
        "state/test_timers.py",
    ),
    _mutation(
        "asyncstate/runtime/rows/sorted_inputs.py",
        "place = places[0] if len(places) == 1 else _time_place",
        "place = places[0]",
        "runtime/test_ordered_bundles.py",
    ),
    _mutation(
        "asyncstate/state/timers.py",
        "(entry in at_hand.touched and sink.get(entry) is None)",
        "entry in at_hand.touched",
        "state/test_timers.py",
        "runtime/test_event_time_merge.py",
    ),
    _mutation(
        "asyncstate/state/columnar/due_parts.py",
        "waiting = [(before + 1, self._window.previous_end(until))]",
        "waiting = [(before, self._window.previous_end(until))]",
        "operators/test_due_entries.py",
    ),
    _mutation(
        "asyncstate/state/columnar/due_parts.py",
        "pieces = tuple(run.take_before(boundary) for run in runs)",
        "pieces = tuple(run.take_before(run.boundary) for run in runs)",
        "runtime/test_ordered_bundles.py",
        "operators/test_due_entries.py",
    ),
    _mutation(
        "operators/join/right_versions.py",
        "levels: Int8Array = ((left > 0) * (1 + (left > replaced))).astype(np.int8)",
        "levels: Int8Array = ((left > 0) * 2).astype(np.int8)",
        "operators/test_temporal_join.py",
    ),
    _mutation(
        "operators/join/temporal_join.py",
        "older = right.times < since[right.keys]",
        "older = right.times <= since[right.keys]",
        "operators/test_temporal_join.py",
    ),
    _mutation(
        "operators/match/automaton.py",
        "return [after, again] if reluctant else [again, after]",
        "return [again, after]",
        "operators/test_match.py",
        "operators/test_match_model.py",
    ),
    _mutation(
        "operators/match/matcher.py",
        "more = limit == stop and self._horizon < deadline",
        "more = False",
        "operators/test_match_model.py",
    ),
    _mutation(
        "operators/match/matcher.py",
        "bisect_left(times, deadline, start, stop)",
        "bisect_left(times, deadline + 1, start, stop)",
        "operators/test_match.py",
        "operators/test_match_model.py",
    ),
    _mutation(
        "operators/match/matcher.py",
        "known[row * places + place] = (limit, _ANY, limit)",
        "known[row * places + place] = _FAILS",
        "operators/test_match.py",
        "operators/test_match_model.py",
    ),
    _mutation(
        "operators/match/matcher.py",
        "min(stop, limit + limit - start)",
        "limit",
        "operators/test_match.py",
    ),
    _mutation(
        "operators/match/matcher.py",
        "bool(looks & automaton.reach((place,)))",
        "place in looks",
        "operators/test_match.py",
    ),
    _mutation(
        "operators/match/matcher.py",
        "decided = max(decided, search.decided)",
        "decided = search.decided",
        "operators/test_match_model.py",
        "operators/test_match.py",
    ),
    _mutation(
        "operators/match/active_matches.py",
        "grows = was & (first == begins)",
        "grows = was",
        "operators/test_match_model.py",
    ),
    _mutation(
        "operators/match/active_matches.py",
        "moved = (was != stays) | (before != after)",
        "moved = was != stays",
        "operators/test_match_model.py",
        "operators/test_match.py",
    ),
    _mutation(
        "operators/match/match_operator.py",
        "needed = live[owners] | (begun > (begun - begins)[starts][owners])",
        "needed = live[owners] | begins",
        "operators/test_match.py",
        "operators/test_match_model.py",
    ),
    _mutation(
        "asyncstate/config.py",
        "if self.parallelism is not None and self.parallelism > self.max_parallelism:",
        "if False:",
        "house/test_config.py",
    ),
    # spark
    _mutation(
        "asyncstate/spark/query_checkpoint.py",
        "order.get(file.folder, 1), -file.number, not file.is_checksum",
        "order.get(file.folder, 1), file.number, not file.is_checksum",
        "cli/test_rollback.py",
    ),
    _mutation(
        "asyncstate/spark/query_checkpoint.py",
        "kept = {COMMITS: version, OFFSETS: version + 1,",
        "kept = {COMMITS: version, OFFSETS: version,",
        "cli/test_rollback.py",
    ),
    _mutation(
        "asyncstate/display.py",
        "with suppress(Exception):  # an object without a hash",
        "if True:  # an object without a hash",
        "testing/test_display.py",
    ),
    _mutation(
        "asyncstate/driver/commit_log.py",
        "base = self._checkpoint.read(latest.base)",
        "base = latest",
        "spark/test_job.py",
    ),
    _mutation(
        "asyncstate/driver/commit_log.py",
        "if batch_id != self._first_batch_id:",
        "if False:",
        "spark/test_replays.py",
    ),
    _mutation(
        "asyncstate/spark/reports.py",
        "if read == expected and len(report.read) == len(read):",
        "if True:",
        "spark/test_reports.py",
    ),
    _mutation(
        "asyncstate/spark/reports.py",
        "if sorted(partitions) != list(range(parallelism[stage])):",
        "if False:",
        "spark/test_reports.py",
    ),
    _mutation(
        "asyncstate/spark/reports.py",
        "(partitions_of(groups, self.parallelism, self.max_parallelism) << TAG_BITS)",
        "(groups << TAG_BITS)",
        "spark/test_reports.py",
    ),
    # operators
    _mutation(
        "operators/core/consolidation.py",
        "_Balance(left, minus > plus,",
        "_Balance(left, minus >= plus,",
        "operators/test_consolidation.py",
    ),
    _mutation(
        "operators/aggregate/retractable_minmax.py",
        "run_begins(sorted_owners, codes[order])",
        "run_begins(codes[order])",
        "operators/test_group_aggregate.py",
    ),
    _mutation(
        "operators/window/windows.py",
        "(self.last_window(slices) - slices) // self.step + 1",
        "(self.last_window(slices) - slices) // self.step",
        "operators/test_windows.py",
    ),
    _mutation(
        "operators/window/window_time.py",
        "return self.expiry(end) <= self.passed",
        "return self.expiry(end) < self.passed",
        "operators/test_functions_windows.py",
    ),
    _mutation(
        "operators/join/interval/interval.py",
        "last_partner = self.upper if side == 0 else -self.lower",
        "last_partner = -self.lower if side == 0 else self.upper",
        "operators/test_interval_join.py",
        "operators/test_interval_join_harness.py",
    ),
    _mutation(
        "operators/rank/row_numbers.py", "return places + 1", "return places", "operators/test_rank.py"
    ),
    # testing
    _mutation(
        "asyncstate/testing/harness.py",
        "MAX_WATERMARK if final else max(self.watermark, wanted)",
        "MAX_WATERMARK if final else wanted",
        "testing/test_harness.py",
    ),
    _mutation(
        "asyncstate/testing/harness.py",
        "self._operator_after(spec, ran.records), first_arrival=FIRST_ARRIVAL)",
        "self._operator_after(spec, ran.records))",
        "testing/test_initial_state.py",
    ),
    _mutation(
        "operators/aggregate/local_layout.py",
        "parts if valid is None else np.where(valid, parts, _NO_TIME)",
        "parts",
        "operators/test_two_phase.py",
    ),
)


def stale() -> list[str]:
    """What is wrong with the list itself: texts that do not stand exactly once in their file, tests that are gone."""
    found = []
    for mutation in MUTATIONS:
        path = ROOT / mutation.file
        times = path.read_text().count(mutation.old) if path.is_file() else 0
        if times != 1:
            found.append(
                f"{mutation.file}: {mutation.old!r} stands there {times} times; write the mutation anew"
            )
        gone = [name for name in mutation.tests if not (ROOT / "tests" / name).is_file()]
        found += [f"{mutation.file}: tests/{name} is gone; name another" for name in gone]
    return found


def main(words: Sequence[str]) -> int:
    """Run the mutations chosen; 1 if one was missed, 2 if one could not be judged."""
    wrong = stale()
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    chosen = [m for m in MUTATIONS if not words or any(word in m.file for word in words)]
    with tempfile.TemporaryDirectory(prefix="asyncstate-mutations-", dir=_scratch()) as folder:
        copy = Path(folder)
        for name in _COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        names = sorted({name for mutation in chosen for name in mutation.tests})
        if _pytest(copy, names) != _PASSED:
            print("the tests fail without any mutation; mend that first", file=sys.stderr)
            return 2
        outcomes = [_outcome(copy, mutation) for mutation in chosen]
    print(", ".join(f"{outcomes.count(word)} {word}" for word in ("caught", "missed", "not judged")))
    return 2 if "not judged" in outcomes else int("missed" in outcomes)


def _outcome(copy: Path, mutation: Mutation) -> str:
    path = copy / mutation.file
    text = path.read_text()
    started = time.monotonic()
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        code = _pytest(copy, mutation.tests)
    finally:
        path.write_text(text)
    outcome = {_PASSED: "missed", _FAILED: "caught"}.get(code, "not judged")
    print(
        f"{outcome:10} {time.monotonic() - started:5.1f} s  {mutation.file}: {mutation.new.strip()}",
        flush=True,
    )
    return outcome


def _pytest(copy: Path, names: Sequence[str]) -> int:
    """Its exit code, -1 if it did not end in time. A test that hangs fails by pytest's own, shorter timeout."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", _TIER]
    try:
        return subprocess.run(
            [*command, *(f"tests/{name}" for name in names)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS_MAX if len(names) < 5 else None,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return -1


def _scratch() -> str | None:
    given = os.environ.get("ASYNCSTATE_TEST_SCRATCH")
    return given or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
