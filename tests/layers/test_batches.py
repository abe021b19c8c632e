"""Bricks that see a batch or a grid as a whole, against plain statements of what they compute."""

import math

import pytest
import torch
from torch import Tensor, nn

from vitrail.layers.drop import BatchDropPath, DropPath
from vitrail.layers.norm import BatchNorm
from vitrail.layers.relative import ComputedBias, RelativeBias
from vitrail.layers.squeeze import SqueezeExcite


class Counting:
    """A branch that changes nothing and notes how many samples it was given."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        return x


def test_batch_norm_is_torchs_in_training_and_after() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(3, eps=1e-4, momentum=0.3), nn.BatchNorm2d(3, 1e-4, 0.3)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 2)
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    state = ours.state_dict()
    assert state.keys() == {"weight", "bias", "running_mean", "running_var"}
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in state.items())


def test_batch_norm_loads_plain_tensors_and_starts_anew() -> None:
    norm = BatchNorm(2)
    plain = {name: tensor + 1 for name, tensor in norm.state_dict().items()}
    norm.load_state_dict(plain)
    assert norm.running_var is not None
    assert (norm.running_var == 2).all()
    norm.reset_parameters()
    assert all(
        torch.equal(t, BatchNorm(2).state_dict()[name]) for name, t in norm.state_dict().items()
    )


@pytest.mark.parametrize("kind", [DropPath, BatchDropPath])
def test_a_shortcut_takes_the_place_of_what_came_in(kind: type[DropPath]) -> None:
    drop = kind(0.25).train()
    torch.manual_seed(0)
    y = drop(torch.ones(10_000, 3), lambda x: 3 * x[:, :1], lambda x: -x[:, :1])
    assert y.unique().tolist() == [-1, 3]  # 3 / 0.75 - 1
    assert y.mean().item() == pytest.approx(2, abs=4 * math.sqrt(3 / 10_000) * 2)
    assert (drop.eval()(torch.ones(5, 1), torch.neg, lambda x: 4 * x) == 3).all()


@pytest.mark.parametrize("kind", [DropPath, BatchDropPath])
def test_no_draw_waits_for_the_device(kind: type[DropPath]) -> None:
    """A tensor without values fails where something asks for them, as `nonzero` does."""
    x = torch.empty(64, 3, device="meta")
    branch = Counting()
    torch.manual_seed(0)
    y = kind(0.5).train()(x, branch)
    assert y.shape == x.shape
    assert y.device.type == "meta"
    assert (kind is DropPath) == (branch.batches[0] < 64)


def test_the_same_seed_drops_the_same_samples() -> None:
    drop, x = DropPath(0.5).train(), torch.ones(64, 1)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(drop(x, torch.clone))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    torch.manual_seed(1)
    kept = torch.rand(64) < 0.5  # one number for each sample, whatever the device
    assert torch.equal(runs[0][:, 0] == 3, kept)


def test_a_branch_that_sees_the_batch_sees_all_of_it() -> None:
    norm, drop = BatchNorm(2).train(), BatchDropPath(0.9).train()
    torch.manual_seed(0)
    for _ in range(10):  # most of the time no sample keeps its branch
        drop(torch.randn(2, 2, 3, 3), norm)
    assert norm.running_var is not None
    assert norm.running_var.isfinite().all()
    branch = Counting()
    drop(torch.randn(8, 1), branch)
    assert branch.batches == [8]


@pytest.mark.parametrize("grid", [(3, 4), (1, 1), (1, 5)])
def test_relative_bias_pair_by_pair(grid: tuple[int, int]) -> None:
    """Appendix A.1: P at the offset down and across, counted from the least."""
    bias = RelativeBias(grid, heads=2)
    nn.init.normal_(bias.table)
    table = bias.table.unflatten(0, (2 * grid[0] - 1, 2 * grid[1] - 1))
    cells = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    made = bias()
    assert made.shape == (1, 2, len(cells), len(cells))
    for i, (row, column) in enumerate(cells):
        for j, (other_row, other_column) in enumerate(cells):
            down, across = row - other_row + grid[0] - 1, column - other_column + grid[1] - 1
            assert torch.equal(made[0, :, i, j], table[down, across])


def test_a_computed_bias_knows_offsets_by_their_logarithm() -> None:
    torch.manual_seed(0)
    bias = ComputedBias((2, 3), heads=2, hidden=8).eval()
    cells = [(row, column) for row in range(2) for column in range(3)]
    made = bias()
    for i, one in enumerate(cells):
        for j, other in enumerate(cells):
            offset = [a - b for a, b in zip(one, other, strict=True)]
            where = torch.tensor([math.copysign(math.log1p(abs(x)), x) for x in offset])
            expected = bias.fc2(bias.fc1(where).relu())
            torch.testing.assert_close(made[0, :, i, j], expected)
    assert not list(bias.buffers(recurse=False))
    assert bias.state_dict().keys() == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}


def test_squeeze_excitation_weighs_channels_by_their_means() -> None:
    torch.manual_seed(0)
    layer, x = SqueezeExcite(4, 2, activation="relu"), torch.randn(3, 4, 2, 5)
    assert layer.fc1.bias is not None
    assert layer.fc2.bias is not None
    hidden = (x.mean((2, 3)) @ layer.fc1.weight[:, :, 0, 0].T + layer.fc1.bias).relu()
    factor = (hidden @ layer.fc2.weight[:, :, 0, 0].T + layer.fc2.bias).sigmoid()
    torch.testing.assert_close(layer(x), x * factor[:, :, None, None])
