"""How the processes of a run are started, how they end, and how a mistake in one of them reaches
the person."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler

from vitrail.core.errors import UserError

SECONDS_TO_BE_ENDED = 20
SECONDS_TO_SAVE = 600  # for a step to end and be saved after Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def exit_now(code: int) -> NoReturn:
    """End a process that torchrun started, at once. All is saved by now; but where a model
    was shared, torch's own threads may abort while the interpreter takes itself down, and a run
    that has succeeded would be called a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def give_up(sentence: str) -> NoReturn:
    """End a process that torchrun started, from any thread, with a sentence for the person."""
    get_error_handler().record_exception(UserError(sentence))
    print(f"vitrail: {sentence}", file=sys.stderr)
    exit_now(2)


def launched() -> bool:
    """Whether torchrun started this process."""
    return "LOCAL_RANK" in os.environ and "MASTER_ADDR" in os.environ


def launch(module: str, arguments: Sequence[str], processes: int) -> None:
    """Run `python -m module arguments` in several processes of this machine, under torchrun's own
    agent. The first mistake of any of them is the mistake of all."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the second has a level of its own
    threads = max(torch.get_num_threads() // processes, 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    config = LaunchConfig(
        run_id="vitrail",
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"is_host": True},
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=SECONDS_TO_SAVE,
        # passed on to the processes, which save; one that is missing here would end the agent alone
        signals_to_handle=",".join(number.name for number in SIGNALS),
    )
    try:
        with restored_signal_handlers():
            elastic_launch(config, sys.executable)("-m", module, *arguments)
    except SignalException:
        raise KeyboardInterrupt from None  # the processes have saved
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == 2:
            raise UserError(recorded_sentence(failure.error_file_data)) from None
        if failure.exitcode < 0:
            raise UserError(why_killed(rank, -failure.exitcode)) from None
        raise


@contextmanager
def restored_signal_handlers() -> Iterator[None]:
    """torchrun's agent installs handlers of its own and leaves them behind."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def why_killed(rank: int, number: int) -> str:
    """
    >>> why_killed(1, 15)
    'process 1 was ended by SIGTERM: resume it from its last checkpoint'
    """
    name = signal.Signals(number).name
    memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"process {rank} was ended by {name}{memory}: resume it from its last checkpoint"


def recorded_sentence(written: Any) -> str:
    """What `report_errors` left, as torch wrapped it."""
    while isinstance(written, dict):
        written = written["message"]
    return str(written).removeprefix("UserError: ")


@contextmanager
def report_errors() -> Iterator[None]:
    """A person's mistake in one of many processes reaches them once, through who launched it. The
    others, whose connection to it breaks, have nothing to add."""
    try:
        yield
    except UserError as error:
        if not launched():
            raise
        get_error_handler().record_exception(error)
        exit_now(2)
    except RuntimeError as error:
        if not (launched() and is_lost_connection(error)):
            raise
        # the launcher ends this process first, if there is one: at once, whoever handled it so far
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(SECONDS_TO_BE_ENDED)
        raise


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because another process is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
