"""A process that computes batches of one model: it reads messages, and its threads answer them.

It ends when the service closes its connection, whatever becomes of the service.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import torch

from vitrail.core.errors import UserError
from vitrail.serving.engine import BatchEngine, Item
from vitrail.serving.frames import Buffer, Message, read_blocking, write_blocking
from vitrail.serving.loading import describe, load_model
from vitrail.serving.spec import WorkerSpec

logger = logging.getLogger(__name__)


def run_worker(channel: socket.socket, spec: WorkerSpec) -> None:
    """Load a model, say that it is ready, and compute until nobody asks any more."""
    prepare_process(spec.threads)

    def start() -> tuple[dict[str, Any], "Answer"]:
        model = load_model(spec)
        engine = BatchEngine(model, spec)
        facts = describe(model, spec, engine.engine, engine.sizes)
        return asdict(facts), lambda *one: answer(engine, *one)

    serve_messages(channel, start, threads=spec.threads)


Answer = Callable[[dict[str, Any], list[Buffer]], Message]


def serve_messages(
    channel: socket.socket, start: Callable[[], tuple[dict[str, Any], Answer]], *, threads: int
) -> None:
    """Answer messages by so many threads; each answer carries the `id` of its message."""
    sending = Lock()

    def send(header: dict[str, Any], buffers: list[Buffer]) -> None:
        with sending:
            write_blocking(channel, header, buffers)

    try:
        facts, answer_one = start()
    except UserError as error:
        send({"failed": str(error)}, [])
        return
    waiting: SimpleQueue[Message | None] = SimpleQueue()

    def work() -> None:
        while (message := waiting.get()) is not None:
            header, buffers = message
            found, results = answer_one(header, buffers)
            try:
                send({"id": header["id"], **found}, results)
            except OSError:
                os._exit(0)  # the service is gone

    every = [Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in every:
        thread.start()
    send({"ready": facts}, [])
    try:
        while True:
            waiting.put(read_blocking(channel))
    except (EOFError, OSError):
        os._exit(0)  # without waiting for threads of libraries


def answer(engine: BatchEngine, header: dict[str, Any], buffers: list[Buffer]) -> Message:
    """A batch: `items` are [want, is_tensor] each, and a result is a problem or a shape."""
    began = time.perf_counter()
    items = [
        Item(want, is_tensor, payload)
        for (want, is_tensor), payload in zip(header["items"], buffers, strict=True)
    ]
    try:
        values = engine.run(items)
    except Exception as error:  # of an engine: the images are not to blame, and others may work
        logger.exception("a batch failed")
        reason = str(error) if isinstance(error, UserError) else "the model failed on this batch"
        return {"failed": reason}, []
    results = [one if isinstance(one, str) else list(one.shape) for one in values]
    arrays: list[Buffer] = [one.tobytes() for one in values if not isinstance(one, str)]
    return {"results": results, "seconds": time.perf_counter() - began}, arrays


def prepare_process(torch_threads: int) -> None:
    """Signals are the service's business, and its event loop comes first: as a process for batches
    this one keeps its share of the processors, but does not interrupt others when it wakes up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the service drains, then closes the connection
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # not everywhere allowed, and nothing depends on it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    torch.set_num_threads(1 if torch_threads > 1 else torch_threads)
