"""Commands and code of the documentation are executed, page by page, on small stand-ins."""

import ast
import contextlib
import doctest
import io
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.docs import not_run
from tests.docs.blocks import Block, Command, blocks, commands, pages, read
from tests.docs.not_run import DETERMINISTIC, command_reason, python_reason, shortened
from tests.docs.stand_ins import Sandbox, fashion_mnist, trained_run
from vitrail.cli.app import main


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shared")
    trained_run(place)
    fashion_mnist(place)
    return place


def to_run(page: str) -> list[Block | Command]:
    """Commands of ours, and blocks of Python, in order."""
    found: list[Block | Command] = []
    for block in blocks(page):
        if block.language == "python" and python_reason(page, block.text) is None:
            found.append(block)
        for command in commands(block):
            text = " ".join(command.words)
            if command.words[0] == "vitrail" and command_reason(text) is None:
                found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", [page for page in pages() if to_run(page)])
def test_a_page_runs(
    page: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("XDG_DATA_DIRS", str(shared))
    for verb in ("train", "pretrain"):
        monkeypatch.setattr(vitrail, verb, in_two_steps(getattr(vitrail, verb)), raising=False)
    sandbox = Sandbox(tmp_path, shared, read(page))
    sandbox.fill()
    names = sandbox.names()
    problems: list[str] = []
    for one in to_run(page):
        remove_outputs(one)
        if isinstance(one, Command):
            problems += run_command(one)
        else:
            problems += run_python(one, names)
    assert not problems, "\n\n".join(problems)


def remove_outputs(one: Block | Command) -> None:
    """Commands and blocks of a page are often alternatives, such as a verb in the shell and in
    Python: each may write where the one before it wrote."""
    text = one.text
    if re.search(r"--resume|resume\(|dry.run", text):
        return
    outputs = re.findall(r"""(?:--out |out=["'])([\w./-]+)""", text)
    training = r"(train|pretrain)(?: |\([\"'])(?:\./)?(\w+)"
    for verb, data in re.findall(training, text) if not outputs else []:
        objective = re.search(r"objective[ =\"']+([\w-]+)", text)
        suffix = f"-{objective[1] if objective else 'mae'}" if verb == "pretrain" else ""
        outputs.append(f"runs/{data}{suffix}")
    outputs = outputs or ["explained"]
    for output in outputs:
        if (found := Path(output)).is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)


def in_two_steps(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Training as it is, but for its length."""

    def short(data: Any, **options: Any) -> Any:
        options.pop("epochs", None)
        return verb(data, **options | {"steps": 2})

    return short


def run_command(command: Command) -> Iterator[str]:
    """What is wrong with a command: its exit code, or lines that it does not print (however they
    are wrapped, and with … for those that are left out)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shortened(command.words[1:]))
    refused = any(line.startswith("vitrail: ") for line in command.printed)
    if code != (2 if refused else 0):
        yield f"{command.block.place}: {command.text}: exit code {code}\n{err.getvalue()[-1500:]}"
    elif command.block.page in DETERMINISTIC:
        printed = " ".join((out.getvalue() + err.getvalue()).split())
        parts = re.split(r"^…$", "\n".join(command.printed), flags=re.MULTILINE)
        lost = [part for part in parts if " ".join(part.split()) not in printed]
        if lost:
            yield f"{command.block.place}: {command.text}: not printed:\n" + "\n".join(lost)


def run_python(block: Block, names: dict[str, object]) -> Iterator[str]:
    """What is wrong with a block of Python: an exception, or lines that it does not print."""
    out = io.StringIO()
    source = block.text
    if ">>> " in source:
        source = "".join(one.source for one in doctest.DocTestParser().get_examples(source))
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(source, block.place, "exec"), names)
    except Exception:
        yield f"{block.place}:\n{source}\n{traceback.format_exc(limit=3)}"
        return
    follows = following(block)
    compared = block.page in DETERMINISTIC and follows is not None and follows.language == "text"
    if compared and follows and out.getvalue().strip() != follows.text.strip():
        yield f"{block.place}: printed\n{out.getvalue()}\nand the page has\n{follows.text}"


def following(block: Block) -> Block | None:
    """The block after this one."""
    found = blocks(block.page)
    place = found.index(block) + 1
    return found[place] if place < len(found) else None


def test_every_reason_is_used() -> None:
    """A reason for not executing that fits no command or block would only hide a later one."""
    texts = [
        " ".join(one.words) for page in pages() for block in blocks(page) for one in commands(block)
    ]
    unused = [one for one in not_run.COMMANDS if not any(re.search(one, text) for text in texts)]
    code = [(page, block.text) for page in pages() for block in blocks(page)]
    unused += [
        f"{where} {part}"
        for where, part in not_run.PYTHON
        if not any(where in ("", page) and part in text for page, text in code)
    ]
    assert not unused, unused


def test_python_blocks_compile() -> None:
    """And name what the package has: `vt.predict`, not `vt.predcit`."""
    problems = []
    for page in pages():
        for block in (one for one in blocks(page) if one.language == "python"):
            source = block.text
            if ">>> " in source:
                source = "".join(one.source for one in doctest.DocTestParser().get_examples(source))
            for node in ast.walk(ast.parse(source, block.place)):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in ("vt", "vitrail")
                    and node.attr not in vitrail.__all__
                    and f"vitrail.{node.attr}" not in sys.modules
                ):
                    problems.append(f"{block.place}: {node.value.id}.{node.attr}")
    assert not problems, problems


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)
