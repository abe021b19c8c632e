"""The logit lens: after the last block it is the model, before that the model's own head."""

import re

import pytest
import torch
from tests.models.kinds import KINDS, perturbed, random_images
from tests.parity.test_every_family import FAMILIES, make, picture

from vitrail.core.errors import UserError
from vitrail.explanation.lens import block_outputs, fits_one_pass, lens_steps, logit_lens
from vitrail.models.vit import ViT

WITH_HEAD = [kind for kind, config in KINDS.items() if config.num_classes]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_logits_are_the_models_in_every_family(family: str) -> None:
    model, image = make(family, torch.float64), picture(family, torch.float64, batch=1)
    lens = logit_lens(model, image)
    torch.testing.assert_close(lens.logits[-1], model(image)[0], rtol=0, atol=1e-12)
    assert len(lens.blocks) == len(lens.logits) == len(set(lens.blocks))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("kind", WITH_HEAD)
def test_every_block_of_a_vit_is_normed_pooled_and_classified(kind: str) -> None:
    config = KINDS[kind]
    model: ViT = perturbed(config).double().eval()
    image = random_images(config, batch=1).double()
    lens = logit_lens(model, image)
    x = model.embed_norm(model.embed(image))
    for block, logits in zip(model.blocks, lens.logits, strict=True):
        x = block(x)
        normed = model.norm(x) if config.final_norm == "tokens" else x
        torch.testing.assert_close(logits, model.logits_of(normed)[0], rtol=0, atol=1e-12)
    assert lens.blocks == ("blocks.0", "blocks.1")
    assert lens.note is None


def test_blocks_of_a_swins_last_stage_by_hand() -> None:
    model, image = make("swin", torch.float64), picture("swin", torch.float64, batch=1)
    lens = logit_lens(model, image)
    assert lens.blocks == ("stages.1.merge", "stages.1.blocks.0", "stages.1.blocks.1")
    assert lens.note is not None
    assert lens.note.startswith("2 of 5 steps are left out")
    first, second = model.get_submodule("stages").children()
    merged = second.get_submodule("merge")(first(model.embed(image)))  # type: ignore[operator]
    expected = model.get_submodule("head")(model.get_submodule("norm")(merged).mean(dim=(1, 2)))
    torch.testing.assert_close(lens.logits[0], expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["mobilevit", "mobilevitv2"])
def test_tokens_inside_the_last_block_are_followed_too(family: str) -> None:
    model = make(family, torch.float64, depths=(1, 1, 2))
    image = picture(family, torch.float64, batch=1)
    lens = logit_lens(model, image)
    # V2 stretches the map of its last stage, whose first block then has another grid
    before = ("stages.4.0",) if family == "mobilevit" else ()
    assert lens.blocks == (*before, "stages.4.1.blocks.0", "stages.4.1.blocks.1")
    assert lens.note is not None
    left, steps = map(int, re.findall(r"\d+", lens.note))
    assert left + len(lens.blocks) == steps
    torch.testing.assert_close(lens.logits[-1], model(image)[0], rtol=0, atol=1e-12)
    inner = model.get_submodule("stages.4.1.blocks.1")
    handle = inner.register_forward_hook(lambda module, args, output: args[0])
    expected = model(image)[0]  # as if the last block were not there
    handle.remove()
    torch.testing.assert_close(lens.logits[-2], expected, rtol=0, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["vit", "beit", "swin", "coatnet"])
def test_one_pass_and_two_agree(family: str) -> None:
    model, image = make(family, torch.float64), picture(family, torch.float64, batch=1)
    with block_outputs(model) as outputs, torch.no_grad():
        model(image)
    one, two = logit_lens(model, image), logit_lens(model, image, outputs)
    assert fits_one_pass(model)
    assert (one.blocks, one.note) == (two.blocks, two.note)
    torch.testing.assert_close(one.logits, two.logits, rtol=0, atol=1e-12)


def test_steps_are_in_the_order_of_running() -> None:
    steps = lens_steps(make("mobilevit"))
    assert (
        steps.index("stages.2.1.blocks.0") < steps.index("stages.2.1") < steps.index("stages.3.0")
    )


def test_a_model_without_a_head_has_no_lens() -> None:
    model = make("vit", num_classes=0)
    with pytest.raises(UserError, match="no head"):
        logit_lens(model, picture("vit", batch=1))
