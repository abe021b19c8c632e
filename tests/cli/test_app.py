"""Each way a command can end: its exit code, and what a person reads."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli import app
from vitrail.cli.endings import CLOSED_PIPE, TERMINATED
from vitrail.cli.models import Models
from vitrail.core.errors import UserError


def end_with(error: BaseException) -> Callable[[Models], None]:
    """A verb called `models` that ends with an error."""

    def models(asked: Models) -> None:
        """Print the names of the models."""
        raise error

    return models


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (UserError("image side 225 is no multiple of 16:\n use 224"), 2, "use 224"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
    ],
)
def test_an_ending_is_one_line(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(app.VERBS, Models, end_with(error))
    assert app.main(["models"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("vitrail: ")
    assert printed.err.endswith(f"{told}\n")
    assert printed.err.count("\n") == 1


def test_sigterm_ends_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = []
    before = signal.getsignal(signal.SIGTERM)

    def models(asked: Models) -> None:
        """Print the names of the models."""
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned.append(True)

    monkeypatch.setitem(app.VERBS, Models, models)
    assert app.main(["models"]) == TERMINATED
    assert capsys.readouterr().err == "vitrail: stopped by SIGTERM\n"
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.VERBS, Models, end_with(ValueError("ours")))
    with pytest.raises(ValueError, match="ours"):
        app.main(["models"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["modles"], "Did you mean models?"),
        (["models", "--jsno"], "Did you mean --json? (see vitrail models --help)"),
        (["train", "digits", "--learning-rate", "1"], "Did you mean --lr? (see vitrail train"),
        (["info"], "(see vitrail info --help)"),
        (["train", "runs/best", "photos"], "too many arguments: photos (see vitrail train"),
        (["info", "vit_b_16", "vit_l_16"], "vit_l_16"),
        (["figures", "a", "b", "--and", "c", "d"], "repeat it for several: --and c --and d (see"),
        (["figures", "a", "b", "x", "--and", "c"], "too many arguments: x (see vitrail figures"),
        (["figures", "a", "--and", "c.pth", "d.pth"], "several: --and c.pth --and d.pth"),
        (["explain", "a", "b.png", "--and", "c", "d.pth"], "several: --and c --and d.pth"),
    ],
)
def test_a_mistyped_command_is_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("words", [["models"], ["--help"]])
def test_a_reader_that_leaves_early_hears_nothing(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-c", SAYS_A_LINE, *words]
        result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writing)
    assert result.stderr == b""
    assert result.returncode == CLOSED_PIPE


@pytest.mark.slow
@pytest.mark.parametrize("redirected", [">&-", "> /dev/full"])
def test_an_output_that_is_closed_or_full_is_no_bug(redirected: str) -> None:
    if "full" in redirected and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = f"{shlex.join([sys.executable, '-c', SAYS_A_LINE, 'models'])} {redirected}"
    result = subprocess.run(command, shell=True, stderr=subprocess.PIPE, timeout=60)
    full = b"vitrail: standard output cannot be written: No space left on device\n"
    assert (result.returncode, result.stderr) == ((2, full) if "full" in redirected else (0, b""))


SAYS_A_LINE = """
import sys
from vitrail.cli import app
from vitrail.cli.models import Models
from vitrail.cli.output import say

def models(asked):
    say("vit_b_16")

app.VERBS[Models] = models
sys.exit(app.main(sys.argv[1:]))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", ["train", "pretrain", "evaluate", "probe", "figures", "doctor"])
def test_help_lists_every_source_of_data(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    names = ("hf:owner/name", "torchvision:NAME:ROOT", "digits", "planted", "fashion-mnist")
    assert [name for name in names if name not in printed] == []


def test_no_verb_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([]) == 0
    printed = capsys.readouterr().out
    assert all(verb.__name__ in printed for verb in app.VERBS.values())


@pytest.fixture(scope="module")
def own_verbs() -> None:
    """Another test may have built the parser from a verb of its own."""
    app.build_parser.cache_clear()


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("own_verbs")
@pytest.mark.parametrize("verb", [verb.__name__ for verb in app.VERBS.values()])
def test_help_ends_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([verb, "--help"]) == 0
    help_text = capsys.readouterr().out
    _, found, examples = help_text.rpartition("Examples:")
    lines = [shlex.split(line) for line in examples.splitlines() if line.strip()]
    assert found
    assert "--source" not in help_text
    assert len(lines) in (2, 3)
    assert all(line[:2] == ["vitrail", verb] for line in lines)
    for line in lines:
        app.build_parser()(line[1:])  # every option in it exists


@pytest.mark.parametrize(
    "line", ["predict m a --top 3 b", "predict m --top 3 a b", "predict --top 3 m a b"]
)
def test_options_may_stand_between_arguments(line: str) -> None:
    record = app.build_parser()(line.split())
    assert (record.source, record.images, record.top) == ("m", ("a", "b"), 3)


SHARED = (
    "--out", "--overwrite", "--dry-run", "--json", "--quiet", "--verbose", "--device", "--threads",
    "--workers", "--engine",
)  # fmt: skip


@pytest.fixture(scope="module")
def every_argument() -> dict[str, Any]:
    """The arguments of each verb."""
    names = [verb.__name__ for verb in app.VERBS.values()]
    return {verb: app.build_parser()[verb].assemble_argument_collection() for verb in names}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("option", SHARED)
def test_an_option_stands_in_the_same_group_of_every_verb(
    option: str, every_argument: dict[str, Any]
) -> None:
    groups = {
        verb: str(getattr(group, "name", group))
        for verb, arguments in every_argument.items()
        for argument in arguments
        if option in argument.names
        for group in argument.parameter.group or ()
    }
    assert len(groups) >= 2
    assert len(set(groups.values())) == 1, groups
