"""The `vitrail` command: which verbs there are, and how each ending becomes an exit code.

A verb is a function of one frozen record, and the record's fields are its command line: those
before `_: KW_ONLY` may be given by position, those after it are options.

    0 done · 1 a bug, with its traceback · 2 a person's mistake, in one sentence · 130 Ctrl-C ·
    141 the reader of a pipe has left, quietly, as programs end that SIGPIPE (13) kills: 128 + 13
"""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from rich.console import Console

from vitrail.cli.convert import Convert, convert
from vitrail.cli.demo import Demo, demo
from vitrail.cli.doctor import Doctor, doctor
from vitrail.cli.embed import Embed, embed
from vitrail.cli.evaluate import Evaluate, evaluate
from vitrail.cli.explain import Explain, explain
from vitrail.cli.figures import Figures, figures
from vitrail.cli.info import Info, info
from vitrail.cli.models import Models, models
from vitrail.cli.output import say, warn
from vitrail.cli.predict import STDIN, Predict, predict
from vitrail.cli.pretrain import Pretrain, pretrain
from vitrail.cli.probe import Probe, probe
from vitrail.cli.train import Train, train
from vitrail.core.errors import UserError

CLOSED_PIPE = 141
OTHER_NAMES = {
    "--learning-rate": "--lr",
    "--output": "--out",
    "--output-dir": "--out",
    "--num-workers": "--workers",
    "--img-size": "--image-size",
    "--exact": "--fast (exact is the default)",
}

# No verb may import torch before it runs: `vitrail --help` answers at once.
VERBS: dict[type, Callable[[Any], object]] = {
    Models: models,
    Info: info,
    Convert: convert,
    Doctor: doctor,
    Train: train,
    Pretrain: pretrain,
    Evaluate: evaluate,
    Probe: probe,
    Predict: predict,
    Embed: embed,
    Explain: explain,
    Figures: figures,
    Demo: demo,
}


class HelpConsole(Console):
    """Rich ends the process itself where the reader of a pipe has left: `main` shall."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@cache
def build_parser() -> App:
    """A parser that turns a command line into the record of its verb, or prints help; once for
    each process."""
    parser = App(
        name="vitrail",
        help="Train vision transformers, look inside them, convert them.",
        version=lambda: version("vitrail"),
        default_parameter=Parameter(negative=()),  # a flag is off until named: no --no-json
        suppress_keyboard_interrupt=False,  # `main` has its own line and exit code for it
        print_error=False,
        exit_on_error=False,
        verbose=False,
        result_action="return_value",
    )
    for record, verb in VERBS.items():
        parser.command(record, name=verb.__name__, help=inspect.getdoc(verb))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return its exit code.

    >>> main(["models", "--jsno"])
    2
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may hold what a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if arguments is None else arguments
        # a lone hyphen is a name, that of standard input, and no option
        words = [STDIN if word == "-" else word for word in words]
        parser = build_parser()
        parser.console = HelpConsole()  # a terminal may have changed since the last command
        record = parser(with_plain_flags(words))
        if record is not None:  # None: help or version was printed instead
            VERBS[type(record)](record)
        if sys.stdout is not None:  # None: it was closed, and nobody wants to read
            sys.stdout.flush()  # notice here, not at exit, that the reader of a pipe has left
    except UserError as error:
        return end(str(error), code=2)
    except CycloptsError as error:
        command = " ".join(["vitrail", *(error.command_chain or ())])
        sentence = str(error).rstrip(".")
        if isinstance(error, UnusedCliTokensError):
            sentence = f"too many arguments: {' '.join(error.unused_tokens or ())}"
        return end(f"{sentence}{other_name(sentence)} (see {command} --help)", code=2)
    except KeyboardInterrupt as stop:  # a verb that saved its work says how to go on
        return end(str(stop) or "stopped by Ctrl-C", code=130)
    except BrokenPipeError:
        # `vitrail models | head -1` wants no more: what is left to print goes nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError:
        try:
            say("")  # was it this that failed? Then it fails again
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it fails at exit
            return end(f"standard output cannot be written: {error.strerror}", code=2)
        raise
    return 0


def with_plain_flags(words: list[str]) -> list[str]:
    """A --resume that is not followed by auto is a flag, and takes no word.

    >>> with_plain_flags(["train", "--resume", "photos"])
    ['train', '--resume=true', 'photos']
    """
    return [
        "--resume=true" if word == "--resume" and words[place + 1 : place + 2] != ["auto"] else word
        for place, word in enumerate(words)
    ]


def other_name(sentence: str) -> str:
    """What an option is called here, where other tools call it otherwise.

    >>> other_name("Unknown option: --learning-rate")
    '. Did you mean --lr?'
    """
    words = [word.strip("\"'.,:") for word in sentence.split()]
    known = next((OTHER_NAMES[word] for word in words if word in OTHER_NAMES), None)
    return "" if known is None or "Did you mean" in sentence else f". Did you mean {known}?"


def end(message: str, *, code: int) -> int:
    """Say in one line of stderr why the command ends, and pass its exit code on."""
    warn(f"vitrail: {' '.join(message.split())}")
    return code


if __name__ == "__main__":
    code = main()
    if "LOCAL_RANK" in os.environ:  # one of many, which torchrun started
        from vitrail.training.parallel import exit_now

        exit_now(code)
    sys.exit(code)
