"""Hand-written ViTs that add in place: what was recorded of a layer must not change after it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.zoo.styles import STYLES
from torch import Tensor, nn

from vitrail import UserError, load
from vitrail.tasks.check import check
from vitrail.tasks.user_code import build_module, read_code
from vitrail.weights.adopt.from_module import noise
from vitrail.weights.adopt.match import match_module

FUSED = """queries, keys, values = rearrange(
            self.qkv(x), "b n (h d qkv) -> qkv b h n d", h=self.num_heads, qkv=3
        )
"""

# The style, and what is changed in its file.
IN_PLACE: dict[str, tuple[tuple[str, str], ...]] = {
    "korean_tutorial": (
        ("        return x + self.fn(x)\n",
         "        res = x\n        x = self.fn(x)\n        x += res\n        return x\n"),
        ("        self.queries = nn.Linear(emb_size, emb_size)\n", ""),
        ("self.keys = nn.Linear(emb_size, emb_size)",
         "self.qkv = nn.Linear(emb_size, emb_size * 3)"),
        ("        self.values = nn.Linear(emb_size, emb_size)\n", ""),
        ('queries = rearrange(self.queries(x), "b n (h d) -> b h n d", h=self.num_heads)\n', FUSED),
        ('keys = rearrange(self.keys(x), "b n (h d) -> b h n d", h=self.num_heads)\n', "\n"),
        ('values = rearrange(self.values(x), "b n (h d) -> b h n d", h=self.num_heads)\n', "\n"),
    ),
    "multihead_attention": (
        ("        tokens = tokens + self.dropout(y)\n", "        tokens += self.dropout(y)\n"),
        ("        return tokens + self.dropout(y)\n",
         "        y = self.dropout(y)\n        y += tokens\n        return y\n"),
    ),
    "fused_qkv": (("x = x + self.attn(self.norm1(x))", "x += self.attn(self.norm1(x))"),),
}  # fmt: skip


def write_in_place(folder: Path, style: str) -> str:
    """FILE:CLASS of the style that adds in place."""
    text = STYLES[style].path.read_text(encoding="utf-8")
    for old, new in IN_PLACE[style]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return f"{folder / 'mine.py'}:{STYLES[style].class_name}"


def lively(spec: str) -> nn.Module:
    module = build_module(read_code(spec), {}).double().eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("style", IN_PLACE)
@torch.no_grad()
def test_a_module_that_adds_in_place_is_adopted(style: str, tmp_path: Path) -> None:
    module = lively(write_in_place(tmp_path, style))
    images = noise(3, (32, 32))
    theirs = module(images.clone())
    model = load(module)
    assert float((model(images) - theirs).abs().max() / theirs.abs().max()) < 1e-9


def test_the_order_of_q_k_and_v_is_found_beside_it(tmp_path: Path) -> None:
    module = lively(write_in_place(tmp_path, "korean_tutorial"))
    match = match_module(module, {}, noise, source="mine", origin="mine")
    (qkv,) = [row for row in match.rows.rows if row["ours"].endswith("qkv.{p}")]
    assert qkv["op"] == "(h d qkv) ... -> (qkv h d) ..."


@pytest.mark.parametrize("style", IN_PLACE)
def test_check_calls_it_right(style: str, tmp_path: Path) -> None:
    found = check(write_in_place(tmp_path, style))
    assert (found.verdict, found.first) == ("right", None)
    assert found.inspection.reproduced < 1e-12


@torch.no_grad()
def test_a_simple_vit_of_vit_pytorch_is_adopted() -> None:
    """No class token, a norm that is defined before the blocks, and a table in no state dict."""
    pytest.importorskip("vit_pytorch")
    from vit_pytorch import SimpleViT

    sizes = {"dim": 48, "depth": 2, "heads": 3, "mlp_dim": 96, "dim_head": 16, "num_classes": 5}
    module = SimpleViT(image_size=32, patch_size=8, **sizes).double().eval()
    images = noise(3, (32, 32))
    assert float((load(module)(images) - module(images)).abs().max()) < 1e-9
    with pytest.raises(UserError, match="the size of its images is unknown"):
        load(SimpleViT(image_size=(32, 64), patch_size=8, **sizes))


class InPlace(nn.Module):
    """Changes the image that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = STYLES["fused_qkv"].build()

    def forward(self, x: Tensor) -> Any:
        x *= -1
        return self.inner(x)


def test_a_change_of_the_image_in_place_is_seen() -> None:
    with pytest.raises(UserError, match="what enters the first block differs first"):
        match_module(InPlace(), {}, noise, source="mine", origin="mine")
    assert check(InPlace(), image_size=32).verdict == "unknown"
