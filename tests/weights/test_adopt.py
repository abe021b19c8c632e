"""Hand-written ViTs become ours: by words, shapes and order, and by running both."""

import random
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.zoo.styles import STYLES, Style
from tests.zoo.unusual import (
    UNUSUAL,
    ColumnsFirst,
    Gated,
    HeadsOutside,
    ManyLists,
    Matrices,
    SequenceFirst,
    WithBuffers,
    build,
)
from torch import Tensor, nn

from vitrail import UserError, adopt, load
from vitrail.models.vit import ViTConfig
from vitrail.weights.adopt.from_module import noise
from vitrail.weights.adopt.match import Match, match_file, match_module, match_rows
from vitrail.weights.adopt.rows_file import RowsFile, read_rows, to_yaml
from vitrail.weights.checkpoint import build_model
from vitrail.weights.dialect import Foreign
from vitrail.weights.translate import write

IMAGES = noise(3, (32, 32))

# The rows of the blocks, by hand: what adoption has to find.
BLOCK_ROWS: dict[str, dict[str, Any]] = {
    "einops_blocks": {
        "norm1.{p}": "transformer.layers.{i}.0.branch.norm.{p}",
        "norm2.{p}": "transformer.layers.{i}.1.branch.norm.{p}",
        "attention.qkv.weight": "transformer.layers.{i}.0.branch.layer.to_qkv.weight",
        "attention.out.{p}": "transformer.layers.{i}.0.branch.layer.to_out.{p}",
        "mlp.fc1.{p}": "transformer.layers.{i}.1.branch.layer.0.{p}",
        "mlp.fc2.{p}": "transformer.layers.{i}.1.branch.layer.2.{p}",
    },
    "multihead_attention": {
        "norm1.{p}": "encoder.layers.{i}.ln_attention.{p}",
        "norm2.{p}": "encoder.layers.{i}.ln_mlp.{p}",
        "attention.qkv.{p}": "encoder.layers.{i}.self_attention.in_proj_{p}",
        "attention.out.{p}": "encoder.layers.{i}.self_attention.out_proj.{p}",
        "mlp.fc1.{p}": "encoder.layers.{i}.mlp.linear_1.{p}",
        "mlp.fc2.{p}": "encoder.layers.{i}.mlp.linear_2.{p}",
    },
    **{
        style: {
            "norm1.{p}": f"{name}.layers.{{i}}.norm1.{{p}}",
            "norm2.{p}": f"{name}.layers.{{i}}.norm2.{{p}}",
            "attention.qkv.{p}": f"{name}.layers.{{i}}.self_attn.in_proj_{{p}}",
            "attention.out.{p}": f"{name}.layers.{{i}}.self_attn.out_proj.{{p}}",
            "mlp.fc1.{p}": f"{name}.layers.{{i}}.linear1.{{p}}",
            "mlp.fc2.{p}": f"{name}.layers.{{i}}.linear2.{{p}}",
        }
        for style, name in (("encoder_pre_norm", "encoder"), ("encoder_post_norm", "transformer"))
    },
    "fused_qkv": {
        "norm1.{p}": "blocks.{i}.norm1.{p}",
        "norm2.{p}": "blocks.{i}.norm2.{p}",
        "attention.qkv.{p}": "blocks.{i}.attn.qkv.{p}",
        "attention.out.{p}": "blocks.{i}.attn.proj.{p}",
        "mlp.fc1.{p}": "blocks.{i}.mlp.fc1.{p}",
        "mlp.fc2.{p}": "blocks.{i}.mlp.fc2.{p}",
    },
    "heads_in_a_list": {
        "norm1.{p}": "blocks.{i}.ln1.{p}",
        "norm2.{p}": "blocks.{i}.ln2.{p}",
        "attention.qkv.{p}": [
            f"blocks.{{i}}.mha.heads.{head}.{part}.{{p}}" for part in "qkv" for head in range(3)
        ],
        "attention.out.{p}": "blocks.{i}.mha.out.{p}",
        "mlp.fc1.{p}": "blocks.{i}.ff.0.{p}",
        "mlp.fc2.{p}": "blocks.{i}.ff.2.{p}",
    },
    "korean_tutorial": {
        "norm1.{p}": "1.{i}.0.fn.0.{p}",
        "norm2.{p}": "1.{i}.1.fn.0.{p}",
        "attention.qkv.{p}": [
            f"1.{{i}}.0.fn.1.{part}.{{p}}" for part in ("queries", "keys", "values")
        ],
        "attention.out.{p}": "1.{i}.0.fn.1.projection.{p}",
        "mlp.fc1.{p}": "1.{i}.1.fn.1.0.{p}",
        "mlp.fc2.{p}": "1.{i}.1.fn.1.2.{p}",
    },
    "mean_pooling": {
        "norm1.{p}": "h.{i}.ln_1.{p}",
        "norm2.{p}": "h.{i}.ln_2.{p}",
        "attention.qkv.{p}": "h.{i}.attn.c_attn.{p}",
        "attention.out.{p}": "h.{i}.attn.c_proj.{p}",
        "mlp.fc1.{p}": "h.{i}.c_fc.{p}",
        "mlp.fc2.{p}": "h.{i}.c_out.{p}",
    },
    "one_sequential": {
        "norm1.{p}": "{2*i+4}.f.0.{p}",
        "norm2.{p}": "{2*i+5}.f.0.{p}",
        "attention.qkv.weight": [f"{{2*i+4}}.f.1.w{part}.weight" for part in "qkv"],
        "attention.out.{p}": "{2*i+4}.f.1.wo.{p}",
        "mlp.fc1.{p}": "{2*i+5}.f.1.{p}",
        "mlp.fc2.{p}": "{2*i+5}.f.3.{p}",
    },
    "separate_qkv": {
        "norm1.{p}": "layers.{i}.layernorm_before.{p}",
        "norm2.{p}": "layers.{i}.layernorm_after.{p}",
        "attention.qkv.{p}": [
            f"layers.{{i}}.attention.{part}.{{p}}" for part in ("query", "key", "value")
        ],
        "attention.out.{p}": "layers.{i}.attention.dense.{p}",
        "mlp.fc1.{p}": "layers.{i}.intermediate.{p}",
        "mlp.fc2.{p}": "layers.{i}.output.{p}",
    },
}
# What a bare file does not show and these styles have otherwise than is assumed.
ANSWERS: dict[str, dict[str, Any]] = {
    "multihead_attention": {"norm_eps": 1e-6},
    "fused_qkv": {"norm_eps": 1e-6},
    "separate_qkv": {"norm_eps": 1e-12},
    "korean_tutorial": {"pool": "all"},
}
# Pixels of these lie as (c p q), which no tensor shows.
CHANNELS_FIRST = ("heads_in_a_list", "mean_pooling", "one_sequential")


def block_rows(match: Match) -> dict[str, Any]:
    found = {row["ours"]: row["theirs"] for row in match.rows.rows}
    start = "blocks.{i}."
    return {name.removeprefix(start): theirs for name, theirs in found.items() if start in name}


def adopted(module: nn.Module, **given: Any) -> Match:
    return match_module(module, given, noise, source="mine", origin="mine")


def bare(module: nn.Module, **given: Any) -> Match:
    return match_file(Foreign("my.pth", dict(module.state_dict())), given, origin="my.pth")


def distance(match: Match, module: nn.Module, images: Tensor = IMAGES) -> float:
    """The largest difference of the logits in float64, as a share of the largest."""
    ours = build_model(match.checkpoint, match.checkpoint.config).double()
    torch.backends.mha.set_fastpath_enabled(False)
    theirs = module.double()(images)
    torch.backends.mha.set_fastpath_enabled(True)
    theirs = theirs["logits"] if isinstance(theirs, dict) else theirs
    return float((ours(images) - theirs).abs().max() / theirs.abs().max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@torch.no_grad()
def test_a_module_is_adopted_with_the_right_rows(style: Style) -> None:
    module = style.build()
    match = adopted(module)
    config = match.checkpoint.config
    assert block_rows(match) == BLOCK_ROWS[style.file]
    assert {name: getattr(config, name) for name in style.config} == style.config
    assert match.proof is not None
    assert match.proof.points >= 6 * style.config["depth"]
    assert distance(match, module) < 1e-9
    assert not [note for note in match.checkpoint.notes if "norm" in note or "pool" in note]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@torch.no_grad()
def test_a_bare_file_is_adopted_with_the_right_rows(style: Style) -> None:
    module = style.build()
    answers = {"heads": style.config["heads"], **ANSWERS.get(style.file, {})}
    match = bare(module, **answers)
    assert block_rows(match) == BLOCK_ROWS[style.file]
    assert match.proof is None
    rows = match.rows
    if style.file in CHANNELS_FIRST:  # a person mends what was assumed
        assert "assumed: pixels of a patch in the order p q c" in match.assumed
        mended = [
            row | {"op": row["op"].replace("(p q c)", "(c p q)")} if "op" in row else row
            for row in rows.rows
        ]
        foreign = Foreign("my.pth", dict(module.state_dict()))
        match = match_rows(foreign, RowsFile(rows.config, tuple(mended)), {}, origin="my.pth")
    assert distance(match, module) < 1e-9
    config = match.checkpoint.config
    assert {name: getattr(config, name) for name in style.config} == style.config


def test_what_was_assumed_is_said_and_what_was_given_is_not() -> None:
    module = STYLES["fused_qkv"].build()
    assert set(bare(module, heads=4).assumed) == {
        "assumed: q, k and v in the order qkv h d",
        "assumed: pre-norm blocks",
        "assumed: activation gelu",
        "assumed: LayerNorm eps 1e-05",
        "assumed: pooling: cls",
        "assumed: the class token comes first",
    }
    given_too = bare(module, heads=4, norm_eps=1e-6, activation="gelu", pool="cls")
    assert set(given_too.assumed) == {
        "assumed: q, k and v in the order qkv h d",
        "assumed: pre-norm blocks",
        "assumed: the class token comes first",
    }


class Moved(nn.Linear):
    """Its outputs are q, k and v in another layout and order, which the forward pass knows."""

    layout: str
    order: str

    def forward(self, x: Tensor) -> Tensor:
        y = rearrange(super().forward(x), f"b n ({self.layout}) -> b n qkv h d", qkv=3, h=4)
        return y[:, :, [self.order.index(one) for one in "qkv"]].flatten(2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "layout", ["qkv h d", "h qkv d", "h d qkv", "qkv d h", "d h qkv", "d qkv h"]
)
@pytest.mark.parametrize("order", ["qkv", "qvk", "kqv", "kvq", "vqk", "vkq"])
@torch.no_grad()
def test_q_k_and_v_in_any_layout_and_order_are_found(order: str, layout: str) -> None:
    module: Any = STYLES["fused_qkv"].build()
    for block in module.blocks:
        block.attn.qkv.__class__ = Moved
        block.attn.qkv.layout, block.attn.qkv.order = layout, order
    assert distance(adopted(module), module) < 1e-9


def test_a_size_or_a_number_of_heads_that_cannot_be_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my.pth"
    torch.save(STYLES["fused_qkv"].build().state_dict(), file)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"heads": 4, "image_size": -3}, "image_size must be at least 1, got -3"),
        ({"heads": 4, "image_size": 17}, "its positions do not fit images of this size"),
    ]
    for changes, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            adopt(file, **changes)
    file.write_bytes(b"")
    with pytest.raises(UserError, match="it is empty or cut off"):
        adopt(file)


def test_heads_are_asked_for_in_one_sentence() -> None:
    with pytest.raises(UserError, match=r"64 attention channels \(1, 2, 4, .*give heads=N"):
        bare(STYLES["fused_qkv"].build())
    found = bare(STYLES["heads_in_a_list"].build()).checkpoint.config
    assert isinstance(found, ViTConfig)
    assert found.heads == 3
    with pytest.raises(UserError, match="a block has layers for 3 heads, but heads is 4"):
        bare(STYLES["heads_in_a_list"].build(), heads=4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", UNUSUAL)
@torch.no_grad()
def test_unusual_habits_are_adopted(kind: type[nn.Module]) -> None:
    module = build(kind)
    match = adopted(module)
    config = match.checkpoint.config
    images = noise(config.channels, config.image_size)
    assert distance(match, module, images) < 1e-9
    expected: dict[type[nn.Module], dict[str, Any]] = {
        Matrices: {"heads": 3, "activation": "quick_gelu", "norm_eps": 1e-6, "head_bias": False},
        SequenceFirst: {"image_size": (32, 48), "norm_placement": "post", "dropout": 0.1},
        HeadsOutside: {"activation": "gelu_tanh", "layer_scale": 1e-5, "final_norm": "none"},
        WithBuffers: {"norm_placement": "pre", "activation": "relu"},
        ColumnsFirst: {"image_size": (16, 24), "heads": 3},
        Gated: {"activation": "swiglu", "mlp_dim": 24, "positions": "none", "heads": 2},
        ManyLists: {"channels": 1, "dim_head": 8, "activation": "relu", "pool": "mean"},
    }
    wanted = expected[kind]
    assert {name: getattr(config, name) for name in wanted} == wanted
    if kind is SequenceFirst:  # the layer that nn.TransformerEncoder copies
        assert len(match.checkpoint.coverage.dropped) == 12


def test_heads_and_patches_in_another_order_are_permuted_and_said() -> None:
    rows = {row["ours"]: row for row in adopted(build(ColumnsFirst)).rows.rows}
    assert rows["positions.table"]["columns_first"]
    assert rows["blocks.{i}.attention.qkv.{p}"]["op"] == "(d h) ... -> (h d) ..."
    assert rows["blocks.{i}.attention.out.weight"]["op"] == "o (d h) -> o (h d)"
    rows = {row["ours"]: row for row in adopted(build(Gated)).rows.rows}
    gate = ["layers.{i}.w1.weight", "layers.{i}.w3.weight"]
    assert rows["blocks.{i}.mlp.fc1.weight"]["theirs"] == gate
    assert rows["blocks.{i}.attention.qkv.{p}"]["op"] == "(d h qkv) ... -> (qkv h d) ..."


def test_rows_of_another_order_are_proved(tmp_path: Path) -> None:
    """The rows that adoption wrote, read again and compared with the module."""
    for kind in (ColumnsFirst, Gated):
        module = build(kind)
        match = adopted(module)
        (tmp_path / "rows.yaml").write_text(to_yaml(match.rows, "x", match.how), encoding="utf-8")
        rows = read_rows(tmp_path / "rows.yaml")
        again = match_module(module, {}, noise, source="m", origin="m", rows=rows)
        assert again.proof is not None
        assert again.proof.points == match.proof.points  # type: ignore[union-attr]


def test_a_gate_of_another_kind_is_refused_in_one_sentence() -> None:
    """A bare file by words and order; GEGLU is none of ours."""
    match = bare(build(Gated), heads=2, image_size=(32, 32))
    assert "assumed: silu is applied to layers.{i}.w1" in match.assumed
    with pytest.raises(UserError, match=r"three matrices and the activation gelu, but .*SwiGLU"):
        bare(build(Gated), heads=2, activation="gelu")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*STYLES, *(kind.__name__ for kind in UNUSUAL)])
def test_the_rows_write_the_names_back(name: str, tmp_path: Any) -> None:
    """Through YAML, as a person would keep them, and to the bit."""
    kinds = {kind.__name__: kind for kind in UNUSUAL}
    module = build(kinds[name]) if name in kinds else STYLES[name].build()
    match = adopted(module)
    (tmp_path / "rows.yaml").write_text(to_yaml(match.rows, name, match.how), encoding="utf-8")
    rows = read_rows(tmp_path / "rows.yaml")
    assert rows == match.rows
    state = match.checkpoint.state
    theirs = write(rows.dialect().table, state, match.checkpoint.config, where="mine")
    dropped = {name for name, _ in match.checkpoint.coverage.dropped}
    wanted = {n: t for n, t in module.state_dict().items() if n not in dropped}
    assert {n: t for n, t in theirs.items() if n in wanted}.keys() == wanted.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in wanted.items())


def renamed(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """The state dict with random names for every module, where numbers stay."""
    letters, names = random.Random(seed), dict[str, str]()

    def other(word: str) -> str:
        if word.isdecimal() or word in ("weight", "bias"):
            return word
        fresh = "".join(letters.choice(string.ascii_lowercase) for _ in range(9))
        return names.setdefault(word, f"z{fresh}")

    return {
        ".".join(map(other, name.split("."))): tensor
        for name, tensor in module.state_dict().items()
    }


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([s for s in STYLES if "encoder" not in s and "multihead" not in s]),
       st.integers(0, 10**6))  # fmt: skip
def test_random_names_are_matched_by_shape_and_order(style: str, seed: int) -> None:
    module = STYLES[style].build()
    answers = {"heads": STYLES[style].config["heads"], **ANSWERS.get(style, {})}
    state = renamed(module, seed)
    match = match_file(Foreign("my.pth", state), answers, origin="my.pth")
    words = bare(module, **answers)
    assert match.checkpoint.config == words.checkpoint.config
    ours, wanted = match.checkpoint.state, words.checkpoint.state
    assert ours.keys() == wanted.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in wanted.items())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES)
def test_sorted_names_are_matched_by_words(style: str) -> None:
    """safetensors keeps no order."""
    module = STYLES[style].build()
    answers = {"heads": STYLES[style].config["heads"]}
    state = dict(sorted(module.state_dict().items()))
    match = match_file(Foreign("my.safetensors", state), answers, origin="my.safetensors")
    assert block_rows(match) == BLOCK_ROWS[style]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@torch.no_grad()
def test_load_adopts_a_module_in_memory(style: Style) -> None:
    module = style.build().double()
    model = load(module)
    torch.backends.mha.set_fastpath_enabled(False)
    theirs = module(IMAGES)
    torch.backends.mha.set_fastpath_enabled(True)
    assert float((model(IMAGES) - theirs).abs().max() / theirs.abs().max()) < 1e-9
    assert load(module, num_classes=3)(IMAGES).shape == (2, 3)


class Odd(nn.Module):
    """A ViT of another style whose third block computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = STYLES["fused_qkv"].build()
        block: Any = self.inner.blocks[2]  # type: ignore[index]
        block.attn.scale *= 2

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_the_first_block_and_operation_that_differ_are_named() -> None:
    with pytest.raises(UserError, match=r"blocks\.2: the attention .* differs first"):
        adopted(Odd())
    silu = STYLES["fused_qkv"].build()
    for block in silu.blocks:  # type: ignore[union-attr]
        block.mlp.act = nn.SiLU()
    with pytest.raises(UserError, match=r"blocks\.0: the activation of the MLP.* differs first"):
        adopted(silu)


def test_loading_a_module_that_computes_something_else_is_refused() -> None:
    with pytest.raises(UserError):
        load(Odd())


def resnet() -> dict[str, Tensor]:
    def conv(*shape: int) -> Tensor:
        return torch.zeros(*shape)

    state = {"conv1.weight": conv(8, 3, 7, 7), "bn1.weight": conv(8), "bn1.running_mean": conv(8)}
    for layer in range(1, 3):
        for block in range(2):
            for part in (1, 2):
                state[f"layer{layer}.{block}.conv{part}.weight"] = conv(8, 8, 3, 3)
                state[f"layer{layer}.{block}.bn{part}.running_mean"] = conv(8)
    return state | {"fc.weight": conv(10, 8), "fc.bias": conv(10)}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (resnet(), "this is a resnet of the torchvision-resnet dialect"),
        ({"lstm.weight_ih_l0": torch.zeros(4, 4)}, "a recurrent network"),
        ({"a.weight": torch.zeros(4, 4)}, "no repeated block with attention"),
        ({}, "no repeated block"),
    ],
)
def test_what_is_no_vit_is_refused_with_the_nearest_family(
    state: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        match_file(Foreign("my.pth", state), {"heads": 1}, origin="my.pth")


def test_a_file_that_is_half_matched_lists_both_sides() -> None:
    state = dict(STYLES["fused_qkv"].build().state_dict())
    del state["blocks.1.mlp.fc2.bias"]
    state["blocks.1.mlp.extra"] = torch.zeros(3, 5, 7)
    with pytest.raises(UserError):
        match_file(Foreign("my.pth", state), {"heads": 4}, origin="my.pth")
    state = dict(STYLES["fused_qkv"].build().state_dict())
    state["decoder.table"] = torch.zeros(3, 5, 7)
    with pytest.raises(UserError, match=r"1 tensors that no row reads \(decoder\.table\)"):
        match_file(Foreign("my.pth", state), {"heads": 4}, origin="my.pth")
