"""Grad-CAM, gradients of pixels and occlusion beside the packages that people use for them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients, Occlusion, Saliency
from pytorch_grad_cam import GradCAM, HiResCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from tests.models.kinds import SMALL
from tests.parity.test_every_family import FAMILIES, make, picture
from vitrail.explanation.integrated import integrate_pixels
from vitrail.explanation.methods import explain_tensor
from vitrail.explanation.propagation import on_pixels, sum_over_cells
from vitrail.explanation.saliency import noisy_copies
from vitrail.models.catalogue import build

CLASSES = [1, 3]
# six steps are too few, and quick
pytestmark = pytest.mark.filterwarnings("ignore::vitrail.explanation.integrated.IncompleteWarning")


def rows_first(grid: tuple[int, int], prefix: int = 0):  # type: ignore[no-untyped-def]
    """What pytorch-grad-cam has to be told of tokens."""

    def reshape(x: Tensor) -> Tensor:
        return x[:, prefix:].reshape(len(x), *grid, -1).permute(0, 3, 1, 2)

    return reshape


CAMS = {"gradcam": GradCAM, "hirescam": HiResCAM}


def theirs(
    model: nn.Module, x: Tensor, layer: str, reshape: object, method: str = "gradcam"
) -> np.ndarray:
    """Their picture, as large as the image and from 0 to 1."""
    with CAMS[method](model, [model.get_submodule(layer)], reshape_transform=reshape) as cam:
        return cam(x, targets=[ClassifierOutputTarget(one) for one in CLASSES])


def ours(model: nn.Module, x: Tensor, layer: str | None, method: str = "gradcam") -> np.ndarray:
    found = explain_tensor(model, x, method, target=torch.tensor(CLASSES), layer=layer)
    heat = found.map - found.map.amin(dim=(1, 2), keepdim=True)
    heat = heat / (1e-7 + heat.amax(dim=(1, 2), keepdim=True))
    heat = on_pixels(heat, (x.shape[2], x.shape[3]))
    low, high = (getattr(heat, end)(dim=(1, 2), keepdim=True) for end in ("amin", "amax"))
    return ((heat - low) / (1e-7 + high - low)).numpy()


# the layer that its users take for each family, and how its tokens lie
PLACES = {
    "vit": ("blocks.2.norm1", rows_first((4, 6), 1)),
    "beit": ("blocks.1.norm2", rows_first((4, 6), 1)),
    "swin": ("stages.1.blocks.1.norm2", rows_first((5, 7))),
    "swinv2": ("stages.0.blocks.1", rows_first((9, 13))),
    "mobilevit": ("stages.4", None),
    "mobilevitv2": ("stages.3.1", None),
    "coatnet": ("stages.3.0", None),
    "resnet": ("stages.2.0", None),  # as its README does: layer4[-1]
    "bit": ("norm", None),
    "mobilenetv2": ("last", None),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", CAMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_class_activation_is_that_of_pytorch_grad_cam(family: str, method: str) -> None:
    layer, reshape = PLACES[family]
    model, x = make(family, torch.float64), picture(family, torch.float64)
    expected = theirs(model, x, layer, reshape, method)
    model.zero_grad()
    assert expected.max() > 0.99
    # they scale pictures in float32
    np.testing.assert_allclose(ours(model, x, layer, method), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("changes", "prefix"),
    [
        ({}, 1),
        ({"registers": 2}, 3),
        ({"distilled": True}, 2),
        ({"pool": "mean"}, 1),
        ({"pool": "mean", "class_token": False}, 0),
        ({"final_norm": "none"}, 1),
    ],
)
def test_without_a_name_it_is_what_the_last_attention_reads(
    changes: dict[str, object], prefix: int
) -> None:
    torch.manual_seed(0)
    config = replace(SMALL, **changes)  # type: ignore[arg-type]
    model = build(config).double().eval()
    for head in (module for name, module in model.named_modules() if name.endswith(".classes")):
        nn.init.normal_(head.get_parameter("weight"))
    x = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    expected = theirs(model, x, "blocks.1.norm1", rows_first((4, 6), prefix))
    np.testing.assert_allclose(ours(model, x, None), expected, rtol=0, atol=5e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("family", "layer", "reshape"),
    [
        ("swin", "stages.1.blocks.1.norm1", rows_first((5, 7))),
        ("mobilevit", "last", None),
        ("mobilevitv2", "stages.4.1", None),
        ("resnet", "stages.2.0", None),
        ("bit", "norm", None),
        ("mobilenetv2", "last", None),
    ],
)
def test_or_what_the_head_reads_where_maps_are_folded_or_convolved(
    family: str, layer: str, reshape: object
) -> None:
    model, x = make(family, torch.float64), picture(family, torch.float64)
    expected = theirs(model, x, layer, reshape)
    np.testing.assert_allclose(ours(model, x, None), expected, rtol=0, atol=5e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("baseline", [0.0, 0.5])
@pytest.mark.parametrize("family", FAMILIES)
def test_integrated_gradients_are_those_of_captum(family: str, baseline: float) -> None:
    model, x = make(family, torch.float64), picture(family, torch.float64)
    expected = IntegratedGradients(model).attribute(
        x, baselines=baseline, target=CLASSES, n_steps=6, method="gausslegendre"
    )
    found = integrate_pixels(model, x, torch.tensor(CLASSES), steps=6, baseline=baseline)
    near(found.pixels, expected.sum(dim=1))


def test_what_integrated_gradients_miss_is_what_captum_says() -> None:
    model, x = make("mobilevitv2", torch.float64), picture("mobilevitv2", torch.float64)
    _, delta = IntegratedGradients(model).attribute(
        x, target=CLASSES, n_steps=3, method="gausslegendre", return_convergence_delta=True
    )
    found = integrate_pixels(model, x, torch.tensor(CLASSES), steps=3, baseline=0.0)
    assert delta.abs().max() > 1e-6
    torch.testing.assert_close(found.delta, delta, rtol=1e-3, atol=1e-7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_saliency_is_that_of_captum(family: str) -> None:
    """Summed over the pixels of each cell of the finest attention."""
    model, x = make(family, torch.float64), picture(family, torch.float64)
    expected = Saliency(model).attribute(x.clone().requires_grad_(), target=CLASSES).sum(dim=1)
    found = explain_tensor(model, x, "saliency", target=torch.tensor(CLASSES))
    torch.testing.assert_close(
        found.map, sum_over_cells(expected, found.layout), rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(found.map.sum(dim=(1, 2)), expected.sum(dim=(1, 2)))


def test_smoothgrad_is_the_mean_of_captums_saliency_of_noisy_images() -> None:
    model, x = make("vit", torch.float64), picture("vit", torch.float64)
    copies = list(noisy_copies(x, 3, 0.2, seed=5))
    deviation = torch.stack([(copy - x).flatten(1).std(dim=1) for copy in copies]).mean(dim=0)
    span = x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1)
    torch.testing.assert_close(deviation, 0.2 * span, rtol=0.05, atol=0)
    each = [Saliency(model).attribute(one.requires_grad_(), target=CLASSES) for one in copies]
    expected = torch.stack(each).mean(dim=0).sum(dim=1)
    options = {"samples": 3, "noise": 0.2, "seed": 5}
    target = torch.tensor(CLASSES)
    sharp = explain_tensor(model, x, "smoothgrad", target=target, blur=0.0, **options)
    near(sharp.map, sum_over_cells(expected, sharp.layout))
    soft = explain_tensor(model, x, "smoothgrad", target=target, **options)
    assert soft.map.std() < sharp.map.std()


def test_integrated_gradients_of_a_patch_are_the_sum_of_its_pixels() -> None:
    model, x = make("vit", torch.float64), picture("vit", torch.float64)
    expected = IntegratedGradients(model).attribute(x, target=CLASSES, n_steps=6).sum(dim=1)
    found = explain_tensor(model, x, "integrated", target=torch.tensor(CLASSES), steps=6).map
    patches = nn.functional.avg_pool2d(expected[:, None], 8)[:, 0] * 64
    near(found, patches)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("window", "step"), [(0.5, 0.5), (0.5, 0.25), (0.25, 0.25), (1.0, 0.5)])
@pytest.mark.parametrize("family", ["vit", "beit"])
def test_occlusion_is_that_of_captum(family: str, window: float, step: float) -> None:
    model, x = make(family, torch.float64), picture(family, torch.float64)
    (rows, columns), side = (4, 6), 8
    high, wide, down, across = (
        max(round(share * count), 1) * side for share in (window, step) for count in (rows, columns)
    )
    expected = Occlusion(model).attribute(
        x, sliding_window_shapes=(3, high, wide), strides=(3, down, across), target=CLASSES
    )
    target = torch.tensor(CLASSES)
    found = explain_tensor(model, x, "occlusion", target=target, window=window, step=step).map
    near(found, expected[:, 0, ::side, ::side].double())


def near(found: Tensor, expected: Tensor) -> None:
    """captum keeps the weights of its points, and what occlusion finds, in float32."""
    assert expected.abs().max() > 1e-5
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=2e-7 * float(expected.abs().max()))
