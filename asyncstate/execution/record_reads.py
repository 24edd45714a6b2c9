"""Buffered reads of single records: here while that is quick, else side by side on the I/O threads.

Owns: ``RecordReads``, how a full buffer becomes list gets.
Invariant: every request is answered once, here or by the completion of the chunk it was sent off in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from asyncstate.execution.pacing import ReadPacer
from asyncstate.execution.read_here import read_here
from asyncstate.execution.read_threads import ListGet
from asyncstate.requests import StateRequest
from asyncstate.storage import WriteOverlay

Requests = Sequence[StateRequest]
Answer = Callable[[Requests, list[bytes | None]], None]
Send = Callable[[Sequence[ListGet]], None]
Fail = Callable[[Requests, BaseException], NoReturn]


class RecordReads:
    """List gets for requests that are sorted by store key."""

    def __init__(
        self,
        overlay: WriteOverlay,
        pacer: ReadPacer,
        answer: Answer,
        fail: Fail,
        send: Send,
        parallelism: int,
    ) -> None:
        self._overlay = overlay
        self._pacer = pacer
        self._answer = answer
        self._fail = fail
        self._send = send
        self._parallelism = parallelism

    def read(self, requests: Requests) -> None:
        """Answer ``requests``, now or when the threads have read them."""
        pacer = self._pacer
        if not pacer.waits_for_device:
            requests = self._read_here(requests)
        elif probe := pacer.probe_keys():
            requests = [*self._read_here(requests[:probe]), *requests[probe:]]
        if requests:
            size = pacer.chunk_keys(len(requests), pacer.threads(self._parallelism))
            chunks = pacer.cut(requests, size)
            self._send([ListGet([request.key for request in chunk], chunk) for chunk in chunks])

    def _read_here(self, requests: Requests) -> Requests:
        """Answer requests on this thread while that is quick; returns those that should go to the threads."""
        pacer, overlay = self._pacer, self._overlay
        while requests:
            size = pacer.chunk_keys(len(requests), 1)
            chunk, requests = requests[:size], requests[size:]
            keys = [request.key for request in chunk]
            try:
                values, _ = read_here(overlay, pacer, keys)
            except Exception as error:
                self._fail(chunk, error)
            overlay.count_list_get(len(keys))
            self._answer(chunk, values)
            if pacer.waits_for_device:
                break
        return requests
