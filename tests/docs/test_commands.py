"""Every command in the documentation is one that exists: verb, options, targets and extras."""

import re
import tomllib
from importlib.util import find_spec

import pytest
from cyclopts import CycloptsError, MissingArgumentError

from tests.docs.blocks import ROOT, Command, blocks, commands, inline_commands, pages
from vitrail.cli.app import build_parser, explain_parse_error, with_plain_flags
from vitrail.cli.language import split_language
from vitrail.data.paths import STDIN

# Programs of others, which documentation may name.
OTHERS = {"cd", "curl", "docker", "git", "jupyter", "tritonserver", "open"}


def shell_commands(page: str) -> list[Command]:
    return [command for block in blocks(page) for command in commands(block)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", pages())
def test_commands_parse(page: str) -> None:
    problems = [problem for one in shell_commands(page) if (problem := problem_of(one))]
    for one in inline_commands(page):
        if problem := parse(one.words[1:], complete=False):
            problems.append(f"{one.block.place}: {one.text}: {problem}")
    assert not problems, "\n".join(problems)


def problem_of(command: Command) -> str | None:
    """Why a command cannot be typed as it stands, if so."""
    words = command.words
    if words[:3] == ["python", "-m", "vitrail"]:
        words = words[2:]
    program, rest = words[0], words[1:]
    problem: str | None = None
    if program == "vitrail":
        problem = parse(rest)
    elif program == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        problem = None if set(rest) <= set(targets) else f"no such target, there are {targets}"
    elif program == "pip":
        problem = unknown_extra(command.text)
    elif words[:2] == ["python", "-m"]:
        problem = None if find_spec(rest[1]) else f"no module {rest[1]}"
    elif program == "python":
        problem = None if (ROOT / rest[0]).exists() else f"no file {rest[0]}"
    elif "/" in program:
        problem = None if (ROOT / program).exists() else f"no file {program}"
    elif program not in OTHERS:
        problem = f"unknown program {program}"
    return problem and f"{command.block.place}: {command.text}: {problem}"


def parse(words: list[str], *, complete: bool = True) -> str | None:
    """What our parser says against a command line; a sentence may name a verb without its
    arguments."""
    _, words = split_language(words, {})
    words = [STDIN if word == "-" else word for word in words]
    try:
        record = build_parser()(with_plain_flags(words), exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        return explain_parse_error(error) if complete else None
    except CycloptsError as error:
        return explain_parse_error(error)
    return None if record is not None else "prints help"


def unknown_extra(text: str) -> str | None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [name for group in re.findall(r"vitrail\[([^]]+)\]", text) for name in group.split(",")]
    unknown = set(named) - set(project["optional-dependencies"])
    return f"no extra {', '.join(sorted(unknown))}" if unknown else None


def test_a_wrong_command_is_found() -> None:
    assert parse(["train", "photos", "--epoch", "3"])
    assert parse(["trian", "photos"])
    assert parse(["train"])
    assert parse(["train"], complete=False) is None
    assert parse(["train", "photos", "--epochs", "3", "--lang", "ko"]) is None
    assert unknown_extra("pip install 'vitrail[fastest]'")
