"""Losses against torch's own and DeiT's published formulas."""

from typing import Any, Literal

import pytest
import torch
from tests.models.kinds import KINDS, SMALL
from timm.data.mixup import mixup_target
from timm.loss.binary_cross_entropy import BinaryCrossEntropy
from torch.nn import functional as F

from vitrail.models.catalogue import build
from vitrail.objectives.supervised import Distilled, Supervised, agreement

IMAGES = torch.randn(4, 3, 32, 48, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 3, 1, 4])
TARGETS = F.one_hot(CLASSES, 5).float()


def shaken(kind: str) -> Any:
    torch.manual_seed(1)
    model = build(KINDS[kind]).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def test_softmax_is_cross_entropy_with_smoothing_and_weights() -> None:
    model, weights = shaken("plain"), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    expected = F.cross_entropy(model(IMAGES), CLASSES, label_smoothing=0.1)
    torch.testing.assert_close(Supervised(model, smoothing=0.1)(IMAGES, TARGETS)["loss"], expected)
    weighted = -(weights * TARGETS * model(IMAGES).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(
        Supervised(model, weights=weights)(IMAGES, TARGETS)["loss"], weighted
    )


def test_sigmoid_takes_several_labels() -> None:
    model = shaken("plain")
    targets = torch.tensor([[1.0, 1, 0, 0, 0]] * 4)
    expected = F.binary_cross_entropy_with_logits(model(IMAGES), targets)
    torch.testing.assert_close(Supervised(model, loss="sigmoid")(IMAGES, targets)["loss"], expected)


def test_sigmoid_smooths_as_timm_does() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    objective = Supervised(shaken("plain"), loss="sigmoid", smoothing=0.1)
    expected = BinaryCrossEntropy(smoothing=0.1)(logits, CLASSES)
    torch.testing.assert_close(objective.cost(logits, TARGETS), expected)
    mixed = mixup_target(CLASSES, 5, lam=0.3, smoothing=0.1)
    shares = TARGETS * 0.3 + TARGETS.flip(0) * 0.7
    expected = BinaryCrossEntropy(smoothing=0.1)(logits, mixed)
    torch.testing.assert_close(objective.cost(logits, shares), expected)


def test_hits_are_the_images_whose_largest_logit_is_at_a_largest_target() -> None:
    logits = torch.eye(4)[[0, 1, 2, 3, 0]]
    targets = torch.tensor(
        [[1.0, 0, 0, 0], [0.6, 0.4, 0, 0], [0, 0.5, 0.5, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    )
    counts = agreement(logits, targets)
    assert (int(counts["hits"]), int(counts["labelled"])) == (3, 4)


@pytest.mark.parametrize("how", ["hard", "soft"])
def test_a_teacher_of_several_labels_is_asked_about_each(how: Any) -> None:
    model, teacher = shaken("plain"), shaken("plain")
    torch.nn.init.normal_(teacher.get_parameter("head.classes.weight"))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    objective = Distilled(
        model,
        teacher,
        kind=how,
        share=0.3,
        temperature=2.0,
        loss="sigmoid",
        weights=weights,
    )
    targets = torch.tensor([[1.0, 1, 0, 0, 0]] * 4)
    own, taught = model(IMAGES), teacher(IMAGES)
    labels = F.binary_cross_entropy_with_logits(own, targets, pos_weight=weights)
    if how == "hard":
        imitation = F.binary_cross_entropy_with_logits(own, (taught.sigmoid() > 0.5).float())
    else:
        mine, theirs = (
            torch.stack([F.logsigmoid(x / 2), F.logsigmoid(-x / 2)]) for x in (own, taught)
        )
        divergence = F.kl_div(mine, theirs, reduction="sum", log_target=True)
        imitation = 4 * divergence / own.numel()
    losses = objective(IMAGES, targets)
    torch.testing.assert_close(losses["loss"], 0.7 * labels + 0.3 * imitation)
    assert Distilled(model, model, kind="soft", loss="sigmoid").imitate(own, own) == 0


@pytest.mark.parametrize("kind", ["plain", "distilled"])
@pytest.mark.parametrize("how", ["hard", "soft"])
def test_distillation_is_deits(kind: str, how: Literal["hard", "soft"]) -> None:
    model, teacher = shaken(kind), build(SMALL)
    torch.nn.init.normal_(teacher.get_parameter("head.classes.weight"))
    objective = Distilled(model, teacher, kind=how, share=0.3, temperature=2.0)
    own, other = model.both_heads(IMAGES) if kind == "distilled" else (model(IMAGES),) * 2
    taught = teacher(IMAGES)
    if how == "hard":
        imitation = F.cross_entropy(other, taught.argmax(1))
    else:
        mine, theirs = (logits.div(2).log_softmax(1) for logits in (other, taught))
        imitation = 4 * F.kl_div(mine, theirs, reduction="sum", log_target=True) / other.numel()
    expected = 0.7 * F.cross_entropy(own, CLASSES) + 0.3 * imitation
    torch.testing.assert_close(objective(IMAGES, TARGETS)["loss"], expected)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not any(name.startswith("_teacher") for name, _ in objective.named_parameters())
