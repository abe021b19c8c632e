"""Collect the sentences of help and errors into the catalogues of translations, and compile them.

    python -m tools.messages            # add new sentences, remove old ones, compile
    python -m tools.messages --missing  # list what has no translation yet

A sentence is the text of an error, with `{}` in the place of values, or a text of --help.
"""

import argparse
import ast
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from cyclopts import Group

from vitrail.cli.app import VERBS, build_parser
from vitrail.cli.language import ENGLISH, LOCALE, VALUE, languages

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"
ERRORS = ("UserError", "BadImage", "Unreadable", "EngineError", "ServiceError", "ParseError")
# Functions that return a sentence, or a part of one, for errors.
SENTENCES = ("nearest", "suggest_model", "explain_parse_error", "missing_argument", "other_name")
PREFIX = "why_"


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
    catalogue = Catalog(locale=language, project="vitrail", header_comment="", fuzzy=False)
    for text, place in sorted(collect().items()):
        entry = known.get(text)
        catalogue.add(text, entry.string if entry else "", locations=[(place, 0)])
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
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        for text in sentences_of(ast.parse(file.read_text(encoding="utf-8"))):
            found.setdefault(text, place)
    for text in help_texts():
        found.setdefault(text, "cli")
    return found


def sentences_of(tree: ast.AST) -> Iterator[str]:
    """Sentences of errors in a file.

    >>> list(sentences_of(ast.parse('raise UserError(f"got {x!r}: use " "2")')))
    ['got {}: use 2']
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in ERRORS and node.args:
            yield from texts_of(node.args[0])
        elif isinstance(node, ast.FunctionDef) and is_sentence_function(node.name):
            for part in ast.walk(node):
                if isinstance(part, ast.Return | ast.Assign) and part.value is not None:
                    yield from texts_of(part.value)


def is_sentence_function(name: str) -> bool:
    return name in SENTENCES or name.startswith(PREFIX)


def name_of(node: ast.expr) -> str:
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
    """Texts of --help: of verbs, of options and of groups."""
    parser = build_parser()
    yield str(parser.help)
    for verb in VERBS.values():
        yield (inspect.getdoc(verb) or "").partition("\n\nExamples:\n")[0]
        command = parser[verb.__name__]
        for argument in command.assemble_argument_collection():
            if argument.parameter.help:
                yield " ".join(argument.parameter.help.split())
            groups = argument.parameter.group or ()
            for group in [groups] if isinstance(groups, Group) else groups:
                yield str(getattr(group, "name", group))


if __name__ == "__main__":
    main()
