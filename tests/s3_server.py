"""An S3 on the loopback: moto's server in a process of its own, and a proxy in front of it that can fail.

Owns: S3Server, FaultyProxy. Invariant: nothing here leaves the machine; each test has a bucket of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tests.quiet_server import QuietServer

READY_SECONDS_MAX = 60.0
ACCESS_KEY = "TESTKEYID"
SECRET_KEY = "open/sesame+1"
Fault = Literal["503", "throttle", "reset", "403", "hang"]


class S3Server:
    """A running server. ``place`` makes a bucket and returns the URI of a checkpoint in it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self._numbers = itertools.count()

    def place(self, port: int | None = None) -> str:
        """A new bucket's URI with credentials, on this server or on a proxy's ``port``."""
        bucket = f"bucket-{next(self._numbers)}"
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self.port}/{bucket}", method="PUT"), timeout=10
        ).close()
        return s3_uri(bucket, port or self.port)


def s3_uri(bucket: str, port: int) -> str:
    """The URI of a checkpoint in a bucket of a server on the loopback."""
    user = f"{ACCESS_KEY}:{quote(SECRET_KEY, safe='')}"
    return f"s3://{user}@{bucket}/some/job?scheme=http&endpoint_override=127.0.0.1%3A{port}"


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start moto's server and wait until it answers."""
    port = _free_port()
    with open(folder / "moto.log", "wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_until_ready(process, port, folder / "moto.log")
        yield S3Server(process, port)
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"moto's server did not come up:\n{log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class _Planned:
    method: str
    part: str
    fault: Fault
    times: int


@dataclass
class FaultyProxy:
    """Passes requests on and counts them; ``fail`` plans what the next matching ones meet instead."""

    target: int
    requests: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0
    _planned: list[_Planned] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    def fail(self, method: str, part: str, fault: Fault, times: int = 1) -> None:
        """Let the next ``times`` requests with this method and ``part`` in their path meet a fault."""
        with self._lock:
            self._planned.append(_Planned(method, part, fault, times))

    def heal(self) -> None:
        """Forget all planned faults and count anew."""
        with self._lock:
            self._planned.clear()
            self.requests.clear()

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Note a request; what it shall meet."""
        with self._lock:
            self.requests.append((method, path))
            for planned in self._planned:
                if planned.times and planned.method == method and planned.part in path:
                    planned.times -= 1
                    return planned.fault
        return None

    def counts(self) -> dict[str, int]:
        """Requests by method."""
        methods = [method for method, _ in self.requests]
        return {method: methods.count(method) for method in sorted(set(methods))}


@contextlib.contextmanager
def faulty_proxy(server: S3Server) -> Iterator[FaultyProxy]:
    """Run a proxy in threads of this process."""
    proxy = FaultyProxy(server.port)

    class Handler(_Handler):
        owner = proxy

    httpd = QuietServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.block_on_close = False
    proxy.port = httpd.server_address[1]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultyProxy

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            super().handle()

    def _serve(self) -> None:
        body = self._body()
        fault = self.owner.fault_of(self.command, self.path)
        if fault == "reset":
            # Closing with this option sends a reset instead of an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault == "hang":
            self.owner.released.wait()
            self.close_connection = True
        elif fault is not None:
            self._answer(*_ERRORS[fault])
        else:
            self._pass_on(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _pass_on(self, body: bytes) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _OWN_HEADERS}
        upstream = http.client.HTTPConnection("127.0.0.1", self.owner.target, timeout=30)
        try:
            upstream.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer = upstream.getresponse()
            content = answer.read()
            self._answer(answer.status, content, answer.getheaders())
        finally:
            upstream.close()

    def _answer(self, status: int, content: bytes, headers: list[tuple[str, str]] | None = None) -> None:
        self.send_response_only(status)
        length = None
        for key, value in headers or []:
            if key.lower() == "content-length":
                length = value  # of a HEAD's object, which has no content here
            elif key.lower() not in _OWN_HEADERS:
                self.send_header(key, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


_OWN_HEADERS = {"connection", "content-length", "expect", "keep-alive", "transfer-encoding"}


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()


_ERRORS: dict[str, tuple[int, bytes]] = {
    "503": (503, b""),
    "throttle": (503, _error("SlowDown")),
    "403": (403, _error("AccessDenied")),
}
