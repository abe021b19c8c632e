"""What a module in memory holds that no tensor shows, in the words of its library's own files."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from vitrail.weights.dialect import Sidecars
from vitrail.weights.dialects import clip, vit_pytorch


def sidecars_of(module: nn.Module) -> Sidecars:
    """What its library would write beside the weights, or as much as its parts have."""
    tower = getattr(module, "visual", module)
    if is_vit_pytorch(module):
        return {vit_pytorch.MODULE: vit_pytorch_facts(module)}
    if is_timm_tower(tower) or is_open_clip(tower):
        return {clip.CONFIG: open_clip_config(tower)}
    config, pretrained = getattr(module, "config", None), getattr(module, "pretrained_cfg", None)
    if config is not None and hasattr(config, "to_json_string"):  # transformers
        written = json.loads(config.to_json_string(use_diff=False))
        return {"config.json": {**written, "architectures": [type(module).__name__]}}
    if isinstance(pretrained, Mapping):  # timm
        facts = {name: as_json(value) for name, value in pretrained.items() if value is not None}
        written = {
            "architecture": facts.pop("architecture", None),
            "global_pool": getattr(module, "global_pool", None),
            "model_args": arguments_of(module),
            "pretrained_cfg": facts,
        }
        return {"config.json": {name: value for name, value in written.items() if value}}
    return {}


def as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def arguments_of(module: nn.Module) -> dict[str, Any]:
    """The arguments that timm made the module with, as far as its parts have them."""
    arguments: dict[str, Any] = {}
    for name, theirs in (("image_size", "img_size"), ("heads", "num_heads")):
        value = module_attributes(module).get(name)
        if value is not None:
            arguments[theirs] = as_json(value)
    window = next(find_attributes(module, "window_size"), None)
    if isinstance(window, tuple):
        arguments["window_size"] = list(window)
    kinds = {activation_of(part.act) for part in module.modules() if is_mlp(part)}
    kind = kinds.pop() if len(kinds) == 1 else None
    return arguments if kind is None else arguments | {"act_layer": kind}


def is_mlp(part: nn.Module) -> bool:
    return all(isinstance(getattr(part, name, None), nn.Module) for name in ("fc1", "act", "fc2"))


def activation_of(act: Any) -> str | None:
    """Its name, where it is another than the exact GELU that a ViT has by default."""
    if isinstance(act, nn.GELU):
        return "gelu_tanh" if act.approximate == "tanh" else None
    names = {"QuickGELU": "quick_gelu", "GELUTanh": "gelu_tanh", "ReLU": "relu"}
    return names.get(type(act).__name__)


def module_attributes(module: nn.Module) -> dict[str, Any]:
    """Config fields that no tensor shows, from attributes of the module's parts."""
    found: dict[str, Any] = {}
    size = next(find_attributes(module, "img_size", "image_size"), None)
    if size is not None:
        found["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
    heads = set(find_attributes(module, "num_heads", "num_attention_heads", "heads"))
    if len(heads) == 1:
        found["heads"] = heads.pop()
    return found


def find_attributes(module: nn.Module, *names: str) -> Iterator[Any]:
    for part in module.modules():
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int | tuple) and not isinstance(value, bool):
                yield value


def is_vit_pytorch(module: nn.Module) -> bool:
    """Whether it has the parts of vit-pytorch's ViT, under their names."""
    parts = ("to_patch_embedding", "transformer", "pos_embedding", "cls_token")
    return all(hasattr(module, name) for name in parts) and isinstance(
        getattr(module, "pool", None), str
    )


def vit_pytorch_facts(module: Any) -> dict[str, Any]:
    """Its pooling, heads, patches and dropout."""
    found: dict[str, Any] = {"pool": module.pool}
    heads = set(find_attributes(module, "heads"))
    if len(heads) == 1:
        found["heads"] = heads.pop()
    sides = getattr(module.to_patch_embedding[0], "axes_lengths", {})  # of einops' Rearrange
    linears = [part for part in module.to_patch_embedding if isinstance(part, nn.Linear)]
    if isinstance(sides, Mapping) and {"p1", "p2"} <= {*sides} and linears:
        height, width = sides["p1"], sides["p2"]
        channels = linears[0].in_features // (height * width)
        found |= {"patch_size": [height, width], "channels": channels}
    if isinstance(getattr(module, "dropout", None), nn.Dropout):
        found["emb_dropout"] = module.dropout.p
    rates = {part.p for part in module.transformer.modules() if isinstance(part, nn.Dropout)}
    return found | ({"dropout": rates.pop()} if len(rates) == 1 else {})


def is_timm_tower(module: Any) -> bool:
    """Whether it is a timm model as open_clip has it."""
    return type(module).__name__ == "TimmModel" and all(
        isinstance(getattr(module, name, None), nn.Module) for name in ("trunk", "head")
    )


def is_open_clip(tower: Any) -> bool:
    """Whether it is an image tower of open_clip's own."""
    blocks = getattr(getattr(tower, "transformer", None), "resblocks", None)
    return isinstance(blocks, nn.ModuleList) and hasattr(tower, "pool_type") and len(blocks) > 0


def open_clip_config(tower: Any) -> dict[str, Any]:
    """The image half of the open_clip_config.json of a tower."""
    size = tower.image_size
    vision: dict[str, Any] = {"image_size": size if isinstance(size, int) else list(size)}
    quick = False
    if is_timm_tower(tower):
        trunk = tower.trunk
        name = getattr(trunk, "pretrained_cfg", {}).get("architecture")
        vision |= {"timm_model_name": name, "timm_pool": trunk.global_pool}
    else:
        block = tower.transformer.resblocks[0]
        act = activation_of(block.mlp.gelu)
        quick = act == "quick_gelu"
        vision |= {
            "head_width": block.attn.head_dim,
            "pool_type": tower.pool_type,
            "final_ln_after_pool": bool(getattr(tower, "final_ln_after_pool", False)),
            "norm_kwargs": {"eps": block.ln_1.eps},
            **({"act_kwargs": {"approximate": "tanh"}} if act == "gelu_tanh" else {}),
        }
    prepared = getattr(tower, "preprocess_cfg", None) or {}
    names = ("mean", "std", "interpolation", "resize_mode")
    preparation = {k: as_json(v) for k, v in prepared.items() if k in names}
    model = {"quick_gelu": quick, "vision_cfg": vision}
    return {"model_cfg": model, "preprocess_cfg": preparation}
