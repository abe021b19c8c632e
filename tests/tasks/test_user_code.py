"""A person's own file: read before it runs, run with a warning, its errors in one sentence."""

from pathlib import Path

import pytest
from torch import nn

from tests.zoo.styles import STYLES
from vitrail import UserError
from vitrail.tasks.user_code import build_module, is_code, read_code, split_spec

MODEL = """
import torch
from torch import nn
print("imported")

class Part(nn.Module):
    pass

class Net(nn.Module):
    def __init__(self, width, depth=1):
        super().__init__()
        self.part = Part()
        self.layer = nn.Linear(width, depth)

class Plain:
    pass

def tiny(depth=2):
    return Net(3, depth)

def number():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def test_nothing_runs_before_the_notice(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = read_code(f"{file}:Net")
    assert capsys.readouterr() == ("", "")
    assert code.notice() == (
        f"running {file}: your own code, with your rights; importing it also runs line 4 "
        "(print('imported')): put what is no definition under if __name__ == \"__main__\""
    )
    made = build_module(code, {"width": 4})
    assert isinstance(made, nn.Module)
    assert made.get_parameter("layer.weight").shape == (1, 4)
    assert capsys.readouterr() == ("", "imported\n")  # standard output is for results
    assert not (file.parent / "__pycache__").exists()


def test_a_file_of_definitions_runs_nothing_else() -> None:
    for style in STYLES.values():
        assert read_code(style.spec).statements == ()


def test_a_function_that_makes_a_model_is_as_good_as_a_class(file: Path) -> None:
    assert isinstance(build_module(read_code(f"{file}:tiny"), {"depth": 5}), nn.Module)


def test_the_class_may_be_left_out_where_there_is_one() -> None:
    assert read_code(STYLES["fused_qkv"].path).class_name == "VisionTransformer"


def test_the_file_finds_its_neighbours(file: Path) -> None:
    (file.parent / "other_of_mine.py").write_text("from mine import Net\n")
    made = build_module(read_code(f"{file.parent / 'other_of_mine.py'}:Net"), {"width": 2})
    assert type(made).__name__ == "Net"


@pytest.mark.parametrize(
    ("spec", "arguments", "sentence"),
    [
        ("{file}:Net", {}, "Net of {file} needs width: give args= width=…"),
        ("{file}:Net", {"widht": 3}, "Net has no argument 'widht', did you mean width?"),
        ("{file}:Nett", {}, "has no class Nett, did you mean Net?"),
        ("{file}:Plain", {}, "must be an nn.Module, got a plain class"),
        ("{file}:number", {}, "must make an nn.Module, got a int"),
        ("{file}", {}, "name the class, as in mine.py:ViT; it has Net, Plain"),
        ("{file}:Net", {"width": "wide"}, "making Net failed: TypeError:"),
        ("{file}:Net", {"width": "wide"}, "line 13: self.layer = nn.Linear(width, depth))"),
        ("{folder}/none.py:Net", {}, "none.py: cannot be read: No such file"),
        ("{folder}/broken.py:Net", {}, "broken.py, line 2: "),
        ("{folder}/raises.py:Net", {}, "importing it failed: ZeroDivisionError: division by zero"),
        ("{folder}/exits.py:Net", {}, "importing it failed: SystemExit: 3"),
        ("{folder}/mine.txt:Net", {}, "the code must be FILE.py:CLASS"),
    ],
)
def test_a_mistake_is_one_sentence(
    spec: str, arguments: dict[str, object], sentence: str, file: Path
) -> None:
    folder = file.parent
    (folder / "broken.py").write_text("x = 1\nclass Net(:\n")
    (folder / "raises.py").write_text("x = 1 / 0\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n")
    names = {"file": str(file), "folder": str(folder)}
    with pytest.raises(UserError) as raised:
        build_module(read_code(spec.format(**names)), arguments)
    assert sentence.format(**names) in str(raised.value)


def test_specs() -> None:
    assert split_spec("a/b.py:ViT") == ("a/b.py", "ViT")
    assert split_spec("C:/b.py:ViT") == ("C:/b.py", "ViT")
    assert split_spec("b.py") == ("b.py", "")
    assert not is_code("vit_b_16")
    assert not is_code(3)
