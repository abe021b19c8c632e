"""A model of which it is known what a map of it should show."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout
from vitrail.explanation.readout import Relevance

KINDS, CELL, CELLS = 6, 8, 6
LAYOUT = TokenLayout(grid=(CELLS, CELLS), stride=CELL)


class Templates(nn.Module):
    """Finds which of several patterns is in an image, by comparing each cell with all of them."""

    def __init__(self) -> None:
        super().__init__()
        patterns = torch.randn(CELL * CELL, CELL * CELL, generator=torch.Generator().manual_seed(1))
        self.patches = nn.Conv2d(1, KINDS, CELL, stride=CELL)
        self.head = nn.Linear(KINDS, KINDS)
        with torch.no_grad():
            kernels = torch.linalg.qr(patterns)[0][:KINDS]
            self.patches.weight.copy_(kernels.view(KINDS, 1, CELL, CELL))
            self.patches.bias.fill_(-1.5)  # type: ignore[union-attr]
            self.head.weight.copy_(24 * torch.eye(KINDS))
            self.head.bias.zero_()

    def cells(self, images: Float[Tensor, "B 1 H W"]) -> Float[Tensor, "B K rows columns"]:
        return F.relu(self.patches(images))

    def forward(self, images: Float[Tensor, "B 1 H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.cells(images).mean(dim=(2, 3)))


def pictures(model: Templates, count: int, seed: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Patterns on noise, their classes, and the boxes of their cells."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.1 * torch.randn(count, 1, CELLS * CELL, CELLS * CELL, generator=generator)
    kinds = torch.randint(KINDS, (count,), generator=generator)
    rows, columns = torch.randint(CELLS, (2, count), generator=generator) * CELL
    for image, kind, row, column in zip(images, kinds, rows, columns, strict=True):
        image[:, row : row + CELL, column : column + CELL] += (
            8 * model.patches.weight[kind].detach()
        )
    boxes = torch.stack([rows, columns, rows + CELL, columns + CELL], dim=1)
    return images, kinds, boxes


def as_relevance(maps: Float[Tensor, "B rows columns"]) -> Relevance:
    return Relevance(maps, LAYOUT, "by hand")


def truth(boxes: Tensor) -> Relevance:
    maps = torch.zeros(len(boxes), CELLS, CELLS)
    maps[torch.arange(len(boxes)), boxes[:, 0] // CELL, boxes[:, 1] // CELL] = 1
    return as_relevance(maps)


def chance(images: Tensor, seed: int = 0) -> Relevance:
    generator = torch.Generator().manual_seed(seed)
    return as_relevance(torch.rand(len(images), CELLS, CELLS, generator=generator))
