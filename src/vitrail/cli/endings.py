"""How each ending of a command becomes an exit code.

With --json an error is one JSON object on standard error: {"error": "…", "code": 2}.

    0 done · 1 a bug, with its traceback · 2 a person's mistake, in one sentence ·
    75 a run that a scheduler stopped (SIGTERM, SIGUSR1) was saved: queue it again · 130 Ctrl-C ·
    141 the reader of a pipe has left, quietly, as programs end that SIGPIPE (13) kills: 128 + 13 ·
    143 SIGTERM (15), after the same cleaning up as Ctrl-C
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

from vitrail.cli.language import translate
from vitrail.cli.output import say, warn
from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json

CTRL_C, CLOSED_PIPE, TERMINATED = 130, 141, 143
REQUEUE = 75  # EX_TEMPFAIL of sysexits.h


class RequeueError(Exception):
    """A scheduler's signal stopped a run, which is saved: the same command goes on."""


class ParseError(Exception):
    """A command line that cannot be parsed, in one sentence."""


def exit_code(
    run: Callable[[], None], words: Sequence[str], to_options: Callable[[str], str]
) -> int:
    """Run the command of these words; `to_options` names options where a message has arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may hold what a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    json, terminated = "--json" in words, threading.Event()
    try:
        with terminable(terminated):
            run()
        if sys.stdout is not None:  # None: it was closed, and nobody wants to read
            sys.stdout.flush()  # notice here, not at exit, that the reader of a pipe has left
        return 0
    except UserError as error:
        return end(to_options(translate(str(error))), code=2, json=json)
    except ParseError as error:
        return end(str(error), code=2, json=json)
    except RequeueError as stop:
        return end(str(stop), code=REQUEUE, json=json)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torchvision", "safetensors"):
            raise
        # exported files are predicted without it, all else needs it
        return end(f"{error.name} is not installed: pip install vitrail", code=2, json=json)
    except KeyboardInterrupt as stop:  # a verb that saved its work says how to go on
        sentence, code = str(stop) or "stopped by Ctrl-C", CTRL_C
        if terminated.is_set():
            sentence, code = sentence.replace("Ctrl-C", "SIGTERM"), TERMINATED
        return end(sentence, code=code, json=json)
    except BrokenPipeError:
        # `vitrail models | head -1` wants no more: what is left to print goes nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError:
        try:
            say("")  # was it this that failed? Then it fails again
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it fails at exit
            return end(f"standard output cannot be written: {error.strerror}", code=2, json=json)
        raise


@contextmanager
def terminable(terminated: threading.Event) -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does, so that no draft is left, and sets the event."""
    process = os.getpid()

    def stop(number: int, frame: object) -> None:
        if os.getpid() != process:  # a child that was forked has nothing of ours to clean up
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        terminated.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end(message: str, *, code: int, json: bool) -> int:
    """Print in one line of stderr why the command ends, and pass its exit code on."""
    sentence = translate(" ".join(message.split()))
    warn(to_json({"error": sentence, "code": code}) if json else f"vitrail: {sentence}")
    return code
