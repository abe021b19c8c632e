"""`vitrail search` and `vitrail duplicates`: query a directory of embeddings."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import (
    MODEL,
    ModelOptions,
    Out,
    OutputOptions,
    OverwriteOption,
    PlaceOptions,
    arguments_of,
    model_source,
)
from vitrail.cli.output import plural, say, say_json, say_report


@dataclass(frozen=True)
class Search(ModelOptions, PlaceOptions, OverwriteOption, OutputOptions):
    """Which embeddings to search, and what for."""

    directory: str
    """Directory that vitrail embed wrote, or address of a service with data."""
    image: str
    """Image to look for: a file or an http address."""
    _: KW_ONLY
    k: Annotated[int, Parameter(name=["--k", "-k"])] = 10
    """Number of images to find."""
    checkpoint: Annotated[str | None, Parameter(group=MODEL)] = None
    """Model that embedded the directory. [default: the path recorded by vitrail embed]"""
    out: Out = None
    """Directory for report.html, a page with the images, and search.json."""


def search(options: Search) -> None:
    """Find the embedded images that are nearest to an image: cosine and name, one per line.

    Examples:
      vitrail search vectors cat.jpg
      vitrail search vectors cat.jpg -k 20 --out found
      vitrail search http://127.0.0.1:8000 cat.jpg
    """
    from vitrail.data.paths import check_paths, is_address

    if not is_address(options.image):
        check_paths([options.image])
    from vitrail.tasks.search import search as run

    moved = options.checkpoint
    source = None if moved is None else model_source(options, moved)
    found = run(options.directory, options.image, **arguments_of(options, run, checkpoint=source))
    if options.json:
        say_json(found.facts())
        return
    for match in found:
        say(f"{match.cosine:.4f}  {match.id}")
    say_report(options.out)


@dataclass(frozen=True)
class Duplicates(OverwriteOption, OutputOptions):
    """Which embeddings to compare."""

    directory: str
    """Directory that vitrail embed wrote."""
    _: KW_ONLY
    threshold: float | None = None
    """Minimum cosine of a pair. [default: chosen from the data, so that only unusually close pairs
    count]"""
    out: Out = None
    """Directory for report.html, a page with the images, and duplicates.json."""


def duplicates(options: Duplicates) -> None:
    """Find embedded images that are nearly the same: cosine and two names, one pair per line.

    Examples:
      vitrail duplicates vectors
      vitrail duplicates vectors --threshold 0.99 --out found
    """
    from vitrail.tasks.duplicates import duplicates as run

    found = run(options.directory, **arguments_of(options, run))
    if options.json:
        say_json(found.facts())
        return
    limit = f"a cosine of at least {found.threshold:.6g} ({found.threshold_source})"
    say(f"{plural(len(found), 'pair')} with {limit}")
    for pair in found:
        say(f"{pair.cosine:.4f}  {pair.one}  {pair.other}")
    say_report(options.out)
