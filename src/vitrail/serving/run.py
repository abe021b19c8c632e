"""`vitrail.serve`: models behind HTTP, until a signal ends it."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.serving.settings import Limits, Settings, parse_sources

OnReady = Callable[[str], None]


def ignore(address: str) -> None:
    """Nobody asks."""


def serve(
    *models: str | Path,
    sources: Sequence[str | Path] = (),
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
    device: str = "auto",
    data: Sequence[str | Path] = (),
    untrained: bool = False,
    allow_host: Sequence[str] = (),
    api_key_file: str | Path | None = None,
    telemetry: bool = False,
    limits: Limits | None = None,
    on_ready: OnReady = ignore,
) -> None:
    """Serve models over HTTP, and the page at /, until SIGTERM or Ctrl-C; requests that were
    accepted are answered first.

    A model is a checkpoint or an exported file, or "NAME=PATH"; an admin may load those of
    `sources` later. `engine` and `threads` are those of `predict`: `workers` processes of each
    model compute batches of at most `batch_size` images, by `threads` threads each. At most `queue`
    images of each model wait; then requests are refused. `data` are runs or directories of
    embeddings. `on_ready` gets the address when all models are loaded; port 0 takes a free one.
    """
    settings = Settings(
        models=parse_sources(tuple(map(str, models)), "models"),
        sources=parse_sources(tuple(map(str, sources)), "sources"),
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
        device=device,
        data=tuple(map(str, data)),
        untrained=untrained,
        allow_host=tuple(allow_host),
        api_key_file=None if api_key_file is None else str(api_key_file),
        telemetry=telemetry,
        limits=limits or Limits(),
    )
    run(settings, on_ready)


def run(settings: Settings, on_ready: OnReady = ignore) -> None:
    """Serve until a signal."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(run_service(settings, on_ready))
    else:
        uvloop.run(run_service(settings, on_ready))


async def run_service(settings: Settings, on_ready: OnReady) -> None:
    try:
        from vitrail.serving.server import DrainingServer, bind
        from vitrail.serving.service import Service
    except ImportError as error:
        raise UserError(
            f"the service needs {error.name}, which is not installed: pip install 'vitrail[serve]'"
        ) from None
    service = Service(settings)
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        raise UserError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror or error}"
        ) from None
    server = DrainingServer(service, listener)
    running = asyncio.create_task(server.run_until_signal())
    loading = asyncio.create_task(service.registry.start())
    try:
        await asyncio.wait({running, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()  # raises where a model cannot be loaded
            on_ready(address_of(settings.host, listener))
        await running
    finally:
        server.should_exit = True
        loading.cancel()
        await asyncio.gather(running, loading, return_exceptions=True)
        await service.registry.close()
    if server.interrupted:
        raise KeyboardInterrupt


def address_of(host: str, listener: socket.socket) -> str:
    """
    >>> import socket
    >>> with socket.create_server(("127.0.0.1", 0)) as one:
    ...     address_of("127.0.0.1", one).startswith("http://127.0.0.1:")
    True
    """
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
