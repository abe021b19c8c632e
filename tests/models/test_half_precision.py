"""Half precision: every family computes and learns in float16 and bfloat16 as it does in float32,
to what these formats can tell apart."""

from functools import cache

import pytest
import torch
from torch import Tensor

from tests.models.kinds import KINDS
from tests.models.test_coatnet import KINDS_COATNET
from tests.models.test_swin import KINDS_SWIN
from tests.parity.test_every_family import CNNS, CONFIGS
from vitrail.layers.conv import Standardize, StandardizedConv
from vitrail.layers.norm import unit_length
from vitrail.models.catalogue import build
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.models.tokenizer import TokenizerConfig

SMALL_TOKENIZER = TokenizerConfig(
    kind="vq", words=16, width=8, stages=2, depth=1, entry=8, image_size=(32, 48)
)
EVERY: dict[str, Config] = {
    **CONFIGS,
    **{f"vit: {kind}": KINDS[kind] for kind in ("hybrid", "relative positions", "gated", "clip")},
    **{f"swin: {kind}": KINDS_SWIN[kind] for kind in KINDS_SWIN if "padded" in kind},
    "swin: large windows": KINDS_SWIN["large windows"],
    "coatnet: rw": KINDS_COATNET["rw, pooled by maxima"],
    "tokenizer": SMALL_TOKENIZER,
}
# In steps of a format at 1: of the largest logit, and of the length of all gradients. Batch norms
# over few small maps, as MobileViT has here, are what needs as many.
MOST_STEPS, MOST_GRADIENT_STEPS = 12, 60
# Of networks of convolutions, where a ReLU of every layer is near its corner somewhere.
MOST_CNN_GRADIENT_STEPS = 300
every_kind = pytest.mark.parametrize("kind", EVERY)
ONCE = ((torch.float16, "converted"), (torch.bfloat16, "autocast"))


def noise(config: Config) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, config.channels, *config.image_size, generator=generator)


def made(kind: str) -> Model:
    """A model as training leaves it, but for biases of q and v, which begin at zero."""
    torch.manual_seed(0)
    model = build(EVERY[kind])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("qv_bias"):
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def gradients(model: Model, out: Tensor) -> Tensor:
    out.float().square().mean().backward()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def run_half(kind: str, x: Tensor, dtype: torch.dtype, way: str) -> tuple[Tensor, Tensor]:
    """Logits and gradients of a model that was converted, or runs under autocast."""
    model = made(kind)
    if way == "converted":
        model, x = model.to(dtype), x.to(dtype)
    with torch.autocast("cpu", dtype, enabled=way == "autocast"):
        out = model(x)
    return out.float(), gradients(model, out)


@cache
def in_float32(kind: str) -> tuple[Tensor, Tensor]:
    """Logits and gradients."""
    plain = made(kind)
    out = plain(noise(EVERY[kind]))
    return out.detach(), gradients(plain, out)


# by default in each format and in each way once
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "dtype", "way"),
    [
        pytest.param(
            *(kind, dtype, way),
            marks=() if (dtype, way) in ONCE else pytest.mark.slow,
        )
        for kind in EVERY
        for dtype in (torch.float16, torch.bfloat16)
        for way in ("converted", "autocast")
    ],
)
def test_forward_and_backward_stay_near_float32(kind: str, dtype: torch.dtype, way: str) -> None:
    (expected, expected_gradient), step = in_float32(kind), torch.finfo(dtype).eps
    out, gradient = run_half(kind, noise(EVERY[kind]), dtype, way)
    assert (out - expected).abs().max() <= MOST_STEPS * step * expected.abs().max()
    difference = (gradient - expected_gradient).norm()
    most = MOST_CNN_GRADIENT_STEPS if kind in CNNS else MOST_GRADIENT_STEPS
    assert difference <= most * step * expected_gradient.norm()


@pytest.mark.sampled(2)
@every_kind
def test_black_images_are_numbers_too(kind: str) -> None:
    """Their features are as small as they get, and some vectors have no direction at all: float16
    has the smallest range."""
    black = torch.zeros_like(noise(EVERY[kind]))
    out, gradient = run_half(kind, black, torch.float16, "converted")
    assert out.isfinite().all()
    # without any variance a batch norm multiplies gradients by 300, and MobileNetV2 has 52 of them
    assert kind == "mobilenetv2" or gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_vectors_of_any_size_come_to_unit_length(dtype: torch.dtype) -> None:
    sizes = torch.tensor([0.0, 1e-4, 1.0, 1e4])
    x = (torch.ones(4, 32) * sizes[:, None]).to(dtype).requires_grad_()
    lengths = unit_length(x).float().norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([0.0, 1, 1, 1]), rtol=0, atol=0.01)
    unit_length(x).float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    nonzero = torch.randn(3, 7, dtype=torch.float64)
    assert torch.equal(unit_length(nonzero), torch.nn.functional.normalize(nonzero, dim=-1))


@pytest.mark.parametrize("standardize", ["jax", "timm"])
def test_even_kernels_are_standardised_to_zeros_in_half_precision(standardize: Standardize) -> None:
    conv = StandardizedConv(1, 2, 1, standardize=standardize).half()
    assert not conv.standardized().any()
