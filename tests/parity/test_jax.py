"""Google's JAX files: against timm's reader, and against numpy that reads them as they lie."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.std_conv import StdConv2dSame
from timm.models import VisionTransformer
from timm.models.resnetv2 import ResNetV2
from torch import Tensor, nn

from tests.parity.compare import assert_identical, assert_same, close, images, shaken
from vitrail import load, save
from vitrail.core.errors import UserError
from vitrail.models.catalogue import build
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViTConfig
from vitrail.weights.convert import convert
from vitrail.weights.load import open_checkpoint

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float64]]]

SMALL = ViTConfig(
    dim=48, depth=3, heads=4, mlp_dim=80, patch_size=8, image_size=(32, 32), num_classes=7,
    activation="gelu_tanh",
)  # fmt: skip
GAP: dict[str, Any] = {"class_token": False, "pool": "mean"}
STEM = ResNetConfig(blocks=(1, 2), width=32)


def written(config: ViTConfig, out: Path, to: str) -> nn.Module:
    """A random model of ours, written in a dialect."""
    model = shaken(build(config))
    with torch.no_grad():
        for parameter in model.parameters():  # timm's reader rounds the first kernel to float32
            parameter.copy_(parameter.float())
    save(model, out.parent / "native")
    convert(out.parent / "native", out, to=to)
    return model


def read_npz(path: Path) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in np.load(path).items()}


# timm reads what we write


def timm_vit(config: ViTConfig, **arguments: Any) -> nn.Module:
    return VisionTransformer(
        img_size=config.image_size, patch_size=config.patch_size, embed_dim=config.dim,
        depth=config.depth, num_heads=config.heads, mlp_ratio=(config.mlp_dim + 0.5) / config.dim,
        num_classes=config.num_classes, act_layer="gelu_tanh", **arguments,
    )  # fmt: skip


MEAN = {"class_token": False, "global_pool": "avg", "fc_norm": False}
READ: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit_jax": ("vit_jax", {}, {}),
    "vit_jax, mean": ("vit_jax", GAP, MEAN),
    "big_vision, mean": ("big_vision", GAP, MEAN),
    "big_vision": ("big_vision", {"prefix_positions": 0}, {"no_embed_class": True}),
    "big_vision, position of the class token": ("big_vision", {}, {}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", READ)
def test_timm_reads_what_we_write(kind: str, tmp_path: Path) -> None:
    dialect, fields, arguments = READ[kind]
    config = replace(SMALL, **fields)
    ours = written(config, tmp_path / "ours.npz", dialect)
    peer = timm_vit(config, **arguments).double().eval()
    peer.load_pretrained(str(tmp_path / "ours.npz"))  # type: ignore[operator]
    assert_same(ours, peer, images(3, 32, 32), blocks=(ours.blocks, peer.blocks))  # type: ignore[arg-type]

    again = load(tmp_path / "ours.npz")
    assert again.config == config
    assert again.passport.origin.dialect == dialect
    assert_identical(again.state_dict(), ours.state_dict())


@pytest.mark.parametrize(
    ("name", "dim", "blocks", "patch_size"),
    [
        ("vit_tiny_r_s16_p8_224", 192, (), 8),
        pytest.param("vit_small_r26_s32_224", 384, (2, 2, 2, 2), 1, marks=pytest.mark.slow),
    ],
)
def test_timm_reads_the_hybrids_we_write(
    name: str, dim: int, blocks: tuple[int, ...], patch_size: int, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"img_size": 64, "depth": 2, "act_layer": "gelu_tanh"}
    peer = timm.create_model(name, num_classes=5, **arguments).double().eval()
    config = ViTConfig(
        dim=dim, depth=2, heads=dim // 64, mlp_dim=4 * dim, patch_size=patch_size,
        image_size=(64, 64), num_classes=5, activation="gelu_tanh",
        stem=ResNetConfig(blocks=blocks),
    )  # fmt: skip
    assert_timm_reads(config, peer, tmp_path)


def test_timm_reads_a_narrow_hybrid_that_we_write(tmp_path: Path) -> None:
    """Blocks that stay and blocks that halve, as the published ones have, and no more of them."""
    config = replace(SMALL, stem=replace(STEM, blocks=(2, 1)), patch_size=1)
    backbone = ResNetV2(
        layers=(2, 1), channels=(128, 256), stem_chs=32, num_classes=0, global_pool="",
        preact=False, stem_type="same", conv_layer=partial(StdConv2dSame, eps=1e-8),
    )  # fmt: skip
    embed = partial(HybridEmbed, backbone=backbone)
    peer = timm_vit(config, embed_layer=embed).double().eval()
    assert_timm_reads(config, peer, tmp_path)


def assert_timm_reads(config: ViTConfig, peer: nn.Module, tmp_path: Path) -> None:
    """timm standardises by another formula; our model is switched to it, with the same tensors."""
    written(config, tmp_path / "hybrid.npz", "vit_jax")
    peer.load_pretrained(str(tmp_path / "hybrid.npz"))  # type: ignore[operator]

    opened = open_checkpoint(tmp_path / "hybrid.npz")
    assert opened.config == config
    assert opened.config.stem is not None
    as_timm = replace(opened.config.stem, standardize="timm", norm_eps=1e-5)
    ours = build(replace(opened.config, stem=as_timm)).double().eval()
    ours.load_state_dict(opened.state)
    image = images(3, *config.image_size)
    assert_same(ours, peer, image, blocks=(ours.blocks, peer.blocks))  # type: ignore[arg-type]


# numpy reads a file as its layout is described: kernels (D, heads, d) in and (heads, d, D) out


def handmade(
    names: tuple[str, str, str],
    positions: str | None,
    *,
    cls: bool,
    slots: int,
    hidden: bool = True,
) -> Arrays:
    """Random arrays: width 12, 3 heads of 4, MLP 20, 2x3 patches of 4x4 pixels and 2 channels."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}

    def put(name: str, *shape: int) -> None:
        arrays[name] = rng.normal(size=shape) * 0.3

    attention, norm, mlp = names
    put("embedding/kernel", 4, 4, 2, 12)
    put("embedding/bias", 12)
    if cls:
        put("cls", 1, 1, 12)
    if positions:
        put(positions, 1, slots + 6, 12)
    for at in ("Transformer/encoderblock_0/", "Transformer/encoderblock_1/"):
        for part in ("query", "key", "value"):
            put(f"{at}{attention}/{part}/kernel", 12, 3, 4)
            put(f"{at}{attention}/{part}/bias", 3, 4)
        put(f"{at}{attention}/out/kernel", 3, 4, 12)
        put(f"{at}{attention}/out/bias", 12)
        put(f"{at}{mlp}/Dense_0/kernel", 12, 20)
        put(f"{at}{mlp}/Dense_0/bias", 20)
        put(f"{at}{mlp}/Dense_1/kernel", 20, 12)
        put(f"{at}{mlp}/Dense_1/bias", 12)
        for layer in ("LayerNorm_0", norm):
            put(f"{at}{layer}/scale", 12)
            put(f"{at}{layer}/bias", 12)
    put("Transformer/encoder_norm/scale", 12)
    put("Transformer/encoder_norm/bias", 12)
    if hidden:
        put("pre_logits/kernel", 12, 12)
        put("pre_logits/bias", 12)
    put("head/kernel", 12, 5)
    put("head/bias", 5)
    return arrays


def restated(
    w: Arrays, names: tuple[str, str, str], positions: str | None, image: Tensor
) -> Tensor:
    """The forward pass on their arrays, in numpy, without a transpose between file and formula."""
    attention, norm, mlp = names

    def normed(x: Any, at: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * w[at + "/scale"] + w[at + "/bias"]
        )

    def dense(x: Any, at: str) -> Any:
        return x @ w[at + "/kernel"] + w[at + "/bias"]

    def attended(x: Any, at: str) -> Any:
        q, k, v = (
            np.einsum("bnD,Dhd->bnhd", x, w[f"{at}/{part}/kernel"]) + w[f"{at}/{part}/bias"]
            for part in ("query", "key", "value")
        )
        weights = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(4))
        weights /= weights.sum(-1, keepdims=True)
        read = np.einsum("bhqk,bkhd->bqhd", weights, v)
        return np.einsum("bqhd,hdD->bqD", read, w[at + "/out/kernel"]) + w[at + "/out/bias"]

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    pixels = image.numpy().transpose(0, 2, 3, 1).reshape(2, 2, 4, 3, 4, 2)
    x = np.einsum("bypxqc,pqcD->byxD", pixels, w["embedding/kernel"]).reshape(2, 6, 12)
    x = x + w["embedding/bias"]
    table = w[positions] if positions else sincos(2, 3, 12)
    if table.shape[1] == 6:  # positions are the patches': added before the class token comes
        x = x + table
    if "cls" in w:
        x = np.concatenate([np.repeat(w["cls"], 2, axis=0), x], axis=1)
    if table.shape[1] == 7:
        x = x + table
    for at in ("Transformer/encoderblock_0/", "Transformer/encoderblock_1/"):
        x = x + attended(normed(x, at + "LayerNorm_0"), at + attention)
        y = gelu(dense(normed(x, at + norm), f"{at}{mlp}/Dense_0"))
        x = x + dense(y, f"{at}{mlp}/Dense_1")
    x = normed(x, "Transformer/encoder_norm")
    x = x[:, 0] if "cls" in w else x.mean(axis=1)
    if "pre_logits/kernel" in w:
        x = np.tanh(dense(x, "pre_logits"))
    return torch.from_numpy(dense(x, "head"))


def sincos(rows: int, columns: int, width: int) -> Any:
    """sin x, cos x, sin y, cos y, as MoCo v3 orders them."""
    y, x = (axis.reshape(-1, 1) for axis in np.mgrid[:rows, :columns])
    frequency = 1 / 10_000 ** (np.arange(width // 4) / (width // 4 - 1))
    parts = [
        np.sin(x * frequency),
        np.cos(x * frequency),
        np.sin(y * frequency),
        np.cos(y * frequency),
    ]
    return np.concatenate(parts, axis=1)[None]


def stacked(arrays: Arrays) -> Arrays:
    """The same blocks as one, along a first axis, which is how a scanned model keeps them."""
    first = "Transformer/encoderblock_0/"
    whole = {name: array for name, array in arrays.items() if "encoderblock_" not in name}
    for name in [name for name in arrays if name.startswith(first)]:
        blocks = [arrays[name], arrays[name.replace("_0/", "_1/", 1)]]
        whole["Transformer/encoderblock/" + name.removeprefix(first)] = np.stack(blocks)
    return whole


PUBLISHED = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
LINEN = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PAPER, NEW, OLD = (
    "Transformer/posembed_input/pos_embedding",
    "pos_embedding",
    "Transformer/pos_embedding",
)
# names, positions, class token, its slots; then the dialect that claims it, and where the tree lies
FORMS: dict[str, tuple[tuple[str, str, str], str | None, bool, int, str, str]] = {
    "published": (PUBLISHED, PAPER, True, 1, "vit_jax", ""),
    "published, mean": (PUBLISHED, PAPER, False, 0, "vit_jax", ""),
    "linen": (LINEN, PAPER, True, 1, "vit_jax", ""),
    "with its optimiser": (PUBLISHED, PAPER, True, 1, "vit_jax", "opt/target/"),
    "tower of vit_jax": (LINEN, PAPER, True, 1, "vit_jax", "img/"),
    "big_vision": (LINEN, NEW, True, 0, "big_vision", "params/"),
    "big_vision, mean": (LINEN, NEW, False, 0, "big_vision", "params/"),
    "big_vision, bare": (LINEN, NEW, False, 0, "big_vision", ""),
    "big_vision, tower": (LINEN, NEW, True, 0, "big_vision", "params/img/"),
    "big_vision, sines": (LINEN, None, False, 0, "big_vision", "params/"),
    "big_vision, old": (LINEN, OLD, True, 1, "big_vision", "opt/target/"),
    "big_vision, very old": (PUBLISHED, OLD, True, 1, "big_vision", "opt/target/"),
    "big_vision, stacked": (LINEN, NEW, True, 0, "big_vision", "params/"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", FORMS)
def test_equals_numpy_on_the_file_itself(kind: str, tmp_path: Path) -> None:
    names, positions, cls, slots, dialect, tree = FORMS[kind]
    arrays = handmade(names, positions, cls=cls, slots=slots)
    held = stacked(arrays) if "stacked" in kind else arrays
    np.savez(tmp_path / "form.npz", **{tree + name: array for name, array in held.items()})  # type: ignore[arg-type]
    ours = load(tmp_path / "form.npz", grid=(2, 3))
    assert ours.passport.origin.dialect == dialect
    assert (ours.config.heads, ours.config.head, ours.config.depth) == (3, "pretrain", 2)
    assert (ours.config.activation, ours.config.norm_eps) == ("gelu_tanh", 1e-6)
    image = images(2, 8, 12)
    close(ours(image), restated(arrays, names, positions, image))


# there and back


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dialect", ["vit_jax", "big_vision"])
@pytest.mark.parametrize(
    "fields",
    [
        {}, GAP, {"head": "pretrain"}, {"num_classes": 0}, {"channels": 1},
        {"stem": STEM, "patch_size": 1}, {"prefix_positions": 0},
        {"positions": "sincos2d"}, {"positions": "sincos2d", **GAP},
    ],
    ids=str,
)  # fmt: skip
def test_ours_there_and_back(dialect: str, fields: dict[str, Any], tmp_path: Path) -> None:
    config = replace(SMALL, **fields)
    alone = {"vit_jax": {"stem"}, "big_vision": {"prefix_positions", "positions"}}
    foreign = set.union(*(names for name, names in alone.items() if name != dialect))
    if foreign & fields.keys():
        with pytest.raises(UserError, match=f"the {dialect} dialect"):
            written(config, tmp_path / "there.npz", dialect)
        return
    ours = written(config, tmp_path / "there.npz", dialect)
    convert(tmp_path / "there.npz", tmp_path / "back", to="vitrail", grid=config.grid)
    back = load(tmp_path / "back")
    assert back.config == config
    assert_identical(back.state_dict(), ours.state_dict())
    again = load(tmp_path / "there.npz", grid=config.grid)
    close(again(images(config.channels, 32, 32)), ours(images(config.channels, 32, 32)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", FORMS)
def test_theirs_there_and_back(kind: str, tmp_path: Path) -> None:
    """Every form comes back as the form that is written, with the same bits."""
    names, positions, cls, slots, dialect, tree = FORMS[kind]
    arrays = handmade(names, positions, cls=cls, slots=slots, hidden=False)
    if positions:  # 6 patches are no square; these files are those of 4
        arrays[positions] = arrays[positions][:, : slots + 4]
    held = stacked(arrays) if "stacked" in kind else arrays
    np.savez(tmp_path / "form.npz", **{tree + name: array for name, array in held.items()})  # type: ignore[arg-type]
    convert(tmp_path / "form.npz", tmp_path / "native", to="vitrail", grid=(2, 2))
    convert(tmp_path / "native", tmp_path / "back.npz", to=dialect)

    newest, root = (PUBLISHED, "") if dialect == "vit_jax" else (LINEN, "params/")
    renamed = dict(zip(names, newest, strict=True))
    if dialect == "big_vision" and positions:
        renamed[positions] = NEW
    expected = {}
    for name, array in arrays.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        expected[root + name] = torch.from_numpy(array)
    assert_identical(read_npz(tmp_path / "back.npz"), expected)


def test_group_norms_of_old_and_new_shape(tmp_path: Path) -> None:
    written(replace(SMALL, stem=STEM, patch_size=1), tmp_path / "new.npz", "vit_jax")
    new = dict(np.load(tmp_path / "new.npz"))
    old = {
        name: array.reshape(1, 1, 1, -1) if "gn" in name.split("/")[-2] else array
        for name, array in new.items()
        if "/" in name
    }
    assert old["gn_root/scale"].shape == (1, 1, 1, 32)
    np.savez(tmp_path / "old.npz", **new | old)
    assert_identical(
        load(tmp_path / "old.npz").state_dict(), load(tmp_path / "new.npz").state_dict()
    )
    convert(tmp_path / "old.npz", tmp_path / "again.npz", to="vit_jax")
    assert_identical(read_npz(tmp_path / "again.npz"), read_npz(tmp_path / "new.npz"))


# what travels along, what is left behind


def test_facts_of_the_papers_code(tmp_path: Path) -> None:
    written(replace(SMALL, stem=STEM, patch_size=1), tmp_path / "hybrid.npz", "vit_jax")
    model = load(tmp_path / "hybrid.npz", image_size=64)
    assert model.config.stem == STEM
    assert (STEM.standardize, STEM.norm_eps) == ("jax", 1e-6)
    before = model.passport.preprocessing
    assert (before.size, before.resize, before.interpolation) == ((64, 64), None, "bilinear")
    assert before.mean == before.std == (0.5, 0.5, 0.5)
    assert "positions resized from 4x4 to 8x8 (paper)" in model.passport.origin.changes


@pytest.mark.slow
def test_facts_of_big_vision(tmp_path: Path) -> None:
    config = ViTConfig(dim=192, depth=12, heads=3, mlp_dim=768, activation="gelu_tanh", **GAP)
    written(replace(config, positions="sincos2d"), tmp_path / "sines.npz", "big_vision")
    model = load(tmp_path / "sines.npz")
    assert model.config == replace(config, positions="sincos2d")
    assert model.passport.preprocessing.resize == (256, 256)
    assert any("sines and cosines" in sentence for sentence in model.passport.origin.changes)
    assert load(tmp_path / "sines.npz", image_size=384).passport.resize == "paper"


def test_an_empty_classifier_is_reported(tmp_path: Path) -> None:
    arrays = handmade(PUBLISHED, PAPER, cls=True, slots=1)
    arrays["head/kernel"] *= 0
    np.savez(tmp_path / "i21k.npz", **arrays)  # type: ignore[arg-type]
    model = load(tmp_path / "i21k.npz", grid=(2, 3))
    assert any("all zero" in sentence for sentence in model.passport.origin.changes)


def test_what_lies_beside_the_image_tower_is_dropped_for_a_reason(tmp_path: Path) -> None:
    arrays = handmade(LINEN, NEW, cls=False, slots=0)
    beside = {
        "params/txt/Embed_0/embedding": np.zeros((9, 12)),
        "params/t": np.zeros(1),
        "params/b": np.zeros(1),
        "opt/0/mu/img/cls": np.zeros((1, 1, 12)),
        "opt/0/count": np.array(7),
        "chrono/accum_train_time": np.array(1.5),
    }
    tower = {"params/img/" + name: array for name, array in arrays.items()}
    np.savez(tmp_path / "pair.npz", **tower | beside)
    opened = open_checkpoint(tmp_path / "pair.npz", grid=(2, 3))
    assert {name for name, _ in opened.coverage.dropped} == beside.keys()
    assert all(why for _, why in opened.coverage.dropped)
    assert opened.passport.preprocessing.resize is None


# what a person gets wrong


def without(name: str) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        for found in [key for key in arrays if key.startswith(name)]:
            del arrays[found]

    return change


def put(name: str, *shape: int) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: np.zeros(shape)})


BLOCK = "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/"
WRONG: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "other heads in one block": (
        put(BLOCK.format(1) + "query/kernel", 12, 6, 2),
        r"of shape \(12, 6, 2\), .* does not fit blocks.1.attention.qkv.weight: .* with h=3",
    ),
    "heads of the output": (
        put(BLOCK.format(0) + "out/kernel", 4, 3, 12),
        r"out/kernel of shape \(4, 3, 12\) does not fit",
    ),
    "heads flattened": (
        put(BLOCK.format(0) + "query/kernel", 12, 12),
        r"query/kernel has the shape \(12, 12\), expected 3 axes",
    ),
    "no first block": (without("Transformer/encoderblock_0"), r"blocks\.0\..* is missing"),
    "half a block": (
        without("Transformer/encoderblock_1/MlpBlock_3"),
        "4 tensors of the model missing.*blocks.1.mlp.fc1.weight",
    ),
    "no positions": (without("Transformer/posembed_input"), "posembed_input.* is missing"),
    "an extra key": (put("Transformer/surprise", 3), r"no row reads \(Transformer/surprise\)"),
    "a third block without a second": (
        put("Transformer/encoderblock_3/LayerNorm_0/scale", 12),
        "no row reads .Transformer/encoderblock_3/LayerNorm_0/scale",
    ),
    "wide hidden head": (
        put("pre_logits/kernel", 12, 24),
        r"head.hidden.weight the shape \(24, 12\), expected \(12, 12\)",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_file_gets_one_sentence(mistake: str, tmp_path: Path) -> None:
    change, sentence = WRONG[mistake]
    arrays = handmade(PUBLISHED, PAPER, cls=True, slots=1)
    change(arrays)
    np.savez(tmp_path / "wrong.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence) as caught:
        load(tmp_path / "wrong.npz", grid=(2, 3))
    assert "\n" not in str(caught.value)


def test_other_heads_than_the_file_has_are_refused(tmp_path: Path) -> None:
    written(SMALL, tmp_path / "four.npz", "vit_jax")
    with pytest.raises(UserError, match="heads is 4 in the trained weights and cannot become 6"):
        load(tmp_path / "four.npz", heads=6)


@pytest.mark.parametrize("key", ["params/img/MAPHead_0/probe", "params/img/probe"])
def test_attention_pooling_is_refused(key: str, tmp_path: Path) -> None:
    arrays = handmade(LINEN, NEW, cls=False, slots=0)
    tower = {"params/img/" + name: array for name, array in arrays.items()}
    np.savez(tmp_path / "siglip.npz", **tower | {key: np.zeros((1, 1, 12))})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"pools by attention \(MAPHead\)"):
        load(tmp_path / "siglip.npz", grid=(2, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dialect", "fields", "why"),
    [
        ("vit_jax", {"image_size": (32, 48)}, "square grids only"),
        ("big_vision", {"image_size": (32, 48)}, "square grids only"),
        ("vit_jax", {"prefix_positions": 0}, "a position for the class token"),
        ("vit_jax", {"pool": "mean"}, "reads the class token"),
        ("big_vision", {"pool": "mean"}, "reads the class token"),
        ("vit_jax", {"stem": replace(STEM, groups=8), "patch_size": 1}, "norms in 32 groups"),
        ("vit_jax", {"activation": "swiglu"}, "has no gated MLP"),
        ("big_vision", {"activation": "swiglu"}, "has no gated MLP"),
        ("vit_jax", {"registers": 2}, "does not support registers=2"),
        ("big_vision", {"positions": "none"}, "does not support positions='none'"),
    ],
)
def test_what_a_dialect_cannot_hold_is_not_written(
    dialect: str, fields: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why):
        written(replace(SMALL, **fields), tmp_path / "ours.npz", dialect)
    assert not (tmp_path / "ours.npz").exists()
