"""Maps inside an exported graph are those that `attention` and `rollout` give."""

import pytest
import torch
from tests.parity.test_every_family import ATTENTIVE, CONFIGS, make, picture
from torch.testing import assert_close

from vitrail.explanation.graph_maps import map_covers, map_names, reduce_weights
from vitrail.explanation.rollout import attention, rollout
from vitrail.models.attention_outputs import attention_layouts, attention_outputs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ATTENTIVE)
def test_maps_are_those_of_a_running_model(family: str) -> None:
    model, images = make(family, configs=CONFIGS), picture(family)
    layouts = attention_layouts(model)
    with torch.no_grad(), attention_outputs(model) as weights:
        model(images)
    found = reduce_weights(model, layouts)(weights)
    assert tuple(found) == map_names(layouts) == tuple(map_covers(layouts, (64, 96)))
    assert_close(found.pop("maps.rollout"), rollout(model, images).map)
    for name in layouts:
        assert_close(found[f"maps.{name}"], attention(model, images, layer=name).map)


def test_one_layer_needs_no_rollout() -> None:
    assert map_names({"only": make("vit").blocks[0].attention.attend.layout}) == ("maps.only",)  # type: ignore[union-attr, index]


def test_a_map_may_reach_beyond_the_image() -> None:
    """Swin's grid of 36 x 52 pixels has whole cells; one of 34 x 52 needs another row."""
    layouts = attention_layouts(make("swin"))
    assert set(map_covers(layouts, (36, 52)).values()) >= {(1.0, 1.0)}
    assert max(down for down, _ in map_covers(layouts, (34, 52)).values()) > 1
