"""`vitrail check`: a ViT that you wrote beside the reference, step by step."""

import ast
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.language import current_language
from vitrail.cli.options import OutputOptions, parse_numbers, parse_size
from vitrail.cli.output import is_verbose, note, say, say_json
from vitrail.core.errors import UserError


@dataclass(frozen=True)
class Check(OutputOptions):
    """Which class to check, and against what."""

    code: str
    """Your model: FILE.py:CLASS. The file is run, with your rights."""
    _: KW_ONLY
    against: str | None = None
    """Model name or checkpoint of a ViT whose sizes and choices yours should have. [default: the
    paper's choices at your sizes]"""
    args: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    """Arguments of the class: --args image_size=32 dim=64"""
    image_size: str | None = None
    """Size of the images to run it on: 32, or height x width. [default: found by trying]"""
    lang: Literal["en", "ko"] = "en"
    """Language of the sentences: English or Korean."""


def check(options: Check) -> None:
    """Compare a ViT that you wrote with the reference step by step; name its mistakes in words.

    The exit code is 0 whatever the verdict is: --json has it.

    Examples:
      vitrail check my_model.py:ViT
      vitrail check my_model.py:ViT --args image_size=32 patch_size=4 --lang ko
    """
    from vitrail.tasks.check import check as run
    from vitrail.tasks.user_code import is_code, read_code

    if is_code(options.code):
        note(read_code(options.code).notice())
    size = options.image_size
    found = run(
        options.code,
        against=options.against,
        args=parse_arguments(options.args),
        image_size=None if size is None else parse_size(size, "--image-size"),
        # --lang is read before the options of a verb
        lang="ko" if current_language() == "ko" else "en",
    )
    if options.json:
        say_json(found.facts())
    else:
        say(*found.text(every=is_verbose()).splitlines())


def parse_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """Arguments of a class from name=value: Python values, numbers with commas, or words.

    >>> parse_arguments(("dim=64", "pool=mean", "bias=False", "size=32,48"))
    {'dim': 64, 'pool': 'mean', 'bias': False, 'size': (32, 48)}
    """
    arguments: dict[str, Any] = {}
    for argument in words:
        name, equals, value = argument.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UserError(f"--args must be name=value, such as dim=64, got {argument!r}")
        try:
            arguments[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            arguments[name.strip()] = parse_numbers(value) or value.strip()
    return arguments
