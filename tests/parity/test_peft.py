"""LoRA against peft: the same start, the same change, the same merged weights, in every family."""

import copy
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

from tests.models.test_coatnet import KINDS_COATNET
from tests.parity.compare import close
from tests.parity.test_every_family import CNNS, CONFIGS
from vitrail.inference.pruning import pruned_logits
from vitrail.models.catalogue import build
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.training.lora import LowRank, adapt, merged
from vitrail.training.recipe import Lora

LORA = Lora(rank=2, alpha=3.0)
EVERY: dict[str, Config] = {
    **{name: config for name, config in CONFIGS.items() if name not in CNNS},
    "coatnet: rmlp": KINDS_COATNET["rw, pooled by maxima"],
}
every_family = pytest.mark.parametrize("family", EVERY)


def adapted(family: str, lora: Lora = LORA) -> tuple[Model, Model, dict[str, LowRank]]:
    """A model, the same with low-rank changes, and these by the name of their layer."""
    torch.manual_seed(0)
    plain = build(EVERY[family]).double().eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model = copy.deepcopy(plain)
    adapt(model, lora)
    changes = {
        name.partition(".parametrizations")[0]: module
        for name, module in model.named_modules()
        if isinstance(module, LowRank)
    }
    return plain, model, changes


def peft_of(plain: Model, changes: dict[str, LowRank]) -> Any:
    """peft's model with changes at the same layers; of a fused layer with several changes, one of
    as many times their rank, whose B lies along the diagonal."""
    ranks = {name: change.a.shape[0] * LORA.rank for name, change in changes.items()}
    config = peft.LoraConfig(
        r=LORA.rank,
        lora_alpha=LORA.alpha,
        target_modules=list(changes),
        rank_pattern=ranks,
        alpha_pattern={name: LORA.alpha * rank / LORA.rank for name, rank in ranks.items()},
    )
    return peft.get_peft_model(copy.deepcopy(plain), config).double().eval()


def layers_of(peer: Any, names: list[str]) -> dict[str, Any]:
    return {name: peer.base_model.model.get_submodule(name) for name in names}


@pytest.mark.sampled(2)
@every_family
def test_changes_and_merged_weights_are_pefts(family: str) -> None:
    plain, model, changes = adapted(family)
    peer = peft_of(plain, changes)
    with torch.no_grad():
        for name, layer in layers_of(peer, list(changes)).items():
            change = changes[name]
            change.b.normal_(std=0.1)
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            a.copy_(change.a.flatten(0, 1).view_as(a))
            b.copy_(torch.block_diag(*change.b).view_as(b))
    config = EVERY[family]
    images = torch.randn(2, config.channels, *config.image_size, dtype=torch.float64)
    close(model(images), peer(images))  # peft's layers around ours
    with torch.no_grad():
        close(pruned_logits(model, images), pruned_logits(peer.base_model.model, images))
    whole = peer.merge_and_unload()
    ours, theirs = merged(model.state_dict(), LORA), whole.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        close(tensor, theirs[name])
    close(model(images), whole(images))
    assert not torch.equal(model(images), plain(images))


@pytest.mark.sampled(2)
@every_family
def test_it_starts_as_pefts_does(family: str) -> None:
    """A is uniform, at most 1/√width: the same bound as peft's, and no change at first."""
    plain, _, changes = adapted(family)
    peer = peft_of(plain, changes)
    for name, layer in layers_of(peer, list(changes)).items():
        ours, theirs = changes[name].a, layer.lora_A["default"].weight
        bound = ours.shape[2] ** -0.5
        for a in (ours, theirs):
            assert a.abs().max() <= bound
        assert not changes[name].b.any()
        assert not layer.lora_B["default"].weight.any()
    flat = [torch.cat([a.flatten() * a.shape[at] ** 0.5 for a in every]) for every, at in (
        ([change.a.detach() for change in changes.values()], 2),
        ([x.lora_A["default"].weight.detach() for x in layers_of(peer, list(changes)).values()], 1),
    )]  # fmt: skip
    mine, theirs = (spread.double().std().item() for spread in flat)
    assert mine == pytest.approx(3**-0.5, rel=0.1)  # uniform between -1 and 1
    assert mine == pytest.approx(theirs, rel=0.15)


@pytest.mark.sampled(2)
@every_family
def test_the_default_changes_attention_and_the_mlp_of_every_block_alone(family: str) -> None:
    plain, _, changes = adapted(family, Lora())
    inside = {name for name, _ in plain.named_modules() if name.endswith(".attention")}
    assert {name.removesuffix(".qkv") for name in changes if name.endswith(".qkv")} == inside
    blocks = {name.removesuffix(".attention") for name in inside}
    rest = {name for name in changes if not name.endswith(".qkv")}
    assert rest == {f"{block}.mlp.{layer}" for block in blocks for layer in ("fc1", "fc2")}


@pytest.mark.sampled(2)
@every_family
def test_training_changes_nothing_but_what_is_trained(family: str) -> None:
    """Statistics of batch norms neither, which a frozen model has learnt with its weights."""
    plain, model, _ = adapted(family)
    model.train()
    images = torch.randn(4, 3, *model.config.image_size, dtype=torch.float64)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # in the first step B is zero, and so is A's gradient
        optimiser.zero_grad()
        model(images).square().sum().backward()
        optimiser.step()
    after = merged(model.state_dict(), LORA)
    changed = {n for n, t in plain.state_dict().items() if not torch.equal(t, after[n])}
    assert changed == {
        name
        for name in after
        if name.startswith("head.")
        or name.endswith(("qkv.weight", "mlp.fc1.weight", "mlp.fc2.weight"))
    }


def test_frozen_norms_use_the_statistics_that_they_keep() -> None:
    """A trained step sees what evaluation sees, where nothing is drawn."""
    _, model, _ = adapted("coatnet")
    images: Tensor = torch.randn(2, 3, *model.config.image_size, dtype=torch.float64)
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    torch.testing.assert_close(model.train()(images), model.eval()(images))
