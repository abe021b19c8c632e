"""transformers' CLIP, its image tower: `vision_model.encoder.layers.0.self_attn.q_proj.weight`."""

from dataclasses import replace
from typing import Any

from vitrail.core.passport import CLIP_MEAN, CLIP_STD, Passport, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import AllowList, Dialect, Foreign
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.clip import SUPPORTS, TEXT, why_unsupported
from vitrail.weights.rows import FLAT_TABLE, FLAT_TOKEN, Facts, drop, fuse, reshape, same, within

ROWS = (
    *within(
        "{v}",
        (
            reshape("embeddings.class_embedding", "cls", FLAT_TOKEN),
            reshape("embeddings.position_embedding.weight", "positions.table", FLAT_TABLE),
            same("embeddings.patch_embedding.weight", "patches.projection.weight"),
            same("pre_layrnorm.{p}", "embed_norm.{p}"),  # so it is spelled
            *within(
                "encoder.layers.{i}.",
                (
                    same("layer_norm{n}.{p}", "blocks.{i}.norm{n}.{p}"),
                    fuse(
                        [f"self_attn.{x}_proj.{{p}}" for x in "qkv"], "blocks.{i}.attention.qkv.{p}"
                    ),
                    same("self_attn.out_proj.{p}", "blocks.{i}.attention.out.{p}"),
                    same("mlp.fc{n}.{p}", "blocks.{i}.mlp.fc{n}.{p}"),
                ),
            ),
            same("post_layernorm.{p}", "norm.{p}"),
            drop("embeddings.position_ids", why="it only counts the positions"),
        ),
    ),
    same("visual_projection.weight", "head.classes.weight"),
    *TEXT,
)


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    vision = files.read_config(vision_config(foreign))
    found: Facts = {"norm_eps": 1e-5 if vision.layer_norm_eps is None else vision.layer_norm_eps}
    if vision.image_size is not None:
        found["image_size"] = vision.image_size
    if vision.num_attention_heads is not None:
        found["heads"] = vision.num_attention_heads
    # quick is the default of transformers' CLIP, and what its configs leave out
    act = replace(vision, hidden_act=vision.hidden_act or "quick_gelu")
    found["activation"] = files.read_activation(act, f"{foreign.source}: config.json")
    if "config.json" not in foreign.sidecars:
        found["notes"] = ["quick GELU, the default of transformers: no config.json says otherwise"]
    return found


def vision_config(foreign: Foreign) -> Foreign:
    """With the image tower's part for a config.json, where that is about both towers."""
    whole = foreign.sidecars.get("config.json", {})
    part = whole.get("vision_config", whole)
    sidecars = {"config.json": part} if isinstance(part, dict) else {}
    return replace(foreign, sidecars=sidecars)


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    usual = Preprocessing(
        size=config.image_size,
        resize=config.image_size,
        crop="floored",
        interpolation="bicubic",
        mean=CLIP_MEAN,
        std=CLIP_STD,
    )
    return files.read_preprocessing(foreign, config, usual)


def sidecars(passport: Passport, config: ViTConfig) -> dict[str, dict[str, Any]]:
    """A directory from which transformers builds this very tower."""
    headed = "WithProjection" if config.num_classes else ""
    written = {
        "architectures": [f"CLIPVisionModel{headed}"],
        "model_type": "clip_vision_model",
        "hidden_size": config.dim,
        "intermediate_size": config.mlp_dim,
        "projection_dim": config.num_classes,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_channels": config.channels,
        "image_size": config.image_size[0],
        "patch_size": config.patch_size,
        "hidden_act": files.SPELLED[config.activation],
        "layer_norm_eps": config.norm_eps,
    }
    before = files.write_preprocessing(passport.preprocessing)
    return {"config.json": written, "preprocessor_config.json": before}


TRANSFORMERS_CLIP = Dialect(
    name="transformers-clip",
    about="transformers' CLIPVisionModelWithProjection",
    rows=ROWS,
    values={"v": ("vision_model.", "")},  # transformers 5 gives a tower of its own no prefix
    constants={"head_bias": False, "final_norm": "pooled"},
    sidecar_facts=sidecar_facts,
    preprocessing=preprocessing,
    resize="hf",
    supports=SUPPORTS,
    square=True,
    why_unsupported=why_unsupported,
    sidecars=sidecars,
    architectures=AllowList("transformers", {"clip", "clip_vision_model"}.__contains__, "CLIP"),
)
