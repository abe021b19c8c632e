"""BiT's own .npz against the maths of its paper, written out here from the arrays of the file: no
layer of ours and none of timm. The facts are those of google-research/big_transfer
(bit_pytorch/models.py): v2 bottlenecks with the stride on their 3x3 convolution, kernels divided by
sqrt(variance + 1e-10), norms of 32 groups with eps 1e-5, and a max-pool padded with zeros."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.parity.compare import TOLERANCE, images
from vitrail import load, save
from vitrail.models.model import Model
from vitrail.weights.convert import convert

Arrays = dict[str, Tensor]

GROUPS, NORM_EPS, KERNEL_EPS = 32, 1e-5, 1e-10
DEPTHS, WIDTH, CLASSES = (1, 2, 1, 1), 32, 7
CONV = "standardized_conv2d/kernel"
FLAT = "resnet/block1/unit01/c"  # a kernel of small deviation, where the 1e-10 counts


def convolve(x: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    """A kernel (height, width, in, out) of mean 0 and deviation 1 over all but its last axis."""
    centred = kernel - kernel.mean(dim=(0, 1, 2))
    deviation = torch.sqrt(centred.square().mean(dim=(0, 1, 2)) + KERNEL_EPS)
    weight = (centred / deviation).permute(3, 2, 0, 1)
    return F.conv2d(x, weight, stride=stride, padding=kernel.shape[0] // 2)


def norm_relu(x: Tensor, arrays: Arrays, name: str) -> Tensor:
    groups = x.unflatten(1, (GROUPS, -1))
    centred = groups - groups.mean(dim=(2, 3, 4), keepdim=True)
    variance = centred.square().mean(dim=(2, 3, 4), keepdim=True)
    normed = (centred / torch.sqrt(variance + NORM_EPS)).flatten(1, 2)
    scaled = normed * arrays[f"{name}/gamma"].view(-1, 1, 1)
    return (scaled + arrays[f"{name}/beta"].view(-1, 1, 1)).clamp(min=0)


def unit(x: Tensor, arrays: Arrays, name: str, stride: int) -> Tensor:
    y = norm_relu(x, arrays, f"{name}/a/group_norm")
    projection = arrays.get(f"{name}/a/proj/{CONV}")
    shortcut = x if projection is None else convolve(y, projection, stride)
    y = convolve(y, arrays[f"{name}/a/{CONV}"])
    y = convolve(norm_relu(y, arrays, f"{name}/b/group_norm"), arrays[f"{name}/b/{CONV}"], stride)
    return shortcut + convolve(
        norm_relu(y, arrays, f"{name}/c/group_norm"), arrays[f"{name}/c/{CONV}"]
    )


def compute(arrays: Arrays, image: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits, and what every unit gives."""
    x = convolve(image, arrays[f"resnet/root_block/{CONV}"], stride=2)
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    units = []
    for stage, depth in enumerate(DEPTHS):
        for number in range(depth):
            stride = 2 if stage and not number else 1
            x = unit(x, arrays, f"resnet/block{stage + 1}/unit{number + 1:02d}", stride)
            units.append(x)
    pooled = norm_relu(x, arrays, "resnet/group_norm").mean(dim=(2, 3))
    return pooled @ arrays["resnet/head/conv2d/kernel"][0, 0] + arrays[
        "resnet/head/conv2d/bias"
    ], units


def random_arrays() -> Arrays:
    """Every array of a narrow BiT, in float64, by the names of its files."""
    generator = torch.Generator().manual_seed(0)
    arrays: Arrays = {}

    def kernel(name: str, size: int, before: int, after: int) -> None:
        shape = (size, size, before, after)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        arrays[name] = 0.1 + values * (1e-5 if name.startswith(FLAT) else 0.3)

    def norm(name: str, channels: int) -> None:
        noise = torch.randn(2, channels, generator=generator, dtype=torch.float64)
        arrays[f"{name}/gamma"], arrays[f"{name}/beta"] = 1 + 0.2 * noise[0], 0.2 * noise[1]

    kernel(f"resnet/root_block/{CONV}", 7, 3, WIDTH)
    before = WIDTH
    for stage, depth in enumerate(DEPTHS):
        middle = WIDTH * 2**stage
        for number in range(depth):
            name = f"resnet/block{stage + 1}/unit{number + 1:02d}"
            if not number:
                kernel(f"{name}/a/proj/{CONV}", 1, before, 4 * middle)
            for letter, size, given, out in (
                ("a", 1, before, middle), ("b", 3, middle, middle), ("c", 1, middle, 4 * middle)
            ):  # fmt: skip
                norm(f"{name}/{letter}/group_norm", given)
                kernel(f"{name}/{letter}/{CONV}", size, given, out)
            before = 4 * middle
    norm("resnet/group_norm", before)
    kernel("resnet/head/conv2d/kernel", 1, before, CLASSES)
    arrays["resnet/head/conv2d/bias"] = torch.linspace(-1, 1, CLASSES, dtype=torch.float64)
    return {name: value.requires_grad_() for name, value in arrays.items()}


def write_npz(arrays: Arrays, path: Path) -> Path:
    values = {name: tensor.detach().numpy() for name, tensor in arrays.items()}
    np.savez(path, **values)  # type: ignore[arg-type]
    return path


def assert_near(mine: Tensor, theirs: Tensor, what: str = "") -> None:
    size = max(1.0, theirs.detach().abs().max().item())
    assert (mine - theirs).detach().abs().max().item() <= TOLERANCE * size, what


def backward(logits: Tensor) -> None:
    weights = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
    torch.autograd.backward((logits * weights).sum())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(64, 96), (33, 47)], ids=["even", "odd"])
def test_equals_the_maths_of_big_transfer(size: tuple[int, int], tmp_path: Path) -> None:
    """Logits, every unit, and the gradients of the image and of every array."""
    arrays = random_arrays()
    ours = load(write_npz(arrays, tmp_path / "BiT-S.npz"))
    assert ours.passport.origin.dialect == "bit"
    theirs, mine = (images(3, *size).requires_grad_() for _ in range(2))
    logits, units = compute(arrays, theirs)
    seen: list[Tensor] = []
    for block in ours.blocks_by_depth().values():
        block.register_forward_hook(lambda module, args, out: seen.append(out))
    found = ours(mine)
    assert_near(found, logits)
    for one, other in zip(seen, units, strict=True):
        assert_near(one, other)
    backward(logits)
    backward(found)
    assert mine.grad is not None
    assert theirs.grad is not None
    assert theirs.grad.abs().max() > 1e-6
    assert_near(mine.grad, theirs.grad)
    gradients = write_gradients(ours, tmp_path)
    assert gradients.keys() == arrays.keys()
    for name, array in arrays.items():
        assert array.grad is not None
        assert_near(gradients[name], array.grad, name)


def write_gradients(model: Model, folder: Path) -> Arrays:
    """The gradients of a model, written as its weights would be."""
    values = copy.deepcopy(model)
    for own, parameter in zip(values.parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None
        own.data = parameter.grad
    convert(save(values, folder / "gradients"), folder / "gradients.npz", to="bit")
    with np.load(folder / "gradients.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file}


def test_the_maths_tells_the_formula_of_timm_apart(tmp_path: Path) -> None:
    """So that the test above would fail with 1e-8 in the place of 1e-10."""
    arrays = random_arrays()
    ours = load(write_npz(arrays, tmp_path / "BiT-S.npz"))
    for module in ours.modules():
        if hasattr(module, "standardize"):
            setattr(module, "standardize", "timm")  # noqa: B010 - not a tensor, whatever nn.Module says
    image = images(3, 64, 64)
    with torch.no_grad():
        assert (ours(image) - compute(arrays, image)[0]).abs().max() > 1e-3
