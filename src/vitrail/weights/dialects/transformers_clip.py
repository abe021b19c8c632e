"""transformers' CLIP, its image tower: `vision_model.encoder.layers.0.self_attn.q_proj.weight`."""

from dataclasses import replace

from vitrail.weights.dialect import AllowList, Dialect, Foreign
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.clip import SUPPORTS, TEXT, why_unsupported
from vitrail.weights.dialects.transformers_config import Kind
from vitrail.weights.dialects.transformers_processor import CENTRED
from vitrail.weights.rows import FLAT_TABLE, FLAT_TOKEN, Facts, drop, fuse, reshape, same, within

ROWS = (
    *within(
        "{root}",
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


KIND = Kind(
    model_type="clip_vision_model",
    classes="CLIPVisionModel",
    prefix="vision_model.",
    fields=files.VIT | {"intermediate_size": "mlp_dim", "projection_dim": "num_classes"},
    reads=("num_attention_heads", "image_size", "hidden_act", "layer_norm_eps"),
    usual=CENTRED,
    suffixes=("WithProjection", ""),
    classifies=False,
)


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    # quick is the default of transformers' CLIP, and what its configs leave out
    found = {"activation": "quick_gelu", **KIND.facts(vision_config(foreign))}
    if files.CONFIG not in foreign.sidecars:
        found["notes"] = ["quick GELU, the default of transformers, as there is no config.json"]
    return found


def vision_config(foreign: Foreign) -> Foreign:
    """With the image tower's part for a config.json, where that is about both towers."""
    whole = foreign.sidecars.get(files.CONFIG, {})
    part = whole.get("vision_config", whole)
    sidecars = {files.CONFIG: part} if isinstance(part, dict) else {}
    return replace(foreign, sidecars=sidecars)


TRANSFORMERS_CLIP = Dialect(
    **KIND.in_common
    | {
        "name": "transformers-clip",
        "about": "transformers' CLIPVisionModelWithProjection",
        "rows": ROWS,
        # transformers 5 gives a tower of its own no prefix
        "unbound": lambda *_: {},
        "constants": {"head_bias": False, "final_norm": "pooled", "norm_eps": 1e-5},
        "sidecar_facts": sidecar_facts,
        "supports": SUPPORTS,
        "square": True,
        "why_unsupported": why_unsupported,
        "architectures": AllowList(
            "transformers", {"clip", "clip_vision_model"}.__contains__, "CLIP"
        ),
    }
)
