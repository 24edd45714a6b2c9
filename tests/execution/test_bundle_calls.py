"""Outside calls at bundle grain: they overlap, a bundle ends with them, their failures are named, and a clean end."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import combine_all
from asyncstate.errors import FutureStateError, OperatorError, StateAccessError
from asyncstate.execution import CallLimits, Pacer
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputOrder,
    InputSpec,
    OperatorContext,
    SortKey,
)
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.state import ColumnStateDescriptor
from asyncstate.testing import OperatorHarness
from tests.examples import at_most
from tests.execution.rig import ASYNC_MODES, MODES, Rig, threads_end

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_WAIT_SECONDS = 30  # for what must happen; a test that waits so long has failed

Work = Callable[[Any, "Bundle", BundleContext], Any]


class Working(BundleOperator):
    """Does what a test says. ``seen``: what happened, in order."""

    seen: ClassVar[list[Any]] = []

    def __init__(self, work: Work, at_end: Work | None = None) -> None:
        self.work = work
        self.at_end = at_end

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.total: Any = context.get_state(ColumnStateDescriptor("total", pa.schema([("n", pa.int64())])))

    async def open_calls(self) -> None:
        self.base = 100
        self.seen.append("open_calls")

    async def close_calls(self) -> None:
        self.seen.append("close_calls")

    async def rate(self, value: int) -> int:
        for _ in range(value % 4):  # the answers come in another order
            await anyio.lowlevel.checkpoint()
        return value + self.base

    def rate_plainly(self, value: int) -> int:
        return value + self.base

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        return self.work(self, bundle, ctx)

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        return None if self.at_end is None else self.at_end(self, None, ctx)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _forget() -> None:
    Working.seen.clear()


def _harness(
    work: Work,
    async_enabled: bool,
    at_end: Work | None = None,
    call_limit: int = 100,
    call_timeout: str = "1 minute",
    **options: str,
) -> OperatorHarness:
    changes = {f"async-state.{name.replace('_', '-')}": value for name, value in options.items()}
    operator = Working(work, at_end)
    operator.call_limit, operator.call_timeout = call_limit, call_timeout
    return OperatorHarness(operator, SCHEMA, ["key"], async_enabled=async_enabled, options=changes)


def put(ctx: BundleContext, key: int, value: Any) -> None:
    ctx.emit([pa.array([key], pa.int64()), pa.array([value], pa.int64())])


def keys_of(bundle: Bundle) -> list[int]:
    keys: list[int] = bundle.keys.columns[0].to_pylist()
    return keys


def rated(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
    """A call for each distinct key, all answers in one row batch."""
    keys = keys_of(bundle)
    calls = [
        ctx.call(operator.rate if number % 2 else operator.rate_plainly, key)
        for number, key in enumerate(keys)
    ]
    return combine_all(calls).then_accept(lambda found: ctx.emit([pa.array(keys), pa.array(found)]))


class TestAnswers:
    def test_one_call_a_key_of_a_bundle(self, async_enabled: bool) -> None:
        with threads_end(), _harness(rated, async_enabled) as harness:
            harness.push([(key % 40, key) for key in range(100)])
            assert sorted(harness.end_batch()) == [("+I", key, key + 100) for key in range(40)]
            assert harness.statistics()["calls"] == 40
            harness.push([(7, 0)])
            assert harness.end_batch() == [("+I", 7, 107)]
        assert Working.seen == ["open_calls", "close_calls"] * 2

    def test_without_a_call_there_is_no_loop(self, async_enabled: bool) -> None:
        with _harness(lambda operator, bundle, ctx: None, async_enabled) as harness:
            before = set(threading.enumerate())
            harness.push([(1, 1)])
            harness.end_batch()
            started = {thread.name for thread in set(threading.enumerate()) - before}
            assert started <= {"asyncstate-open-stores"}
        assert Working.seen == []

    def test_state_before_and_behind_a_call(
        self, async_enabled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The chain goes from state to a call and back, also while reads wait for threads."""

        class Slow(Pacer):
            waits_for_device = True

        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            def written(found: list[int]) -> None:
                operator.total.put(bundle.keys, [pa.array(found)])
                ctx.emit([bundle.keys.columns[0], pa.array(found)])

            return (
                operator.total.async_get(bundle.keys)
                .then_compose(
                    lambda stored: combine_all(
                        [ctx.call(operator.rate, int(total)) for total in stored.numpy(0)]
                    )
                )
                .then_accept(written)
            )

        monkeypatch.setattr(worker_memory(), "pacer", Slow())
        with _harness(work, async_enabled, bundle_size="2") as harness:
            for times in (1, 2, 3):
                harness.push([(key, 0) for key in range(6)])
                assert sorted(harness.end_batch()) == [("+I", key, 100 * times) for key in range(6)]

    def test_on_watermark_may_call(self, async_enabled: bool) -> None:
        def at_end(operator: Any, _: Any, ctx: BundleContext) -> Any:
            return ctx.call(operator.rate, 5).then_accept(lambda found: put(ctx, -1, found))

        with _harness(lambda operator, bundle, ctx: None, async_enabled, at_end) as harness:
            assert harness.end_batch() == [("+I", -1, 105)]

    def test_process_due_may_call(self, async_enabled: bool) -> None:
        class Due(Working):
            def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
                return [InputOrder("processing", (SortKey("value"),))]

            def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
                (bundle,) = bundles
                assert bundle is not None
                return self.work(self, bundle, ctx)

        with OperatorHarness(
            Due(rated), SCHEMA, ["key"], async_enabled=async_enabled, changelog=False
        ) as harness:
            harness.push([(key, -key) for key in range(5)])
            assert sorted(harness.end_batch()) == [("+I", key, key + 100) for key in range(5)]

    def test_a_generator_yields_calls(self, async_enabled: bool) -> None:
        """All are made at once, and each is taken on when its turn has come, whenever its answer or failure came."""

        def fails(key: int) -> int:
            raise LookupError(key)

        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Iterator[Any]:
            keys = keys_of(bundle)
            calls = [ctx.call(fails if key == 2 else operator.rate, key) for key in keys]
            for key, call in zip(keys, calls, strict=True):
                found: list[Any] = []
                yield call.recover(lambda error: -1).then_accept(found.append)
                put(ctx, key, found[0])

        with _harness(work, async_enabled) as harness:
            harness.push([(key, 0) for key in range(5)])
            assert sorted(harness.end_batch()) == [
                ("+I", key, -1 if key == 2 else key + 100) for key in range(5)
            ]

    def test_a_failure_is_not_judged_before_the_bundle_ends(self, async_enabled: bool) -> None:
        failed = threading.Event()

        def fails() -> None:
            failed.set()
            raise LookupError("too early")

        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Iterator[Any]:
            call = ctx.call(fails)
            for _ in range(5):  # its failure has come before the last of these
                yield ctx.call(failed.wait, _WAIT_SECONDS)
            yield call.recover(str).then_accept(operator.seen.append)

        with _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            harness.end_batch()
        assert "too early" in Working.seen

    def test_limits_come_from_the_configuration(self, async_enabled: bool) -> None:
        with _harness(rated, async_enabled, call_limit=2) as harness:
            harness.push([(key, key) for key in range(100)])
            assert len(harness.end_batch()) == 100
            assert harness.statistics()["call_limit"] == 2
            assert harness.statistics()["calls_in_flight_peak"] == (2 if async_enabled else 1)


class TestTheEndOfABundle:
    def test_calls_that_it_did_not_return_have_ended(self, async_enabled: bool) -> None:
        """And those that their callbacks make; the next bundle starts behind them."""

        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> None:
            (key,) = keys_of(bundle)
            operator.seen.append(("begin", key))

            def second(found: int) -> None:
                ctx.call(operator.rate, found).then_accept(lambda again: put(ctx, key, again))
                ctx.call(operator.rate, found).then_accept(lambda _: operator.seen.append(("end", key)))

            ctx.call(operator.rate, key).then_accept(second)

        with _harness(work, async_enabled, bundle_size="1") as harness:
            harness.push([(key, 0) for key in range(4)])
            assert harness.end_batch() == [("+I", key, key + 200) for key in range(4)]
        assert [what for what in Working.seen if type(what) is tuple] == [
            (what, key) for key in range(4) for what in ("begin", "end")
        ]

    def test_a_step_ends_with_what_it_yielded_the_bundle_with_all(self, async_enabled: bool) -> None:
        release = threading.Event()

        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Iterator[Any]:
            if async_enabled:  # in sync mode it would be waited for at once
                ctx.call(release.wait, _WAIT_SECONDS).then_accept(lambda _: put(ctx, 0, 0))
            yield ctx.call(operator.rate, 1).then_accept(lambda found: put(ctx, 1, found))
            release.set()

        with _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            expected = [("+I", 1, 101)] + [("+I", 0, 0)] * async_enabled
            assert harness.end_batch() == expected


@pytest.mark.parametrize("mode", ASYNC_MODES)
class TestManyAtOnce:
    @pytest.mark.parametrize("plain", [True, False])
    def test_no_more_than_the_limit_and_no_fewer(self, mode: str, plain: bool) -> None:
        together = threading.Barrier(3)
        running: Counter[str] = Counter()
        lock = threading.Lock()

        def wait(number: int) -> int:
            with lock:
                running["now"] += 1
                running["peak"] = max(running["peak"], running["now"])
            together.wait(_WAIT_SECONDS)
            with lock:
                running["now"] -= 1
            return number

        async def wait_async(number: int) -> int:
            return await anyio.to_thread.run_sync(wait, number)

        found: list[int] = []
        with threads_end(), Rig(mode, calls=CallLimits(in_flight=3)) as rig:
            call = functools.partial(rig.controller.call, None)
            rig.controller.run_bundle(
                lambda: combine_all(
                    [call(wait if plain else wait_async, (number,), None) for number in range(60)]
                ).then_accept(found.extend)
            )
            assert rig.controller.statistics().calls.calls == 60
        assert found == list(range(60))
        assert running["peak"] == 3

    def test_the_loop_holds_a_few_of_very_many(self, mode: str) -> None:
        with Rig(mode, calls=CallLimits(in_flight=5)) as rig:
            most = 0

            def step(number: int) -> int:
                nonlocal most
                most = max(most, rig.controller.calls.in_flight)
                return number

            found: list[int] = []
            rig.controller.run_bundle(
                lambda: combine_all(
                    [rig.controller.call(None, step, (number,), None) for number in range(2_000)]
                ).then_accept(found.extend)
            )
        assert found == list(range(2_000))
        assert most <= 20


# -- failures ------------------------------------------------------------------------------------------------


def _fails(key: int) -> int:
    raise LookupError(f"no user {key}")


async def _fails_async(key: int) -> int:
    raise LookupError(f"no user {key}")


async def _never() -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize("function", [_fails, _fails_async])
class TestFailures:
    @pytest.mark.parametrize("returned", [True, False])
    def test_an_unhandled_one_names_the_call(
        self, function: Callable[[int], Any], returned: bool, async_enabled: bool
    ) -> None:
        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            call = ctx.call(function, 7)
            return call if returned else None

        with threads_end(), _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            with pytest.raises(
                OperatorError,
                match=rf"operator 'operator', call of {function.__name__}: LookupError: no user 7\. The micro-batch",
            ) as raised:
                harness.end_batch()
            assert isinstance(raised.value.__cause__, LookupError)
            assert harness.state_entries() == {}
        assert Working.seen == ["open_calls", "close_calls"]

    def test_one_of_many_fails_them_all(self, function: Callable[[int], Any], async_enabled: bool) -> None:
        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            calls = [ctx.call(function if key == 3 else operator.rate, key) for key in keys_of(bundle)]
            return combine_all(calls).then_accept(lambda found: put(ctx, 0, 0))

        with _harness(work, async_enabled) as harness:
            harness.push([(key, 1) for key in range(10)])
            with pytest.raises(OperatorError, match=rf"call of {function.__name__}: LookupError: no user 3"):
                harness.end_batch()

    def test_it_can_be_recovered_from(self, function: Callable[[int], Any], async_enabled: bool) -> None:
        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            keys = keys_of(bundle)
            calls = [
                ctx.call(function if key % 2 else operator.rate, key).recover(lambda error: -1)
                for key in keys
            ]
            return combine_all(calls).then_accept(lambda found: ctx.emit([pa.array(keys), pa.array(found)]))

        with _harness(work, async_enabled) as harness:
            harness.push([(key, 1) for key in range(6)])
            assert sorted(harness.end_batch()) == [
                ("+I", key, -1 if key % 2 else key + 100) for key in range(6)
            ]

    def test_whoever_recovers_from_the_whole_waits_for_the_rest(
        self, function: Callable[[int], Any], async_enabled: bool
    ) -> None:
        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            ended: list[int] = []
            others = [ctx.call(operator.rate, 3).then_accept(ended.append) for _ in range(5)]
            calls = [ctx.call(function, 0), *others]
            operator.seen.append(ended)
            return combine_all(calls).then_apply(str).recover(str).then_accept(lambda _: put(ctx, 1, 1))

        with _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            assert harness.end_batch() == [("+I", 1, 1)]
        assert [103] * 5 in Working.seen


class TestTimeouts:
    def test_a_coroutine_is_cancelled_and_the_call_named(self, async_enabled: bool) -> None:
        with _harness(
            lambda operator, bundle, ctx: ctx.call(_never), async_enabled, call_timeout="20ms"
        ) as harness:
            harness.push([(1, 1)])
            with pytest.raises(OperatorError, match=r"call of _never: TimeoutError: .*call_timeout"):
                harness.end_batch()

    def test_it_can_be_given_and_recovered_from(self, async_enabled: bool) -> None:
        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            calls = [ctx.call(_never, timeout_seconds=0.02).recover(lambda error: type(error).__name__)] * 2
            return combine_all(calls).then_accept(operator.seen.append)

        with _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            harness.end_batch()
            assert harness.statistics()["call_timeouts"] == 1
        assert ["TimeoutError"] * 2 in Working.seen

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("returned", [True, False])
    def test_the_watchdog_names_a_call_that_blocks_the_loop(self, mode: str, returned: bool) -> None:
        release = threading.Event()

        async def blocks() -> None:
            release.wait(_WAIT_SECONDS)

        limits = CallLimits(timeout_ms=10, watchdog_timeout_ms=50)
        with threads_end():
            try:
                with (
                    pytest.raises(
                        OperatorError,
                        match=r"operator 'op': 1 outside calls have not answered; the oldest: call of .*blocks, for .*"
                        "plain functions",
                    ),
                    Rig(mode, calls=limits) as rig,
                ):
                    rig.controller.run_bundle(_calling(rig, blocks, returned))
            finally:
                release.set()


def _calling(rig: Rig, function: Callable[[], Any], returned: bool) -> Callable[[], Any]:
    """Bundle-grain code that makes a call, and returns it or not."""

    def work() -> Any:
        call = rig.controller.call(None, function, (), None)
        return call if returned else None

    return work


# -- where and by whom calls can be made ------------------------------------------------------------------------


class TestRefusals:
    def test_while_no_bundle_is_at_work(self, async_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between two bundles: in prefetch(), by a ctx that was kept, and at the end."""
        refused: list[str] = []
        kept: list[BundleContext] = []

        class Keeping(Working):
            def prefetch(self, bundle: Bundle) -> None:
                self.use("prefetch")

            def close(self) -> None:
                self.use("close")

            def use(self, where: str) -> None:
                for ctx in kept:
                    with pytest.raises(
                        StateAccessError, match=r"'operator': ctx\.call\(int\) was used while no bundle"
                    ):
                        ctx.call(int)
                    refused.append(where)

        class Slow(Pacer):
            waits_for_device = True

        monkeypatch.setattr(worker_memory(), "pacer", Slow())
        operator = Keeping(lambda operator, bundle, ctx: kept.append(ctx) if not kept else None)
        with OperatorHarness(
            operator, SCHEMA, ["key"], async_enabled=async_enabled, options={"async-state.bundle-size": "1"}
        ) as harness:
            harness.push([(1, 1), (2, 1), (3, 1)])
            harness.end_batch()
        assert refused == ["prefetch"] * async_enabled + ["close"]
        with pytest.raises(StateAccessError, match="no bundle is being processed"):
            kept[0].call(int)

    def test_on_another_thread_and_inside_a_call(self, async_enabled: bool) -> None:
        def on_thread(operator: Any, bundle: Bundle, ctx: BundleContext) -> None:
            with ThreadPoolExecutor(1) as other:
                other.submit(ctx.call, int).result()

        def in_call(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            return ctx.call(lambda: ctx.call(int))

        for work in (on_thread, in_call):
            with _harness(work, async_enabled) as harness:
                harness.push([(1, 1)])
                with pytest.raises(
                    OperatorError, match=r"StateAccessError: .*ctx\.call\(int\) was used while no"
                ):
                    harness.end_batch()

    def test_state_inside_a_call(self, async_enabled: bool) -> None:
        def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> Any:
            def reads() -> None:
                operator.total.get(bundle.keys)

            return ctx.call(reads)

        with _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            with pytest.raises(
                OperatorError, match=r"state was used inside .*reads, a function of ctx\.call"
            ):
                harness.end_batch()

    def test_functions_get_their_keywords(self, async_enabled: bool) -> None:
        def work(operator: Working, bundle: Bundle, ctx: BundleContext) -> Any:
            called = ctx.call(dict, [("a", 1)], b=2, timeout_seconds="10 seconds")
            return called.then_accept(seen.append)

        seen: list[Any] = []
        with _harness(work, async_enabled) as harness:
            harness.push([(1, 1)])
            harness.end_batch()
        assert seen == [{"a": 1, "b": 2}]

    @pytest.mark.parametrize(
        ("use", "text"),
        [
            (lambda ctx: ctx.call(_never()), r"pass the function and its arguments, such as ctx\.call"),
            (lambda ctx: ctx.call(int, timeout_seconds=0), "timeout_seconds is 0"),
        ],
    )
    def test_what_is_no_function(
        self, use: Callable[[BundleContext], Any], text: str, async_enabled: bool
    ) -> None:
        with _harness(lambda operator, bundle, ctx: use(ctx), async_enabled) as harness:
            harness.push([(1, 1)])
            with pytest.raises(OperatorError, match=text) as raised:
                harness.end_batch()
            assert isinstance(raised.value.__cause__, FutureStateError)

    def test_a_failing_open_calls_fails_the_batch(self, async_enabled: bool) -> None:
        class Unopened(Working):
            async def open_calls(self) -> None:
                raise OSError("no network")

        with OperatorHarness(Unopened(rated), SCHEMA, ["key"], async_enabled=async_enabled) as harness:
            harness.push([(1, 1)])
            with pytest.raises(OperatorError, match="'operator': open_calls failed: OSError: no network"):
                harness.end_batch()


def test_running_calls_are_cancelled_when_a_bundle_fails(async_enabled: bool) -> None:
    ended: list[str] = []
    started = threading.Event()

    async def waits() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    def work(operator: Any, bundle: Bundle, ctx: BundleContext) -> None:
        if async_enabled:
            ctx.call(waits)
            assert started.wait(_WAIT_SECONDS)
        raise ValueError("mine")

    with threads_end(), _harness(work, async_enabled) as harness:
        harness.push([(1, 1)])
        with pytest.raises(OperatorError, match="ValueError: mine"):
            harness.end_batch()
    assert ended == ["cancelled"] * async_enabled


# -- everything mixed ----------------------------------------------------------------------------------------


def counted(operator: Any, bundle: Bundle, ctx: BundleContext) -> Iterator[Any]:
    """Totals in state of what calls say of each row's key, some of which fail and are recovered from."""
    keys = keys_of(bundle)
    calls = [
        ctx.call(_fails, key).recover(lambda error: 1) if key % 5 == 4 else ctx.call(operator.rate, key)
        for key in keys
    ]
    found: list[Any] = []
    yield operator.total.async_get(bundle.keys).then_combine(
        combine_all(calls), lambda stored, rates: found.extend([stored.numpy(0), rates])
    )
    rows = [0] * len(keys)
    for key in bundle.keys.inverse.tolist():
        rows[key] += 1
    totals = pa.array(
        [int(before) + count * rate for before, count, rate in zip(found[0], rows, found[1], strict=True)]
    )
    operator.total.put(bundle.keys, [totals])
    ctx.emit([bundle.keys.columns[0], totals])


@settings(max_examples=at_most(20))
@given(
    batches=st.lists(st.lists(st.integers(0, 20), max_size=30), min_size=1, max_size=3),
    size=st.sampled_from(["1", "4", "1000"]),
    limit=st.sampled_from([1, 3]),
)
def test_both_modes_give_the_same_rows_and_bytes(batches: list[list[int]], size: str, limit: int) -> None:
    stored = []
    for async_enabled in (False, True):
        totals: Counter[int] = Counter()
        with _harness(counted, async_enabled, bundle_size=size, call_limit=limit) as harness:
            for rows in batches:
                for key in rows:
                    totals[key] += 1 if key % 5 == 4 else key + 100
                harness.push([(key, 0) for key in rows])
                last = {key: total for _, key, total in harness.end_batch()}
                assert last == {key: totals[key] for key in set(rows)}
            stored.append((harness.output, harness.state_entries()))
    assert stored[0] == stored[1]
