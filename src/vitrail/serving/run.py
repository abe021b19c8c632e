"""`vitrail.serve`: models behind HTTP, until a signal ends it."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.serving.settings import Limits, Settings, parse_sources

OnReady = Callable[[str], None]


def serve(
    *models: str | Path,
    standby: Sequence[str | Path] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: str = "auto",
    workers: int = 1,
    threads: int | None = None,
    batch_size: int = 32,
    max_wait_ms: float = 5.0,
    queue: int = 256,
    timeout: float = 30.0,
    window: float = 5.0,
    drain_seconds: float = 0.5,
    device: str = "auto",
    data: Sequence[str | Path] = (),
    untrained: bool = False,
    allow_host: Sequence[str] = (),
    trusted_host: Sequence[str] = (),
    api_key_file: str | Path | None = None,
    telemetry: bool = False,
    limits: Limits | None = None,
    on_ready: OnReady | None = None,
) -> None:
    """Serve models over HTTP, and the page at /, until SIGTERM or Ctrl-C; requests that were
    accepted are answered first.

    A model is a checkpoint or an exported file, or "NAME=PATH"; an admin may load those of
    `standby` later. `engine` and `threads` are those of `predict`: `workers` processes of each
    model compute batches of at most `batch_size` images, by `threads` threads each. At most `queue`
    images of each model wait; then requests are refused. `data` are runs or directories of
    embeddings. `allow_host` are hosts whose images may be given by address, `trusted_host` names
    under which a proxy on this machine forwards requests. `on_ready` gets the address when all
    models are loaded; port 0 takes a free one.
    """
    settings = Settings(
        models=parse_sources(tuple(map(str, models)), "models"),
        standby=parse_sources(tuple(map(str, standby)), "standby"),
        host=host,
        port=port,
        engine=engine,
        workers=workers,
        threads=threads,
        batch_size=batch_size,
        max_wait_ms=max_wait_ms,
        queue=queue,
        timeout=timeout,
        window=window,
        drain_seconds=drain_seconds,
        device=device,
        data=tuple(map(str, data)),
        untrained=untrained,
        allow_host=tuple(allow_host),
        trusted_host=tuple(trusted_host),
        api_key_file=None if api_key_file is None else str(api_key_file),
        telemetry=telemetry,
        limits=limits or Limits(),
    )
    run(settings, on_ready)


def run(settings: Settings, on_ready: OnReady | None = None) -> None:
    """Serve until a signal."""
    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    runner(run_settings(settings, on_ready))


async def run_settings(settings: Settings, on_ready: OnReady | None) -> None:
    try:
        from vitrail.serving.server import DrainingServer
        from vitrail.serving.service import Service
    except ImportError as error:
        raise UserError(
            f"the service needs {error.name}, which is not installed: pip install 'vitrail[serve]'"
        ) from None
    server = DrainingServer(Service(settings))
    await server.run_until_signal(on_ready or (lambda address: None))
    if server.interrupted:
        raise KeyboardInterrupt
