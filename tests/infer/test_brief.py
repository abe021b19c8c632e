"""A model that computes no more than its head reads says what the whole one says."""

import pytest
import torch
from torch import nn

from vitrail import create
from vitrail.infer.brief import LastBlock, brief

TINY = {"image_size": 32, "num_classes": 5}


def filled(name: str, **fields: object) -> nn.Module:
    """Random everywhere, also where a fresh model has zeros."""
    torch.manual_seed(0)
    model = create(name, **(TINY | fields)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vit_ti_16", {}),
        ("vit_ti_16", {"patch_size": 8, "qkv_bias": "none"}),
        ("vit_ti_16", {"head": "pretrain"}),
        ("vit_r_ti_16", {}),
        ("deit_ti_16_distilled", {}),
        ("deit3_s_16", {}),
        ("dinov2_s_14_reg", {"image_size": 28}),
    ],
)
def test_logits_and_features_are_those_of_the_whole(name: str, fields: dict[str, object]) -> None:
    model = filled(name, **fields)
    images = torch.randn(2, 3, *model.config.image_size, dtype=torch.float64)
    with torch.inference_mode():
        short = brief(model)
        assert isinstance(short.blocks[-1], LastBlock)
        torch.testing.assert_close(short(images), model(images), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            short.features(images), model.features(images), rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vit_ti_16", {"pool": "mean"}),
        ("vit_ti_16", {"positions": "relative"}),
        ("vit_ti_16", {"qkv_bias": "qv"}),
        ("swin_t", {}),
        ("mobilevit_xxs", {}),
    ],
)
def test_models_that_read_more_stay_as_they_are(name: str, fields: dict[str, object]) -> None:
    model = create(name, **(TINY | fields))
    assert brief(model) is model


def test_the_model_that_was_given_is_untouched() -> None:
    model = filled("vit_ti_16")
    before, names = list(model.blocks), list(model.state_dict())
    short = brief(model)
    assert list(model.blocks) == before
    assert list(model.state_dict()) == names
    assert short.head is model.head
