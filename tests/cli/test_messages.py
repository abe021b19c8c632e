"""Messages of tasks name Python's arguments; the shell prints its own options."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from inspect import isfunction, signature
from pathlib import Path

import pytest

import vitrail
from vitrail.cli.app import VERBS, build_parser, main
from vitrail.cli.messages import ARGUMENT, FIELDS, OPPOSITES, options_of, with_options

SOURCE = Path(vitrail.__file__).parent
OPTION = re.compile(r"\s--[a-z]|^--[a-z-]+\s")  # not var(--soft), nor an argument of npm

# Modules whose texts are commands for the shell, for people to copy.
COMMANDS = ("serving/operations/model.py",)


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string that is not a docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def messages_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of every `UserError(…)`."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id == "UserError":
            yield from texts_of(node)


@cache
def trees() -> list[tuple[str, ast.AST]]:
    """All files but those of the shell."""
    names = (path.relative_to(SOURCE).as_posix() for path in sorted(SOURCE.rglob("*.py")))
    return [
        (name, ast.parse((SOURCE / name).read_text(encoding="utf-8")))
        for name in names
        if not name.startswith("cli/") and name not in COMMANDS
    ]


@pytest.mark.slow
def test_no_text_outside_the_shell_names_an_option() -> None:
    found = [
        f"{name}:{line}: {text}"
        for name, tree in trees()
        for line, text in texts_of(tree)
        if OPTION.search(text)
    ]
    assert not found


def test_the_scan_sees_options_and_not_docstrings() -> None:
    source = '"""Doc --out."""\nraise UserError("choose another --out")\ncolour = "var(--soft)"\n'
    seen = [text for _, text in texts_of(ast.parse(source)) if OPTION.search(text)]
    assert seen == ["choose another --out"]


@pytest.mark.slow
def test_every_argument_of_a_verb_that_a_message_names_is_an_option() -> None:
    tasks = [getattr(vitrail, verb.__name__, None) for verb in VERBS.values()]
    keywords = {name for task in tasks if isfunction(task) for name in signature(task).parameters}
    options = {name for record in VERBS for name in options_of(record)}
    opposites = {text.partition("=")[0] for text in OPPOSITES}
    named = {
        match["name"]
        for _, tree in trees()
        for _, text in messages_of(tree)
        for match in ARGUMENT.finditer(text)
    }
    assert {"overwrite", "grid", "start"} <= named
    assert not (named & keywords) - options - opposites


@pytest.mark.parametrize("record", VERBS, ids=lambda record: record.__name__)
def test_every_argument_becomes_an_option_that_the_parser_knows(record: type) -> None:
    known = {
        name
        for argument in build_parser()[VERBS[record].__name__].assemble_argument_collection()
        for name in argument.names
    }
    options = options_of(record)
    assert {field.name for field in fields(record) if field.kw_only} <= options.keys()
    for name in options:
        text = with_options(f"x: pass {name}=VALUE", options)
        assert text.startswith("x: pass --")
        assert text.split()[2].partition("=")[0] in known


def test_values_are_written_as_the_shell_takes_them() -> None:
    options = {"grid": "--grid", "precision": "--precision", "heads": "--set heads"}
    options |= {"overwrite": "--overwrite", "batch_size": "--batch-size", "start": "--from"}

    def shell(message: str) -> str:
        return with_options(message, options)

    assert shell("give grid=(rows, columns), or x") == "give --grid ROWSxCOLUMNS, or x"
    assert shell('use precision="float16".') == "use --precision float16."
    assert shell("give heads=N") == "give --set heads=N"
    assert shell("give start=CHECKPOINT") == "give --from CHECKPOINT"
    assert shell("pass exact=False") == "pass --fast"
    assert shell("batch_size must be 1, got 0") == "--batch-size must be 1, got 0"
    # names of files and what the shell itself says stay
    for text in ("grid=3/a.jpg: cannot be read", "--set heads=N", "other=1", "heads must be 3"):
        assert shell(text) == text
    assert set(FIELDS) <= options_of(next(r for r in VERBS if r.__name__ == "Evaluate")).keys()


def test_an_error_of_a_task_names_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["evaluate", "model", "digits", "--corrupted-images", "3"]) == 2
    assert "--corrupted-images needs corruptions: pass --corruptions" in capsys.readouterr().err
