"""How each ending of a command becomes an exit code.

With --json an error is one JSON object on standard error: {"error": "…", "code": 2}.

    0 done · 1 a bug, with its traceback · 2 a person's mistake, in one sentence · 130 Ctrl-C ·
    141 the reader of a pipe has left, quietly, as programs end that SIGPIPE (13) kills: 128 + 13
"""

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from vitrail.cli.output import say, warn
from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json

CLOSED_PIPE = 141


class ParseError(Exception):
    """A command line that cannot be parsed, in one sentence."""


def exit_code(
    run: Callable[[], None], words: Sequence[str], to_options: Callable[[str], str]
) -> int:
    """Run the command of these words; `to_options` names options where a message has arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may hold what a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    json = "--json" in words
    try:
        run()
        if sys.stdout is not None:  # None: it was closed, and nobody wants to read
            sys.stdout.flush()  # notice here, not at exit, that the reader of a pipe has left
        return 0
    except UserError as error:
        return end(to_options(str(error)), code=2, json=json)
    except ParseError as error:
        return end(str(error), code=2, json=json)
    except KeyboardInterrupt as stop:  # a verb that saved its work says how to go on
        return end(str(stop) or "stopped by Ctrl-C", code=130, json=json)
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


def end(message: str, *, code: int, json: bool) -> int:
    """Print in one line of stderr why the command ends, and pass its exit code on."""
    sentence = " ".join(message.split())
    warn(to_json({"error": sentence, "code": code}) if json else f"vitrail: {sentence}")
    return code
