"""Hugging Face transformers: Swin, in the names of version 5 and in the classic ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Passport
from vitrail.models.swin import SwinConfig
from vitrail.weights.dialects import swin, swin_names
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.swin_names import Spelling
from vitrail.weights.old_dialect import AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, drop, fuse, same

# As the processors of the weights that Microsoft published there do.
USUAL = replace(files.SQUEEZED, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
EPS = 1e-5  # of the norms that its code does not let config.json speak for


def projections(q: str, k: str, v: str, out: str) -> tuple[Row, ...]:
    parts = [f"{{b}}.attention.{name}.{{p}}" for name in (q, k, v)]
    return (
        fuse(parts, "{b}.attention.qkv.{p}"),
        same(f"{{b}}.attention.{out}.{{p}}", "{b}.attention.out.{p}"),
    )


NORMS = (
    same("{b}.layernorm_before.{p}", "{b}.norm1.{p}"),
    same("{b}.layernorm_after.{p}", "{b}.norm2.{p}"),
)
OLD_MLP = (
    same("{b}.intermediate.dense.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.output.dense.{p}", "{b}.mlp.fc2.{p}"),
)
OLD = (
    *NORMS,
    *projections("self.query", "self.key", "self.value", "output.dense"),
    same("{b}.attention.self.relative_position_bias_table", swin.TABLE),
    *OLD_MLP,
)
NEW = (
    *NORMS,
    *projections("q_proj", "k_proj", "v_proj", "o_proj"),
    same("{b}.attention.relative_position_bias.relative_position_bias_table", swin.TABLE),
    same("{b}.mlp.fc1.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.mlp.fc2.{p}", "{b}.mlp.fc2.{p}"),
)


def spell(base: str, within: tuple[Row, ...], telling: str) -> Spelling:
    return Spelling(
        patches="embeddings.patch_embeddings.projection",
        embed_norm="embeddings.norm",
        block=lambda stage, block: f"encoder.layers.{stage}.blocks.{block}",
        merge=lambda stage: f"encoder.layers.{stage - 1}.downsample",
        norm="layernorm",
        head="classifier",
        within=within,
        telling=telling,
        roots=(base, ""),
        unread=(
            *swin_names.drop_computed("relative_position_index", "relative_coords_table"),
            *(drop(f"{root}embeddings.mask_token", why=swin_names.MASKED) for root in (base, "")),
            drop("decoder.*", why="rebuilds hidden pixels in pre-training alone"),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Told(files.Told):
    """The fields of config.json that tensors cannot tell."""

    window_size: int | None = None
    pretrained_window_sizes: tuple[int, ...] | None = None


def claims(spelling: Spelling, model_type: str, foreign: Foreign) -> bool:
    told = foreign.sidecars.get("config.json", {}).get("model_type")
    if isinstance(told, str) and told != model_type:
        return False
    return spelling.root(foreign) is not None


def told_by(foreign: Foreign) -> Facts:
    """What config.json adds for either version."""
    told = files.read_record(Told, foreign, "config.json")
    if files.read_activation(told, foreign.source) != "gelu":
        raise UserError(
            f"{foreign.source}: hidden_act is {told.hidden_act!r}, but Swin is read with the "
            "exact GELU alone, 'gelu'"
        )
    if told.layer_norm_eps not in (None, EPS):
        raise UserError(
            f"{foreign.source}: layer_norm_eps is {told.layer_norm_eps}, but transformers has "
            f"{EPS} in some norms of a Swin whatever it says: only {EPS} is read"
        )
    size = told.image_size
    if size is None:
        return {}
    return {"image_size": (size, size) if isinstance(size, int) else size}


def infer(spelling: Spelling, foreign: Foreign) -> Facts:
    return swin.infer(spelling, foreign) | told_by(foreign)


def rows(spelling: Spelling, config: SwinConfig) -> list[Row]:
    # a model without a head is its encoder itself, and has no name inside another
    roots = spelling.roots if config.num_classes else spelling.roots[::-1]
    return swin_names.rows(replace(spelling, roots=roots), config)


def labels(foreign: Foreign) -> tuple[str, ...] | None:
    head = foreign.tensors.get("classifier.weight")
    classes = len(head) if head is not None and head.ndim else 0
    return files.read_labels(files.read_config(foreign), classes, foreign.source)


def clashes(config: SwinConfig) -> str | None:
    if config.norm_eps != EPS:
        return f"has eps {EPS} in some norms, whatever those of the blocks have"
    if any(config.layout(i, 0).window != (config.window_size,) * 2 for i in stages(config)):
        return "has tables for windows of one size, and here a grid is smaller than a window"
    return swin_names.same_windows(config, "paper")


def stages(config: SwinConfig) -> range:
    return range(len(config.depths))


def sidecars(
    model_type: str,
    classes: str,
    extras: Callable[[Any], dict[str, Any]],
    passport: Passport,
    config: SwinConfig,
) -> dict[str, dict[str, Any]]:
    """A config.json from which Auto classes build this very model, and one for its processor."""
    height, width = config.image_size
    written: dict[str, Any] = {
        "architectures": [classes + ("ForImageClassification" if config.num_classes else "Model")],
        "model_type": model_type,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "embed_dim": config.dim,
        "hidden_size": config.features,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "num_layers": len(config.depths),
        "window_size": config.window_size,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": True,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": config.drop_path,
        "use_absolute_embeddings": False,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_eps,
        "encoder_stride": config.patch_size * 2 ** (len(config.depths) - 1),
        **files.write_labels(passport, config),
        **extras(config),
    }
    before = files.write_preprocessing(passport.preprocessing)
    return {"config.json": written, "preprocessor_config.json": before}


def speak(within: tuple[Row, ...], version: str, spelled: str) -> Dialect:
    spelling = spell("swin.", within, swin.TABLE)
    return Dialect(
        name=f"transformers-swin{version}",
        about=f"Hugging Face transformers: Swin, {spelled}",
        family="swin",
        claims=partial(claims, spelling, "swin"),
        infer=partial(infer, spelling),
        rows=partial(rows, spelling),
        preprocessing=lambda foreign, config: files.read_preprocessing(foreign, config, USUAL),
        resize="hf",
        holds=swin_names.HOLDS,
        clashes=clashes,
        sidecars=partial(sidecars, "swin", "Swin", lambda _: {}),
        labels=labels,
        multi_label=files.read_multi_label,
        computes=AllowList("transformers", {"swin"}.__contains__, "Swin"),
    )


TRANSFORMERS_SWIN = (
    speak(NEW, "", "names of version 5"),
    speak(OLD, "-v4", "classic names, which versions 4 and 5 read"),
)
