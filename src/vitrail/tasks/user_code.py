"""A model class in a person's own file: read first, so that they know what will run; then built.

    code = read_code("my_model.py:ViT")     # parsed, not run
    code.notice()                           # what running it means, in one sentence
    module = build_module(code, {"dim": 64})

`check` and `adopt --code` share it. What the file prints goes to standard error.
"""

import ast
import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from vitrail.core.errors import UserError, nearest
from vitrail.core.torchvision import mend_torchvision

# Statements that do nothing but define.
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LONGEST_LINE = 60


@dataclass(frozen=True)
class UserCode:
    """A class, or a function that makes a model, of a file that has not run yet. `statements` are
    the lines, with their text, that importing the file runs beside definitions."""

    path: Path
    class_name: str
    source: str
    statements: tuple[tuple[int, str], ...]

    @property
    def spec(self) -> str:
        return f"{self.path}:{self.class_name}"

    def notice(self) -> str:
        """What running it means, in one sentence."""
        sentence = f"running {self.path}: your own code, with your rights"
        if not self.statements:
            return sentence
        line, text = self.statements[0]
        more = len(self.statements) - 1
        others = f" and {more} more" if more else ""
        return (
            f"{sentence}; importing it also runs line {line} ({text}){others}: put what is no "
            'definition under if __name__ == "__main__"'
        )

    def line(self, number: int) -> str:
        """The text of a line."""
        lines = self.source.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def is_code(source: object) -> bool:
    """Whether it names Python code: my_model.py or my_model.py:ViT.

    >>> is_code("my_model.py:ViT"), is_code("vit_b_16"), is_code("weights.pth")
    (True, False, False)
    """
    return isinstance(source, str | Path) and split_spec(str(source))[0].endswith(".py")


def split_spec(spec: str) -> tuple[str, str]:
    """The file and the class; a drive's colon is no separator."""
    if spec.endswith(".py"):
        return spec, ""
    path, colon, name = spec.rpartition(":")
    return (path, name) if colon and path.endswith(".py") else (spec, "")


def read_code(spec: str | Path) -> UserCode:
    """Parse FILE.py:CLASS; nothing runs. The class may be left out where the file has only one
    that is not used by another."""
    name, wanted = split_spec(str(spec))
    path = Path(name)
    if not name.endswith(".py"):
        raise UserError(f"the code must be FILE.py:CLASS, such as my_model.py:ViT, got {spec}")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path}: cannot be read: {why}") from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}, line {line}" if line else str(path)
        raise UserError(f"{where}: {getattr(error, 'msg', error)}: mend it first") from None
    return UserCode(path, wanted or only_class(path, tree), source, tuple(statements_of(tree)))


def only_class(path: Path, tree: ast.Module) -> str:
    """The one class that no other code of the file uses."""
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    used = {
        inner.id
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and inner.id != node.name
    }
    free = [name for name in classes if name not in used]
    if len(free) == 1:
        return free[0]
    known = ", ".join(free or classes) or "no class"
    raise UserError(f"{path}: name the class, as in {path.name}:ViT; it has {known}")


def statements_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What importing runs: no definition, docstring, constant or main guard."""
    for node in tree.body:
        constant = isinstance(node, ast.Assign | ast.AnnAssign) and not any(
            isinstance(inner, ast.Call) for inner in ast.walk(node)
        )
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        guard = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if not (isinstance(node, DEFINITIONS) or constant or docstring or guard):
            text = ast.unparse(node).partition("\n")[0]
            yield node.lineno, text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…"


def build_module(
    code: UserCode,
    arguments: Mapping[str, Any] | None = None,
    examples: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Run the file, and make the model with the arguments. `examples` are likely values of
    arguments, for a message that asks for them."""
    module = import_code(code)
    make = getattr(module, code.class_name, None)
    if not callable(make):
        known = [name for name, one in vars(module).items() if is_model_class(one, module)]
        raise UserError(
            f"{code.path} has no class {code.class_name}, {nearest(code.class_name, known)}"
        )
    if isinstance(make, type) and not issubclass(make, nn.Module):
        raise UserError(f"{code.class_name} of {code.path} must be an nn.Module, got a plain class")
    check_arguments(code, make, arguments or {}, examples or {})
    with running(code, f"making {code.class_name}"):
        made = make(**(arguments or {}))
    if not isinstance(made, nn.Module):
        raise UserError(
            f"{code.class_name} of {code.path} must make an nn.Module, got a {type(made).__name__}"
        )
    return made


def is_model_class(value: object, module: ModuleType) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return own and isinstance(value, type) and issubclass(value, nn.Module)


def import_code(code: UserCode) -> ModuleType:
    """The file as a module. No bytecode is written beside it; it finds its neighbours."""
    module = ModuleType(f"vitrail_user_code_{code.path.stem}")
    module.__file__ = str(code.path)
    sys.modules[module.__name__] = module  # dataclasses look it up
    folder = str(code.path.absolute().parent)
    sys.path.insert(0, folder)
    mend_torchvision()  # they may import it
    try:
        with running(code, "importing it"):
            exec(compile(code.source, str(code.path), "exec"), vars(module))
    finally:
        sys.path.remove(folder)
    return module


def check_arguments(
    code: UserCode,
    make: Callable[..., Any],
    given: Mapping[str, Any],
    examples: Mapping[str, Any],
) -> None:
    """Ask for arguments that are missing, and refuse those that it does not have."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return
    open_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: one for name, one in parameters.items() if one.kind not in open_kinds}
    keywords = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    unknown = [name for name in given if name not in named and not keywords]
    if unknown:
        hint = nearest(unknown[0], named) if named else "it takes none"
        raise UserError(f"{code.class_name} has no argument {unknown[0]!r}, {hint}")
    missing = [
        name for name, one in named.items() if one.default is one.empty and name not in given
    ]
    if missing:
        example = " ".join(f"{name}={examples.get(name, '…')}" for name in missing)
        raise UserError(
            f"{code.class_name} of {code.path} needs {', '.join(missing)}: give args= {example}"
        )


@contextlib.contextmanager
def running(code: UserCode, what: str) -> Iterator[None]:
    """Run a person's code: what it prints goes to standard error, and an exception of it is one
    sentence with its line."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (UserError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} failed: {error_of(code, error)}") from error


def error_of(code: UserCode, error: BaseException) -> str:
    """An exception of a person's code with the last line of their file that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if frame.filename == str(code.path)]
    text = " ".join(str(error).split())
    sentence = f"{type(error).__name__}{f': {text}' if text else ''}"
    if not own or own[-1] is None:
        return f"{sentence} ({code.path})"
    return f"{sentence} ({code.path}, line {own[-1]}: {code.line(own[-1])})"
