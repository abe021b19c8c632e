"""Messages of tasks in the words of the shell.

A task names the arguments of its Python function, as `name=value` or as the first word of a message
about it. In the shell they are options:

    pass overwrite=True              pass --overwrite
    give grid=(rows, columns)        give --grid ROWSxCOLUMNS
    use precision="float16"          use --precision float16
    give heads=N                     give --set heads=N
    batch_size must be at least 1    --batch-size must be at least 1
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

from cyclopts import Parameter

# Fields of a model's config that messages name: --set sets them.
FIELDS = ("channels", "heads", "num_classes", "pool", "window_size")
# Arguments whose option says the opposite.
OPPOSITES = {
    "exact=False": "--fast",
    "cache=None": "--no-cache",
    "verdict=False": "--no-verdict",
    "ema=False": "--without-ema",
}
# Arguments of export, which messages of other verbs name.
ELSEWHERE = {"features=True": "--features"}

VALUE = r"\"(?P<text>[^\"]*)\"|\((?P<pair>[^()]*)\)|(?P<word>\w[\w.]*)|"
ARGUMENT = re.compile(rf"(?<![\w.=/-])(?<!--set )(?P<name>[a-z_]+)=(?:{VALUE})(?=[\s,:;.)]|$)")
ENGLISH_VERBS = r" (?:must|needs?|cannot|is for|is measured)\b"
KOREAN_PARTICLE = r"은\(는\)|이\(가\)"  # either form, for a noun that is not known beforehand
FIRST_WORD = re.compile(rf"(?P<name>[a-z_]+)(?={ENGLISH_VERBS}|{KOREAN_PARTICLE})")


def options_of(record: type | None) -> dict[str, str]:
    """The options of a verb's record by the name of their Python argument.

    >>> from vitrail.cli.train import Train
    >>> options = options_of(Train)
    >>> options["start"], options["batch_size"], "data" in options
    ('--from', '--batch-size', False)
    """
    if record is None:
        return {}
    hints = get_type_hints(record, include_extras=True)
    options = {}
    for field in fields(record):
        if not field.kw_only:
            continue
        names = [name for part in parameters(hints[field.name]) for name in part.name or ()]
        options[field.name] = next(iter(names), f"--{field.name.replace('_', '-')}")
    if "start" in options:  # --set sets fields of the recipe, which has those of the model
        options |= {name: f"--set fields.{name}" for name in FIELDS}
    elif "set" in options:
        options = {name: f"--set {name}" for name in FIELDS} | options
    return options


def parameters(hint: object) -> list[Parameter]:
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Parameter)]


def with_options(message: str, options: Mapping[str, str]) -> str:
    """A message that names options where it named arguments.

    >>> with_options("x.csv: already exists: pass overwrite=True", {"overwrite": "--overwrite"})
    'x.csv: already exists: pass --overwrite'
    """

    def translate(match: re.Match[str]) -> str:
        if option := {**OPPOSITES, **ELSEWHERE}.get(match[0]):
            return option
        option, word = options.get(match["name"], ""), match["text"] or match["word"]
        if not option:
            return match[0]
        if match["pair"] is not None:
            word = "x".join(side.strip().upper() for side in match["pair"].split(","))
        if not word or word == "True":
            return option
        return f"{option}={word}" if option.startswith("--set ") else f"{option} {word}"

    before, args, after = message.partition("args= ")
    if args and "args" in options:  # what follows are arguments of somebody's own class
        return f"{with_options(before, options)}{options['args']} {after}"
    message = ARGUMENT.sub(translate, message)
    first = FIRST_WORD.match(message)
    if first is None or first["name"] not in options or first["name"] in FIELDS:
        return message
    return options[first["name"]] + message[first.end() :]
