"""The progress of micro-batches as Prometheus metrics.

Owns: ``PrometheusProgress``, an ``on_progress`` for ``StreamingJob``. Optional: needs ``asyncstate[prometheus]``.
Invariant: metrics are created once per registry; a value that was not measured leaves its metric unchanged.
Must not import pyspark.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Self

from asyncstate.driver.progress import OF_PARTITIONS, OperatorProgress, Progress
from asyncstate.errors import ConfigurationError
from asyncstate.metrics import MetricKind
from asyncstate.runtime import TASK_METRICS

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

_JOB: Final = ("job",)
_OPERATOR: Final = ("job", "operator")
_PREFIX: Final = "asyncstate_"
_GAUGES: Final = (MetricKind.GAUGE, MetricKind.MAX_GAUGE)  # values that do not add up over micro-batches
_TIMES: Final = ("total_seconds", "function_seconds", "commit_seconds")
_SECONDS_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


_metrics: weakref.WeakKeyDictionary[CollectorRegistry, dict[str, Any]] = weakref.WeakKeyDictionary()
"""By registry and name: a second object for a registry reuses the metrics of the first."""


class PrometheusProgress:
    """Counters, gauges and histograms, labelled by job and operator (its uid); see ``docs/metrics.md`` for their names.

    ``registry`` is by default Prometheus' own of this process. One object serves any number of jobs:
    ``StreamingJob(..., on_progress=PrometheusProgress())``. Raises ConfigurationError without prometheus-client.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ConfigurationError(
                "PrometheusProgress needs the package prometheus-client; install asyncstate[prometheus]"
            ) from error
        self._client = prometheus_client
        self.registry = registry if registry is not None else prometheus_client.REGISTRY
        self._batches = self._counter("micro_batches", "Committed micro-batches.", _JOB)
        self._last = self._gauge("last_batch_id", "Batch id of the last committed micro-batch.", _JOB)
        self._watermark = self._gauge(
            "watermark_seconds", "Watermark of the last micro-batch, seconds since the epoch.", _JOB
        )
        self._times = {
            name: self._histogram(f"micro_batch_{name}", "Duration of micro-batches.", _JOB)
            for name in _TIMES
        }
        self._stage = self._histogram(
            "stage_seconds", "Duration of an operator's stage with its exchange.", _OPERATOR
        )
        self._sums = {
            name: self._counter(name, f"{name} of an operator, over all micro-batches.", _OPERATOR)
            for name, kind in TASK_METRICS.items()
            if kind is MetricKind.COUNTER
        }
        self._levels = {
            name: self._gauge(name, f"{name} of an operator in the last micro-batch.", _OPERATOR)
            for name, kind in TASK_METRICS.items()
            if kind in _GAUGES
        }
        for name in (f"{name}_max" for name in OF_PARTITIONS):
            self._levels[name] = self._gauge(name, f"{name}: the maximum over partitions.", _OPERATOR)
        self._dropped = self._counter(
            "source_rows_dropped", "Messages that the reader of a source could not read.", ("job", "source")
        )
        self._own = self._counter(
            "operator_counter", "Metrics that operators define themselves.", (*_OPERATOR, "counter")
        )

    def __call__(self, progress: Progress) -> None:
        """Record the metrics of one micro-batch."""
        job = progress["job"]
        self._batches.labels(job).inc()
        self._last.labels(job).set(progress["batch_id"])
        if progress["watermark_us"] is not None:
            self._watermark.labels(job).set(progress["watermark_us"] / 1e6)
        for name, histogram in self._times.items():
            histogram.labels(job).observe(progress[name])  # type: ignore[literal-required]  # of ``_TIMES``
        for source, dropped in progress["dropped"].items():
            self._dropped.labels(job, source).inc(dropped["rows"])
        for operator in progress["operators"].values():
            self._take(job, operator)

    def serve(self, port: int, address: str = "127.0.0.1") -> MetricsServer:
        """Serve scrapes at http://address:port/metrics until the server is closed; port 0 takes a free one."""
        server, thread = self._client.start_http_server(port, address, self.registry)
        return MetricsServer(server, thread)

    def _take(self, job: str, operator: OperatorProgress) -> None:
        labels = job, operator["uid"]
        self._stage.labels(*labels).observe(operator["stage_seconds"])
        for name, counter in self._sums.items():
            if operator[name] is not None:
                counter.labels(*labels).inc(operator[name])
        for name, gauge in self._levels.items():
            if operator[name] is not None:
                gauge.labels(*labels).set(operator[name])
        for name, value in operator["counters"].items():
            self._own.labels(*labels, name).inc(value)

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Any:
        return self._made(self._client.Counter, name, text, labels)

    def _gauge(self, name: str, text: str, labels: Iterable[str]) -> Any:
        return self._made(self._client.Gauge, name, text, labels)

    def _histogram(self, name: str, text: str, labels: Iterable[str]) -> Any:
        return self._made(self._client.Histogram, name, text, labels, buckets=_SECONDS_BUCKETS)

    def _made(self, kind: Any, name: str, text: str, labels: Iterable[str], **how: Any) -> Any:
        made = _metrics.setdefault(self.registry, {})
        if name not in made:
            made[name] = kind(_PREFIX + name, text, labels, registry=self.registry, **how)
        return made[name]


class MetricsServer:
    """A running exporter; a context manager that closes it."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """The address where it listens."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop the server; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
