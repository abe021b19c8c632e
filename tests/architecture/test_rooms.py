"""The house keeps its shape: who may import whom, how big a file grows, what a file says first."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import vitrail

PACKAGE = Path(vitrail.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "pages": {"core"},
    "layers": {"core"},
    "models": {"core", "layers"},
    "weights": {"core", "models"},
    "data": {"core"},
    "objectives": {"core", "layers", "models"},
    "training": {"core", "models", "weights", "data", "objectives"},
    "evaluation": {"core"},
    "explanation": {"core", "layers", "weights"},
    "inference": {"core", "layers", "models", "weights", "data"},
    "exporters": {"core", "models", "weights", "data", "inference"},
    "recipes": {"core", "models", "data", "objectives", "training"},
}
MAY_IMPORT["tasks"] = set(MAY_IMPORT)  # every room above
MAY_IMPORT["serving"] = set(MAY_IMPORT)
MAY_IMPORT["cli"] = set(MAY_IMPORT)

MOST_LINES_IN_A_FILE = 450
MOST_LINES_IN_A_FUNCTION = 70
MOST_ARGUMENTS = 9
# who talks to other processes, starts them, shares tensors with them, or saves with them
KNOW_PROCESSES = ("world", "launcher", "parallel", "sharded", "sharded_files", "rehearsal")
OTHER_VERBS = ("serving/run.py",)  # files of public verbs outside tasks


@cache
def every_file() -> dict[str, ast.Module]:
    """The syntax tree of each file; parsing them all takes seconds, which no collection needs."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def room_of(name: str) -> str:
    """The room of a file; the package's own `__init__.py` is in none.

    >>> room_of("weights/dialects/timm.py")
    'weights'
    """
    return name.split("/")[0] if "/" in name else ""


def imported_modules(name: str, tree: ast.AST) -> Iterator[str]:
    """Absolute names of all modules, and of names taken from them, that a file imports anywhere."""
    folder = ["vitrail", *name.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield module
            # `from vitrail import models` and `from torch import distributed` import modules too.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_rooms(name: str, tree: ast.AST) -> set[str]:
    """Rooms that a file imports; "" stands for the public surface, which reaches every room."""
    modules = [m.split(".") for m in imported_modules(name, tree) if f"{m}.".startswith("vitrail.")]
    rooms = {parts[1] for parts in modules if len(parts) > 1}
    return {room if room in MAY_IMPORT else "" for room in rooms}


def test_a_file_lives_in_a_known_room() -> None:
    strays = [name for name in every_file() if room_of(name) and room_of(name) not in MAY_IMPORT]
    doors = ("__init__.py", "__main__.py")  # of the package and of the command
    outside = [name for name in every_file() if not room_of(name) and name not in doors]
    assert not strays + outside


def test_a_room_imports_only_the_rooms_it_may() -> None:
    # the public surface names every room, lazily: test_imports.py holds it to that
    offences = {
        name: forbidden
        for name, tree in every_file().items()
        if (room := room_of(name))
        and (forbidden := imported_rooms(name, tree) - MAY_IMPORT[room] - {room})
    }
    assert not offences


def test_few_files_know_that_there_are_several_processes() -> None:
    allowed = {f"training/{name}.py" for name in KNOW_PROCESSES}
    offences = [
        f"{name} imports {module}"
        for name, tree in every_file().items()
        for module in imported_modules(name, tree)
        if f"{module}.".startswith("torch.distributed.") and name not in allowed
    ]
    assert not offences


def test_a_file_is_named_after_its_idea() -> None:
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert not [name for name in every_file() if Path(name).stem in vague]


def test_a_file_says_its_idea_in_its_first_line() -> None:
    first = {
        name: (ast.get_docstring(tree, clean=False) or "").partition("\n")[0]
        for name, tree in every_file().items()
    }
    assert not [name for name, line in first.items() if not line.strip()]


def test_a_file_holds_one_idea() -> None:
    lines = {
        name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines())
        for name in every_file()
    }
    assert not {name: count for name, count in lines.items() if count > MOST_LINES_IN_A_FILE}


def test_a_function_fits_a_screen() -> None:
    lengths = {
        f"{name}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, tree in every_file().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {where: n for where, n in lengths.items() if n > MOST_LINES_IN_A_FUNCTION}


def test_a_function_has_few_arguments() -> None:
    """But for the public verbs: there arguments are options, and keyword-only."""
    counts = {
        f"{name}:{node.name}": count_arguments(node.args)
        for name, tree in every_file().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not (name in (f"tasks/{node.name}.py", *OTHER_VERBS) and node.name in vitrail.__all__)
    }
    assert not {where: n for where, n in counts.items() if n > MOST_ARGUMENTS}


def count_arguments(arguments: ast.arguments) -> int:
    """
    >>> count_arguments(ast.parse("lambda self, a, *, b: 0").body[0].value.args)
    2
    """
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def test_the_table_of_rooms_has_no_circle() -> None:
    done: set[str] = set()
    while ready := {room for room, needs in MAY_IMPORT.items() if needs <= done} - done:
        done |= ready
    assert done == set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import vitrail.models.vit", {"models"}),
        ("from vitrail import weights", {"weights"}),
        ("from vitrail import load", {""}),
        ("from ..explanation import capture", {"explanation"}),
        ("from . import mlp", {"layers"}),
        ("def late():\n    from vitrail.training.loop import train", {"training"}),
        ("import torch, vitrailleur", set()),
    ],
)
def test_every_spelling_of_an_import_is_seen(source: str, rooms: set[str]) -> None:
    assert imported_rooms("layers/attention.py", ast.parse(source)) == rooms
