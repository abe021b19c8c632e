"""transformers' CLIP, its image tower: `vision_model.encoder.layers.0.self_attn.q_proj.weight`."""

from dataclasses import replace
from typing import Any

from vitrail.core.passport import CLIP_MEAN, CLIP_STD, Passport, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.clip import HOLDS, PARTS, TABLE, TEXT, TOKEN, clashes
from vitrail.weights.old_dialect import AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, drop, expand, fuse, reshape, same

TOWER = [
    reshape("{v}embeddings.class_embedding", "cls", TOKEN),
    reshape("{v}embeddings.position_embedding.weight", "positions.table", TABLE),
    same("{v}embeddings.patch_embedding.weight", "patches.projection.weight"),
    same("{v}pre_layrnorm.{p}", "embed_norm.{p}"),  # so it is spelled
    same("{v}{b}.layer_norm1.{p}", "{b}.norm1.{p}"),
    fuse([f"{{v}}{{b}}.self_attn.{x}_proj.{{p}}" for x in "qkv"], "{b}.attention.qkv.{p}"),
    same("{v}{b}.self_attn.out_proj.{p}", "{b}.attention.out.{p}"),
    same("{v}{b}.layer_norm2.{p}", "{b}.norm2.{p}"),
    same("{v}{b}.mlp.fc1.{p}", "{b}.mlp.fc1.{p}"),
    same("{v}{b}.mlp.fc2.{p}", "{b}.mlp.fc2.{p}"),
    same("{v}post_layernorm.{p}", "norm.{p}"),
    same("visual_projection.weight", "head.classes.weight"),
    drop("*embeddings.position_ids", why="it only counts the positions"),
]
PREFIXES = ("vision_model.", "")  # transformers 5 gives a tower of its own no prefix


def rows(config: ViTConfig) -> list[Row]:
    blocks = [(f"encoder.layers.{i}", f"blocks.{i}") for i in range(config.depth)]
    return expand(TOWER, v=PREFIXES, b=blocks, p=PARTS) + TEXT


def claims(foreign: Foreign) -> bool:
    return any(f"{v}embeddings.class_embedding" in foreign.tensors for v in PREFIXES)


def infer(foreign: Foreign) -> Facts:
    shape = foreign.shape
    v = "vision_model." if "vision_model.embeddings.class_embedding" in foreign.tensors else ""
    dim, channels, patch_size, _ = shape(f"{v}embeddings.patch_embedding.weight", 4)
    head = "visual_projection.weight"
    said = files.read_config(vision_config(foreign))
    facts: Facts = {
        "dim": dim,
        "depth": foreign.count(v + "encoder.layers.{}.layer_norm1.weight"),
        "mlp_dim": shape(f"{v}encoder.layers.0.mlp.fc1.weight", 2)[0],
        "patch_size": patch_size,
        "channels": channels,
        "table": shape(f"{v}embeddings.position_embedding.weight", 2)[0],
        "num_classes": shape(head, 2)[0] if head in foreign.tensors else 0,
        "head_bias": False,
        "patch_bias": False,
        "embed_norm": True,
        "final_norm": "pooled",
        "norm_eps": 1e-5 if said.layer_norm_eps is None else said.layer_norm_eps,
    }
    if said.image_size is not None:
        facts["image_size"] = said.image_size
    if said.num_attention_heads is not None:
        facts["heads"] = said.num_attention_heads
    # quick is the default of transformers' CLIP, and what its configs leave out
    act = replace(said, hidden_act=said.hidden_act or "quick_gelu")
    facts["activation"] = files.read_activation(act, f"{foreign.source}: config.json")
    if "config.json" not in foreign.sidecars:
        facts["notes"] = ["quick GELU, the default of transformers: no config.json says otherwise"]
    return facts


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
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="hf",
    holds=HOLDS,
    square=True,
    clashes=clashes,
    sidecars=sidecars,
    computes=AllowList("transformers", {"clip", "clip_vision_model"}.__contains__, "CLIP"),
)
