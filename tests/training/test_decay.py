"""Which parameters decay and which Muon takes: matrices of layers, in every family."""

from typing import Any

import pytest
from torch import nn

from tests.models.kinds import KINDS
from tests.models.test_coatnet import KINDS_COATNET
from tests.models.test_half_precision import SMALL_TOKENIZER
from tests.models.test_swin import KINDS_SWIN
from tests.parity.compare import blank_timm
from tests.parity.test_every_family import CONFIGS
from vitrail.core.without_init import without_init
from vitrail.models.catalogue import build, change, find
from vitrail.models.config import Config
from vitrail.objectives.supervised import Supervised
from vitrail.training.optimiser import group_parameters
from vitrail.training.recipe import Optimiser

EVERY: dict[str, Config] = {
    **CONFIGS,
    **{f"vit: {kind}": config for kind, config in KINDS.items()},
    **{f"swin: {kind}": config for kind, config in KINDS_SWIN.items()},
    **{f"coatnet: {kind}": config for kind, config in KINDS_COATNET.items()},
    "beit, shared": change(
        CONFIGS["beit"], {"relative_bias": "shared", "pool": "cls", "layer_scale": 0.1}
    ),
    "tokenizer": SMALL_TOKENIZER,
}
LAYERS = (nn.Linear, nn.Conv2d)


def chosen(config: Config) -> tuple[nn.Module, set[str], dict[str, int]]:
    """A model, the names of what decays, and what Muon takes with the number of its matrices."""
    model = build(config)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = group_parameters(Supervised(model), Optimiser(name="muon", weight_decay=0.1))
    decayed = {names[id(p)] for g in groups if g["weight_decay"] for p in g["params"]}
    muon = {names[id(p)]: g["parts"] for g in groups if g["parts"] for p in g["params"]}
    return model, decayed, muon


@pytest.mark.parametrize("kind", EVERY)
def test_only_matrices_of_layers_decay_or_go_to_muon(kind: str) -> None:
    model, decayed, muon = chosen(EVERY[kind])
    for name, parameter in model.named_parameters():
        owner, _, own = name.rpartition(".")
        layer = isinstance(model.get_submodule(owner), LAYERS) and own == "weight"
        position = ".attention.bias." in name  # perceptrons that compute a bias from offsets
        assert (name in decayed) == (layer and not position), name
        if name in muon:
            assert name in decayed
            assert parameter.ndim == 2
            assert muon[name] == (3 if name.endswith("qkv.weight") else 1)
    blocks = tuple(f"{at}." for at in model.blocks_by_depth())  # type: ignore[operator]
    linear = {n for n in decayed if n.startswith(blocks) and model.get_parameter(n).ndim == 2}
    assert linear == muon.keys()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "peer",
    [
        "beit_base_patch16_224",
        "swinv2_tiny_window8_256",
        "swin_tiny_patch4_window7_224",
        "vit_tiny_patch16_224",
        "coatnet_rmlp_nano_rw_224",
    ],
)
def test_as_many_numbers_decay_as_with_timm(peer: str) -> None:
    """By timm's own lists of exceptions, on models of the same name."""
    theirs: Any = blank_timm(peer, num_classes=7)
    # Swin V2's own code excepts the scale of its logits, which timm takes for a matrix
    excepted = {*theirs.no_weight_decay(), "logit_scale"}
    expected = sum(
        p.numel()
        for name, p in theirs.named_parameters()
        if p.ndim > 1 and not any(part in name for part in excepted)
    )
    with without_init():
        model = build(change(find(peer), {"num_classes": 7}))
    groups = group_parameters(Supervised(model), Optimiser(weight_decay=0.1))
    found = sum(p.numel() for g in groups if g["weight_decay"] for p in g["params"])
    assert found == expected
