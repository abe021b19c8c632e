"""`vitrail adopt`: a ViT that you wrote yourself becomes one of Vitrail's."""

import ast
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli.language import translate
from vitrail.cli.options import (
    MODEL,
    OUTPUT,
    DryRunOption,
    OutputOptions,
    OverwriteOption,
    parse_changes,
    parse_channels,
)
from vitrail.cli.output import say, say_json, say_table, warn
from vitrail.core.errors import UserError


@dataclass(frozen=True)
class Adopt(DryRunOption, OverwriteOption, OutputOptions):
    """What to adopt, and what its file does not show."""

    source: Annotated[str, Parameter(name="model", help="File of tensors: a state dict.")]
    _: KW_ONLY
    out: Annotated[str | None, Parameter(group=OUTPUT)] = None
    """Directory for the Vitrail checkpoint; its rows.yaml has the rows. [required]"""
    code: str | None = None
    """FILE.py:CLASS of the model. It runs, beside ours, to read what the file does not show and to
    prove that both compute the same."""
    args: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    """Arguments of that class: --args image_size=32 patch_size=4."""
    rows: str | None = None
    """A rows.yaml that you have edited, used instead of matching."""
    images: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    """Images to compare on: files, directories or patterns. [default: two photos that come with
    scikit-learn]"""
    heads: Annotated[int | None, Parameter(group=MODEL)] = None
    """Attention heads, which no tensor shows."""
    image_size: Annotated[str | None, Parameter(group=MODEL)] = None
    """Size of its images, if not square or without a table of positions: 224 or 192x672."""
    set: Annotated[tuple[str, ...], Parameter(group=MODEL)] = ()
    """Another field that no tensor shows: --set activation=relu. May be repeated."""
    mean: Annotated[str | None, Parameter(group=MODEL)] = None
    """Mean that pixels were normalised by: 0.5 or 0.485,0.456,0.406. [default: 0.5]"""
    std: Annotated[str | None, Parameter(group=MODEL)] = None
    """Standard deviation that pixels were normalised by. [default: 0.5]"""
    labels: Annotated[tuple[str, ...], Parameter(group=MODEL, consume_multiple=True)] = ()
    """Names of the classes in order, or a text file with one per line."""


def adopt(options: Adopt) -> None:
    """Match a ViT that you wrote yourself with Vitrail's, prove that both compute the same, and
    write it as a Vitrail checkpoint, for explain, serve, export and convert.

    Examples:
      vitrail adopt my.pth --heads 4 --out mine
      vitrail adopt my.pth --code my_model.py:ViT --out mine
      vitrail adopt my.pth --rows mine/rows.yaml --out edited
    """
    from vitrail.tasks.adopt import adopt as run
    from vitrail.tasks.user_code import read_code

    if options.out is None and not options.dry_run:
        raise UserError("missing --out DIR: where the Vitrail checkpoint is written")
    if options.code is not None:
        warn(translate(read_code(options.code).notice()))  # before anything of it runs
    done = run(
        options.source,
        options.out,
        code=options.code,
        args=parse_arguments(options.args),
        rows=options.rows,
        images=list(options.images) or None,
        mean=parse_channels(options.mean, "--mean"),
        std=parse_channels(options.std, "--std"),
        labels=parse_labels(options.labels),
        overwrite=options.overwrite,
        dry_run=options.dry_run,
        **parse_changes(options.image_size, options.set),
        **({} if options.heads is None else {"heads": options.heads}),
    )
    if options.json:
        say_json(done.facts())
        return
    say_table(("theirs", "ours", "operation"), done.table(), right=0)
    say(*done.lines())
    if options.dry_run:
        say("", *done.rows_yaml.splitlines())
    elif done.out is not None:
        say(f"{done.out}: written, with {len(done.rows)} rows in {done.out / 'rows.yaml'}")


def parse_arguments(texts: tuple[str, ...]) -> dict[str, Any]:
    """Arguments of a class as Python literals; anything else is text.

    >>> parse_arguments(("image_size=32", "pool=mean", "patch=(4, 4)"))
    {'image_size': 32, 'pool': 'mean', 'patch': (4, 4)}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--args must be name=value, such as image_size=32, got {text!r}")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = value
    return found


def parse_labels(texts: tuple[str, ...]) -> list[str] | None:
    """Names of classes, or those in a text file, one per line."""
    if not texts:
        return None
    path = Path(texts[0])
    if len(texts) > 1 or path.suffix != ".txt":
        return list(texts)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as labels: {error}") from None
    return [line.strip() for line in lines if line.strip()]
