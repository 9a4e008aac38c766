"""The metrics of a server, in the format of Prometheus."""

import os
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bothways.lazy import imported

# Seconds: from a tenth of a millisecond, a cached tokenisation, to half a minute.
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that names the folder in which the workers of a server share their metrics."""


@dataclass(frozen=True, slots=True, eq=False)
class Metrics:
    """Counters, gauges and histograms of one process; an `Observer` of its queue."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    seconds: Histogram = field(init=False)
    queue_seconds: Histogram = field(init=False)
    inputs: Counter = field(init=False)
    tokens: Counter = field(init=False)
    truncated: Counter = field(init=False)
    refused: Counter = field(init=False)
    drops: Counter = field(init=False)
    lost_lines: Counter = field(init=False)
    running: Gauge = field(init=False)
    queued_tokens: Gauge = field(init=False)
    wait_seconds: Gauge = field(init=False)
    batch_tokens: Histogram = field(init=False)
    batch_seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"bothways_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"bothways_{name}", text, registry=self.registry, multiprocess_mode="livesum")

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"bothways_{name}", text, labels, buckets=buckets, registry=self.registry)

        made = {
            "requests": counter("requests", "Requests that were answered.", "route", "model", "status"),
            "seconds": histogram("request_seconds", "Time of a request.", _SECONDS, "route", "model"),
            "queue_seconds": histogram("queue_seconds", "Time until the first batch of a request.", _SECONDS, "model"),
            "inputs": counter("inputs", "Inputs of requests.", "model"),
            "tokens": counter("tokens", "Tokens that were computed, special ones included.", "model"),
            "truncated": counter("truncated_inputs", "Inputs that were not read whole.", "model"),
            "refused": counter("refused_requests", "Requests that were refused.", "reason"),
            "drops": counter("dropped_requests", "Requests that were dropped before they were computed.", "reason"),
            "lost_lines": counter("lost_log_lines", "Lines of the log that could not be written."),
            "running": gauge("running_requests", "Requests that are being answered."),
            "queued_tokens": gauge("queued_tokens", "Tokens that wait or are being computed."),
            "wait_seconds": gauge("wait_seconds", "Seconds until a request that comes now would be begun."),
            "batch_tokens": histogram("batch_tokens", "Tokens of a batch.", _TOKENS),
            "batch_seconds": histogram("batch_seconds", "Time of a batch.", _SECONDS),
        }
        for name, metric in made.items():
            object.__setattr__(self, name, metric)

    def batch(self, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.batch_tokens.observe(tokens)
        self.batch_seconds.observe(seconds)

    def dropped(self, reason: str) -> None:
        """Count a request that was dropped before it was computed."""
        self.drops.labels(reason).inc()

    def text(self) -> bytes:
        """Return all metrics as text, those of the other workers included."""
        if os.environ.get(SHARED_FOLDER) is None:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        imported("prometheus_client.multiprocess:MultiProcessCollector")(registry)
        return generate_latest(registry)
