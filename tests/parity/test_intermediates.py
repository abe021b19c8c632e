"""The maps of intermediate blocks are timm's, in float64, wherever timm has them."""

from typing import Any

import pytest
import timm
import torch

from tests.parity.compare import shaken
from vitrail import load

CASES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 3, "img_size": (32, 48)},
    "deit_tiny_distilled_patch16_224": {"depth": 2, "img_size": (32, 48)},
    "vit_small_patch14_reg4_dinov2": {"depth": 2, "img_size": (28, 42)},
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 48, "num_heads": 4, "img_size": (32, 48)},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 1, 1), "embed_dim": 24, "img_size": 224},
    "swinv2_tiny_window8_256": {"depths": (2, 2, 1, 1), "embed_dim": 24},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "coatnet_pico_rw_224": {"img_size": 64},
}

# What these modules do not show: any size will do for a MobileViT.
SIZES: dict[str, dict[str, Any]] = {
    "mobilevit_xxs": {"image_size": (64, 96)},
    "mobilevitv2_050": {"image_size": (64, 96)},
    "coatnet_pico_rw_224": {"image_size": 64},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_maps_and_their_layout_are_timms(name: str) -> None:
    peer: Any = shaken(timm.create_model(name, num_classes=5, **CASES[name])).double().eval()
    model = load(peer, **SIZES.get(name, {})).double().eval()
    images = torch.randn(2, 3, *model.config.image_size, dtype=torch.float64)
    theirs = peer.forward_intermediates(images, intermediates_only=True)
    info = {one["module"]: one for one in peer.feature_info}
    last_of_stage = {one.module.split(".")[1]: i for i, one in enumerate(model.feature_info)}
    seen = 0
    for (module, facts), expected in zip(info.items(), theirs, strict=True):
        kind, _, stage = module.partition(".")
        if kind == "stem":
            continue
        if kind == "final_conv" and name.startswith("mobilevit_"):
            mine = model.encode(images)
        else:
            place = last_of_stage["4" if kind == "final_conv" else stage]
            [mine] = model.intermediates(images, [place])
            ours = model.feature_info[place]
            assert (ours.channels, ours.reduction) == (facts["num_chs"], facts["reduction"])
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-9)
        seen += 1
    assert seen >= 2
