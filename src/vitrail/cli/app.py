"""The `vitrail` command: which verbs there are, and how a command line becomes a call of one.

A verb is a function of one frozen record, and the record's fields are its command line: those
before `_: KW_ONLY` are given by position, those after it are options.
"""

import inspect
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import version
from typing import Any, get_args, get_origin, get_type_hints

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel, InlineText
from rich.console import Console, ConsoleOptions
from rich.markdown import Markdown
from rich.text import Text

from vitrail.cli.adopt import Adopt, adopt
from vitrail.cli.bench import Bench, bench
from vitrail.cli.check import Check, check
from vitrail.cli.compare import Compare, compare
from vitrail.cli.convert import Convert, convert
from vitrail.cli.demo import Demo, demo
from vitrail.cli.doctor import Doctor, doctor
from vitrail.cli.embed import Embed, embed
from vitrail.cli.endings import ParseError, exit_code
from vitrail.cli.evaluate import Evaluate, evaluate
from vitrail.cli.explain import Explain, explain
from vitrail.cli.export import Export, export
from vitrail.cli.figures import Figures, figures
from vitrail.cli.info import Info, info
from vitrail.cli.language import (
    current_language,
    split_language,
    translate,
    use_language,
)
from vitrail.cli.messages import options_of, with_options
from vitrail.cli.models import Models, models
from vitrail.cli.options import why_repeat_and
from vitrail.cli.output import Verbosity, is_verbose, verbosity, warn, warn_lines
from vitrail.cli.plan import Plan, plan
from vitrail.cli.predict import Predict, predict
from vitrail.cli.pretrain import Pretrain, pretrain
from vitrail.cli.probe import Probe, probe
from vitrail.cli.report import Report, report
from vitrail.cli.reproduce import Reproduce, reproduce
from vitrail.cli.search import Duplicates, Search, duplicates, search
from vitrail.cli.serve import Serve, serve
from vitrail.cli.train import Train, train
from vitrail.core.errors import UserError
from vitrail.core.language import ENGLISH, choose_language, chosen_language
from vitrail.data.paths import STDIN

OTHER_NAMES = {
    "--learning-rate": "--lr",
    "--output": "--out",
    "--output-dir": "--out",
    "--num-workers": "--workers",
    "--img-size": "--image-size",
}

# What people take for a command.
KINDS = {int: "a whole number", float: "a number"}
OTHER_VERBS = {"resume": "Use vitrail train DATA --out RUN --resume"}

# Options that earlier versions had, and what takes their place.
MOVED = {
    ("embed", "--search"): "vitrail search DIR IMAGE",
    ("embed", "--duplicates"): "vitrail duplicates DIR",
    ("embed", "--count"): "vitrail search DIR IMAGE -k N",
    ("embed", "--threshold"): "vitrail duplicates DIR --threshold T",
    ("search", "--count"): "-k N",
}

# No verb may import torch before it runs: `vitrail --help` answers at once.
VERBS: dict[type, Callable[[Any], object]] = {
    Models: models,
    Info: info,
    Convert: convert,
    Adopt: adopt,
    Check: check,
    Export: export,
    Doctor: doctor,
    Train: train,
    Pretrain: pretrain,
    Plan: plan,
    Evaluate: evaluate,
    Probe: probe,
    Predict: predict,
    Embed: embed,
    Search: search,
    Duplicates: duplicates,
    Explain: explain,
    Figures: figures,
    Report: report,
    Compare: compare,
    Reproduce: reproduce,
    Bench: bench,
    Serve: serve,
    Demo: demo,
}


class HelpFormatter(DefaultFormatter):
    """Arguments by position are IMAGES, and not also --images. Texts are in the chosen language."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        entries = []
        for entry in panel.entries:
            entry = with_marks(entry.copy(description=translate_help(entry.description)))
            hidden = {} if entry.positional_label is None else {"positive_names": ()}
            entries.append(entry.copy(**hidden))
        title = translate(str(panel.title))
        super().__call__(console, options, panel.copy(entries=entries, title=title))

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        super().render_description(console, options, translate_help(description))


def translate_help(description: Any) -> Any:
    """A text of help in the chosen language, with the defaults that stand behind it."""
    text = getattr(getattr(description, "primary_renderable", None), "markup", None)
    if not isinstance(text, str):
        return description
    translated = InlineText(Markdown(translate(" ".join(text.split()))))
    translated.texts = list(description.texts)
    return translated


def with_marks(entry: HelpEntry) -> HelpEntry:
    """An entry of help whose choices and default stand behind its description, in the chosen
    language: cyclopts would write them in English. Values stay as they are typed."""
    description = entry.description
    if current_language() == ENGLISH or not isinstance(description, InlineText):
        return entry
    marks = {
        "[choices: {}]": ", ".join(entry.choices or ()),
        "[default: {}]": entry.default,
        "[required]": entry.required or None,
    }
    for mark, value in marks.items():
        if value not in (None, ""):
            description.append(Text(translate(mark).replace("{}", str(value)), "cyclopts.default"))
    return entry.copy(choices=None, default=None, required=False)


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
        help="Train vision transformers, look inside them, convert them. --lang en or --lang ko "
        "chooses the language of help and messages. [default: that of the system]",
        version=lambda: version("vitrail"),
        # a flag is off until named: no --no-json; and an empty default is none to print
        default_parameter=Parameter(negative=(), show_default=format_default),
        suppress_keyboard_interrupt=False,  # `main` has its own line and exit code for it
        print_error=False,
        exit_on_error=False,
        verbose=False,
        result_action="return_value",
        help_formatter=HelpFormatter(),
        config=refuse_fractions,  # cyclopts would round 2.5 to 2
    )
    for record, verb in VERBS.items():
        text, _, examples = (inspect.getdoc(verb) or "").partition("\n\nExamples:\n")
        # two spaces before a line's end: Markdown would join the lines
        lines = "  \n".join(["Examples:", *(line.strip() for line in examples.splitlines())])
        record.__signature__ = positional_only(record)  # type: ignore[attr-defined]
        parser.command(
            record,
            name=verb.__name__,
            help=text,
            help_epilogue=lines,
            usage=usage_of(record, verb.__name__),
        )
    parser.register_install_completion_command(help="Install completion for this shell.")
    return parser


def usage_of(record: type, verb: str) -> str:
    """How a command is written, with the names of its arguments.

    >>> usage_of(Explain, "explain")
    'Usage: vitrail explain [OPTIONS] MODEL IMAGES...'
    >>> usage_of(Models, "models")
    'Usage: vitrail models [OPTIONS] [PATTERN]'
    """
    types = get_type_hints(record)
    words = []
    for one in inspect.signature(record).parameters.values():
        if one.kind is not one.KEYWORD_ONLY:
            name = "MODEL" if one.name == "source" else one.name.upper()
            name += "..." if get_origin(types[one.name]) is tuple else ""
            words.append(name if one.default is one.empty else f"[{name}]")
    return " ".join(["Usage: vitrail", verb, "[OPTIONS]", *words])


def positional_only(record: type) -> inspect.Signature:
    """A signature whose leading fields have no option: MODEL, and not also --model. A tuple keeps
    it: as positional only, cyclopts would lose what stands behind an option."""
    signature, types = inspect.signature(record), get_type_hints(record)
    parameters = [
        one
        if one.kind is one.KEYWORD_ONLY or get_origin(types[one.name]) is tuple
        else one.replace(kind=one.POSITIONAL_ONLY)
        for one in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


def refuse_fractions(_: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A whole number has no point, in any option of any verb."""
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        for token in argument.tokens if int in kinds and float not in kinds else ():
            if "." in token.value:
                raise UserError(f"{argument.name} must be a whole number, got {token.value}")


def format_default(value: object) -> object:
    """What help shows as an option's default, if anything.

    >>> format_default(8), format_default(False), format_default((1, 5))
    (8, None, '1,5')
    """
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or None
    return None if value is False else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, and return its exit code.

    >>> main(["models", "--jsno"])
    2
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    before = chosen_language()
    try:
        return exit_code(partial(run_command, words), words, partial(to_options, words=words))
    finally:
        choose_language(before)  # of whoever called


def to_options(message: str, words: Sequence[str]) -> str:
    """A task's message in the words of the shell."""
    return with_options(message, options_of(record_of(words)))


def record_of(words: Sequence[str]) -> type | None:
    """The record of the verb that a command line names."""
    named = {verb.__name__: record for record, verb in VERBS.items()}
    return next((named[word] for word in words if word in named), None)


def run_command(words: list[str]) -> None:
    """Parse a command line and run its verb; every ending but a good one is an exception."""
    language, words = split_language(words, os.environ)
    use_language(language)
    # a lone hyphen is a name, that of standard input, and no option
    words = [STDIN if word == "-" else word for word in words]
    parser = build_parser()
    parser.console = HelpConsole()  # a terminal may have changed since the last command
    try:
        record = parser(with_plain_flags(words))
    except CycloptsError as error:
        raise ParseError(explain_parse_error(error)) from None
    if record is not None:  # None: help or version was printed instead
        began = time.perf_counter()
        with verbosity(chosen_verbosity(record)):
            try:
                VERBS[type(record)](record)
            except UserError:
                if is_verbose():
                    warn_lines(traceback.format_exc())
                raise
            if is_verbose():
                warn(f"vitrail {version('vitrail')}: {time.perf_counter() - began:.1f} s")


def chosen_verbosity(record: Any) -> Verbosity:
    quiet, verbose = getattr(record, "quiet", False), getattr(record, "verbose", False)
    if quiet and verbose:
        raise UserError("-q and -v contradict each other: give one")
    return "quiet" if quiet else "verbose" if verbose else "normal"


def explain_parse_error(error: CycloptsError) -> str:
    """A command line that cannot be parsed, in one sentence."""
    command = " ".join(["vitrail", *(error.command_chain or ())])
    sentence = str(error).rstrip(".")
    if isinstance(error, CoercionError) and error.token and error.target_type in KINDS:
        name, kind = error.token.keyword or "the argument", KINDS[error.target_type]
        sentence = f"{name} must be {kind}, got {error.token.value}"
    if isinstance(error, UnusedCliTokensError):
        unused = error.unused_tokens or []
        models = models_behind_and(error.root_input_tokens or [])
        sentence = f"too many arguments: {' '.join(unused)}"
        if unused and unused[0] in models:
            sentence = why_repeat_and(models)
    if isinstance(error, UnknownCommandError):
        word = (error.unused_tokens or [""])[0]
        known = [verb.__name__ for verb in VERBS.values()]
        close = get_close_matches(word, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else OTHER_VERBS.get(word, "")
        sentence = f"unknown command {word!r}. {hint}" if hint else f"unknown command {word!r}"
    if isinstance(error, MissingArgumentError) and (missing := missing_argument(error)):
        sentence = missing
    chain = list(error.command_chain or ())
    for (verb, option), instead in MOVED.items():
        if [verb] == chain[:1] and option in re.findall(r"--[a-z-]+", sentence):
            return f"{option} is no longer an option of vitrail {verb}: use {instead}"
    sentence += other_name(sentence)
    return f"{sentence} (see {command} --help)"


def missing_argument(error: MissingArgumentError) -> str | None:
    """A sentence about an argument that is given by position; None where it is an option."""
    argument = error.argument
    if argument is None or argument.tokens or error.keyword is not None:
        return None
    if argument.field_info.kind is argument.field_info.KEYWORD_ONLY:
        return None
    name = argument.name.strip("-").replace("-", "_").upper()
    hint = ": name files or directories" if name == "IMAGES" else ""
    return f"{name} is missing{hint}"


def models_behind_and(words: Sequence[str]) -> list[str]:
    """All words that stand behind an --and.

    >>> models_behind_and(["a", "--and", "b", "c", "--what", "cka", "--and", "d"])
    ['b', 'c', 'd']
    """
    found, behind = list[str](), False
    for word in words:
        behind = word == "--and" if word.startswith("-") else behind
        found += [word] if behind and word != "--and" else []
    return found


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


if __name__ == "__main__":
    code = main()
    if "LOCAL_RANK" in os.environ:  # one of many, which torchrun started
        from vitrail.training.launcher import exit_now

        exit_now(code)
    sys.exit(code)
