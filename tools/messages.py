"""Collect the sentences of help and errors into the catalogues of translations, and compile them.

    python -m tools.messages            # add new sentences, remove old ones, compile
    python -m tools.messages --missing  # list what has no translation yet

A sentence is the text of an error or of a note, with `{}` in the place of values, or a text of
--help as it is looked up there. Texts of HTML pages (`tools.page_texts`) have the context "page".
"""

import argparse
import ast
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from tools.page_texts import collect_page_texts
from vitrail.cli.app import VERBS, HelpConsole, build_parser
from vitrail.cli.language import LOCALE, PAGE, VALUE, languages
from vitrail.core.language import ENGLISH

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"
ERRORS = (
    "UserError",
    "BadImage",
    "Unreadable",
    "EngineError",
    "ServiceError",
    "ParseError",
    "KeyboardInterrupt",
    "end",
    "note",
)
# Functions that return a sentence, or a part of one, for errors and notes.
SENTENCES = (
    "nearest",
    "suggest_model",
    "explain_parse_error",
    "missing_argument",
    "other_name",
    "notice",
    "speed_up_note",
)
PREFIX = "why_"
# What a test of two models says, which its code puts together.
PROOF = "({} to {}; {} after Holm's correction)"
PAIR_TESTS = tuple(
    f"{finding}, with {{}} of the labels at {{}} pixels{seeds}"
    for finding in (
        f"{{}} is better than {{}} by {{}} points {PROOF}",
        f"{{}} is ahead of {{}} by {{}} points {PROOF}, which may be chance",
        f"{{}} and {{}} are equally accurate {PROOF}",
    )
    for seeds in ("", " (one seed alone: how much runs differ is not counted)")
)
# Sentences that are not written as an argument or a return value in our code.
OTHERS = {
    "patch {}": "models/limits.py",
    "Accuracy": "tasks/claims/accuracies.py",
    "register {}": "explanation/attention_sinks.py",
    "known are {}": "core/errors.py",
    "known are {} and {} more": "core/errors.py",
    "available splits: {}": "tasks/splits.py",
    "fields are {}": "tasks/adopt.py",
    "{} must be above {}, got {}": "core/ranges.py",
    "{} must be below {}, got {}": "core/ranges.py",
    "{} must be above {} and at most {}, got {}": "core/ranges.py",
    "{} must be above {} and below {}, got {}": "core/ranges.py",
    "{} must be at least {} and at most {}, got {}": "core/ranges.py",
    "{} must be at least {} and below {}, got {}": "core/ranges.py",
    # what pydantic says of values
    **{
        f"{{}} must be a valid {kind}, got {{}}": "core/records.py"
        for kind in ("integer", "number", "boolean", "string", "list")
    },
    "{} must be {} or {}, got {}": "core/records.py",
    "{} must have at least {} values": "core/records.py",
    "{} must have at most {} values, got {}": "core/records.py",
    "Use vitrail train DATA --out RUN --resume": "cli/app.py",
    "stopped by Ctrl-C": "cli/endings.py",
    "stopped by SIGTERM": "cli/endings.py",
    "Evaluation of {} on {}": "tasks/evaluate.py",
    "resized to cover {} (aspect ratio kept), centre crop of {}, {}": "core/passport.py",
    "stretched to {} (aspect ratio not kept), centre crop of {}, {}": "core/passport.py",
    "stretched to {} (aspect ratio not kept), {}": "core/passport.py",
    "random maps and shuffled weights": "explanation/verdict.py",
    "std over {} seeds": "tasks/probe.py",
    "{} {} ({} to {} with 95% confidence), the mean of {} folds": "tasks/folds.py",
    "{} {}, the mean of {} folds": "tasks/folds.py",
    "no fold was evaluated": "tasks/folds.py",
    "{}, {} parameters, {} pixels": "models/summary.py",
    "{}, {} parameters, {} pixels, {}": "models/summary.py",
    "{}, {} parameters, {} pixels, patch {}": "models/summary.py",
    "{}, {} thread": "tasks/comparison.py",
    "{}, {} threads": "tasks/comparison.py",
    "{}; {} thread": "tasks/claims/reproduction.py",
    "{}; {} threads": "tasks/claims/reproduction.py",
    "{} epochs": "tasks/overrides.py",
    "{} steps": "tasks/overrides.py",
    **dict.fromkeys(PAIR_TESTS, "tasks/comparison.py"),
    # what cyclopts says of options, and how it marks them in help
    "Unknown option: {}": "cyclopts",
    "Unknown option: {}. Did you mean {}?": "cyclopts",
    'Invalid value "{}" for {}. Choose from: {}': "cyclopts",
    'Invalid value "{}" for {}. Choose from: {}. Did you mean "{}"?': "cyclopts",
    'Invalid value for {}: unable to convert "{}" into {}': "cyclopts",
    'Command "{}" parameter {} requires an argument': "cyclopts",
    'Command "{}" parameter {} requires an argument. Did you mean {} instead of {}?': "cyclopts",
    "[default: {}]": "cyclopts",
    "[choices: {}]": "cyclopts",
    "[required]": "cyclopts",
}

REASONS = ("reason", "reasons")
# What claims say, and their tables and charts.
CLAIM = (
    *("sentence", "caveat", "where", "how", "counted", "title", "TITLE", "DRAWN", "SHIFTS"),
    *("note", "notes", "PAIRED", "ahead", "alike", "difference_grows", "over_seeds"),
)
# What pages show: sentences of functions and constants, and of values with these names.
SHOWN = {
    "data/findings.py": ("sample",),
    "data/sources/opening.py": ("KINDS",),
    "data/images.py": ("_reason",),
    "evaluation/warnings.py": (
        *("find_warnings", "no_better_than_chance", "few_classes", "no_better_than_prevalence"),
        "LONGER",
    ),
    "evaluation/intervals.py": ("METHODS",),
    "evaluation/calibration.py": ("HALVES",),
    "evaluation/corruptions.py": ("DIFFERS",),
    "evaluation/findings.py": ("HOW",),
    "evaluation/matching.py": ("note",),
    "evaluation/paired.py": ("HOW",),
    "explanation/verdict.py": (
        *("RULE", "ERRORS", "WEIGHTS", "CLASSES", "sentence", "reasons", "chance"),
        "contrast_text",
    ),
    "explanation/auto_method.py": ("choose_method",),
    **{
        f"recipes/{name}.py": REASONS
        for name in ("bands", "beit", "deit", "mobilevit", "paper", "pretrain", "swin", "tune")
    },
    "recipes/small.py": (*REASONS, "convolutional_shape"),
    **{f"tasks/claims/{file.name}": CLAIM for file in (SOURCE / "tasks/claims").glob("*.py")},
    "tasks/claims/reproduction.py": ("WORDS",),
    "tasks/evaluate.py": ("native_note", "output_notes"),
    "tasks/evaluation.py": ("preprocessing_sentence",),
    "tasks/explain_page.py": ("auto_reason",),
    "tasks/explanation.py": ("answer",),
    "tasks/overrides.py": REASONS,
    "tasks/probe.py": ("notes", "note"),
    "tasks/run_report.py": ("thinned", "interrupted_at", "stopped_at"),
    "tasks/splits.py": ("open_splits", "multi_label_note"),
    "tasks/trials.py": (*REASONS, "add_reason"),
    "training/device_defaults.py": ("with_device_defaults",),
}
# Titles and captions of figures, whose sentences are looked up one by one.
CAPTIONS = {
    "explanation/activation_figures.py": (
        *("title", "caption", "prefix", "windows", "change", "doubt", "sink_caption", "Panel"),
    ),
    "explanation/attention_sinks.py": ("kinds",),
    "explanation/equivariance_figure.py": (
        *("TITLE", "caption", "extremes_sentence", "permuted_sentence", "missing_sentences"),
        "few_cells_sentence",
    ),
    "explanation/figures.py": ("NEEDS_ATTENTION", "NEEDS_IMAGES", "ACTIVATION_TITLES", "Panel"),
    "explanation/filters.py": ("kernels_to_rgb",),
    "explanation/weight_figures.py": ("title", "caption", "compared", "some", "Panel"),
}

CONTRAST = "p = {} by {} random maps: {} (deletion area {}, insertion area {})"
FEW_IMAGES = "so its scores are uncertain; use more (a larger val_share, or a val folder)"
SHAPE = "images of {}x{} pixels: {} patches of {}x{}; width {}, depth {}"
STEM = (
    "; a convolution of stride 4 comes before the patches, so fields.patch_size is {} "
    "(arXiv:2106.14881)"
)
MODEL = "{} defines the shape of the model"
READS = ", which reads images of {}x{} pixels"
ENLARGED = ", enlarged so that its last map has a few cells"
SMALL_STEM = (
    "; images of {}x{} pixels go through a stem of 3x3 pixels that does not shrink them "
    "(arXiv:1512.03385, 4.2)"
)
PAPER_STEPS = "{} images in batches of {} are {} steps, the first {} of them warm-up"
CODE_STEPS = "{} images in batches of {}: {} steps of warm-up"
ROLLED = (
    "each is rolled down and to the right by one pixel and by one patch (a cell of the coarsest "
    "map), and the map of every block is compared with the map before, moved by as many cells, "
    "away from the border."
)
ABLATED = (
    "The colour is by how much the {} change then, as a share of their length: on average by {}, "
    "at most by {}."
)
SAMPLE = "broken images and duplicates outside of it are not in here"
# Sentences that no pattern finds, as their values touch each other or are words such as "is", and
# parts that only stand within them: the forms by which they are looked up instead.
FORMS: dict[str, tuple[str, ...]] = {
    "only {} of {} classes {} ever predicted: {}{}": (
        "only {} of {} classes is ever predicted: {}",
        "only {} of {} classes are ever predicted: {}",
    ),
    " and {} more": (),
    f"the model was evaluated on only {{}} {{}}{{}}, {FEW_IMAGES}": (
        f"the model was evaluated on only {{}} validation image, {FEW_IMAGES}",
        f"the model was evaluated on only {{}} validation images, {FEW_IMAGES}",
        f"the model was evaluated on only {{}} {{}} image, {FEW_IMAGES}",
        f"the model was evaluated on only {{}} {{}} images, {FEW_IMAGES}",
    ),
    "validation image": (),
    f"{{}} {{}}, {CONTRAST.replace('{} by', '{}{} by')}": (
        f"{{}} on 1 image, {CONTRAST}",
        f"{{}} on {{}} images, {CONTRAST}",
    ),
    "on 1 image": (),
    "on {} images": (),
    " ({} corrected for the number of methods)": ("{} ({} corrected for the number of methods)",),
    " Explained: {} ({}).": ("Prediction: {} ({}). Explained: {} ({}).",),
    f"a random sample of {{}} of {{}} was examined: {SAMPLE}": (
        f"a random sample of {{}} of {{}} images was examined: {SAMPLE}",
    ),
    "{} images of {}: batches of {}": (
        "{} images of 1 class: batches of {}",
        "{} images of {} classes: batches of {}",
    ),
    SHAPE.replace("images of", "{}"): (SHAPE, f"{SHAPE}{STEM}"),
    STEM: (),
    READS: (f"{MODEL}{READS}",),
    f"{READS}{{}}": (f"{MODEL}{READS}{ENLARGED}",),
    ENLARGED: (),
    SMALL_STEM: (f"{MODEL}{SMALL_STEM}",),
    f"{PAPER_STEPS}{{}}": (f"{PAPER_STEPS} (paper: {{}})",),
    " (paper: {})": (),
    f"{CODE_STEPS}{{}}": (f"{CODE_STEPS} (code: {{}})",),
    " (code: {})": (),
    "workers {}: {} cores for {} training {}": (
        "workers {}: {} cores for {} training process",
        "workers {}: {} cores for {} training processes",
    ),
    f"Over {{}} image{{}}: {ROLLED}": (f"Over {{}} image: {ROLLED}", f"Over {{}} images: {ROLLED}"),
    "no such file, directory or data set. D{}": (
        "no such file, directory or data set. Did you mean {}?",
    ),
    ABLATED: (ABLATED.replace("{}", "logits", 1), ABLATED.replace("{}", "features", 1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--missing", action="store_true", help="list what is not translated")
    missing = parser.parse_args().missing
    for language in languages():
        if language != ENGLISH:
            catalogue = update(language)
            untranslated = [one.id for one in catalogue if one.id and not one.string]
            print(f"{language}: {len(catalogue)} sentences, {len(untranslated)} not translated")
            if missing:
                print(*untranslated, sep="\n")


def update(language: str) -> Catalog:
    """The catalogue with the sentences of today, written and compiled."""
    folder = LOCALE / language / "LC_MESSAGES"
    file = folder / "vitrail.po"
    known = read_catalogue(file, language)
    catalogue = Catalog(
        locale=language,
        project="vitrail",
        header_comment="",
        fuzzy=False,
        creation_date=known.creation_date,  # a date of today would be a change
    )
    for text, place in sorted(collect().items()):
        entry = known.get(text)
        catalogue.add(text, entry.string if entry else "", locations=[(place, 0)])
    for text, place in sorted(collect_page_texts().items()):
        entry = known.get(text, PAGE)
        string = entry.string if entry else ""
        catalogue.add(text, string, locations=[(place, 0)], context=PAGE)
    with file.open("wb") as stream:
        write_po(stream, catalogue, omit_header=False, width=100, include_lineno=False)
    with (folder / "vitrail.mo").open("wb") as stream:
        write_mo(stream, catalogue)
    return catalogue


def read_catalogue(file: Path, language: str) -> Catalog:
    if not file.exists():
        return Catalog(locale=language)
    with file.open("rb") as stream:
        return read_po(stream, locale=language)


def collect() -> dict[str, str]:
    """Every sentence, and the file that it is in."""
    found = dict(OTHERS)
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for text in (*sentences_of(tree), *shown_texts(tree, SHOWN.get(place, ()))):
            found.setdefault(text, place)
        for text in shown_texts(tree, CAPTIONS.get(place, ())):
            found |= dict.fromkeys(filter(is_part, single_sentences(text)), place)
    for text, forms in FORMS.items():
        place = found.pop(text)
        found |= dict.fromkeys(forms, place)
    for text in help_texts():
        found.setdefault(text, "cli")
    return found


def sentences_of(tree: ast.AST) -> Iterator[str]:
    """Sentences of errors in a file, and parts of them that are chosen beforehand.

    >>> list(sentences_of(ast.parse('raise UserError(f"got {x!r}: use " "2")')))
    ['got {}: use 2']
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in ERRORS and node.args:
            yield from texts_of(node.args[-1 if name_of(node.func) == "BadImage" else 0])
        elif isinstance(node, ast.FunctionDef) and is_sentence_function(node.name):
            for part in ast.walk(node):
                if isinstance(part, ast.Return | ast.Assign) and part.value is not None:
                    yield from texts_of(part.value)
    yield from parts_of(tree)


def parts_of(tree: ast.AST) -> Iterator[str]:
    """Parts of sentences: `{"a folder" if … else "a file"}`, and names that stand for words.

    >>> code = 'hint = ", or wait longer"\\nraise UserError(f"it takes long{hint}")'
    >>> list(parts_of(ast.parse(code)))
    [', or wait longer']
    """
    names = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and name_of(call.func) in ERRORS and call.args:
            for part in ast.walk(call.args[0]):
                if isinstance(part, ast.Name):
                    names.add(part.id)
                elif isinstance(part, ast.IfExp) and part is not call.args[0]:
                    yield from filter(is_part, texts_of(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and {name_of(one) for one in node.targets} & names:
            yield from filter(is_part, texts_of(node.value))


def shown_texts(tree: ast.AST, names: Iterable[str]) -> Iterator[str]:
    """Sentences, and parts of them, of functions, constants and values with these names.

    >>> code = 'def why(n):\\n    return [f"{n} are too few: {\\'add more\\' if n else A}"]'
    >>> list(shown_texts(ast.parse(code), ["why"]))
    ['{} are too few: {}', 'add more']
    >>> list(shown_texts(ast.parse('reasons.append(f"{n} are few")'), ["reasons"]))
    ['{} are few']
    """
    known = set(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in known:
            for statement in node.body[1 if ast.get_docstring(node) else 0 :]:
                yield from filter(is_part, outer_texts(statement))
        elif isinstance(node, ast.expr | ast.stmt | ast.keyword):
            for value in values_of(node, known):
                yield from filter(is_part, outer_texts(value))


def values_of(node: ast.AST, names: set[str]) -> Iterable[ast.expr]:
    """What is assigned, added or given to one of these names."""
    match node:
        case ast.Assign(targets=targets, value=value):
            named = {name_of(part) for one in targets for part in ast.walk(one)}
            return [value] if named & names else []
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return [value] if name_of(target) in names else []
        case ast.AugAssign(target=target, value=value):
            return [value] if name_of(target) in names else []
        case ast.keyword(arg=str(name), value=value):
            return [value] if name in names else []
        case ast.Call(func=ast.Attribute(attr="append", value=owner), args=args):
            return args if name_of(owner) in names else []
        case ast.Call(func=ast.Name(id=name), args=args):
            return args if name in names else []
    return []


def outer_texts(node: ast.AST) -> Iterator[str]:
    """Texts that are no part of another one, and those of its values."""
    text = template(node) if isinstance(node, ast.expr) else None
    if text is not None:
        yield text
    parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.JoinedStr):
        parts = iter([one.value for one in node.values if isinstance(one, ast.FormattedValue)])
    elif text is not None and not isinstance(node, ast.BinOp):
        return
    for part in parts:
        yield from outer_texts(part)


def single_sentences(text: str) -> list[str]:
    """
    >>> single_sentences("{} is 1. {}It is more than {}.{}{}")
    ['{} is 1.', 'It is more than {}.', '']
    """
    return [one.strip() for one in re.split(r"(?<=\.)(?: |\{\})+(?=[A-Z0-9{]|$)", text)]


def is_part(text: str) -> bool:
    """Whether a text has words of its own, and not only a name or a plural's s."""
    words = text.replace(VALUE, "").split()
    return len(words) > 1 and sum(map(str.isalpha, "".join(words))) > 3


def is_sentence_function(name: str) -> bool:
    return name in SENTENCES or name.startswith(PREFIX)


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def texts_of(node: ast.expr) -> Iterable[str]:
    """What an expression may come to, with {} for its values; nothing where no word is its own."""
    if isinstance(node, ast.IfExp):
        return [*texts_of(node.body), *texts_of(node.orelse)]
    text = template(node)
    return [text] if text is not None and any(c.isalpha() for c in text.replace(VALUE, "")) else []


def template(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(template(part) or "" for part in node.values)
        case ast.FormattedValue():
            return VALUE
        case ast.BinOp(op=ast.Add()):
            left, right = template(node.left), template(node.right)
            return (left or VALUE) + (right or VALUE)
    return None


def help_texts() -> Iterator[str]:
    """Texts of --help, of all verbs, as help looks them up: help is printed, and they are noted."""
    found: list[str] = []

    def remember(text: str) -> str:
        found.append(text)
        return text

    parser, console = build_parser(), HelpConsole(file=io.StringIO())
    with patch("vitrail.cli.app.translate", remember):
        for command in ([], *([verb.__name__] for verb in VERBS.values())):
            parser.help_print(command, console=console)
    return (text for text in dict.fromkeys(found) if text and not text.startswith("["))


if __name__ == "__main__":
    main()
