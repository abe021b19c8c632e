"""config.json of transformers: every field that changes what is computed, at another value than its
default. A file of a random peer gives the peer's own logits, or is refused in one sentence."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from tests.parity.compare import TOLERANCE, images, shaken
from tests.parity.lively import lively
from vitrail import load
from vitrail.core.errors import UserError

hf: Any = transformers
VIT: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": 16, "patch_size": 8, "num_labels": 3,
}  # fmt: skip
DINO = {name: value for name, value in VIT.items() if name != "intermediate_size"}
SWIN: dict[str, Any] = {
    "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2],
    "window_size": 4, "num_labels": 3,
}  # fmt: skip
MOBILE: dict[str, Any] = {
    "image_size": 64, "hidden_sizes": [8, 12, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
    "num_attention_heads": 2, "num_labels": 3,
}  # fmt: skip
MOBILE2: dict[str, Any] = {
    "image_size": 64, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "num_labels": 3,
    "base_attn_unit_dims": [64, 64, 64],
}  # fmt: skip

# Of every model, and what each kind has beside them.
ALL: dict[str, list[Any]] = {
    "layer_norm_eps": [0.1],
    "num_channels": [1],
    "patch_size": [[8, 4]],
    "problem_type": ["multi_label_classification", "regression"],
    "num_labels": [1],
}
GELU: dict[str, list[Any]] = {
    "hidden_act": ["gelu_new", "quick_gelu", "gelu_fast", "gelu_10", "relu"]
}
BLOCKS = ALL | GELU | {"qkv_bias": [False], "head_dim": [12], "image_size": [20, [16, 24]]}
POOLER: dict[str, list[Any]] = {"pooler_act": ["relu"], "pooler_output_size": [5]}
LADDER = ALL | GELU | {"qkv_bias": [False], "use_absolute_embeddings": [True]}
STRIDES: dict[str, list[Any]] = {
    "output_stride": [8, 16],
    "conv_kernel_size": [1, 5],
    "hidden_act": ["relu", "gelu"],
}

# The peer's class, its arguments, the fields that are varied.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, list[Any]]]] = {
    "vit": ("ViTForImageClassification", VIT, BLOCKS | POOLER),
    "deit": ("DeiTForImageClassification", VIT, BLOCKS | POOLER),
    "deit, two heads": ("DeiTForImageClassificationWithTeacher", VIT, BLOCKS | POOLER),
    "vit_mae": ("ViTMAEModel", VIT | {"mask_ratio": 0.0}, BLOCKS),
    "dinov2": (
        "Dinov2ForImageClassification",
        DINO,
        BLOCKS | {"use_swiglu_ffn": [True], "layerscale_value": [0.5], "use_mask_token": [False]},
    ),
    "dinov2_with_registers": (
        "Dinov2WithRegistersForImageClassification",
        DINO,
        BLOCKS | {"use_swiglu_ffn": [True], "num_register_tokens": [0, 2]},
    ),
    "beit": (
        "BeitForImageClassification",
        VIT | {"use_relative_position_bias": True},
        ALL
        | GELU
        | {
            "image_size": [20, [16, 24]],
            "head_dim": [12],
            "use_relative_position_bias": [False],
            "use_shared_relative_position_bias": [True],
            "use_absolute_position_embeddings": [True],
            "use_mean_pooling": [False],
            "use_mask_token": [True],
            "layer_scale_init_value": [0.0],
        },
    ),
    "swin": ("SwinForImageClassification", SWIN, LADDER | {"window_size": [3, 8]}),
    "swinv2": (
        "Swinv2ForImageClassification",
        SWIN | {"pretrained_window_sizes": [0, 0]},
        LADDER | {"window_size": [3, 8], "pretrained_window_sizes": [[6, 3], [2, 0]]},
    ),
    "mobilevit": (
        "MobileViTForImageClassification",
        MOBILE,
        ALL | STRIDES | {"qkv_bias": [False], "expand_ratio": [2.3], "mlp_ratio": [1.5]},
    ),
    "mobilevitv2": (
        "MobileViTV2ForImageClassification",
        MOBILE2,
        ALL | STRIDES | {"expand_ratio": [2.3], "ffn_multiplier": [1, 3]},
    ),
    "clip": (
        "CLIPVisionModelWithProjection",
        {**VIT, "projection_dim": 3, "problem_type": None},
        {
            "layer_norm_eps": [0.1],
            "num_channels": [1],
            "image_size": [20],
            "hidden_act": ["gelu", "gelu_new", "gelu_10"],
        },
    ),
}
# Fields that decide nothing of a trained classifier's logits: what only training, a decoder, a
# mask, backbones, segmentation or transformers' own bookkeeping reads.
IDLE = {
    "_out_features", "_out_indices", "add_fpn", "apply_layernorm", "architectures",
    "aspp_dropout_prob", "aspp_out_channels", "atrous_rates", "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_dropout", "auxiliary_channels", "auxiliary_concat_input", "auxiliary_loss_weight",
    "auxiliary_num_convs", "chunk_size_feed_forward", "classifier_dropout_prob",
    "decoder_hidden_size", "decoder_intermediate_size", "decoder_num_attention_heads",
    "decoder_num_hidden_layers", "drop_path_rate", "dtype", "encoder_stride", "ffn_dropout",
    "hidden_dropout_prob", "id2label", "initializer_factor", "initializer_range",
    "is_encoder_decoder", "label2id", "mask_ratio", "norm_pix_loss", "output_hidden_states",
    "pool_scales", "reshape_hidden_states", "return_dict", "semantic_loss_ignore_index",
    "transformers_version", "use_auxiliary_head", "vocab_size",
}  # fmt: skip
# Shapes, which the tensors tell.
SHAPES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "mlp_ratio",
    "embed_dim", "depths", "num_heads", "hidden_sizes", "neck_hidden_sizes", "n_attn_blocks",
    "base_attn_unit_dims", "width_multiplier", "image_size", "layerscale_value", "projection_dim",
}  # fmt: skip


def write(peer: Any, directory: Path) -> Path:
    directory.mkdir()
    config = {**peer.config.to_dict(), "architectures": [type(peer).__name__]}
    (directory / "config.json").write_text(json.dumps(config, default=str))
    tensors = {name: tensor.contiguous() for name, tensor in peer.state_dict().items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def answer(peer: Any, image: Tensor) -> Tensor:
    if peer.config.model_type == "vit_mae":  # nothing is masked, and the patches stay in order
        order = torch.arange(peer.embeddings.patch_embeddings.num_patches).expand(len(image), -1)
        return peer(image, noise=order).last_hidden_state[:, 0]
    given = peer(image)
    return given.logits if hasattr(given, "logits") else given.image_embeds


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_other_values_are_computed_or_refused(kind: str, tmp_path: Path) -> None:
    name, arguments, varied = KINDS[kind]
    maker = getattr(hf, name)
    different, equal = [], 0
    for number, (field, value) in enumerate((f, v) for f in varied for v in varied[f]):
        try:
            peer = maker(maker.config_class(**arguments | {field: value}))
        except (TypeError, IndexError):  # transformers cannot build that either
            continue
        peer = (lively if kind.startswith("mobile") else shaken)(peer)
        try:
            ours = load(write(peer, tmp_path / str(number)))
        except UserError:
            continue
        height, width = ours.config.image_size
        image = images(ours.config.channels, height, width, batch=1)
        if (height, width) != sides(peer):  # patches leave the rest out, and that is noted
            assert any("instead of" in note for note in ours.passport.origin.changes)
            continue
        try:
            theirs = answer(peer, image)
        except RuntimeError:  # such as DINOv2's on a rectangle
            continue
        equal += 1
        if not (ours(image) - theirs).abs().max() < TOLERANCE:
            different.append((field, value))
        multi_label = value == "multi_label_classification"
        assert ours.passport.multi_label == multi_label
        assert value != "regression"
    assert not different
    assert equal > 2


def sides(peer: Any) -> tuple[int, int]:
    size = peer.config.image_size
    return (size, size) if isinstance(size, int) else tuple(size)


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_is_forgotten(kind: str) -> None:
    """A field that a new version of transformers adds has to be looked at."""
    name, arguments, varied = KINDS[kind]
    known = {field.name for field in fields(getattr(hf, name).config_class)}
    assert not known - varied.keys() - arguments.keys() - IDLE - SHAPES
