"""`vitrail predict` of an exported file, the quick way: its command line is parsed here where it is
a plain one, because the parser of all verbs takes longer to import than a model to run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from vitrail.cli.endings import exit_code
from vitrail.cli.language import environment_language, use_language
from vitrail.cli.output import plural, say, say_json
from vitrail.core.broken import BrokenImage
from vitrail.core.errors import UserError
from vitrail.core.exported import is_exported
from vitrail.core.ranges import check_count
from vitrail.data.paths import check_paths, list_images

if TYPE_CHECKING:
    from vitrail.inference.prediction import Prediction

NUMBERS = {"--top": "top", "--batch-size": "batch_size", "--threads": "threads"}


@dataclass(frozen=True)
class ExportedPredict:
    """Which exported file labels which images; a test compares the defaults with `Predict`."""

    source: str
    images: tuple[str, ...]
    top: int = 5
    batch_size: int = 8
    threads: int | None = None
    json: bool = False


def parse_exported(words: Sequence[str]) -> ExportedPredict | None:
    """The options of `predict` with an exported file; None where the parser of all verbs has to
    decide, which also says what is wrong.

    >>> parse_exported(["predict", "m.onnx", "cat.jpg", "--top", "1"])
    ExportedPredict(source='m.onnx', images=('cat.jpg',), top=1, batch_size=8, threads=None,\
 json=False)
    >>> parse_exported(["predict", "m.onnx", "cat.jpg", "--fast"]) is None
    True
    """
    names: list[str] = []
    options: dict[str, Any] = {}
    rest = iter(words[1:])
    for word in rest:
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            names.append(word)
        elif word == "--json" and "json" not in options:
            options["json"] = True
        elif option in NUMBERS and NUMBERS[option] not in options:
            value = value if equals else next(rest, "")
            if not (value.isascii() and value.isdecimal()):
                return None
            options[NUMBERS[option]] = int(value)
        else:
            return None
    if words[:1] != ["predict"] or len(names) < 2 or not is_exported(names[0]):
        return None
    return ExportedPredict(names[0], tuple(names[1:]), **options)


def main(options: ExportedPredict, words: Sequence[str]) -> int:
    """Run it and return the exit code."""

    def to_options(message: str) -> str:
        from vitrail.cli.app import to_options  # here: only a mistake has time for it

        return to_options(message, words)

    use_language(environment_language())
    return exit_code(lambda: print_exported(options), words, to_options)


def print_exported(options: ExportedPredict) -> None:
    """A line for each image, computed by the file's own runtime: torch is not imported."""
    check_counts(options.top, options.batch_size, options.threads)
    check_paths(options.images)
    from vitrail.inference.exported_file import open_exported, predict_exported

    file = open_exported(options.source, threads=options.threads)
    found = predict_exported(
        file, list_images(options.images), top=options.top, batch_size=options.batch_size
    )
    print_lines(found, json=options.json)


def check_counts(top: int, batch_size: int, threads: int | None) -> None:
    check_count("--top", top, at_least=1)
    check_count("--batch-size", batch_size, at_least=1)
    if threads is not None:
        check_count("--threads", threads, at_least=1)


def print_lines(found: "Iterable[Prediction]", *, json: bool) -> None:
    """A line for each image, as soon as it is computed."""
    from vitrail.inference.prediction import format_line

    images = labelled = 0
    for one in found:
        images += 1
        labelled += one.problem is None
        if json:
            say_json(one.facts())
        else:
            say(format_line(one))
    if not labelled:  # the lines above say why
        refuse_no_labels(images, ())


def refuse_no_labels(images: int, broken: Sequence[BrokenImage]) -> NoReturn:
    """A run that labelled nothing has failed."""
    first = f": {broken[0].image}: {broken[0].reason}" if broken else ""
    raise UserError(f"none of {plural(images, 'image')} could be labelled{first}")
