"""`vitrail serve`: models behind HTTP, and the page through which one sees them think."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from vitrail.cli.options import ARGUMENTS, COMPUTING, LocalEngineName, OutputOptions, PlaceOptions
from vitrail.cli.output import note, say, say_json

LIMITS = Group("Limits", sort_key=3)
ACCESS = Group("Access", sort_key=3)


@dataclass(frozen=True)
class Serve(PlaceOptions, OutputOptions):
    """Which models are served, to whom, and how much of them."""

    models: Annotated[
        tuple[str, ...],
        Parameter(
            group=ARGUMENTS,
            help="Checkpoints or exported .onnx and .xml files, each as PATH or NAME=PATH.",
        ),
    ]
    _: KW_ONLY
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all addresses of this machine."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    standby: tuple[str, ...] = ()
    """NAME=PATH of a model that an admin may load later; may be repeated."""
    data: tuple[str, ...] = ()
    """Run, or directory of embeddings, for the page and for search; may be repeated."""
    open: bool = False
    """Open the page in a browser."""
    engine: LocalEngineName = "auto"
    workers: Annotated[int, Parameter(group=COMPUTING)] = 1
    """Processes for each model."""
    batch_size: Annotated[int, Parameter(group=COMPUTING)] = 32
    """Images of a batch at most."""
    max_wait_ms: Annotated[float, Parameter(group=COMPUTING)] = 5.0
    """Milliseconds to wait for a fuller batch at most."""
    window: Annotated[float, Parameter(group=COMPUTING)] = 5.0
    """Seconds in which the same image is computed once; 0 computes each."""
    untrained: Annotated[bool, Parameter(group=COMPUTING)] = False
    """Allow architectures without weights, such as vit_b_16: for load tests."""
    drain_seconds: Annotated[float, Parameter(group=LIMITS)] = 0.5
    """Seconds in which connections are still taken after SIGTERM, before the service ends."""
    queue: Annotated[int, Parameter(group=LIMITS)] = 256
    """Images of each model that may wait; more are refused with 429."""
    timeout: Annotated[float, Parameter(group=LIMITS)] = 30.0
    """Seconds for a request; then it is answered with 504."""
    max_body_mb: Annotated[int, Parameter(group=LIMITS)] = 64
    """Megabytes of a request."""
    max_images: Annotated[int, Parameter(group=LIMITS)] = 64
    """Images of a request."""
    max_pixels: Annotated[int, Parameter(group=LIMITS)] = 50_000_000
    """Pixels of an image."""
    connections: Annotated[int, Parameter(group=LIMITS)] = 1024
    """Connections at once."""
    allow_host: Annotated[tuple[str, ...], Parameter(group=ACCESS)] = ()
    """Host whose images may be given by address; may be repeated. None is allowed by default."""
    trusted_host: Annotated[tuple[str, ...], Parameter(group=ACCESS)] = ()
    """Name of this service behind a proxy on this machine; may be repeated."""
    api_key_file: Annotated[str | None, Parameter(group=ACCESS)] = None
    """File with one API key per line; add admin after a key that may load models."""
    telemetry: Annotated[bool, Parameter(group=ACCESS)] = False
    """Send traces by OpenTelemetry, as the OTEL_ environment variables say."""


def serve(options: Serve) -> None:
    """Serve models over HTTP, with a page at / that shows what they look at. Ends on Ctrl-C or
    SIGTERM, after the requests that it has accepted.

    Examples:
      vitrail serve runs/pets/best --open
      vitrail serve pets=runs/pets/best digits.onnx --port 9000
    """
    import logging

    from vitrail.serving.launcher import LOG_FORMAT
    from vitrail.serving.run import serve as run
    from vitrail.serving.settings import MIB, Limits

    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    limits = Limits(
        body_bytes=options.max_body_mb * MIB,
        images=options.max_images,
        pixels=options.max_pixels,
        connections=options.connections,
    )

    def on_ready(address: str) -> None:
        if options.json:
            say_json({"address": address})
        else:
            say(f"serving at {address} (Ctrl-C ends it)")
        if options.open:
            import webbrowser

            webbrowser.open(address)

    note("loading the models; where the engine auto is new to one, it is measured first")
    run(
        *options.models,
        standby=options.standby,
        host=options.host,
        port=options.port,
        engine=options.engine,
        workers=options.workers,
        threads=options.threads,
        batch_size=options.batch_size,
        max_wait_ms=options.max_wait_ms,
        queue=options.queue,
        timeout=options.timeout,
        window=options.window,
        drain_seconds=options.drain_seconds,
        device=options.device,
        data=options.data,
        untrained=options.untrained,
        allow_host=options.allow_host,
        trusted_host=options.trusted_host,
        api_key_file=options.api_key_file,
        telemetry=options.telemetry,
        limits=limits,
        on_ready=on_ready,
    )
