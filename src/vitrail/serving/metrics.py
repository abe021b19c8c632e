"""What the service counts and times, as Prometheus reads it."""

from dataclasses import dataclass
from functools import partial

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
    restarts: Counter


class Metrics:
    """A registry of its own, so that several services of one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        timer = partial(Histogram, registry=self.registry, buckets=SECONDS)
        of_model = ["model"]
        self.requests = counter(
            "vitrail_requests", "Requests by route and status", ["route", "status"]
        )
        self.seconds = timer("vitrail_request_seconds", "Seconds to answer a request", ["route"])
        self.images = counter("vitrail_images", "Images computed", of_model)
        self.shared = gauge(
            "vitrail_shared_images", "Images that took the answer of the same image", of_model
        )
        self.batch_size = Histogram(
            "vitrail_batch_size", "Images of a batch", of_model, registry=self.registry,
            buckets=SIZES,
        )  # fmt: skip
        self.batch_seconds = timer(
            "vitrail_batch_seconds", "Seconds to decode and compute a batch", of_model
        )
        self.queue_seconds = timer(
            "vitrail_queue_seconds", "Seconds that an image waits to be sent", of_model
        )
        self.waiting = gauge("vitrail_waiting_images", "Images in the queue", of_model)
        self.workers = gauge("vitrail_workers", "Processes that are ready", of_model)
        self.restarts = counter(
            "vitrail_worker_restarts", "Processes that died and were started again", of_model
        )
        self.connections = gauge("vitrail_connections", "Open connections")
        self.body_bytes = gauge("vitrail_body_bytes", "Bytes of request bodies in memory")

    def of_model(self, name: str) -> ModelMetrics:
        return ModelMetrics(
            images=self.images.labels(name),
            batch_size=self.batch_size.labels(name),
            batch_seconds=self.batch_seconds.labels(name),
            queue_seconds=self.queue_seconds.labels(name),
            restarts=self.restarts.labels(name),
        )

    def set_model(self, name: str, *, waiting: int, shared: int, workers: int) -> None:
        """What a model has now."""
        self.waiting.labels(name).set(waiting)
        self.shared.labels(name).set(shared)
        self.workers.labels(name).set(workers)

    def forget_models(self) -> None:
        """Models that were unloaded have nothing any more, rather than what they had last."""
        for gauge in (self.waiting, self.shared, self.workers):
            gauge.clear()

    def text(self) -> tuple[bytes, str]:
        """The page of /metrics, and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
