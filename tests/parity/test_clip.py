"""CLIP's image towers through our rows and back: OpenAI's, OpenCLIP's and transformers'."""

import json
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.model import _build_vision_tower
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, CLIPVisionModelWithProjection

from tests.parity.compare import assert_identical, assert_same, close, images, shaken
from vitrail import load
from vitrail.core.errors import UserError
from vitrail.core.passport import CLIP_MEAN, CLIP_STD, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import DIALECTS
from vitrail.weights.dialects.clip import OPEN_CLIP, OPENAI_CLIP
from vitrail.weights.files import read_foreign
from vitrail.weights.load import open_checkpoint

WIDE = (32, 48)
VISION: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "layers": 3, "width": 128, "head_width": 64,
    "mlp_ratio": 4.0,
}  # fmt: skip
TEXT: dict[str, Any] = {"context_length": 8, "vocab_size": 30, "width": 64, "heads": 1, "layers": 2}

# vision_cfg, quick_gelu
KINDS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, False),
    "quick gelu": ({}, True),
    "not square": ({"image_size": WIDE}, False),
    "layer scale": ({"ls_init_value": 0.1}, False),
    "wider heads": ({"head_width": 32, "mlp_ratio": 4.9231}, True),
    "mean pooling": ({"pool_type": "avg"}, False),
    "mean pooling, then the norm": ({"pool_type": "avg", "final_ln_after_pool": True}, False),
    "no norm before the blocks": ({"no_ln_pre": True}, False),
    "tanh gelu": ({"act_kwargs": {"approximate": "tanh"}}, False),
    "another eps": ({"norm_kwargs": {"eps": 1e-3}}, False),
}


def build(vision: dict[str, Any], quick: bool = False) -> nn.Module:
    """OpenCLIP's own image tower for a vision_cfg."""
    return _build_vision_tower(20, dict(vision), quick_gelu=quick)


def named(tensors: dict[str, Tensor], prefix: str = "visual.") -> dict[str, Tensor]:
    return {prefix + name: tensor.contiguous() for name, tensor in tensors.items()}


def unnamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("visual."): tensor for name, tensor in tensors.items()}


def bare(path: Path) -> dict[str, Tensor]:
    return unnamed(load_file(path))


def write_open(folder: Path, peer: nn.Module, vision: dict[str, Any], **model: Any) -> Path:
    """A directory as OpenCLIP pushes it to the hub, without the text tower."""
    folder.mkdir()
    save_file(named(peer.state_dict()), folder / "open_clip_model.safetensors")
    config = {"model_cfg": {"embed_dim": 20, "vision_cfg": vision, "text_cfg": TEXT} | model}
    (folder / "open_clip_config.json").write_text(json.dumps(config | {"preprocess_cfg": {}}))
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_open_clip_and_back(kind: str, tmp_path: Path) -> None:
    fields, quick = KINDS[kind]
    vision = VISION | fields
    peer = shaken(build(vision, quick))
    size = vision["image_size"]
    image = images(3, *(size if isinstance(size, tuple) else (size, size)))
    source = write_open(tmp_path / "peer", peer, vision, quick_gelu=quick)

    ours = load(source)
    assert ours.passport.origin.dialect == "open_clip"
    assert_same(ours, peer, image, blocks=(ours.blocks, peer.transformer.resblocks))  # type: ignore[arg-type, union-attr]

    convert(source, tmp_path / "native", to="vitrail")
    convert(tmp_path / "native", tmp_path / "back", to="open_clip")
    back = tmp_path / "back" / "model.safetensors"
    assert_identical(bare(back), dict(peer.state_dict()))
    # and OpenCLIP builds the same tower from the config that we wrote
    written = json.loads((tmp_path / "back" / "open_clip_config.json").read_text())["model_cfg"]
    again = build(written["vision_cfg"], written["quick_gelu"]).double().eval()
    again.load_state_dict(bare(back), strict=True)
    close(again(image), peer(image))
    assert load(tmp_path / "back").config == ours.config


@pytest.mark.parametrize("prefix", ["visual.", ""])
def test_equals_openai_and_back(prefix: str, tmp_path: Path) -> None:
    """OpenAI's tower is OpenCLIP's with quick GELU; a lone file is taken for OpenAI's."""
    peer = shaken(build(VISION, quick=True))
    source = tmp_path / "tower.safetensors"
    save_file(named(peer.state_dict(), prefix), source)
    opened = open_checkpoint(source)
    assert opened.dialect == "openai_clip"
    assert any("quick GELU" in note for note in opened.notes)

    ours = load(source)
    assert ours.config.heads == 2
    assert_same(ours, peer, images(3, 32, 32), blocks=(ours.blocks, peer.transformer.resblocks))  # type: ignore[arg-type, union-attr]

    convert(source, tmp_path / "native", to="vitrail")
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="openai_clip")
    assert_identical(bare(tmp_path / "back.safetensors"), dict(peer.state_dict()))
    again = build(VISION, quick=True).double()
    again.load_state_dict(bare(tmp_path / "back.safetensors"), strict=True)


def test_the_person_may_name_the_dialect(tmp_path: Path) -> None:
    peer = shaken(build(VISION | {"head_width": 32}))
    source = tmp_path / "tower.safetensors"
    save_file(named(peer.state_dict()), source)
    assert_same(load(source, dialect="open_clip", heads=4), peer, images(3, 32, 32))
    with pytest.raises(UserError, match="how many heads"):
        load(source, dialect="open_clip")


def test_leaves_the_text_tower_out(tmp_path: Path) -> None:
    whole = shaken(open_clip.CLIP(20, VISION, TEXT, quick_gelu=True))
    state = {name: tensor.contiguous() for name, tensor in whole.state_dict().items()}
    # what the state dict of OpenAI's own files holds besides
    state |= {
        name: torch.tensor(8) for name in ("input_resolution", "context_length", "vocab_size")
    }
    torch.save(state, tmp_path / "clip.pt")
    opened = open_checkpoint(tmp_path / "clip.pt")
    assert {name for name, _ in opened.coverage.dropped} == {
        name for name in state if not name.startswith("visual.")
    }
    assert all("text tower" in why for _, why in opened.coverage.dropped)
    assert_same(load(tmp_path / "clip.pt"), whole.visual, images(3, 32, 32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tower_in_memory_is_read(kind: str) -> None:
    fields, quick = KINDS[kind]
    peer = shaken(build(VISION | fields, quick))
    size = (VISION | fields)["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    ours = load(peer)
    assert ours.passport.origin.dialect == "open_clip"
    assert_same(ours, peer, images(3, height, width))


@pytest.mark.parametrize("quick", [False, True])
def test_a_whole_model_in_memory_is_its_image_tower(quick: bool) -> None:
    whole = shaken(open_clip.CLIP(20, VISION, TEXT, quick_gelu=quick))
    for parameter in whole.visual.conv1.parameters():
        parameter.requires_grad_(False)
    ours = load(whole)
    assert ours.config.activation == ("quick_gelu" if quick else "gelu")
    assert not ours.get_parameter("patches.projection.weight").requires_grad
    assert ours.get_parameter("norm.weight").requires_grad
    assert_same(ours, whole.visual, images(3, 32, 32))
    assert_same(load(whole.visual), whole.visual, images(3, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["avg", "token"])
def test_a_timm_tower_in_memory_is_read(pool: str) -> None:
    trunk = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": pool, "image_size": 224}
    whole = shaken(open_clip.CLIP(20, trunk | {"timm_proj": "linear"}, TEXT))
    whole.visual.trunk.blocks = whole.visual.trunk.blocks[:1]
    image = images(3, 224, 224, batch=1)
    ours = load(whole)
    assert ours.config.pool == {"avg": "mean", "token": "cls"}[pool]
    assert_same(ours, whole.visual, image)
    alone = load(whole.visual)
    assert alone.config == ours.config
    assert "timm_model" in alone.passport.origin.source


def test_resizes_as_open_clip_does(tmp_path: Path) -> None:
    small = shaken(build(VISION))
    source = write_open(tmp_path / "peer", small, VISION)
    larger = open_clip.CLIP(20, VISION | {"image_size": 48}, TEXT).double().eval()
    state = named(small.state_dict())
    open_clip.model.resize_pos_embed(state, larger)
    larger.visual.load_state_dict(unnamed(state))
    assert_same(load(source, image_size=48), larger.visual, images(3, 48, 48))


def test_half_precision_survives(tmp_path: Path) -> None:
    """OpenAI publishes half precision: a model computes in float32, a conversion keeps the bits."""
    peer = build(VISION, quick=True).half()
    save_file(named(peer.state_dict()), tmp_path / "half.safetensors")
    assert {p.dtype for p in load(tmp_path / "half.safetensors").parameters()} == {torch.float32}
    convert(tmp_path / "half.safetensors", tmp_path / "native", to="vitrail")
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="openai_clip")
    assert_identical(bare(tmp_path / "back.safetensors"), dict(peer.state_dict()))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_says_what_to_do_with_openais_programs(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "ViT-B-32.pt")
    with pytest.raises(UserError, match=r"TorchScript program .* state_dict"):
        load(tmp_path / "ViT-B-32.pt")


@pytest.mark.parametrize(
    ("width", "layers", "head_width"), [(1280, 32, 80), (1408, 40, 88), (1664, 48, 104)]
)
def test_larger_towers_are_not_openais(width: int, layers: int, head_width: int) -> None:
    """OpenAI's code would give H/14, g/14 and bigG/14 heads of 64, which they do not have."""
    ratio = {1280: 4.0, 1408: 4.3637, 1664: 4.9231}[width]
    vision = VISION | {"width": width, "layers": 1, "head_width": head_width, "mlp_ratio": ratio}
    with torch.device("meta"):
        state = named(build(vision | {"patch_size": 14, "image_size": 224}).state_dict())
    first = "visual.transformer.resblocks."
    for name in [name for name in state if name.startswith(first)]:
        for i in range(layers):
            state[name.replace(f"{first}0", f"{first}{i}")] = state[name]
    foreign = Foreign("a state dict", state)
    assert OPEN_CLIP.claims(foreign)
    assert not OPENAI_CLIP.claims(foreign)


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_equals_a_timm_model_inside_open_clip_and_back(pool: str, tmp_path: Path) -> None:
    vision = {
        "timm_model_name": "test_vit",
        "timm_pool": pool,
        "timm_proj": "linear",
        "image_size": 160,
    }
    peer = shaken(build(vision))
    source = write_open(tmp_path / "peer", peer, vision)
    ours = load(source, heads=2)
    assert ours.passport.origin.dialect == "open_clip-timm"
    assert_same(ours, peer, images(3, 160, 160), blocks=(ours.blocks, peer.trunk.blocks))  # type: ignore[arg-type, union-attr]

    convert(source, tmp_path / "native", to="vitrail", changes={"heads": 2})
    convert(tmp_path / "native", tmp_path / "back", to="open_clip-timm")
    assert_identical(bare(tmp_path / "back" / "model.safetensors"), dict(peer.state_dict()))
    assert load(tmp_path / "back", heads=2).config == ours.config


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "attentional pooling": (
        VISION | {"attentional_pool": True, "attn_pooler_heads": 4},
        "pools by attention",
    ),
    "attentional pooling in timm": (
        {
            "timm_model_name": "test_vit2",
            "timm_pool": "map",
            "timm_proj": "none",
            "image_size": 160,
        },
        "pools by attention",
    ),
    "two layers": (
        {"timm_model_name": "test_vit", "timm_pool": "avg", "timm_proj": "mlp", "image_size": 160},
        "projects with two layers",
    ),
    "norms inside the attention": (VISION | {"scale_attn": True}, "no row reads"),
    "no pooling": (VISION | {"pool_type": "none"}, "pool_type must be 'tok' or 'avg', got 'none'"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", REFUSED)
def test_refuses_in_one_sentence(kind: str, tmp_path: Path) -> None:
    vision, sentence = REFUSED[kind]
    source = write_open(tmp_path / "peer", build(vision), vision)
    with pytest.raises(UserError, match=sentence):
        load(source, heads=2)


def test_a_lone_tower_hides_nothing_behind_the_text_tower(tmp_path: Path) -> None:
    """Its names are those of a text tower, which is left out."""
    peer = build(VISION | {"scale_attn": True})
    save_file(named(peer.state_dict(), prefix=""), tmp_path / "tower.safetensors")
    with pytest.raises(UserError, match=r"no row reads transformer\.resblocks\.0\.ln_attn"):
        load(tmp_path / "tower.safetensors")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {}),
        ({"mean": [0.5] * 3, "std": [0.5] * 3}, {"mean": (0.5,) * 3, "std": (0.5,) * 3}),
        ({"resize_mode": "squash"}, {"resize": None}),
        ({"interpolation": "bilinear"}, {"interpolation": "bilinear"}),
    ],
)
def test_prepares_pictures_as_the_config_says(
    said: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    source = write_open(tmp_path / "peer", build(VISION), VISION)
    config = json.loads((source / "open_clip_config.json").read_text())
    (source / "open_clip_config.json").write_text(json.dumps(config | {"preprocess_cfg": said}))
    usual: dict[str, Any] = {
        "size": (32, 32), "resize": (32, 32), "interpolation": "bicubic",
        "mean": CLIP_MEAN, "std": CLIP_STD,
    }  # fmt: skip
    assert load(source).passport.preprocessing == Preprocessing(**usual | expected)


def test_says_where_it_does_not_pad(tmp_path: Path) -> None:
    source = write_open(tmp_path / "peer", build(VISION), VISION)
    config = json.loads((source / "open_clip_config.json").read_text())
    config["preprocess_cfg"] = {"resize_mode": "longest"}
    (source / "open_clip_config.json").write_text(json.dumps(config))
    assert any("pad" in note for note in open_checkpoint(source).notes)


HF: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8, "projection_dim": 20,
}  # fmt: skip


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
def test_equals_transformers_and_back(act: str, tmp_path: Path) -> None:
    peer: Any = shaken(CLIPVisionModelWithProjection(CLIPVisionConfig(**HF, hidden_act=act)))
    peer.save_pretrained(tmp_path / "peer")
    ours = load(tmp_path / "peer")
    assert ours.passport.origin.dialect == "transformers-clip"
    assert_same(
        ours,
        peer,
        images(3, 32, 32),
        blocks=(ours.blocks, peer.vision_model.encoder.layers),  # type: ignore[arg-type]
        call=lambda model, x: model(pixel_values=x).image_embeds,
    )
    convert(tmp_path / "peer", tmp_path / "native", to="vitrail")
    convert(tmp_path / "native", tmp_path / "back", to="transformers-clip")
    assert_identical(
        load_file(tmp_path / "back" / "model.safetensors"),
        load_file(tmp_path / "peer" / "model.safetensors"),
    )
    again = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "back", dtype=torch.float64)
    image = images(3, 32, 32)
    close(again(image).image_embeds, peer(image).image_embeds)
    assert load(tmp_path / "back").config == ours.config
    assert load(tmp_path / "back").passport.preprocessing == ours.passport.preprocessing


def test_leaves_the_text_tower_of_transformers_out(tmp_path: Path) -> None:
    text = {"vocab_size": 30, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = CLIPConfig(
        vision_config=HF, text_config=text | {"num_attention_heads": 2}, projection_dim=20
    )
    peer: Any = shaken(CLIPModel(config))
    peer.save_pretrained(tmp_path / "peer")
    assert_same(
        load(tmp_path / "peer"),
        peer,
        images(3, 32, 32),
        call=lambda _, x: peer.visual_projection(peer.vision_model(x).pooler_output),
    )


@pytest.mark.parametrize("quick", [True, False])
def test_from_one_ecosystem_to_the_others(quick: bool, tmp_path: Path) -> None:
    """OpenCLIP's tower computes the same in transformers, and comes back bit for bit."""
    peer = shaken(build(VISION, quick))
    source = write_open(tmp_path / "peer", peer, VISION, quick_gelu=quick)
    convert(source, tmp_path / "hf", to="transformers-clip")
    there: Any = CLIPVisionModelWithProjection.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    assert_same(there, peer, images(3, 32, 32), mine=lambda model, x: model(x).image_embeds)
    convert(tmp_path / "hf", tmp_path / "back", to="open_clip")
    assert_identical(bare(tmp_path / "back" / "model.safetensors"), dict(peer.state_dict()))


def test_every_tower_is_claimed_once(tmp_path: Path) -> None:
    peer = build(VISION, quick=True)
    save_file(named(peer.state_dict()), tmp_path / "lone.safetensors")
    folder = write_open(tmp_path / "open", peer, VISION)
    for path, name in ((tmp_path / "lone.safetensors", "openai_clip"), (folder, "open_clip")):
        foreign = read_foreign(path)
        assert [dialect.name for dialect in DIALECTS if dialect.claims(foreign)] == [name]


TOWER: dict[str, Any] = {
    "dim": 128, "depth": 1, "heads": 2, "mlp_dim": 512, "patch_size": 8, "image_size": (32, 32),
    "embed_norm": True, "patch_bias": False, "head_bias": False, "final_norm": "pooled",
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "fields", "sentence"),
    [
        (OPENAI_CLIP, {}, None),
        (OPENAI_CLIP, {"head_bias": True, "num_classes": 0}, None),
        (OPENAI_CLIP, {"heads": 4}, "heads of width 64"),
        (OPENAI_CLIP, {"head_bias": True}, "without a bias"),
        (OPENAI_CLIP, {"layer_scale": 0.1}, "does not support layer_scale=0.1"),
        (OPENAI_CLIP, {"image_size": WIDE}, "square grids only"),
        (OPEN_CLIP, {"heads": 4, "layer_scale": 0.1, "image_size": WIDE}, None),
        (OPEN_CLIP, {"patch_bias": True}, "does not support patch_bias=True"),
        (OPEN_CLIP, {"activation": "swiglu"}, "no gated MLP"),
    ],
)
def test_says_what_it_can_hold(dialect: Any, fields: dict[str, Any], sentence: str | None) -> None:
    why = dialect.reason_unsupported(ViTConfig(**TOWER | fields))
    assert why is None if sentence is None else sentence in why
