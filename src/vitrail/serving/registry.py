"""The models of a service by name: loaded, swapped and unloaded while requests go on."""

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Any, Literal

from vitrail.core.errors import UserError
from vitrail.serving.batcher import Rules
from vitrail.serving.launcher import Launcher
from vitrail.serving.metrics import Metrics
from vitrail.serving.paths import hide_paths
from vitrail.serving.pool import Pool
from vitrail.serving.problems import Conflict, Invalid, NotFound, Unavailable
from vitrail.serving.process import StartFailed
from vitrail.serving.settings import Settings, Source
from vitrail.serving.spec import ModelInfo, WorkerSpec

HANG_SECONDS = 60.0  # at least, that a process may take for one batch or operation

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Served:
    """A model under its name; its processes may be replaced by those of another source."""

    name: str
    source: Source
    pool: Pool | None = None  # None while it is loaded for the first time
    state: Literal["loading", "ready", "draining"] = "loading"

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        info = None if self.pool is None else self.pool.info
        known = {} if info is None else info.facts()
        return {"name": self.name, "source": self.source.name, "state": self.state, **known}


class Registry:
    """All models of a service."""

    def __init__(
        self, settings: Settings, metrics: Metrics, launcher: Launcher | None = None
    ) -> None:
        self.settings, self.metrics = settings, metrics
        self.launcher, self.owns_launcher = launcher or Launcher(), launcher is None
        self.models: dict[str, Served] = {}
        self.changing: set[str] = set()  # names that are being loaded or unloaded
        self.draining: set[asyncio.Task[None]] = set()

    def find(self, name: str | None) -> Served:
        """The model of a request; without a name the first one."""
        if name is None and self.models:
            return next(iter(self.models.values()))
        found = self.models.get(name or "")
        if not self.models:
            raise NotFound("no model is served")
        if found is None:
            known = ", ".join(self.models)
            raise NotFound(f"model {name!r} is not served, known are {known}")
        return found

    def pool_of(self, name: str | None) -> Pool:
        served = self.find(name)
        if served.pool is None:
            raise Unavailable(f"the model {served.name} is being loaded")
        return served.pool

    @property
    def is_ready(self) -> bool:
        return bool(self.models) and all(
            one.pool is not None and one.pool.is_ready for one in self.models.values()
        )

    # Loading and unloading

    async def start(self) -> None:
        """Load all models of the settings, or none."""
        for source in self.settings.models:
            self.models[source.name] = Served(source.name, source)
        try:
            await asyncio.gather(*(self.fill(one) for one in self.models.values()))
        except BaseException:
            await self.close()
            raise

    async def fill(self, served: Served) -> None:
        pool = self.make_pool(served.source)
        try:
            await pool.start()
        except BaseException:
            await pool.close()
            raise
        served.pool, served.state = pool, "ready"

    def make_pool(self, source: Source) -> Pool:
        settings = self.settings
        spec = WorkerSpec(
            name=source.name,
            path=source.path,
            engine=settings.engine,
            threads=settings.threads or default_threads(settings),
            batch_size=settings.batch_size,
            device=settings.device,
            max_pixels=settings.limits.pixels,
            data=settings.data,
            untrained=settings.untrained,
        )
        rules = Rules(
            batch_size=settings.batch_size,
            max_wait=settings.max_wait_ms / 1000,
            queue=settings.queue,
            window=settings.window,
        )
        return Pool(
            self.launcher,
            spec,
            rules,
            workers=settings.workers,
            hang_seconds=max(HANG_SECONDS, 2 * settings.timeout),
            metrics=self.metrics.of_model(source.name),
        )

    async def load(self, name: str, source_name: str) -> ModelInfo:
        """Serve a source of the settings under a name; where one is served under it, requests go
        to it until the new one is ready, and are answered by it to the last."""
        source = self.settings.find_source(source_name)
        if source is None:
            known = ", ".join(sorted({one.name for one in self.settings.known_sources}))
            raise NotFound(f"source {source_name!r} was not named at the start, known are {known}")
        self.begin(name)
        try:
            pool = self.make_pool(Source(name, source.path))
            try:
                info = await pool.start()
            except BaseException:
                await pool.close()
                raise
        except UserError as error:
            raise Invalid(hide_paths(str(error), (source.path,))) from None
        except (StartFailed, OSError) as error:
            raise Unavailable(hide_paths(str(error), (source.path,))) from None
        finally:
            self.changing.discard(name)
        before = self.models.get(name)
        self.models[name] = Served(name, source, pool, "ready")
        if before is not None and before.pool is not None:
            self.end(before.pool)
        return info

    def unload(self, name: str) -> None:
        """Serve a model no more; what was accepted is answered."""
        served = self.find(name)
        self.begin(name)
        self.changing.discard(name)
        del self.models[name]
        served.state = "draining"
        if served.pool is not None:
            self.end(served.pool)

    def begin(self, name: str) -> None:
        if name in self.changing or (name in self.models and self.models[name].pool is None):
            raise Conflict(f"the model {name} is being loaded: try again later")
        self.changing.add(name)

    def end(self, pool: Pool) -> None:
        task = asyncio.create_task(pool.drain())
        self.draining.add(task)
        task.add_done_callback(self.draining.discard)

    async def close(self) -> None:
        """End all processes."""
        pools = [served.pool for served in self.models.values() if served.pool is not None]
        await asyncio.gather(*(pool.close() for pool in pools), *self.draining)
        if self.owns_launcher:
            await asyncio.to_thread(self.launcher.close)


def default_threads(settings: Settings) -> int:
    """The processors, divided among all processes that compute batches."""
    processes = settings.workers * len(settings.models)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) // processes)
