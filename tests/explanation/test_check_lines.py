"""The inspector's lines: a finding names the line that a person has to look at."""

from pathlib import Path

import pytest
from tests.zoo.mistakes import Mistake

from vitrail.tasks.check import Check, check


def edited(folder: Path, style: str, old: str, new: str) -> Check:
    return check(Mistake("mine", style, old, new).plant(folder))


def test_heads_that_are_merged_last_are_named_with_their_line(tmp_path: Path) -> None:
    merge = 'out = rearrange(out, "b h n d -> b n (d h)")'
    found = edited(tmp_path, "einops_blocks", merge.replace("(d h)", "(h d)"), merge)
    (one,) = [one for one in found.differences if one.code == "merge_layout"]
    assert (found.verdict, one.step) == ("right", "block 0 merged heads")
    assert found.place(one) == f"line 42: {merge}"
    assert found.place(one) in found.text()


def test_heads_that_are_split_last_are_a_layout(tmp_path: Path) -> None:
    old = "x = x.view(x.size(0), x.size(1), self.num_heads, self.head_size)\n"
    new = "x = x.view(x.size(0), x.size(1), self.head_size, self.num_heads).transpose(2, 3)\n"
    found = edited(tmp_path, "separate_qkv", old, new)
    (one,) = [one for one in found.differences if one.code == "qkv_layout"]
    assert (found.verdict, one.values["yours"]) == ("right", "(q k v, dim_head, heads)")


def test_what_nothing_explains_has_the_line_of_the_first_step_that_differs(tmp_path: Path) -> None:
    found = edited(tmp_path, "fused_qkv", "(attn @ v).transpose", "(attn @ v).roll(1, 2).transpose")
    assert found.verdict == "unknown"
    assert found.first is not None
    assert found.first.name == "block 0 merged heads"
    assert "roll(1, 2)" in found.place(found.findings[0])


@pytest.mark.parametrize(
    ("style", "old", "new"),
    [
        ("multihead_attention", "tokens = tokens + self.dropout(y)",
         "tokens = self.ln_attention(tokens) + self.dropout(y)"),
        ("fused_qkv", "x = x + self.attn(self.norm1(x))",
         "x = self.norm1(x) + self.attn(self.norm1(x))"),
        ("fused_qkv", "x = x + self.mlp(self.norm2(x))",
         "x = self.mlp(self.norm2(x)) + self.norm2(x)"),
    ],
)  # fmt: skip
def test_a_norm_that_is_called_again_for_the_residual(
    style: str, old: str, new: str, tmp_path: Path
) -> None:
    found = edited(tmp_path, style, old, new)
    assert [one.code for one in found.findings if one.kind != "difference"] == ["normed_residual"]
    assert new in found.place(found.mistakes[0])
    assert found.inspection.reproduced < 1e-12


def test_patches_of_a_convolution_are_compared(tmp_path: Path) -> None:
    right = edited(tmp_path, "fused_qkv", "self.patch_embed(x)", "self.patch_embed(x) ")
    assert right.inspection.steps[0].name == "patches"
    assert right.inspection.steps[0].status == "same"
    assert "kernel" not in right.text()
    scaled = edited(tmp_path, "fused_qkv", "self.patch_embed(x)", "self.patch_embed(x * 2 - 1)")
    assert [one.step for one in scaled.findings if one.kind == "unknown"] == ["patches"]
