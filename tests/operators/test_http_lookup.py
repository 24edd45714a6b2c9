"""HttpLookup against a server: what it asks for, where it is sent, how fast, how much it reads, and what it says."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import AsyncStateError, ConfigurationError, OperatorError, SchemaError
from asyncstate.lookups import DatabaseLookup, HttpLookup, Key, Lookup, PostgresLookup, Rows, TableLookup
from asyncstate.lookups.http import Pace, _retry_after
from asyncstate.testing import OperatorHarness
from operators.join.lookup.lookup_join import LookupJoin, StatelessLookupJoin
from operators.join.lookup.lookup_requests import LookupCache, Retry
from tests.quiet_server import QuietServer

ROWS = pa.schema([("k", pa.string())])
BODY = b'[{"name": "x"}]'
SECRET = "topsecret"


class Asked:
    """A request as the server had it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.path = handler.path
        self.headers = dict(handler.headers.items())
        self.at = time.monotonic()


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def service(answer: Callable[[Asked, int], Answer]) -> Iterator[tuple[str, list[Asked]]]:
    """A server whose ``answer`` gets a request and its number; its address, and what it was asked."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            asked.append(Asked(self))
            status, headers, body = answer(asked[-1], len(asked))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the output of tests is their own."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fine(_: Asked, __: int) -> Answer:
    return 200, {}, BODY


def joined(lookup: HttpLookup, keys: list[str], async_enabled: bool, **settings: Any) -> list[Any]:
    join = LookupJoin(lookup, "name string", **settings)
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([(key,) for key in keys])
        return harness.end_batch()


# -- what is asked for -----------------------------------------------------------------------------------------


def test_values_are_a_part_of_the_path_or_a_parameter(async_enabled: bool) -> None:
    with service(fine) as (url, asked):
        joined(HttpLookup(url + "/items/{0}/name"), ["a/b", "ü ?#", "..a"], async_enabled)
        joined(HttpLookup(url + "/items?id={0}&x=.."), ["..", "", "a&b"], async_enabled)
    assert sorted(one.path for one in asked) == [
        "/items/%C3%BC%20%3F%23/name", "/items/..a/name", "/items/a%2Fb/name",
        "/items?id=&x=..", "/items?id=..&x=..", "/items?id=a%26b&x=..",
    ]  # fmt: skip


@pytest.mark.parametrize("key", [".", "..", ""])
def test_a_value_that_leads_to_another_path_is_refused(async_enabled: bool, key: str) -> None:
    with service(fine) as (url, asked):
        with pytest.raises(
            OperatorError, match=f"makes the path segment '{key}', which would request another resource"
        ):
            joined(HttpLookup(url + "/items/{0}/name"), [key], async_enabled)
        assert joined(HttpLookup(url + "/items/{0}/name"), [key], async_enabled, on_failure="null") == [
            ("+I", key, None)
        ]
    assert asked == []


# -- redirects -------------------------------------------------------------------------------------------------


def test_a_redirect_within_the_origin_is_followed(async_enabled: bool) -> None:
    def moved(asked: Asked, _: int) -> Answer:
        return (200, {}, BODY) if asked.path == "/new/a" else (307, {"Location": "/new/a"}, b"")

    with service(moved) as (url, asked):
        assert joined(HttpLookup(url + "/{0}", headers={"X-Key": SECRET}), ["a"], async_enabled) == [
            ("+I", "a", "x")
        ]
    assert [one.headers["X-Key"] for one in asked] == [SECRET, SECRET]


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("{other}/x", "redirects to another host"),
        ("file:///etc/passwd", "redirects to another host"),
        ("https://127.0.0.1/", "redirects to another host"),
        ("/again", "redirects more than 5 times"),
    ],
)
def test_no_other_redirect_is_followed(async_enabled: bool, location: str, said: str) -> None:
    with service(fine) as (other, strangers):
        where = location.format(other=other.replace("127.0.0.1", "localhost"))
        with (
            service(lambda *_: (302, {"Location": where}, b"")) as (url, _),
            pytest.raises(OperatorError, match=said),
        ):
            joined(HttpLookup(url + "/{0}", headers={"X-Key": SECRET}), ["a"], async_enabled)
    assert strangers == []


# -- how fast, how much ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_waited_for(async_enabled: bool, form: str, caplog: Any) -> None:
    def busy(_: Asked, number: int) -> Answer:
        wait = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
        return (429, {"Retry-After": wait}, b"") if number == 1 else (200, {}, BODY)

    with service(busy) as (url, asked):
        lookup = HttpLookup(url + "/{0}")
        assert joined(lookup, ["a"], async_enabled, retry=Retry(2, 0)) == [("+I", "a", "x")]
    first, second = (one.at for one in asked)
    assert second - first > 0.9
    assert caplog.text == ""


def test_retry_after_holds_all_requests_back(async_enabled: bool) -> None:
    def busy(_: Asked, number: int) -> Answer:
        return (503, {"Retry-After": "1"}, b"") if number == 1 else (200, {}, BODY)

    with service(busy) as (url, asked):
        lookup = HttpLookup(url + "/{0}", connections=1)
        joined(lookup, ["a", "b"], async_enabled, retry=Retry(2, 0), batch=2)
    assert [one.path for one in asked][:2] == ["/a", "/a"]
    assert asked[1].at - asked[0].at > 0.9


def test_requests_per_second_are_bounded(async_enabled: bool) -> None:
    with service(fine) as (url, asked):
        joined(HttpLookup(url + "/{0}", requests_per_second=20), list("abcdef"), async_enabled)
    times = sorted(one.at for one in asked)
    assert times[-1] - times[0] > 5 / 20 * 0.8


class Clock:
    """Monotonic and wall time of a machine, which only sleeping moves."""

    def __init__(self, wall: float) -> None:
        self.now, self.wall = 50.0, wall

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pace(self, per_second: float | None, start: float = 0.0, size: float = 1.0) -> Pace:
        return Pace(
            per_second,
            start,
            size,
            clock=lambda: self.now,
            wall_clock=lambda: self.wall + self.now,
            sleep=self.sleep,
        )


def begun(clock: Clock, pace: Pace, requests: int) -> list[float]:
    """The wall times at which requests begin, one immediately after the other."""
    times = []
    for _ in range(requests):
        asyncio.run(pace.turn())
        times.append(clock.wall + clock.now)
    return times


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_the_rate_is_that_of_all_partitions_together(partitions: int) -> None:
    """Also over micro-batches, each of which begins anew, in processes whose monotonic clocks differ."""
    times: list[float] = []
    for partition in range(partitions):
        clock = Clock(1_700_000_000.0 + 0.0123 * partition)
        for requests in (1, 4, 2, 1):
            pace = clock.pace(25, partition / partitions, 1 / partitions)
            times += begun(clock, pace, requests)
            clock.now += 0.001
    times.sort()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) == pytest.approx(1 / 25, abs=1e-4)
    assert times[-1] - times[0] < (8 * partitions + partitions) / 25  # no slot is left out


def test_a_pause_that_the_service_asks_for_ends_in_a_slot() -> None:
    clock = Clock(1_700_000_000.0)
    pace = clock.pace(4)
    pace.hold(10.1)
    assert begun(clock, pace, 2) == pytest.approx([1_700_000_060.25, 1_700_000_060.5])
    unbounded = clock.pace(None)
    unbounded.hold(3)
    assert begun(clock, unbounded, 2) == pytest.approx([1_700_000_063.5] * 2)


def test_a_wall_clock_that_is_set_back_holds_nothing_back() -> None:
    clock = Clock(1_700_000_000.0)
    pace = clock.pace(4)
    begun(clock, pace, 1)
    clock.wall -= 3600
    before = clock.now
    begun(clock, pace, 1)
    assert clock.now - before == pytest.approx(0.25)


def test_each_partition_of_a_join_takes_its_share(async_enabled: bool) -> None:
    shares: list[tuple[float, float]] = []

    class Shared(Lookup):
        def take_share(self, start: float, size: float) -> None:
            shares.append((start, size))

        def lookup(self, keys: Sequence[Key]) -> list[Rows]:
            return [[("x",)] for _ in keys]

    for partitions in (1, 4):
        shares.clear()
        with OperatorHarness(
            LookupJoin(Shared(), "name string"),
            ROWS,
            ["k"],
            async_enabled=async_enabled,
            changelog=False,
            parallelism=partitions,
        ) as harness:
            harness.push([(str(n),) for n in range(40)])
            harness.end_batch()
        assert {share for share in shares if share[1] < 1 or partitions == 1} == {
            (n / partitions, 1 / partitions) for n in range(partitions)
        }


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0), ("7", 7), ("9" * 400, 86_400), ("soon", 0), ("-1", 0), ("Sun, 06 Nov 1994 08:49:37 GMT", 0)],
)
def test_what_retry_after_may_say(header: str, seconds: float) -> None:
    assert _retry_after(header) == seconds
    ahead = _retry_after(formatdate(time.time() + 500, usegmt=True))
    assert 490 < ahead <= 500


def test_a_pause_is_bounded_by_the_timeout_of_the_call(async_enabled: bool) -> None:
    with service(lambda *_: (503, {"Retry-After": "3600"}, b"")) as (url, asked):
        join = {"retry": Retry(5, 0), "timeout": 0.3, "on_failure": "null"}
        assert joined(HttpLookup(url + "/{0}"), ["a"], async_enabled, **join) == [("+I", "a", None)]
    assert len(asked) == 1


def test_a_rate_needs_an_exchange() -> None:
    join = StatelessLookupJoin(
        HttpLookup("http://svc/{0}", requests_per_second=5), "name string", on=["k"], on_failure="null"
    )
    with pytest.raises(SchemaError, match=r"requests_per_second of HttpLookup.*use LookupJoin"):
        OperatorHarness(join, ROWS, None, changelog=False)


@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
def test_answers_are_bounded_also_after_they_are_unpacked(async_enabled: bool, coding: str) -> None:
    packs = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}

    def large(asked: Asked, _: int) -> Answer:
        size = int(asked.path.strip("/"))
        body = packs[coding](b'[{"name": "' + b"x" * (size - 14) + b'"}]')
        return 200, {"Content-Encoding": coding}, body

    with service(large) as (url, _):
        lookup = HttpLookup(url + "/{0}", response_bytes_max=100_000)
        ((_, _, name),) = joined(lookup, ["100000"], async_enabled)
        assert len(name) == 100_000 - 14
        for size in ("100001", "50000000"):
            with pytest.raises(OperatorError, match="has more than 100000 bytes; request less, or raise"):
                joined(lookup, [size], async_enabled)


@pytest.mark.parametrize(
    ("coding", "said"), [("br", "with 'br'; only gzip and deflate"), ("gzip", "is not valid gzip")]
)
def test_an_answer_that_cannot_be_unpacked(async_enabled: bool, coding: str, said: str) -> None:
    with (
        service(lambda *_: (200, {"Content-Encoding": coding}, BODY)) as (url, _),
        pytest.raises(OperatorError, match=said),
    ):
        joined(HttpLookup(url + "/{0}"), ["a"], async_enabled)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_an_answer_that_ends_too_early(async_enabled: bool, coding: str) -> None:
    """Its beginning would be rows, too: here whole lines."""
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}[coding](b"x\n" * 5)

    def lines(_: int, body: bytes) -> Rows:
        return [(line,) for line in body.decode().split()]

    with (
        service(lambda *_: (200, {"Content-Encoding": coding}, packed[:-4])) as (url, _),
        pytest.raises(OperatorError, match=f"is not valid {coding}: it ends too early"),
    ):
        joined(HttpLookup(url + "/{0}", parse=lines), ["a"], async_enabled)


def test_an_answer_of_several_members(async_enabled: bool) -> None:
    packed = gzip.compress(BODY[:5]) + gzip.compress(BODY[5:]) + b"\0\0"
    with service(lambda *_: (200, {"Content-Encoding": "gzip"}, packed)) as (url, _):
        assert joined(HttpLookup(url + "/{0}"), ["a"], async_enabled) == [("+I", "a", "x")]


def test_a_service_that_does_not_answer(async_enabled: bool) -> None:
    ended = threading.Event()

    def never(_: Asked, __: int) -> Answer:
        ended.wait(30)
        return 200, {}, BODY

    with service(never) as (url, _):
        try:
            with pytest.raises(
                OperatorError, match=r"did not answer within 0\.2 seconds; give a longer timeout="
            ):
                joined(HttpLookup(url + "/{0}", timeout=0.2), ["a"], async_enabled)
        finally:
            ended.set()


# -- requests that fail for good -----------------------------------------------------------------------------------


def some_fail(asked: Asked, _: int) -> Answer:
    return (500, {}, b"") if asked.path == "/b" else (404, {}, b"") if asked.path == "/c" else (200, {}, BODY)


FOUND = [("+I", "a", "x"), ("+I", "b", None), ("+I", "c", None), ("+I", "b", None)]


@pytest.mark.parametrize("ordered", [True, False])
def test_keys_that_keep_failing_find_nothing_or_go_aside(async_enabled: bool, ordered: bool) -> None:
    why = ("+I", "b", "OperatorError", "the service answers with status 500: ")
    for how, failed in (("null", []), ("output", [why, why])):
        with service(some_fail) as (url, asked):
            join = LookupJoin(
                HttpLookup(url + "/{0}"),
                "name string",
                retry=Retry(2, 0),
                on_failure=how,
                ordered=ordered,
                cache=LookupCache(),
            )
            with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
                harness.push([("a",), ("b",), ("c",), ("b",)])
                expected = FOUND if how == "null" else [FOUND[0], FOUND[2]]
                assert sorted(harness.end_batch(), key=repr) == sorted(expected, key=repr)
                assert harness.statistics()["counter.lookups_failed"] == 1
                if failed:
                    assert harness.side_output("errors") == failed
                harness.push([("b",)])
                harness.end_batch()
        assert sum(one.path == "/b" for one in asked) == 4  # two attempts a micro-batch


def test_a_key_that_failed_is_taken_back_as_it_was_put_out(async_enabled: bool) -> None:
    with service(some_fail) as (url, _):
        join = LookupJoin(HttpLookup(url + "/{0}"), "name string", on_failure="null")
        with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled) as harness:
            harness.push([("b",)])
            assert harness.end_batch() == [("+I", "b", None)]
            harness.push([("b",)], kind="-D")
            assert harness.end_batch() == [("-D", "b", None)]


def test_a_stateless_join_finds_nothing_for_a_key_that_failed(async_enabled: bool) -> None:
    with service(some_fail) as (url, _):
        join = StatelessLookupJoin(HttpLookup(url + "/{0}"), "name string", on=["k"], on_failure="null")
        with OperatorHarness(join, ROWS, None, async_enabled=async_enabled, changelog=False) as harness:
            harness.push([("b",), ("a",)])
            assert harness.end_batch() == [("+I", "b", None), ("+I", "a", "x")]
    aside = StatelessLookupJoin(HttpLookup("http://svc/{0}"), "name string", on=["k"], on_failure="output")
    with pytest.raises(SchemaError, match="without state there are no side outputs; give 'fail' or 'null'"):
        OperatorHarness(aside, ROWS, None, changelog=False)


def test_a_side_output_of_failures_needs_insertions() -> None:
    with pytest.raises(SchemaError, match="on_failure='null'"):
        OperatorHarness(LookupJoin(len, "name string", on_failure="output"), ROWS, ["k"], changelog=True)
    aside = LookupJoin(len, "name string", on=["k"], on_failure="output")
    with pytest.raises(SchemaError, match="has a column 'error_type', which the side output 'errors' adds"):
        OperatorHarness(aside, "k string, error_type string", ["k"], changelog=False)


# -- what is said ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lookup",
    [
        HttpLookup(f"https://me:{SECRET}@svc/{{0}}?key={SECRET}&id={{1}}", headers={"X-Key": SECRET}),
        PostgresLookup(f"postgresql://me:{SECRET}@db/x?sslpassword={SECRET}", "select 1"),
        PostgresLookup(f"host=db password={SECRET}", "select 1"),
        DatabaseLookup(__import__("functools").partial(len, SECRET), "select 1"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_no_credential_is_shown(lookup: Any) -> None:
    assert SECRET not in repr(lookup)
    assert SECRET not in repr(LookupJoin(lookup, "name string"))
    assert SECRET not in LookupJoin(lookup, "name string")._repr_html_()
    assert not isinstance(lookup, HttpLookup) or "{0}" in repr(lookup)


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked, _: (500, {}, f"bad key in {asked.path}".encode()),
        lambda asked, _: (302, {"Location": asked.path}, b""),
        lambda asked, _: (200, {"Content-Length": "100"}, b"short"),
        lambda asked, _: (403, {}, f"who is {asked.headers['Authorization']}".encode()),
    ],
)
def test_errors_have_no_credential(async_enabled: bool, answer: Any) -> None:
    with service(answer) as (url, _):
        lookup = HttpLookup(
            url + f"/{{0}}?key={SECRET}", headers={"Authorization": f"Bearer {SECRET}"}, timeout=2
        )
        with pytest.raises(OperatorError) as raised:
            joined(lookup, ["a"], async_enabled)
    error: BaseException | None = raised.value
    while error is not None:
        assert SECRET not in "\n".join([str(error), *getattr(error, "__notes__", [])])
        error = error.__cause__


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HttpLookup(7), "url is 7; give an address that begins with http://"),  # type: ignore[arg-type]
        (lambda: HttpLookup("ftp://svc/{0}"), r"url is 'ftp://svc/\{0\}'"),
        (lambda: HttpLookup("http://svc/{name}"), r"with \{0\}, \{1\} as placeholders for the values"),
        (lambda: HttpLookup("http://{0}/x"), "the host of url has a placeholder"),
        (lambda: HttpLookup("http://svc/{0}", headers=7), "headers is not a dict"),  # type: ignore[arg-type]
        (lambda: HttpLookup("http://svc/{0}", connections=0), "connections is 0; give a number above 0"),
        (lambda: HttpLookup("http://svc/{0}", requests_per_second=-1), "requests_per_second is -1"),
        (lambda: HttpLookup("http://svc/{0}", response_bytes_max=0), "response_bytes_max is 0"),
        (
            lambda: OperatorHarness(LookupJoin(HttpLookup("http://svc/{1}"), "n int"), ROWS, ["k"]),
            r"url has a placeholder \{1\}, but 1 values are sent: k; placeholders count from 0",
        ),
        (
            lambda: OperatorHarness(LookupJoin(HttpLookup("http://svc/items"), "n int"), ROWS, ["k"]),
            "url has no placeholder, so every key would get the answer to the same request",
        ),
        (
            lambda: OperatorHarness(
                LookupJoin(HttpLookup("http://svc/{0}"), "n int"), pa.schema([("k", pa.binary())]), ["k"]
            ),
            "'k' of type binary has no text in an address; convert it to a string",
        ),
        (lambda: LookupJoin(len, "n int", retry=7), r"retry is 7; give Retry\("),  # type: ignore[arg-type]
        (lambda: LookupJoin(len, "n int", retry_empty=7), r"retry_empty is 7; give Retry\("),  # type: ignore[arg-type]
        (lambda: LookupJoin(len, "n int", cache=7), r"cache is 7; give LookupCache\("),  # type: ignore[arg-type]
        (lambda: LookupJoin(len, "n int", on=7), "on is 7; give a list of columns"),  # type: ignore[arg-type]
        (
            lambda: LookupJoin(len, "n int", on_failure="aside"),  # type: ignore[arg-type]
            "on_failure is 'aside'; choose 'fail', 'null' or 'output'",
        ),
        (lambda: TableLookup([7], ["k"], ["v"]), "the table is a list; give .* a list of dicts"),
        (
            lambda: TableLookup([{"k": 1}, {"k": "a"}], ["k"], ["k"]),
            "the rows cannot be made into a table: .*values of one type",
        ),
        (lambda: TableLookup([{"k": 1}], 7, ["k"]), "key is 7; give a list of the names"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_before_a_row(make: Callable[[], Any], said: str) -> None:
    with pytest.raises((ConfigurationError, SchemaError), match=said):
        make()


def asked_again(said: Any, async_enabled: bool) -> list[float]:
    """When a lookup was asked whose first answer is an error with ``retry_after=said``."""
    times: list[float] = []

    def ask(keys: Any) -> list[Any]:
        times.append(time.monotonic())
        if len(times) == 1:
            error = AsyncStateError("busy")
            error.retry_after = said  # type: ignore[attr-defined]
            raise error
        return [[("x",)] for _ in keys]

    join = LookupJoin(ask, "name string", retry=Retry(2, 0))
    with OperatorHarness(join, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([("a",)])
        assert harness.end_batch() == [("+I", "a", "x")]
    return times


def test_a_lookup_of_your_own_says_when_to_retry(async_enabled: bool) -> None:
    """An attribute ``retry_after`` of what it raises, in seconds."""
    times = asked_again(0.3, async_enabled)
    assert times[1] - times[0] >= 0.29


@pytest.mark.parametrize("said", [None, "soon"])
def test_other_packages_mean_something_else_by_retry_after(async_enabled: bool, said: Any) -> None:
    assert len(asked_again(said, async_enabled)) == 2
