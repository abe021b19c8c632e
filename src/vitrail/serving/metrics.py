"""What the service counts and times, as Prometheus reads it."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class ModelMetrics:
    """Those of one model."""

    images: Counter
    batch_size: Histogram
    batch_seconds: Histogram
    queue_seconds: Histogram
    workers: Gauge
    restarts: Counter


class Metrics:
    """A registry of its own, so that several services of one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        named = {"registry": self.registry}
        self.requests = Counter(
            "vitrail_requests", "Requests by route and status", ["route", "status"], **named
        )
        self.seconds = Histogram(
            "vitrail_request_seconds", "Seconds to answer a request", ["route"],
            buckets=SECONDS, **named,
        )  # fmt: skip
        self.images = Counter("vitrail_images", "Images computed", ["model"], **named)
        self.shared = Gauge(
            "vitrail_shared_images", "Images whose answer was shared with the same image",
            ["model"], **named,
        )  # fmt: skip
        self.batch_size = Histogram(
            "vitrail_batch_size", "Images of a batch", ["model"], buckets=SIZES, **named
        )
        self.batch_seconds = Histogram(
            "vitrail_batch_seconds", "Seconds to decode and compute a batch", ["model"],
            buckets=SECONDS, **named,
        )  # fmt: skip
        self.queue_seconds = Histogram(
            "vitrail_queue_seconds", "Seconds that an image waits to be sent", ["model"],
            buckets=SECONDS, **named,
        )  # fmt: skip
        self.waiting = Gauge("vitrail_waiting_images", "Images in the queue", ["model"], **named)
        self.workers = Gauge("vitrail_workers", "Processes that are ready", ["model"], **named)
        self.restarts = Counter(
            "vitrail_worker_restarts", "Processes that died and were started again", ["model"],
            **named,
        )  # fmt: skip
        self.connections = Gauge("vitrail_connections", "Open connections", **named)
        self.body_bytes = Gauge("vitrail_body_bytes", "Bytes of request bodies held", **named)

    def of_model(self, name: str) -> ModelMetrics:
        return ModelMetrics(
            images=self.images.labels(name),
            batch_size=self.batch_size.labels(name),
            batch_seconds=self.batch_seconds.labels(name),
            queue_seconds=self.queue_seconds.labels(name),
            workers=self.workers.labels(name),
            restarts=self.restarts.labels(name),
        )

    def text(self) -> tuple[bytes, str]:
        """The page of /metrics, and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
