"""What a service is told when it starts: models, limits, and who may ask. Nothing here needs torch
or a web framework."""

import re
from dataclasses import dataclass
from pathlib import PurePath

from vitrail.core.addresses import is_address
from vitrail.core.errors import UserError
from vitrail.core.ranges import check, check_count

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[0-9]{1,5})?")
CHECKPOINTS = ("best", "last")  # of a run: its directory says more
MIB = 2**20
MAX_PORT = 65_535


@dataclass(frozen=True)
class Source:
    """A model that may be served: what requests call it, and where it is loaded from."""

    name: str
    path: str


def parse_source(text: str) -> Source:
    """NAME=PATH, or a path that gives the name.

    >>> parse_source("pets=runs/a/best"), parse_source("runs/pets/best").name
    (Source(name='pets', path='runs/a/best'), 'pets')
    """
    name, equals, path = text.partition("=")
    if not equals or not NAME.fullmatch(name):  # a path may have an equals sign of its own
        name, path = default_name(text), text
    if not path:
        raise UserError(f"a model must be PATH or NAME=PATH, got {text!r}")
    if is_address(path):
        raise UserError(f"{path}: a model behind an address cannot be served: give its checkpoint")
    return Source(name, path)


def default_name(path: str) -> str:
    """The last part of a path, in letters that an address may have.

    >>> default_name("models/pets v2.onnx"), default_name("google/vit-base")
    ('pets-v2', 'vit-base')
    """
    parts = [part for part in PurePath(path).parts if part not in ("/", ".", "..")]
    last = PurePath(parts[-1]) if parts else PurePath("model")
    name = last.stem if last.suffix else last.name
    if name in CHECKPOINTS and len(parts) > 1:
        name = parts[-2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "model"


def parse_sources(texts: tuple[str, ...], option: str) -> tuple[Source, ...]:
    """Several, each with a name of its own."""
    found = tuple(parse_source(text) for text in texts)
    for one in found:
        if twice := [other.path for other in found if other.name == one.name and other != one]:
            raise UserError(
                f"{option} must have different names, got {one.name} for {one.path} and "
                f"{twice[0]}: give NAME=PATH"
            )
    return found


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask of the service before anything is parsed."""

    body_bytes: int = 64 * MIB
    memory_bytes: int = 1024 * MIB  # of all bodies that are being read or computed
    images: int = 64  # of one request
    pixels: int = 50_000_000  # of one image
    header_seconds: float = 10.0  # until the first byte of a body
    body_seconds: float = 30.0
    idle_seconds: float = 30.0  # of a connection between two requests
    send_seconds: float = 30.0  # for a client that does not read its answer
    connections: int = 1024

    def __post_init__(self) -> None:
        for name in ("body_bytes", "memory_bytes", "images", "pixels", "connections"):
            check_count(name, getattr(self, name), at_least=1)
        for name in ("header_seconds", "body_seconds", "idle_seconds", "send_seconds"):
            check(name, getattr(self, name), above=0, at_most=3600)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A service. `models` are loaded at the start; `standby` may be loaded later, by an admin."""

    models: tuple[Source, ...]
    standby: tuple[Source, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    engine: str = "auto"
    workers: int = 1  # processes for each model
    threads: int | None = None  # CPU threads of each process; None: the processors, divided
    batch_size: int = 32
    max_wait_ms: float = 5.0
    queue: int = 256  # images of each model that may wait
    timeout: float = 30.0  # seconds for one request
    window: float = 5.0  # seconds in which the same image is computed once
    drain_seconds: float = 0.5  # in which connections are still taken after the signal to end
    device: str = "auto"
    data: tuple[str, ...] = ()
    untrained: bool = False
    allow_host: tuple[str, ...] = ()
    trusted_host: tuple[str, ...] = ()
    api_key_file: str | None = None
    telemetry: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("a service needs at least one model: vitrail serve MODEL")
        check_count("port", self.port, at_least=0, at_most=MAX_PORT)
        check_count("workers", self.workers, at_least=1, at_most=64)
        if self.threads is not None:
            check_count("threads", self.threads, at_least=1, at_most=256)
        check_count("batch_size", self.batch_size, at_least=1, at_most=1024)
        check("max_wait_ms", self.max_wait_ms, at_least=0, at_most=1000)
        check_count("queue", self.queue, at_least=1, at_most=100_000)
        check("timeout", self.timeout, above=0, at_most=3600)
        check("window", self.window, at_least=0, at_most=3600)
        check("drain_seconds", self.drain_seconds, at_least=0, at_most=3600)
        names = [one.name for one in self.models]
        if twice := [one for one in self.standby if one.name in names]:
            raise UserError(
                f"standby must have names that no served model has, got {twice[0].name}: give "
                "NAME=PATH"
            )
        for name in ("allow_host", "trusted_host"):
            for host in getattr(self, name):
                if not HOST.fullmatch(host):
                    raise UserError(
                        f"{name} must be the exact name of a host in small letters, like "
                        f"images.example.org, got {host!r}"
                    )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the service."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def known_sources(self) -> tuple[Source, ...]:
        """All that was named at the start."""
        return (*self.standby, *self.models)

    def find_source(self, name: str) -> Source | None:
        """A model that was named at the start."""
        return next((one for one in self.known_sources if one.name == name), None)
