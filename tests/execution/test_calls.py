"""Outside calls: HTTP to a real server on the loopback, order per key, bounds, timeouts, and a clean end."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

from asyncstate import combine_all
from asyncstate.errors import FutureStateError, OperatorError, StateAccessError
from asyncstate.execution import AsyncLimits, CallLimits
from asyncstate.operator import InputSpec, RecordContext, RecordOperator, Row, Timer
from asyncstate.state import BroadcastStateDescriptor, ListStateDescriptor, ValueStateDescriptor
from asyncstate.testing import OperatorHarness
from tests.execution.rig import ASYNC_MODES, MODES, Rig, threads_end
from tests.quiet_server import QuietServer

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
TOTAL = ValueStateDescriptor("total", pa.int64())
_WAIT_SECONDS = 30  # for what must happen; a test that waits so long has failed


# -- a server that the tests hold by the hand --------------------------------------------------------------


@dataclass
class Server:
    """Answers ``/n`` with n; ``before`` runs in the handler first. Knows the order of begins and ends, and the peak."""

    port: int = 0
    before: Callable[[int], None] = lambda number: None
    log: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_once: int = 0
    peak: int = 0

    def answer(self, number: int) -> bytes:
        with self.lock:
            self.log.append(("begin", number))
            self.at_once += 1
            self.peak = max(self.peak, self.at_once)
        self.before(number)
        with self.lock:
            self.at_once -= 1
            self.log.append(("end", number))
        return str(number).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = told.answer(int(self.path[1:]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    listening = QuietServer(("127.0.0.1", 0), Handler)
    told.port = listening.server_address[1]
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield told
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def fetch(port: int, number: int) -> int:
    """The plain client: blocks its thread."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{number}", timeout=_WAIT_SECONDS) as answer:
        return int(answer.read())


async def fetch_async(port: int, number: int) -> int:
    """The client on the event loop."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"GET /{number} HTTP/1.0\r\n\r\n".encode())
        received = b""
        with anyio.fail_after(_WAIT_SECONDS):
            try:
                while True:
                    received += await stream.receive()
            except anyio.EndOfStream:
                return int(received.rpartition(b"\r\n\r\n")[2])


CLIENTS = pytest.mark.parametrize("client", [fetch, fetch_async])


@CLIENTS
@pytest.mark.parametrize("mode", MODES)
class TestOverHttp:
    def test_answers_come_back_to_their_records(
        self, server: Server, client: Callable[..., Any], mode: str
    ) -> None:
        def process(item: int, ctx: Any) -> Any:
            return (
                ctx.call(client, server.port, item)
                .then_combine(state.async_value(), lambda number, total: number + (total or 0))
                .then_compose(lambda total: state.async_update(total).then_apply(lambda _: total))
                .then_accept(lambda total: ctx.emit(ctx.key[0], total))
            )

        with threads_end(), Rig(mode) as rig:
            state = rig.state(TOTAL)
            rows = rig.run([item % 3 for item in range(30)], process)
            statistics = rig.controller.statistics()
        totals: dict[int, int] = defaultdict(int)
        expected = []
        for item in range(30):
            totals[item % 3] += item
            expected.append((item % 3, totals[item % 3]))
        assert rows == expected
        assert statistics.calls.calls == 30
        assert statistics.calls.call_timeouts == 0
        assert statistics.calls.calls_in_flight_peak == (1 if mode == "sync" else 3)

    def test_coroutines_await_calls_beside_state(
        self, server: Server, client: Callable[..., Any], mode: str
    ) -> None:
        async def process(item: int, ctx: Any) -> None:
            total = await state.async_value() or 0
            total += await ctx.call(client, server.port, item)
            await state.async_update(total)
            both = await combine_all([ctx.call(client, server.port, 7), state.async_value()])
            ctx.emit(ctx.key[0], both)

        with Rig(mode) as rig:
            state = rig.state(TOTAL)
            rows = rig.run([1, 2, 1, 2], process)
        assert rows == [(1, [7, 0]), (2, [7, 1]), (1, [7, 2]), (2, [7, 4])]

    def test_records_of_a_key_wait_for_each_others_calls(
        self, server: Server, client: Callable[..., Any], mode: str
    ) -> None:
        with Rig(mode) as rig:
            rig.run([1] * 10, lambda item, ctx: ctx.call(client, server.port, item))
        assert server.log == [(what, item) for item in range(10) for what in ("begin", "end")]


@CLIENTS
@pytest.mark.parametrize("mode", ASYNC_MODES)
class TestManyAtOnce:
    def test_no_more_than_the_limit_and_no_fewer(
        self, server: Server, client: Callable[..., Any], mode: str
    ) -> None:
        together = threading.Barrier(3)
        server.before = lambda number: together.wait(_WAIT_SECONDS) and None
        with Rig(mode, calls=CallLimits(in_flight=3)) as rig:
            rows = rig.run(
                range(12),
                lambda item, ctx: ctx.call(client, server.port, item).then_accept(
                    lambda number: ctx.emit(item, number)
                ),
            )
            statistics = rig.controller.statistics()
        assert rows == [(item, item) for item in range(12)]
        assert server.peak == 3
        assert statistics.calls.calls_in_flight_peak == 3
        assert statistics.calls.call_limit == 3

    def test_other_keys_go_on_while_one_waits(
        self, server: Server, client: Callable[..., Any], mode: str
    ) -> None:
        others = threading.Event()
        server.before = lambda number: None if number else (others.wait(_WAIT_SECONDS) and None)

        def process(item: int, ctx: Any) -> Any:
            def answered(number: int) -> None:
                ctx.emit(ctx.key[0], number)
                if number == 5:
                    others.set()

            return ctx.call(client, server.port, item).then_accept(answered)

        with Rig(mode) as rig:
            rows = rig.run([0, 1, 1, 2, 0, 1], process)
        assert rows == [(0, 0), (1, 1), (1, 2), (2, 3), (0, 4), (1, 5)]
        assert server.log.index(("end", 5)) < server.log.index(("end", 0)) < server.log.index(("begin", 4))


# -- timeouts and failures -----------------------------------------------------------------------------------


async def _never() -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize("mode", MODES)
class TestTimeouts:
    def test_a_coroutine_is_cancelled_and_the_failure_can_be_recovered(self, mode: str) -> None:
        ended: list[str] = []

        async def never() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("cancelled")

        with Rig(mode, calls=CallLimits(timeout_ms=20)) as rig:
            rows = rig.run(
                [1, 2],
                lambda item, ctx: (
                    ctx.call(never)
                    .then_apply(lambda _: "answered")
                    .recover(lambda error: type(error).__name__)
                    .then_accept(lambda what: ctx.emit(item, what))
                ),
            )
            assert rig.controller.statistics().calls.call_timeouts == 2
        assert rows == [(0, "TimeoutError"), (1, "TimeoutError")]
        assert ended == ["cancelled"] * 2

    def test_a_plain_function_is_left_to_itself(self, mode: str) -> None:
        release = threading.Event()
        try:
            with threads_end_later(release), Rig(mode) as rig:
                rows = rig.run(
                    [1],
                    lambda item, ctx: (
                        ctx.call(release.wait, _WAIT_SECONDS, timeout_seconds=0.02)
                        .recover(str)
                        .then_accept(lambda what: ctx.emit(item, what))
                    ),
                )
        finally:
            release.set()
        assert "Event.wait took longer than 0.02 seconds" in rows[0][1]

    def test_functions_that_run_on_after_their_timeout_count_as_calls(self, mode: str) -> None:
        """Until they return, as many others fewer run; then all may again."""
        release, lock, running = threading.Event(), threading.Lock(), [0, 0]

        def blocked(number: int) -> int:
            with lock:
                running[0] += 1
                running[1] = max(running)
            if number < 8:
                release.wait(_WAIT_SECONDS)
            with lock:
                running[0] -= 1
            return number

        def process(item: int, ctx: Any) -> Any:
            (number,) = ctx.key
            if number == 8:
                release.set()
            called = ctx.call(blocked, number, timeout_seconds=0.02 if number < 8 else _WAIT_SECONDS)
            return called.recover(lambda error: type(error).__name__).then_accept(
                lambda what: ctx.emit(item, what)
            )

        with threads_end_later(release), Rig(mode, calls=CallLimits(in_flight=2)) as rig:
            rows = rig.run(range(8), process) + rig.run(range(8, 12), process)
        assert [what for _, what in rows] == ["TimeoutError"] * 8 + [8, 9, 10, 11]
        assert running == [0, 2]

    def test_unhandled_it_names_the_function_and_the_key(self, mode: str) -> None:
        with (
            pytest.raises(
                OperatorError,
                match=r"operator 'op', call of _never, key \(7,\): TimeoutError: .*call_timeout",
            ) as raised,
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(_never, timeout_seconds=0.01))
        assert isinstance(raised.value.__cause__, TimeoutError)

    def test_a_timeout_of_the_functions_own_is_its_own_failure(self, mode: str) -> None:
        async def own() -> None:
            with anyio.fail_after(0.001):
                await anyio.sleep_forever()

        with pytest.raises(OperatorError, match=r"call of .*own, key \(7,\): TimeoutError"), Rig(mode) as rig:
            rig.run([7], lambda item, ctx: ctx.call(own))
        assert rig.controller.statistics().calls.call_timeouts == 0

    @pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
    def test_impossible_timeouts_are_refused(self, mode: str, seconds: float) -> None:
        with (
            pytest.raises(OperatorError, match=r"_never.*timeout_seconds is .*more than 0"),
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(_never, timeout_seconds=seconds))

    @pytest.mark.parametrize("timeout", ["10 milliseconds", timedelta(milliseconds=10)])
    def test_a_timeout_may_be_written_out(self, mode: str, timeout: Any) -> None:
        with pytest.raises(OperatorError, match=r"took longer than 0\.01 seconds"), Rig(mode) as rig:
            rig.run([7], lambda item, ctx: ctx.call(_never, timeout_seconds=timeout))

    def test_functions_get_their_keywords(self, mode: str) -> None:
        def plain(*values: int, scale: int = 1, **more: int) -> tuple[int, dict[str, int]]:
            return sum(values) * scale, more

        async def waits(*values: int, scale: int = 1, **more: int) -> tuple[int, dict[str, int]]:
            await anyio.sleep(0)
            return plain(*values, scale=scale, **more)

        class Object:
            async def __call__(self, *values: int, **more: int) -> tuple[int, dict[str, int]]:
                return await waits(*values, **more)

        with Rig(mode) as rig:
            for function in (plain, waits, Object(), functools.partial(waits, 0)):

                def process(item: int, ctx: Any, called: Any = function) -> Any:
                    answer = ctx.call(called, 1, 2, scale=2, other=3, timeout_seconds=_WAIT_SECONDS)
                    return answer.then_accept(lambda found: ctx.emit(item, found))

                assert rig.run([7], process) == [(0, (6, {"other": 3}))]
        with pytest.raises(OperatorError, match=r"call of _never, key \(7,\): TypeError"), Rig(mode) as rig:
            rig.run([7], lambda item, ctx: ctx.call(_never, wrong=1))


@contextmanager
def threads_end_later(release: threading.Event) -> Iterator[None]:
    """Fails unless every thread that was started inside ends once ``release`` is set."""
    with threads_end():
        try:
            yield
        finally:
            release.set()


def _fails() -> None:
    raise LookupError("no such user")


async def _fails_async() -> None:
    raise LookupError("no such user")


@pytest.mark.parametrize("mode", MODES)
class TestFailures:
    @pytest.mark.parametrize("function", [_fails, _fails_async])
    def test_an_exception_names_the_function_and_keeps_the_traceback(
        self, mode: str, function: Callable[..., Any]
    ) -> None:
        with (
            pytest.raises(
                OperatorError, match=rf"call of {function.__name__}, key \(7,\): LookupError: no such user"
            ) as raised,
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(function))
        cause = raised.value.__cause__
        assert isinstance(cause, LookupError)
        trace = cause.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        assert trace.tb_frame.f_code is function.__code__

    def test_a_coroutine_can_catch_it(self, mode: str) -> None:
        async def process(item: int, ctx: Any) -> None:
            try:
                await ctx.call(_fails_async)
            except LookupError as error:
                ctx.emit(item, str(error))

        with Rig(mode) as rig:
            assert rig.run([1, 1], process) == [(0, "no such user"), (1, "no such user")]

    def test_a_call_that_cancels_itself_is_a_failure_not_a_hang(self, mode: str) -> None:
        async def gives_up() -> None:
            raise asyncio.CancelledError

        with (
            pytest.raises(OperatorError, match=r"call of .*gives_up, key \(7,\).*from inside"),
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(gives_up))

    def test_exiting_the_process_is_a_failure_as_well(self, mode: str) -> None:
        async def leaves() -> None:
            raise SystemExit(3)

        with pytest.raises(OperatorError, match=r"call of .*leaves.*SystemExit: 3"), Rig(mode) as rig:
            rig.run([7], lambda item, ctx: ctx.call(leaves))

    def test_a_coroutine_object_is_refused_without_a_warning(self, mode: str) -> None:
        with (
            pytest.raises(OperatorError, match=r"pass the function and its arguments, such as ctx\.call"),
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(_never()))  # type: ignore[arg-type]

    def test_what_is_no_function_is_refused(self, mode: str) -> None:
        with (
            pytest.raises(OperatorError, match=(r"ctx\.call got 3, which is not a function")),
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(3))

    def test_all_kinds_of_functions(self, mode: str) -> None:
        class Client:
            async def __call__(self, number: int) -> int:
                await anyio.lowlevel.checkpoint()
                return number

            async def get(self, number: int) -> int:
                return number

        client = Client()
        kinds: list[Callable[..., Any]] = [
            client,
            client.get,
            functools.partial(client.get),
            lambda number: client.get(number + 0),
            lambda number: number + 0,
            int,
        ]
        with Rig(mode) as rig:
            rows = rig.run(
                range(len(kinds)),
                lambda item, ctx: ctx.call(kinds[item], item).then_accept(lambda got: ctx.emit(item, got)),
            )
        assert rows == [(item, item) for item in range(len(kinds))]

    def test_the_context_of_another_record_is_refused(self, mode: str) -> None:
        kept: list[RecordContext] = []

        def process(item: int, ctx: Any) -> Any:
            kept.append(ctx)
            return kept[0].call(int) if item else None

        with (
            pytest.raises(OperatorError, match=r"key \(0,\) was used while that record is not") as raised,
            Rig(mode) as rig,
        ):
            rig.run([0, 1], process)
        assert isinstance(raised.value.__cause__, StateAccessError)

    def test_a_call_from_a_call_is_refused(self, mode: str) -> None:
        with (
            pytest.raises(OperatorError, match=r"key \(7,\) was used while that record is not"),
            Rig(mode) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(lambda: ctx.call(int)))


# -- the end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ASYNC_MODES)
class TestTheEnd:
    def test_running_calls_are_cancelled_when_the_batch_fails(self, mode: str) -> None:
        started = threading.Barrier(3)
        ended: list[str] = []

        async def waits() -> None:
            await anyio.to_thread.run_sync(started.wait, _WAIT_SECONDS)
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                ended.append("cancelled")
                raise

        def process(item: int, ctx: Any) -> Any:
            if item < 2:
                return ctx.call(waits)
            return ctx.call(started.wait, _WAIT_SECONDS).then_accept(lambda _: 1 // 0)

        with threads_end(), pytest.raises(OperatorError, match="ZeroDivisionError"), Rig(mode) as rig:
            rig.run([0, 1, 2], process)
        assert ended == ["cancelled"] * 2

    def test_a_result_that_comes_after_the_end_is_dropped(self, mode: str) -> None:
        release, seen = threading.Event(), []

        def process(item: int, ctx: Any) -> Any:
            if item:
                raise ValueError("mine")
            return ctx.call(release.wait, _WAIT_SECONDS).then_accept(seen.append)

        with threads_end_later(release), pytest.raises(OperatorError, match="mine"), Rig(mode) as rig:
            rig.run([0, 1], process)
        assert seen == []

    def test_calls_are_refused_after_the_end(self, mode: str) -> None:
        kept: list[RecordContext] = []
        with Rig(mode) as rig:
            rig.run([0], lambda item, ctx: kept.append(ctx))
        with pytest.raises(StateAccessError, match="not being processed"):
            kept[0].call(int)

    def test_a_call_that_blocks_the_loop_is_named_by_the_watchdog(self, mode: str) -> None:
        release = threading.Event()

        async def blocks() -> None:
            release.wait(_WAIT_SECONDS)

        limits = CallLimits(timeout_ms=10, watchdog_timeout_ms=50)
        with (
            threads_end_later(release),
            pytest.raises(
                OperatorError,
                match=r"operator 'op': 1 outside calls have not answered; the oldest: call of .*blocks, key \(7,\), "
                r"for .*plain functions",
            ),
            Rig(mode, calls=limits) as rig,
        ):
            rig.run([7], lambda item, ctx: ctx.call(blocks))


def test_a_call_that_blocks_the_loop_is_named_in_sync_mode_too() -> None:
    release = threading.Event()

    async def blocks() -> None:
        release.wait(_WAIT_SECONDS)

    limits = CallLimits(timeout_ms=10, watchdog_timeout_ms=50)
    with (
        threads_end_later(release),
        pytest.raises(OperatorError, match=r"1 outside calls have not answered.*blocks, key \(7,\)"),
        Rig("sync", calls=limits) as rig,
    ):
        rig.run([7], lambda item, ctx: ctx.call(blocks))


# -- through the harness -------------------------------------------------------------------------------------


class Calling(RecordOperator):
    """Puts out what the call of a row's value gives. ``seen``: what happened, in order."""

    seen: ClassVar[list[Any]] = []

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: Any) -> None:
        self.total = context.get_state(TOTAL)

    def close(self) -> None:
        self.seen.append("close")

    async def open_calls(self) -> None:
        self.base = 100
        self.task = asyncio.current_task()
        self.seen.append("open_calls")

    async def close_calls(self) -> None:
        assert asyncio.current_task() is self.task
        self.seen.append("close_calls")

    async def look_up(self, value: int) -> int:
        if value < 0:
            raise LookupError(value)
        self.seen.append(value)
        return value + self.base

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return ctx.call(self.look_up, row.value).then_accept(lambda found: ctx.emit(row.key, found))


@pytest.fixture(autouse=True)
def _forget() -> None:
    Calling.seen.clear()


def _harness(operator: RecordOperator, async_enabled: bool, **attributes: Any) -> OperatorHarness:
    for name, value in attributes.items():
        setattr(operator, name, value)
    return OperatorHarness(operator, SCHEMA, ["key"], async_enabled=async_enabled)


class TestHooks:
    def test_they_run_once_a_task_around_its_calls(self, async_enabled: bool) -> None:
        with threads_end(), _harness(Calling(), async_enabled) as harness:
            Calling.seen.clear()
            harness.push([(1, 1), (1, 2)])
            assert harness.end_batch() == [("+I", 1, 101), ("+I", 1, 102)]
            assert Calling.seen == ["open_calls", 1, 2, "close_calls", "close"]
            assert harness.statistics()["calls"] == 2

    def test_without_a_call_there_is_no_loop(self, async_enabled: bool) -> None:
        with _harness(Calling(), async_enabled) as harness:
            Calling.seen.clear()
            before = set(threading.enumerate())
            harness.end_batch()
            started = {thread.name for thread in set(threading.enumerate()) - before}
            assert started <= {"asyncstate-open-stores"}
            assert Calling.seen == ["close"]

    def test_they_run_when_the_batch_fails(self, async_enabled: bool) -> None:
        with threads_end(), _harness(Calling(), async_enabled) as harness:
            Calling.seen.clear()
            harness.push([(1, -1)])
            with pytest.raises(OperatorError, match=r"call of Calling\.look_up, key \(1,\): LookupError: -1"):
                harness.end_batch()
            assert Calling.seen == ["open_calls", "close_calls", "close"]

    def test_a_failing_open_calls_fails_the_batch(self, async_enabled: bool) -> None:
        with _harness(FailingHooks("open"), async_enabled) as harness:
            harness.push([(1, 1)])
            with pytest.raises(OperatorError, match=r"operator 'operator': open_calls failed: OSError: no"):
                harness.end_batch()

    def test_a_failing_close_calls_fails_the_batch(self, async_enabled: bool) -> None:
        with threads_end(), _harness(FailingHooks("close"), async_enabled) as harness:
            harness.push([(1, 1)])
            with pytest.raises(OperatorError, match=r"close_calls failed: OSError: no"):
                harness.end_batch()
            assert harness.state_entries() == {}

    def test_a_failing_close_calls_does_not_hide_why_the_batch_failed(self, async_enabled: bool) -> None:
        with _harness(FailingHooks("close"), async_enabled) as harness:
            harness.push([(1, -1)])
            with pytest.raises(OperatorError, match="LookupError") as raised:
                harness.end_batch()
            assert any("close_calls failed: OSError" in note for note in raised.value.__notes__)

    def test_hooks_have_the_time_of_a_call(self, async_enabled: bool) -> None:
        for hook in ("open", "close"):
            operator = FailingHooks(hook, hangs=True)
            with threads_end(), _harness(operator, async_enabled, call_timeout="20ms") as harness:
                harness.push([(1, 1)])
                with pytest.raises(OperatorError, match=rf"{hook}_calls failed: TimeoutError"):
                    harness.end_batch()


class FailingHooks(Calling):
    def __init__(self, hook: str, hangs: bool = False) -> None:
        self.hook = hook
        self.hangs = hangs

    async def _fail(self) -> None:
        if self.hangs:
            await anyio.sleep_forever()
        raise OSError("no")

    async def open_calls(self) -> None:
        await super().open_calls()
        if self.hook == "open":
            await self._fail()

    async def close_calls(self) -> None:
        if self.hook == "close":
            await self._fail()


class OnTimers(Calling):
    """Calls from ``on_timer`` and, if asked to, from ``on_watermark``."""

    def __init__(self, on_watermark: bool = False) -> None:
        self.from_watermark = on_watermark

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.timers.register_event_time(row.value)

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        ctx.emit(ctx.key[0], await ctx.call(self.look_up, timer.time))

    def on_watermark(self, watermark: int, ctx: RecordContext) -> Any:
        if self.from_watermark:
            ctx.call(self.look_up, 1)


def test_timers_may_call(async_enabled: bool) -> None:
    with _harness(OnTimers(), async_enabled) as harness:
        harness.push([(1, 5), (2, 3), (1, 4)])
        assert harness.finish() == [("+I", 2, 103), ("+I", 1, 104), ("+I", 1, 105)]


def test_on_watermark_may_not(async_enabled: bool) -> None:
    with (
        _harness(OnTimers(on_watermark=True), async_enabled) as harness,
        pytest.raises(OperatorError, match=r"look_up.*on_watermark\(\) has no key"),
    ):
        harness.end_batch()


class OnBroadcast(Calling):
    """Each broadcast row is looked up and kept; keys with state are told by a call of their own."""

    num_inputs = 2
    broadcast_input = 1
    notify_stateful_sets = True

    def open(self, context: Any) -> None:
        super().open(context)
        self.rules = context.get_state(BroadcastStateDescriptor("rules", pa.int64(), pa.int64()))

    async def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        self.rules.put(row.key, await ctx.call(self.look_up, row.value))

    async def process_notification(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(ctx.key[0], await ctx.call(self.look_up, row.value + 1000))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        await self.total.async_update(row.value)
        ctx.emit(row.key, self.rules.get(0))


def test_broadcast_rows_and_notifications_may_call(async_enabled: bool) -> None:
    with OperatorHarness(
        OnBroadcast(), [SCHEMA, SCHEMA], [["key"], []], async_enabled=async_enabled
    ) as harness:
        harness.push([(0, 7)], input=1)
        harness.push([(1, 1), (2, 1)], input=0)
        assert harness.end_batch() == [("+I", 1, 107), ("+I", 2, 107)]
        harness.push([(0, 8)], input=1)
        harness.push([(1, 1)], input=0)
        assert sorted(harness.end_batch()) == [("+I", 1, 108), ("+I", 1, 1108), ("+I", 2, 1108)]


def test_limits_come_from_the_configuration(async_enabled: bool) -> None:
    with _harness(Calling(), async_enabled, call_limit=2) as harness:
        harness.push([(key, key) for key in range(20)])
        harness.end_batch()
        assert harness.statistics()["call_limit"] == 2
        assert harness.statistics()["calls_in_flight_peak"] <= 2


# -- everything mixed ----------------------------------------------------------------------------------------


class Mixed(RecordOperator):
    """Every other row a coroutine, the others callbacks: state, calls on the loop, calls on threads, lists."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("total", pa.int64()), ("seen", pa.int64())])

    def open(self, context: Any) -> None:
        self.total = context.get_state(TOTAL)
        self.seen = context.get_state(ListStateDescriptor("seen", pa.int64()))

    async def rate(self, value: int) -> int:
        for _ in range(random.randrange(4)):  # whatever order the answers come in
            await anyio.lowlevel.checkpoint()
        return value * 3

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.awaiting(row, ctx) if row.value % 2 else self.chained(row, ctx)

    async def awaiting(self, row: Row, ctx: RecordContext) -> None:
        rate, total = await combine_all([ctx.call(self.rate, row.value), self.total.async_value()])
        total = (total or 0) + rate
        if row.value % 101 == 1:
            total += await ctx.call(abs, -row.value)
        await self.total.async_update(total)
        await self.seen.async_add(row.value)
        seen = [value async for value in await self.seen.async_get()]
        ctx.emit(row.key, total, len(seen))

    def chained(self, row: Row, ctx: RecordContext) -> Any:
        return (
            self.total.async_value()
            .then_combine(ctx.call(self.rate, row.value), lambda total, rate: (total or 0) + rate)
            .then_compose(lambda total: self.total.async_update(total).then_apply(lambda _: total))
            .then_accept(lambda total: ctx.emit(row.key, total, 0))
        )


def _mixed_model(rows: list[tuple[int, int]]) -> list[tuple[Any, ...]]:
    totals: dict[int, int] = defaultdict(int)
    seen: dict[int, int] = defaultdict(int)
    expected: list[tuple[Any, ...]] = []
    for key, value in rows:
        totals[key] += 3 * value + (value if value % 2 and value % 101 == 1 else 0)
        if value % 2:
            seen[key] += 1
            expected.append(("+I", key, totals[key], seen[key]))
        else:
            expected.append(("+I", key, totals[key], 0))
    return expected


def test_thousands_of_keys_with_duplicates_give_the_same_in_both_modes() -> None:
    choose = random.Random(7)
    rows = [(choose.randrange(1_200), value) for value in range(3_000)]
    outputs, entries = [], []
    for async_enabled in (False, True):
        with OperatorHarness(Mixed(), SCHEMA, ["key"], async_enabled=async_enabled) as harness:
            for part in (rows[:1_500], rows[1_500:]):
                harness.push(part)
                harness.end_batch()
            outputs.append(harness.output)
            entries.append(harness.state_entries())
    assert outputs[0] == _mixed_model(rows)
    assert outputs[1] == outputs[0]
    assert entries[1] == entries[0]


@pytest.mark.parametrize("mode", ["batched", "threads"])
@pytest.mark.parametrize("seed", range(3))
def test_calls_and_slow_reads_finish_in_any_order(mode: str, seed: int) -> None:
    choose = random.Random(seed)
    keys = [choose.randrange(40) for _ in range(400)]

    async def process(item: int, ctx: Any) -> None:
        before = await state.async_value() or 0
        if item % 3:
            before += await ctx.call(_after, choose.randrange(5), 1)
        else:
            before += 1
        await state.async_update(before)
        ctx.emit(ctx.key[0], before)

    with Rig(mode, limits=AsyncLimits(in_flight=30, buffer_size=5, io_parallelism=3)) as rig:
        state = rig.state(TOTAL)
        rows = rig.run(keys, process)
    counts: dict[int, int] = defaultdict(int)
    for key, row in zip(keys, rows, strict=True):
        counts[key] += 1
        assert row == (key, counts[key])


async def _after(turns: int, value: int) -> int:
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    return value


def test_a_future_is_refused_on_another_thread() -> None:
    with ThreadPoolExecutor(1) as other:

        def process(item: int, ctx: Any) -> Any:
            read = state.async_value()
            with pytest.raises(FutureStateError, match="on another thread"):
                other.submit(read.then_apply, lambda _: 1).result()
            return read

        with Rig("batched") as rig:
            state = rig.state(TOTAL)
            rig.run([1], process)
