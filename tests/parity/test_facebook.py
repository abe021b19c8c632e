"""deit, dino, dinov2 and mae: their files through our rows and back, beside timm and HF."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers.mlp import SwiGLUPacked
from timm.models import VisionTransformer
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
)

from tests.parity.compare import assert_identical, assert_same, images, shaken
from vitrail import UserError, load
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import facebook, recognise
from vitrail.weights.files import read_tensors
from vitrail.weights.load import open_checkpoint

SMALL: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 4, "num_classes": 7,
}  # fmt: skip
FACEBOOK = (facebook.DEIT, facebook.DINO, facebook.DINOV2, facebook.MAE)
State = dict[str, Tensor]


def read_by_timm(path: Path, peer: nn.Module) -> nn.Module:
    """A fresh copy of timm's model, from the file that we wrote, through timm's own loader."""
    peer = peer.double().eval()
    state = torch.load(path, weights_only=True)
    peer.load_state_dict(checkpoint_filter_fn(state, peer, adapt_layer_scale=True))
    return peer


def there_and_back(source: Path, dialect: str | None, to: str, **said: Any) -> Path:
    """The file that comes out when ours stands between two of theirs."""
    native, back = source.parent / "native", source.parent / "back.pth"
    convert(source, native, to="vitrail", dialect=dialect, changes={"heads": 4, **said})
    convert(native, back, to=to)
    return back


def deit_state(peer: nn.Module) -> State:
    return {re.sub(r"ls(\d)\.gamma", r"gamma_\1", k): t for k, t in peer.state_dict().items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "arguments", "dialect"),
    [
        (VisionTransformer, {}, "deit"),
        (VisionTransformer, {"qkv_bias": False}, "deit"),
        (VisionTransformerDistilled, {}, "deit"),
        (VisionTransformer, {"init_values": 0.1, "no_embed_class": True}, None),
    ],
    ids=["DeiT", "without qkv bias", "distilled", "DeiT III"],
)
def test_deit(
    kind: type[nn.Module], arguments: dict[str, Any], dialect: str | None, tmp_path: Path
) -> None:
    peer = shaken(kind(**SMALL | arguments))
    source = tmp_path / "deit.pth"
    torch.save({"model": deit_state(peer)}, source)

    ours = load(source, dialect=dialect, heads=4)
    assert ours.passport.origin.dialect == "deit"
    assert_same(ours, peer, images(3, 32, 32), blocks=(ours.blocks, peer.blocks))  # type: ignore[arg-type]

    back = there_and_back(source, dialect, "deit")
    assert torch.load(back, weights_only=True).keys() == {"model"}
    assert_identical(read_tensors(back), deit_state(peer))
    theirs = read_by_timm(back, kind(**SMALL | arguments))
    assert_same(ours, theirs, images(3, 32, 32))


def test_dino_backbone(tmp_path: Path) -> None:
    peer = shaken(VisionTransformer(**SMALL | {"num_classes": 0}))
    source = tmp_path / "dino.pth"
    torch.save(peer.state_dict(), source)

    ours = load(source, dialect="dino", heads=4)
    assert_same(ours, peer, images(3, 32, 32), blocks=(ours.blocks, peer.blocks))  # type: ignore[arg-type]

    back = there_and_back(source, "dino", "dino")
    assert_identical(read_tensors(back), peer.state_dict())
    theirs = read_by_timm(back, VisionTransformer(**SMALL | {"num_classes": 0}))
    assert_same(ours, theirs, images(3, 32, 32))


@pytest.mark.parametrize("prefix", ["backbone.", "module.backbone."])
def test_dino_training_run(prefix: str, tmp_path: Path) -> None:
    """The teacher's backbone is taken, its projection head left for a reason."""
    peer = shaken(VisionTransformer(**SMALL | {"num_classes": 0}))
    head = prefix.replace("backbone", "head")
    teacher = {prefix + name: tensor for name, tensor in peer.state_dict().items()}
    teacher |= {f"{head}mlp.0.weight": torch.ones(8, 48), f"{head}mlp.0.bias": torch.ones(8)}
    teacher |= {f"{head}last_layer.weight_{letter}": torch.ones(9, 8) for letter in "gv"}
    student = {f"module.{name}": tensor + 1 for name, tensor in teacher.items()}
    source = tmp_path / "checkpoint.pth"
    args = argparse.Namespace(arch="vit_small", patch_size=8)
    torch.save({"student": student, "teacher": teacher, "epoch": 3, "args": args}, source)

    opened = open_checkpoint(source, overrides={"heads": 4})
    assert opened.dialect == "dino"
    assert {name for name, _ in opened.coverage.dropped} == {
        "head.mlp.0.weight",
        "head.mlp.0.bias",
        "head.last_layer.weight_g",
        "head.last_layer.weight_v",
    }
    assert {why for _, why in opened.coverage.dropped} == {facebook.PROJECTED}
    assert_same(load(source, heads=4), peer, images(3, 32, 32))
    assert_identical(read_tensors(there_and_back(source, None, "dino")), peer.state_dict())


HF_TO_DINOV2 = (
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.(cls|mask)_token", r"\1_token"),
    (r"embeddings\.register_tokens", "register_tokens"),
    (r"encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"attention\.o_proj", "attn.proj"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"mlp\.down_proj", "mlp.w3"),
    (r"layernorm\.", "norm."),
)


def dinov2_state(peer: nn.Module) -> State:
    """A transformers model under the names of dinov2's own code, in reading order."""
    state: State = {}
    joined: dict[str, dict[str, Tensor]] = {}
    for name, tensor in peer.state_dict().items():
        for theirs, plain in HF_TO_DINOV2:
            name = re.sub(theirs, plain, name)
        if part := re.search(r"attention\.([qkv])_proj|mlp\.(gate|up)_proj", name):
            whole = "attn.qkv" if part[1] else "mlp.w12"
            joined.setdefault(name.replace(part[0], whole), {})[part[0]] = tensor
        else:
            state[name] = tensor
    order = [f"attention.{letter}_proj" for letter in "qkv"] + ["mlp.gate_proj", "mlp.up_proj"]
    for name, parts in joined.items():
        state[name] = torch.cat([parts[part] for part in order if part in parts])
    return state


def dinov2_peer(kind: str) -> nn.Module:
    arguments: dict[str, Any] = {
        "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 32,
        "patch_size": 8, "use_swiglu_ffn": kind == "giant",
    }  # fmt: skip
    if kind == "registers":
        config = Dinov2WithRegistersConfig(**arguments, num_register_tokens=3)
        return shaken(Dinov2WithRegistersModel(config))
    return shaken(Dinov2Model(Dinov2Config(**arguments)))


def dinov2_timm(kind: str) -> VisionTransformer:
    arguments = SMALL | {"num_classes": 0, "init_values": 1e-5}
    if kind == "registers":
        arguments |= {"reg_tokens": 3, "no_embed_class": True}
    if kind == "giant":
        arguments |= {"mlp_layer": SwiGLUPacked, "mlp_ratio": 256 / 48, "act_layer": nn.SiLU}
    return VisionTransformer(**arguments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "registers", "giant"])
def test_dinov2(kind: str, tmp_path: Path) -> None:
    peer = dinov2_peer(kind)
    state = dinov2_state(peer)
    source = tmp_path / "dinov2.pth"
    torch.save(state, source)

    opened = open_checkpoint(source, overrides={"heads": 4})
    assert opened.dialect == "dinov2"
    assert opened.coverage.dropped == [("mask_token", facebook.MASKED)]
    ours = load(source, heads=4)
    assert_same(
        ours,
        peer,
        images(3, 32, 32),
        blocks=(ours.blocks, peer.encoder.layer),  # type: ignore[arg-type, union-attr]
        mine=lambda model, x: model.encode(x),
        call=lambda model, x: model(x).last_hidden_state,
    )

    back = read_tensors(there_and_back(source, None, "dinov2"))
    assert_identical(back, state | {"mask_token": torch.zeros(1, 48, dtype=torch.float64)})
    assert_same(ours, read_by_timm(tmp_path / "back.pth", dinov2_timm(kind)), images(3, 32, 32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block_chunks", [1, 2, 4])
def test_dinov2_training_run(block_chunks: int, tmp_path: Path) -> None:
    """A teacher whose blocks are wrapped in chunks, beside the heads that trained it."""
    peer = dinov2_peer("plain")
    size = 4 // block_chunks
    teacher = {
        "dino_head.last_layer.weight_v": torch.ones(2),
        "ibot_head.mlp.0.bias": torch.ones(2),
    }
    for name, tensor in dinov2_state(peer).items():
        place = re.sub(r"blocks\.(\d)\.", lambda m: f"blocks.{int(m[1]) // size}.{m[1]}.", name)
        teacher[f"backbone.{place}"] = tensor
    source = tmp_path / "teacher_checkpoint.pth"
    torch.save({"teacher": teacher}, source)

    opened = open_checkpoint(source, overrides={"heads": 4})
    assert opened.dialect == "dinov2"
    assert dict(opened.coverage.dropped) == {
        "backbone.mask_token": facebook.MASKED,
        "dino_head.last_layer.weight_v": facebook.PROJECTED,
        "ibot_head.mlp.0.bias": facebook.PROJECTED,
    }
    plain = tmp_path / "plain.pth"
    torch.save(dinov2_state(peer), plain)
    assert_identical(opened.state, open_checkpoint(plain, overrides={"heads": 4}).state)


@pytest.mark.parametrize("registers", [0, 3])
def test_dinov2_resizes_as_it_was_evaluated(registers: int, tmp_path: Path) -> None:
    source = tmp_path / "dinov2.pth"
    torch.save(dinov2_state(dinov2_peer("registers" if registers else "plain")), source)
    ours = load(source, heads=4, image_size=48)
    method = "dinov2_registers" if registers else "dinov2"
    assert ours.passport.resize == method
    assert f"positions resized from 4x4 to 6x6 ({method})" in ours.passport.origin.changes


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_mae_fine_tuned(pool: str, tmp_path: Path) -> None:
    arguments = SMALL | {"global_pool": pool}
    peer = shaken(VisionTransformer(**arguments))
    source = tmp_path / "mae.pth"
    torch.save({"model": peer.state_dict(), "epoch": 99}, source)

    ours = load(source, dialect="mae", heads=4)
    assert (ours.config.pool, ours.config.final_norm) == (
        ("mean", "pooled") if pool == "avg" else ("cls", "tokens")
    )
    assert_same(ours, peer, images(3, 32, 32), blocks=(ours.blocks, peer.blocks))  # type: ignore[arg-type]

    back = there_and_back(source, "mae", "mae")
    assert torch.load(back, weights_only=True).keys() == {"model"}
    assert_identical(read_tensors(back), peer.state_dict())
    assert_same(ours, read_by_timm(back, VisionTransformer(**arguments)), images(3, 32, 32))


def mae_decoder() -> State:
    return {
        "mask_token": torch.ones(1, 1, 16),
        "decoder_pos_embed": torch.ones(1, 17, 16),
        "decoder_embed.weight": torch.ones(16, 48),
        "decoder_blocks.0.attn.qkv.weight": torch.ones(48, 16),
        "decoder_pred.bias": torch.ones(192),
    }


def test_mae_pre_trained(tmp_path: Path) -> None:
    peer = shaken(VisionTransformer(**SMALL | {"num_classes": 0}))
    source = tmp_path / "mae.pth"
    torch.save({"model": peer.state_dict() | mae_decoder()}, source)

    opened = open_checkpoint(source, overrides={"heads": 4})
    assert opened.dialect == "mae"
    assert dict(opened.coverage.dropped) == dict.fromkeys(mae_decoder(), facebook.REBUILT) | {
        "mask_token": facebook.MASKED
    }
    assert_same(load(source, heads=4), peer, images(3, 32, 32))
    assert_identical(read_tensors(there_and_back(source, None, "mae")), peer.state_dict())


def files() -> dict[str, State]:
    """One file of each kind, and whose it is by its names alone."""
    plain = VisionTransformer(**SMALL | {"num_classes": 0}).state_dict()
    scaled = VisionTransformer(**SMALL | {"init_values": 0.1, "no_embed_class": True})
    v2, giant, registers = (
        dinov2_state(dinov2_peer(kind)) for kind in ("plain", "giant", "registers")
    )
    unmasked = {name: t for name, t in registers.items() if name != "mask_token"}
    return {
        "timm: a bare backbone": plain,
        "timm: a scaled one": scaled.state_dict(),
        "deit: DeiT III": deit_state(scaled),
        "dino: a training run": {f"backbone.{name}": t for name, t in plain.items()},
        "dinov2: plain": v2,
        "dinov2: giant": giant,
        "dinov2: registers": registers,
        "dinov2: registers alone": unmasked,
        "dinov2: a training run": {f"backbone.{name}": t for name, t in v2.items()},
        "mae: pre-trained": plain | mae_decoder(),
    }


def test_every_file_is_recognised() -> None:
    """Plain names are those of all four and of timm, which comes before them."""
    for name, state in files().items():
        foreign = Foreign(name, state)
        expected = name.partition(":")[0]
        claimed = [dialect.name for dialect in FACEBOOK if dialect.claims(foreign)]
        assert expected == "timm" or expected in claimed
        assert recognise(foreign).name == expected


@pytest.mark.parametrize("prefix", ["", "module.linear."])
def test_a_linear_head_alone_is_refused(prefix: str, tmp_path: Path) -> None:
    source = tmp_path / "dinov2_vits14_linear_head.pth"
    torch.save({f"{prefix}weight": torch.ones(10, 96), f"{prefix}bias": torch.ones(10)}, source)
    with pytest.raises(UserError, match="a linear head alone: load the file of its backbone"):
        load(source)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("to", "changes", "why"),
    [
        ("deit", {"image_size": (32, 16)}, "square grids only"),
        ("dinov2", {}, "has no head: give num_classes=0"),
        ("mae", {"pool": "mean"}, "norm after mean pooling"),
        ("dino", {"activation": "swiglu"}, "cannot become|no gated MLP"),
    ],
)
def test_what_their_code_cannot_compute_is_not_written(
    to: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    torch.save(VisionTransformer(**SMALL).state_dict(), tmp_path / "vit.pth")
    with pytest.raises(UserError, match=why):
        convert(
            tmp_path / "vit.pth",
            tmp_path / "out.pth",
            to=to,
            grid=(4, 4),
            changes={"heads": 4, **changes},
        )
    assert not (tmp_path / "out.pth").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dialect", "side", "resize"),
    [
        ("deit", 224, 256),
        ("deit", 384, 384),
        ("dino", 224, 256),
        ("mae", 224, 256),
        ("mae", 448, 448),
    ],
)
def test_preprocessing(dialect: str, side: int, resize: int, tmp_path: Path) -> None:
    arguments = SMALL | {"img_size": side, "patch_size": 32, "depth": 1}
    torch.save(VisionTransformer(**arguments).state_dict(), tmp_path / "vit.pth")
    before = load(tmp_path / "vit.pth", dialect=dialect, heads=4).passport.preprocessing
    assert (before.size, before.resize) == ((side, side), (resize, resize))
    assert (before.interpolation, before.mean[0], before.std[0]) == ("bicubic", 0.485, 0.229)
