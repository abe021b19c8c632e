"""The asymmetric loss against timm's, in float64."""

import pytest
import torch
from timm.loss import AsymmetricLossMultiLabel
from torch.nn import functional as F

import vitrail
from vitrail.objectives.asymmetric import Asymmetric
from vitrail.objectives.supervised import Supervised


@pytest.mark.parametrize(("negative", "positive", "clip"), [(4, 1, 0.05), (2, 0, 0.0), (3, 2, 0.2)])
def test_equals_timm(negative: float, positive: float, clip: float) -> None:
    torch.manual_seed(0)
    logits = (4 * torch.randn(6, 9, dtype=torch.float64)).requires_grad_()
    targets = (torch.rand(6, 9) < 0.3).double()
    peer = AsymmetricLossMultiLabel(gamma_neg=negative, gamma_pos=positive, clip=clip, eps=1e-300)
    theirs = peer(logits, targets) / 6
    ours = Asymmetric(gamma_negative=negative, gamma_positive=positive, negative_clip=clip)(
        logits, targets
    )
    assert (ours - theirs).item() == pytest.approx(0, abs=1e-9)
    (one,) = torch.autograd.grad(ours, logits)
    (other,) = torch.autograd.grad(theirs, logits)
    assert (one - other).abs().max() < 1e-9


def test_mixed_targets_and_extreme_logits_stay_finite() -> None:
    loss = Asymmetric()
    logits = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    for targets in (torch.tensor([[0.3, 0.7, 0.5]]), torch.tensor([[0.0, 1.0, 1.0]])):
        found: torch.Tensor = loss(logits, targets)
        (gradient,) = torch.autograd.grad(found, logits)
        assert torch.isfinite(found)
        assert torch.isfinite(gradient).all()


def test_an_objective_takes_it_and_is_validated_by_cross_entropy() -> None:
    model = vitrail.create("vit_ti_16", image_size=16, patch_size=8, depth=1, num_classes=4)
    objective = Supervised(model, loss=Asymmetric())
    logits, targets = torch.randn(3, 4), (torch.rand(3, 4) < 0.5).float()
    assert torch.equal(objective.cost(logits, targets), Asymmetric()(logits, targets))
    plain = float(F.binary_cross_entropy_with_logits(logits, targets))
    losses = objective.val_losses(logits.numpy(), targets.numpy())
    assert losses is not None
    assert losses.mean() == pytest.approx(plain)
