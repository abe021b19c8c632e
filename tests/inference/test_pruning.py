"""The engine leaves out what no head reads, agrees with the whole model, and hides nothing from
whoever observes it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tests.models.kinds import KINDS, SMALL
from tests.parity.test_every_family import ATTENTIVE, CONFIGS, make
from vitrail import capture, predict
from vitrail.inference.engine import Engine, Job
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.pruning import can_prune_last_block, pruned_features, pruned_logits
from vitrail.layers.attention import Attend
from vitrail.models.catalogue import build
from vitrail.models.model import Model
from vitrail.models.vit import ViT, ViTConfig

RECORDS = {
    **KINDS,
    "registers, distilled": replace(SMALL, registers=3, distilled=True),
    "registers, no bias": replace(SMALL, registers=1, qkv_bias="none", dim_head=16),
    "relative, no key bias": replace(SMALL, positions="relative", qkv_bias="qv", registers=1),
}
CLASS_TOKEN = [kind for kind, config in RECORDS.items() if config.pool == "cls"]
# the pruned path multiplies matrices of other shapes, which round otherwise
TOLERANCE = 1e-5


def filled(config: ViTConfig) -> Model:
    """Random everywhere, also where a fresh model has zeros."""
    torch.manual_seed(0)
    model = build(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def queries_of_last_block(model: Model, call: Callable[[], object]) -> list[int]:
    """How many queries the last attention had in a call, seen without a hook."""
    return queries_of(model.blocks[-1].attention.attend, call)  # type: ignore[union-attr,index]


def queries_of(attend: nn.Module, call: Callable[[], object]) -> list[int]:
    seen = []
    original = type(attend).forward

    def watching(self: nn.Module, q: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        if self is attend:
            seen.append(q.shape[2])
        return original(self, q, *rest, **more)

    type(attend).forward = watching
    try:
        call()
    finally:
        type(attend).forward = original
    return seen


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CLASS_TOKEN)
def test_logits_and_features_are_those_of_the_whole_model(kind: str) -> None:
    config = RECORDS[kind]
    model = filled(config)
    images = torch.randn(2, config.channels, *config.image_size, dtype=torch.float64)
    with torch.inference_mode():
        found = queries_of_last_block(model, lambda: pruned_logits(model, images))
        assert found == [config.prefix]
        for pruned, whole in ((pruned_logits, model), (pruned_features, model.features)):
            torch.testing.assert_close(pruned(model, images), whole(images), rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CLASS_TOKEN])
def test_heads_that_read_patches_get_them_all(kind: str) -> None:
    model = filled(KINDS[kind])
    assert not can_prune_last_block(model)
    images = torch.randn(1, 3, *model.config.image_size, dtype=torch.float64)
    assert torch.equal(pruned_logits(model, images), model(images))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", [name for name in CONFIGS if name != "vit"])
def test_other_families_are_computed_whole(family: str) -> None:
    assert not can_prune_last_block(make(family))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "registers", "distilled", "registers, distilled"])
def test_capture_around_predict_sees_whole_maps(kind: str) -> None:
    config = RECORDS[kind]
    check_capture(filled(config).float())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ATTENTIVE)
def test_capture_around_predict_in_every_family(family: str) -> None:
    check_capture(make(family))


def check_capture(model: Model) -> None:
    """Every map is the one that the model itself gives, and scores stay the same to rounding."""
    draw = np.random.default_rng(0)
    size = model.config.image_size
    pixels = [draw.integers(0, 256, (*size, 3), dtype=np.uint8) for _ in range(2)]
    classes = model.config.num_classes
    before = predict(model, pixels, top=classes)
    with capture(model) as maps:
        inside = predict(model, pixels, top=classes)
    with torch.inference_mode(), capture(model) as expected:
        batch = torch.stack([torch.from_numpy(one).permute(2, 0, 1) for one in pixels])
        model(batch.float() / 127.5 - 1)
    assert list(maps) == list(expected)
    for name, one in maps.items():
        rows = 1 if one.layout.separable else one.layout.tokens
        assert one.weights.shape[-2:] == (rows, one.layout.tokens)
        torch.testing.assert_close(one.weights, expected[name].weights, rtol=0, atol=1e-4)
        last_patch = tuple(side - 1 for side in one.layout.grid)
        assert one.on_grid(last_patch).shape[-2:] == one.layout.grid  # type: ignore[arg-type]
    for plain, captured in zip(before, inside, strict=True):
        assert dict(captured.top) == pytest.approx(dict(plain.top), abs=TOLERANCE)
    assert predict(model, pixels, top=classes) == before


def test_each_patch_has_a_row_of_its_own() -> None:
    model = filled(RECORDS["registers"]).float()
    with capture(model) as maps:
        predict(model, [np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)])
    last = list(maps.values())[-1]
    rows = {tuple(last.on_grid(query).flatten().tolist()) for query in range(last.layout.tokens)}
    assert len(rows) == last.layout.tokens


OBSERVERS: dict[str, Callable[[Model, list[str]], Any]] = {
    "forward": lambda model, seen: model.get_submodule("blocks.1.mlp").register_forward_hook(
        lambda module, args, out: seen.append(f"{out.shape[1]}")
    ),
    "forward with keywords": lambda model, seen: model.get_submodule(
        "blocks.1.attention.qkv"
    ).register_forward_hook(
        lambda module, args, kwargs, out: seen.append(f"{out.shape[1]}"), with_kwargs=True
    ),
    "pre": lambda model, seen: model.get_submodule("blocks.1.norm2").register_forward_pre_hook(
        lambda module, args: seen.append(f"{args[0].shape[1]}")
    ),
    "on the model": lambda model, seen: model.register_forward_hook(
        lambda module, args, out: seen.append("25")
    ),
    "global": lambda model, seen: register_module_forward_hook(
        lambda module, args, out: (
            seen.append(f"{out.shape[1]}")
            if module is model.get_submodule("blocks.1.mlp")
            else None
        )
    ),
    "global pre": lambda model, seen: register_module_forward_pre_hook(
        lambda module, args: (
            seen.append(f"{args[0].shape[1]}")
            if module is model.get_submodule("blocks.1.mlp")
            else None
        )
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", OBSERVERS)
def test_a_hook_of_any_kind_sees_every_token(kind: str) -> None:
    """Registered after the engine was made, which goes back to pruning when it is removed."""
    model = filled(SMALL).float()
    engine = Engine(model, Job(output="scores", batch_size=1))
    image = torch.zeros(3, 32, 48, dtype=torch.uint8)
    seen: list[str] = []
    handle = OBSERVERS[kind](model, seen)
    try:
        engine.compute([image])
    finally:
        handle.remove()
    assert seen == [str(SMALL.tokens)]
    assert isinstance(engine.runner, EagerRunner)
    assert engine.runner.fast is not None
    *_, last = (one for one in engine.runner.fast.modules() if isinstance(one, Attend))
    assert queries_of(last, lambda: engine.compute([image])) == [1]


def test_what_was_replaced_is_called() -> None:
    """A forward that somebody put in, a subclass, a block of another class, a compiled model."""

    class Other(ViT):
        pass

    replaced, other, compiled, inner = (build(SMALL) for _ in range(4))
    replaced.forward = lambda images: images
    other.__class__ = Other
    compiled.compile(backend="eager")
    assert isinstance(inner, ViT)
    inner.blocks[-1] = nn.Identity()
    assert not any(map(can_prune_last_block, (replaced, other, compiled, inner)))
    assert can_prune_last_block(build(SMALL))
