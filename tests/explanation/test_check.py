"""The inspector of hand-written ViTs: right ones raise no alarm, mistakes are named."""

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.zoo.mistakes import DIFFERENCES, MISTAKES, Mistake
from tests.zoo.styles import STYLES, Style
from torch import nn

import vitrail
from vitrail.explanation.check import sentences
from vitrail.explanation.check.assembly import is_post_norm
from vitrail.explanation.check.diagnosis import diagnose
from vitrail.explanation.check.layers import find_layers
from vitrail.explanation.check.reference import reference_steps
from vitrail.explanation.check.trace import trace
from vitrail.models.model import Model
from vitrail.tasks.check import Check, check

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "dim": 48,
    "depth": 2,
    "heads": 3,
    "mlp_dim": 96,
}

ELEVEN = {
    "scale_dim", "no_scale", "missing_attention_norm", "missing_mlp_norm", "missing_final_norm",
    "softmax_axis", "head_order", "class_token_last", "position_shift", "missing_residual",
    "probabilities",
}  # fmt: skip


def codes(found: Check, kind: str) -> list[str]:
    return [one.code for one in found.findings if one.kind == kind]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_no_false_alarm_on_a_right_one(style: Style) -> None:
    found = check(style.spec)
    assert (found.verdict, found.mistakes, found.first) == ("right", (), None)
    assert found.inspection.reproduced < 1e-12
    assert {one.status for one in found.inspection.steps} <= {"same", "unseen"}
    sizes = found.inspection.sizes
    for name in ("dim", "depth", "heads", "mlp_dim", "num_classes", "image_size"):
        assert sizes[name] == style.config[name]
    assert sizes["patch_size"] == (style.config["patch_size"],) * 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_choices_are_differences_and_no_mistakes(style: Style) -> None:
    found = {one.code: one for one in check(style.spec).differences}
    paper: dict[str, Any] = {
        "activation": "gelu",
        "norm_eps": 1e-6,
        "pool": "cls",
        "norm_placement": "pre",
    }
    for code, usual in paper.items():
        mine = style.config.get(code, usual)
        assert (code in found) == (mine != usual)
        if code in found:
            assert found[code].values["yours"] == mine
    assert ("qkv_bias" in found) == (style.config.get("qkv_bias") == "none")
    assert ("position_rows" in found) == (style.config.get("prefix_positions") == 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_named_and_nothing_else(mistake: Mistake, tmp_path: Path) -> None:
    found = check(mistake.plant(tmp_path))
    assert codes(found, "mistake") == [mistake.name]
    assert codes(found, "unknown") == []
    assert found.verdict == "mistake"
    assert found.inspection.reproduced < 1e-12  # the reference makes the same mistake
    if mistake.name != "dropout_in_eval":
        assert found.first is not None
        assert found.mistakes[0].line is not None
    check_korean(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("difference", DIFFERENCES, ids=str)
def test_a_difference_is_named_and_raises_no_alarm(difference: Mistake, tmp_path: Path) -> None:
    found = check(difference.plant(tmp_path))
    assert (found.verdict, found.mistakes, found.first) == ("right", (), None)
    assert difference.name in codes(found, "difference")
    check_korean(found)


def test_the_eleven_mistakes_are_planted() -> None:
    assert {mistake.name for mistake in MISTAKES} >= ELEVEN


def test_two_mistakes_are_both_named(tmp_path: Path) -> None:
    text = STYLES["fused_qkv"].path.read_text()
    for old, new in (
        ("head_dim**-0.5", "dim**-0.5"),
        ("softmax(dim=-1)", "softmax(dim=-2)"),
        ("self.mlp(self.norm2(x))", "self.mlp(x)"),
        (
            "(self.cls_token.expand(x.shape[0], -1, -1), x)",
            "(x, self.cls_token.repeat(len(x), 1, 1))",
        ),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "four.py").write_text(text)
    found = check(f"{tmp_path / 'four.py'}:VisionTransformer")
    expected = ["class_token_last", "scale_dim", "softmax_axis", "missing_mlp_norm"]
    assert codes(found, "mistake") == expected
    assert found.inspection.reproduced < 1e-12


def test_the_sentence_of_the_issue(tmp_path: Path) -> None:
    mistake = next(one for one in MISTAKES if str(one) == "scale_dim-einops_blocks")
    found = check(mistake.plant(tmp_path))
    assert found.sentence(found.mistakes[0]) == (
        "scores are divided by sqrt(dim) = 8.0, the paper divides by sqrt(dim_head) = 4.0: use "
        "dim_head ** -0.5"
    )
    assert found.first is not None
    assert found.first.name == "block 0 scores"
    assert found.place(found.mistakes[0]) == (
        'line 39: scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale; '
        "every block"
    )


def edited(folder: Path, style: str, *changes: tuple[str, str]) -> str:
    text = STYLES[style].path.read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:{STYLES[style].class_name}"


def test_a_mistake_in_one_block_names_it(tmp_path: Path) -> None:
    marked = (
        "        self.norm = norm",
        "        self.blocks[1].last = True\n        self.norm = norm",
    )
    residual = ("x = x + self.attn(", "x = x * (not hasattr(self, 'last')) + self.attn(")
    found = check(edited(tmp_path, "fused_qkv", marked, residual))
    assert [(one.code, one.blocks) for one in found.mistakes] == [("missing_residual", (1,))]
    assert found.place(found.mistakes[0]).endswith("; block 1")


def test_an_odd_scale_is_measured(tmp_path: Path) -> None:
    found = check(edited(tmp_path, "einops_blocks", ("dim_head**-0.5", "1 / 7.5")))
    assert codes(found, "mistake") == ["scale_other"]
    assert "divided by 7.5," in found.sentence(found.mistakes[0])


def test_what_nothing_explains_is_located_and_does_not_hide_the_rest(tmp_path: Path) -> None:
    changes = (("scores.softmax(dim=-1)", "scores.sigmoid()"), ("x[:, 0])", "x[:, 0]).softmax(-1)"))
    found = check(edited(tmp_path, "einops_blocks", *changes))
    assert [one.step for one in found.findings if one.kind == "unknown"] == [
        "block 0 attention",
        "block 1 attention",
    ]
    assert codes(found, "mistake") == ["probabilities"]
    only = check(edited(tmp_path, "einops_blocks", changes[0]))
    assert only.verdict == "unknown"
    assert only.sentence(only.findings[0]).startswith("block 0 attention: computed in a way")


def test_positions_that_are_no_rows_of_the_table_are_not_called_shifted(tmp_path: Path) -> None:
    found = check(edited(tmp_path, "fused_qkv", ("+ self.pos_embed", "+ 2 * self.pos_embed")))
    assert (found.verdict, codes(found, "mistake")) == ("unknown", [])
    assert [one.step for one in found.findings if one.kind == "unknown"] == ["positions"]
    assert found.proof() not in found.text()


def test_other_orders_of_q_k_and_v_are_no_mistake(tmp_path: Path) -> None:
    interleaved = ("b n (t h d) -> t b h n d", "b n (h d t) -> t b h n d")
    found = check(edited(tmp_path, "einops_blocks", interleaved))
    assert found.verdict == "right"
    (layout,) = [one for one in found.differences if one.code == "qkv_layout"]
    assert layout.values["yours"] == "(heads, dim_head, q k v)"
    keys_first = check(edited(tmp_path, "separate_qkv", (
        "        q = self.transpose_for_scores(self.query(hidden_states))\n"
        "        k = self.transpose_for_scores(self.key(hidden_states))\n",
        "        k = self.transpose_for_scores(self.key(hidden_states))\n"
        "        q = self.transpose_for_scores(self.query(hidden_states))\n",
    )))  # fmt: skip
    assert keys_first.verdict == "right"


# Other ways to write the same: the style, and what is changed in its file.
SAME: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "positions in nn.Embedding": (
        "heads_in_a_list",
        (
            ("nn.Parameter(torch.rand((img // patch) ** 2 + 1, d_model))",
             "nn.Embedding((img // patch) ** 2 + 1, d_model)"),
            ("tokens + self.positions\n",
             "tokens + self.positions(torch.arange(tokens.shape[1]))\n"),
        ),
    ),
    "tokens first": (
        "encoder_pre_norm",
        (
            ("            batch_first=True,\n", ""),
            ("self.encoder(x + self.pos)",
             "self.encoder((x + self.pos).transpose(0, 1)).transpose(0, 1)"),
        ),
    ),
    "a head for every token": (
        "fused_qkv", (("self.head(self.forward_features(x)[:, 0])",
                       "self.head(self.forward_features(x))[:, 0]"),),
    ),
    "a class token written in place": (
        "fused_qkv",
        (("x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)\n",
          "y = x.new_zeros(len(x), x.shape[1] + 1, x.shape[2])\n"
          "        y[:, :1] = self.cls_token\n        y[:, 1:] = x\n        x = y\n"),
         ("x = x + self.pos_embed", "x += self.pos_embed")),
    ),
    "a softmax by hand": (
        "einops_blocks",
        (("scores.softmax(dim=-1)", "scores.exp() / scores.exp().sum(-1, keepdim=True)"),),
    ),
    "a learned temperature": (
        "fused_qkv",
        (("head_dim**-0.5", "nn.Parameter(torch.tensor(head_dim**-0.5))"),),
    ),
    "RMSNorm": ("fused_qkv", (("partial(nn.LayerNorm, eps=1e-6)", "nn.RMSNorm"),)),
    "a head for pre-training": (
        "fused_qkv",
        (("nn.Linear(embed_dim, num_classes)",
          "nn.Sequential(nn.Linear(embed_dim, 32), nn.Tanh(), nn.Linear(32, num_classes))"),),
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SAME)
def test_other_ways_to_write_the_same_raise_no_alarm(name: str, tmp_path: Path) -> None:
    style, changes = SAME[name]
    found = check(edited(tmp_path, style, *changes))
    assert (found.verdict, found.mistakes, found.first) == ("right", (), None)
    assert found.inspection.reproduced < 1e-9


PEERS: dict[str, Any] = {
    "vitrail": lambda: vitrail.create("vit_ti_16", **SMALL, pool="mean", layer_scale=0.1),
    "timm": lambda: timm_model(),
    "torchvision": lambda: torchvision_model(),
    "vit-pytorch": lambda: vit_pytorch_model(),
}


def timm_model() -> nn.Module:
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **sizes)


def torchvision_model() -> nn.Module:
    from torchvision.models import VisionTransformer

    sizes = {"num_layers": 2, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 96, "num_classes": 5}
    made: nn.Module = VisionTransformer(32, 8, **sizes)
    return made


def vit_pytorch_model() -> nn.Module:
    from vit_pytorch import ViT

    sizes = {key: value for key, value in SMALL.items() if key != "heads"}
    made: nn.Module = ViT(**sizes, heads=3, dim_head=16, num_classes=5, pool="mean")
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("peer", PEERS)
def test_no_false_alarm_on_well_known_ones(peer: str) -> None:
    found = check(PEERS[peer]())
    assert (found.verdict, found.first) == ("right", None)
    assert found.inspection.reproduced < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fields", [{}, {"pool": "mean"}, {"activation": "gelu_tanh"}])
def test_the_reference_is_our_vit(fields: dict[str, Any]) -> None:
    """Step by step, with the weights of ours."""
    torch.manual_seed(0)
    model: Model = vitrail.create("vit_ti_16", **SMALL, num_classes=5, **fields).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        images = torch.randn(2, 3, 32, 32).double()
        traced = trace(model, images)
        found = diagnose(find_layers(traced, 2), traced, model, images)
        steps = reference_steps(found.weights, found.choices, images)
        tokens = model.encode(images)
        torch.testing.assert_close(steps["output"], model(images), atol=1e-12, rtol=0)
    torch.testing.assert_close(steps["final norm"], tokens, atol=1e-12, rtol=0)
    assert not is_post_norm(found.choices.blocks)


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("table", ["MISTAKES", "DIFFERENCES", "WORDS", "VALUES", "STEPS"])
def test_both_languages_are_complete(table: str) -> None:
    for name, (english, korean) in getattr(sentences, table).items():
        assert placeholders(english) == placeholders(korean), name
        assert english.isascii(), name
        assert korean, name
    if table == "MISTAKES":
        hangul = [
            any("가" <= letter <= "힣" for letter in text)
            for _, text in sentences.MISTAKES.values()
        ]
        assert all(hangul)


def check_korean(found: Check) -> None:
    """The same record in the other language."""
    korean = replace(found, language="ko")
    said = [korean.sentence(one) for one in korean.findings]
    assert all("{" not in text and any("가" <= letter <= "힣" for letter in text) for text in said)
    assert "블록 1 softmax" in korean.text(every=True)
