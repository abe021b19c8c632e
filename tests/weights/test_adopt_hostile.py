"""Files, rows and modules made to break `adopt`: one sentence, or adopted all the same."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.zoo.styles import STYLES
from torch import Tensor, nn

import vitrail
from vitrail import UserError
from vitrail.weights.adopt.match import match_file
from vitrail.weights.adopt.propose import patch_sides
from vitrail.weights.adopt.rows_file import read_rows, sizes_of
from vitrail.weights.dialect import Foreign


class Around(nn.Module):
    """A right ViT whose forward pass does something else too."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.inner, self.run = STYLES["fused_qkv"].build(), forward

    def forward(self, x: Tensor) -> object:
        return self.run(self.inner, x)


def printing(inner: nn.Module, x: Tensor) -> object:
    sys.stdout.write(f"{x.shape}\n")
    return inner(x)


def test_what_a_forward_pass_prints_is_no_part_of_the_output() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        found = vitrail.adopt(Around(printing))
    assert printed.getvalue() == ""
    assert found.match.proof is not None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda inner, x: sys.exit(3), "cannot compute images of 32x32"),
        (lambda inner, x: inner(x) * float("nan"), "NaN or infinite"),
        (lambda inner, x: inner(x) > 0, "must return a tensor of logits"),
    ],
)
def test_a_forward_pass_that_gives_no_logits_is_one_sentence(
    forward: Callable[[nn.Module, Tensor], object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        vitrail.adopt(Around(forward))


def test_attributes_that_only_sound_like_facts_are_passed_over() -> None:
    module = STYLES["fused_qkv"].build()
    module.act, module.img_size = ["gelu"], [-1, -1]  # type: ignore[assignment]
    assert vitrail.load(module).config.image_size == (32, 32)


def test_values_that_are_no_numbers_are_said() -> None:
    state = STYLES["fused_qkv"].build().state_dict()
    state["head.weight"][0, 0] = float("nan")
    found = match_file(Foreign("my.pth", state), {"heads": 4}, origin="my.pth")
    assert any("NaN or infinite values in head.weight" in one for one in found.checkpoint.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows: [{ours: a, fill: [zeros], like: b}]", "fill: must be zeros"),
        ("rows: [{theirs: [a, b], ours: c, shares: 5}]", r"shares: must be whole numbers"),
        ("rows: [{theirs: [a, b], ours: c, shares: [1, 0]}]", r"shares: must be whole numbers"),
        ("rows: [{theirs: a, ours: c, last_first: 5}]", "last_first: must be true or false"),
        ("rows: 2020-99-99", "cannot be read as YAML"),
    ],
)
def test_rows_that_are_none_are_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_rows(tmp_path / "rows.yaml")


def test_rows_that_repeat_themselves_are_shown_in_short(tmp_path: Path) -> None:
    levels = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 7))
    text = f"levels:\n- &a0 [x]\n{levels}config: *a6\nrows: []\n"
    (tmp_path / "rows.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="must be fields of a ViT") as raised:
        read_rows(tmp_path / "rows.yaml")
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("patch", [0, -1, (8,), (8, 8, 8), "a", True, None])
def test_a_patch_size_that_is_none_is_left_to_the_config(patch: Any) -> None:
    assert "p" not in sizes_of({"patch_size": patch, "image_size": (32, 32)})
    assert patch_sides(192, {"patch_size": patch}, "my.pth") == {"patch_size": 8, "channels": 3}
