"""How far a map can be trusted: does it point at what decides the answer, and does it hang on the
model at all.

- Deletion and insertion curves (arXiv:1806.07421): the model's score while cells are replaced, or
  put back, in the order of the map. A random order is what any map has to beat.
- The pointing game (arXiv:1608.00507): whether the highest value lies in the box of the evidence.
- Shuffled weights (arXiv:1810.03292): a map of a model whose weights are in disorder, from the head
  down, must become another map; one that stays shows the picture, not the model.

A map is whatever a function gives for images, (B, rows, columns), higher where it matters more.
Axes: B images · C channels · H W pixels · N cells of a map · S steps of a curve · R random orders
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.randomness import permutation, seed_of

Images: TypeAlias = Float[Tensor, "B C H W"]
Maps: TypeAlias = Float[Tensor, "B rows columns"]
Score: TypeAlias = Callable[[Images], Float[Tensor, "B"]]
Explain: TypeAlias = Callable[[nn.Module, Images], Maps]
Filling = Literal["blur", "mean"]

MOST_LUCK, LEAST_GAIN, MOST_ALIKE = 0.05, 0.05, 0.5
LEAST_ORDERS, MOST_ORDERS, ENOUGH = 4, 19, 100  # random orders; ways to combine those of pictures
MOST_COMBINED, DRAWN = 200_000, 20_000
RULE = (
    "A map tracks the model if (1) taking cells away and putting them back in its order opens a "
    "gap between the two curves that random orders reach by luck at most one time in "
    f"{1 / MOST_LUCK:.0f} (a permutation test), and that is larger than theirs by at least "
    f"{LEAST_GAIN:.0%} of the score of the whole picture, and (2) once all weights are shuffled, "
    "its rank correlation with the map of the shuffled model is at most "
    f"{MOST_ALIKE:g}."
)


@dataclass(frozen=True)
class Curves:
    """The score of each picture while a growing share of its cells is replaced, or put back."""

    shares: Float[Tensor, "S"]
    deletion: Float[Tensor, "B S"]
    insertion: Float[Tensor, "B S"]

    @property
    def deletion_area(self) -> Float[Tensor, "B"]:
        """Small where the first cells to go are those that matter."""
        return torch.trapezoid(self.deletion, self.shares)

    @property
    def insertion_area(self) -> Float[Tensor, "B"]:
        """Large where the first cells to come are those that matter."""
        return torch.trapezoid(self.insertion, self.shares)

    @property
    def gap(self) -> Float[Tensor, "B"]:
        return self.insertion_area - self.deletion_area


@dataclass(frozen=True)
class Verdict:
    """Whether a map tracks the model, and the numbers behind it: mean areas of its curves and of
    those of random orders, and its likeness to maps of shuffled models, from the head down."""

    images: int
    whole: float  # score of the untouched pictures
    deletion: float
    insertion: float
    random_deletion: float
    random_insertion: float
    gain: float  # of the gap between the curves, over random orders
    luck: float  # how often random orders open a gap as large
    shuffled: tuple[tuple[str, float], ...]  # layer, mean rank correlation once it is shuffled too

    @property
    def beats_chance(self) -> bool:
        return self.luck <= MOST_LUCK and self.gain >= LEAST_GAIN * self.whole

    @property
    def against_chance(self) -> str:
        if self.beats_chance:
            return "better than chance"
        small = self.luck <= MOST_LUCK
        return "better than chance, but by too little" if small else "no better than chance"

    @property
    def hangs_on_weights(self) -> bool:
        return self.shuffled[-1][1] <= MOST_ALIKE

    @property
    def tracks(self) -> bool:
        return self.beats_chance and self.hangs_on_weights

    @property
    def sentence(self) -> str:
        return f"this map {'does' if self.tracks else 'does not'} track the model"

    @property
    def reasons(self) -> tuple[str, ...]:
        """The numbers, in words."""
        pictures = "picture" if self.images == 1 else "pictures"
        (first, alone), (_, last) = self.shuffled[0], self.shuffled[-1]
        told = [
            f"deletion area {self.deletion:.3f} (random order {self.random_deletion:.3f}), "
            f"insertion area {self.insertion:.3f} (random order {self.random_insertion:.3f}): a "
            f"gain of {self.gain:+.3f} on {self.images} {pictures}, which random orders reach with "
            f"probability {self.luck:.3f}: {self.against_chance}",
            f"rank correlation with the map once all weights are shuffled {last:+.2f}: it "
            f"{'hangs' if self.hangs_on_weights else 'does not hang'} on the weights",
        ]
        if alone > 0.99:
            told.append(
                f"shuffling {first} alone changes nothing: it shows where the model looks, "
                "whatever the class"
            )
        return tuple(told)


def check_map(
    explain: Explain,
    model: nn.Module,
    images: Images,
    target: Int[Tensor, "B"],
    *,
    several: bool = False,
    steps: int = 16,
    orders: int | None = None,
    filling: Filling = "blur",
    layers: int | None = 6,
    seed: int = 0,
    chances: dict[tuple[int, int], list[Curves]] | None = None,
) -> tuple[Verdict, Curves, list[Curves]]:
    """The verdict on the maps of a method, its curves, and those of random orders, which methods
    with maps of one grid may share through `chances`.

    `explain` gives the maps of these images for this target, of whatever model it is handed. Of the
    layers that are shuffled one after another, `layers` are looked at, first and last included;
    None looks at all. Few pictures need more random `orders` to tell luck apart: None knows how
    many.

    >>> def noise(model, images):
    ...     return torch.rand(len(images), 14, 14)
    >>> target = torch.tensor([0])
    >>> verdict, _, _ = check_map(noise, model, images, target, steps=2, orders=2, layers=2)
    >>> verdict.sentence
    'this map does not track the model'
    """
    score = probability_of(model, target, several=several)
    maps = explain(model, images)
    curves = curves_of(score, images, maps, steps=steps, filling=filling, seed=seed)
    grid = (maps.shape[1], maps.shape[2])
    known = {} if chances is None else chances
    if grid not in known:
        known[grid] = random_curves(
            score, images, grid, orders=orders, steps=steps, filling=filling, seed=seed
        )
    shuffled = shuffle_check(explain, model, images, layers=layers, seed=seed)
    return judge(curves, known[grid], shuffled), curves, known[grid]


def judge(
    curves: Curves, chance: Sequence[Curves], shuffled: Sequence[tuple[str, float]]
) -> Verdict:
    """`RULE`, applied."""
    assert shuffled, "no layer was shuffled"
    gaps_RB = torch.stack([each.gap for each in chance])
    return Verdict(
        images=len(curves.gap),
        whole=float(curves.deletion[:, 0].mean()),
        deletion=float(curves.deletion_area.mean()),
        insertion=float(curves.insertion_area.mean()),
        random_deletion=float(torch.stack([each.deletion_area for each in chance]).mean()),
        random_insertion=float(torch.stack([each.insertion_area for each in chance]).mean()),
        gain=float((curves.gap - gaps_RB.mean(dim=0)).mean()),
        luck=luck_of(curves.gap, gaps_RB),
        shuffled=tuple(shuffled),
    )


def luck_of(gap: Float[Tensor, "B"], others: Float[Tensor, "R B"]) -> float:
    """A permutation test: of each picture's gaps, its own and the random ones, take any; how often
    is their sum as large as that of the own ones? All ways are tried, or many where they are too
    many.

    >>> luck_of(torch.tensor([2.0]), torch.tensor([[0.0], [1.0], [3.0]]))
    0.5
    """
    pools = torch.cat([gap[None], others]).double().cpu().numpy()
    own = pools[0].sum() - 1e-9
    if len(pools) ** pools.shape[1] <= MOST_COMBINED:
        sums = np.zeros(1)
        for pool in pools.T:
            sums = np.add.outer(sums, pool).ravel()
        return float((sums >= own).mean())
    generator = np.random.default_rng(seed_of("luck"))
    chosen = generator.integers(len(pools), size=(DRAWN, pools.shape[1]))
    sums = np.take_along_axis(pools, chosen, axis=0).sum(axis=1)
    return float((1 + (sums >= own).sum()) / (1 + DRAWN))


def enough_orders(images: int) -> int:
    """Random orders of each picture so that luck is told apart, and no more.

    >>> [enough_orders(images) for images in (1, 2, 3, 100)]
    [19, 9, 4, 4]
    """
    return min(max(math.ceil(ENOUGH ** (1 / images)) - 1, LEAST_ORDERS), MOST_ORDERS)


def probability_of(model: nn.Module, target: Int[Tensor, "B"], *, several: bool = False) -> Score:
    """The model's probability of a class of its own for each image; images may come several times,
    round after round."""

    @torch.no_grad()
    def score(images: Images) -> Float[Tensor, "B"]:
        logits = model(images).float()
        chances = logits.sigmoid() if several else logits.softmax(dim=1)
        asked = target.to(chances.device).repeat(len(images) // len(target))
        return chances.gather(1, asked[:, None])[:, 0].cpu()

    return score


# Deletion and insertion


def curves_of(
    score: Score,
    images: Images,
    maps: Maps,
    *,
    steps: int = 16,
    filling: Filling = "blur",
    seed: int = 0,
) -> Curves:
    """Both curves, cells going and coming by order of relevance; equal ones in a random order."""
    grid = (maps.shape[1], maps.shape[2])
    return _follow(score, images, by_relevance(maps, seed=seed), grid, steps, filling)


def random_curves(
    score: Score,
    images: Images,
    grid: tuple[int, int],
    *,
    orders: int | None = None,
    steps: int = 16,
    filling: Filling = "blur",
    seed: int = 0,
) -> list[Curves]:
    """The same for orders that know nothing, another one for every picture."""
    cells = grid[0] * grid[1]
    return [
        _follow(score, images, _random_order(len(images), cells, seed, turn), grid, steps, filling)
        for turn in range(enough_orders(len(images)) if orders is None else orders)
    ]


def by_relevance(maps: Maps, *, seed: int = 0) -> Int[Tensor, "B N"]:
    """Cells, counted in reading order, the most relevant first."""
    flat = maps.flatten(1).float().cpu().nan_to_num(nan=-math.inf)
    shuffled = _random_order(len(flat), flat.shape[1], seed, -1)
    order = flat.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    return shuffled.gather(1, order)


def _random_order(images: int, cells: int, seed: int, turn: int) -> Int[Tensor, "B N"]:
    return torch.from_numpy(
        np.stack([permutation("faith", cells, seed, turn + 1, image) for image in range(images)])
    )


def _follow(
    score: Score,
    images: Images,
    order: Int[Tensor, "B N"],
    grid: tuple[int, int],
    steps: int,
    filling: Filling,
) -> Curves:
    size = (images.shape[2], images.shape[3])
    filled = FILLINGS[filling](images)
    rank = order.argsort(dim=1).view(-1, 1, *grid)
    counts = torch.linspace(0, order.shape[1], steps + 1).round().long().unique()
    rows = []
    for count in counts.tolist():
        gone = F.interpolate((rank < count).float(), size, mode="nearest-exact") > 0
        gone = gone.to(images.device)
        both = torch.cat([torch.where(gone, filled, images), torch.where(gone, images, filled)])
        rows.append(score(both).view(2, -1))
    deletion, insertion = torch.stack(rows, dim=2)
    return Curves(counts.float() / order.shape[1], deletion, insertion)


def blurred(images: Images) -> Images:
    """Pictures of which only the rough brightness is left: a Gaussian, an eighth of a side wide."""
    for axis, length in ((2, images.shape[2]), (3, images.shape[3])):
        deviation = length / 8
        reach = min(math.ceil(2 * deviation), length - 1)
        place = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
        kernel = torch.exp(-((place / deviation) ** 2) / 2)
        weights = (kernel / kernel.sum()).view(1, 1, *((-1, 1) if axis == 2 else (1, -1)))
        margin = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        flat = F.pad(images, margin, mode="reflect").flatten(0, 1)[:, None]
        images = F.conv2d(flat, weights)[:, 0].unflatten(0, images.shape[:2])
    return images


def averaged(images: Images) -> Images:
    """Pictures of one colour each, their mean."""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


FILLINGS: dict[Filling, Callable[[Images], Images]] = {"blur": blurred, "mean": averaged}


# The pointing game


def pointing_game(
    maps: Maps, boxes: Int[Tensor, "B 4"], size: tuple[int, int], *, tolerance: float = 0.0
) -> Bool[Tensor, "B"]:
    """Whether the centre of the highest cell lies in the box (top, left, bottom, right), or within
    so many pixels of it; `size` is that of the pictures that the boxes are for.

    >>> maps = torch.eye(4).unsqueeze(0)  # four equal cells: the first counts
    >>> pointing_game(maps, torch.tensor([[0, 0, 8, 8]]), (32, 32))
    tensor([True])
    """
    row, column = highest_place(maps, size).unbind(dim=1)
    top, left, bottom, right = boxes.to(row.device, row.dtype).unbind(dim=1)
    return (
        (row >= top - tolerance)
        & (row < bottom + tolerance)
        & (column >= left - tolerance)
        & (column < right + tolerance)
    )


def highest_place(maps: Maps, size: tuple[int, int]) -> Float[Tensor, "B 2"]:
    """Row and column, in pixels, of the centre of the highest cell."""
    rows, columns = maps.shape[1:]
    best = maps.flatten(1).nan_to_num(nan=-math.inf).argmax(dim=1)
    row, column = best // columns, best % columns
    return torch.stack([(row + 0.5) * size[0] / rows, (column + 0.5) * size[1] / columns], dim=1)


# Shuffled weights


def shuffle_check(
    explain: Explain, model: nn.Module, images: Images, *, layers: int | None = 6, seed: int = 0
) -> list[tuple[str, float]]:
    """Layer by layer from the head down, which stay shuffled: the layer, and the mean rank
    correlation of the maps with those of the model as it was. The model itself is not touched."""
    before = explain(model, images)
    names = list(weight_groups(model))
    looked = set(range(len(names)))
    if layers is not None and layers < len(names):
        looked = set(np.linspace(0, len(names) - 1, max(layers, 2)).round().astype(int).tolist())
    told = []
    for number, (name, shuffled) in enumerate(shuffled_from_head(model, seed=seed)):
        if number in looked:
            after = explain(shuffled, images)
            told.append((name, float(rank_correlation(before, after).mean())))
    return told


def shuffled_from_head(model: nn.Module, *, seed: int = 0) -> Iterator[tuple[str, nn.Module]]:
    """A copy of the model after each further layer whose weights change places, each tensor within
    itself, so that their values stay what they were."""
    disordered = copy.deepcopy(model)
    parameters = dict(disordered.named_parameters())
    for number, (group, names) in enumerate(weight_groups(model).items()):
        generator = torch.Generator().manual_seed(seed_of("shuffle", seed, number))
        for name in names:
            weights = parameters[name].data
            order = torch.randperm(weights.numel(), generator=generator).to(weights.device)
            parameters[name].data = weights.flatten()[order].view_as(weights)
        yield group, disordered


def weight_groups(model: nn.Module) -> dict[str, list[str]]:
    """Names of parameters by layer, from the head down: the head, the blocks of the trunk (or the
    parts, where a model does not say its trunk), and the rest."""
    trunk = getattr(model, "trunk", None)
    blocks = trunk() if callable(trunk) else dict(model.named_children())
    left = [name for name, _ in model.named_parameters()]
    groups: dict[str, list[str]] = {}
    tests: list[tuple[str, Callable[[str], bool]]] = [
        ("head", lambda name: name.startswith("head")),
        *((block, partial(_is_of, block)) for block in reversed(blocks)),
        ("the rest", lambda name: True),
    ]
    for group, belongs in tests:
        mine = [name for name in left if belongs(name)]
        if mine:
            groups[group] = mine
            left = [name for name in left if name not in mine]
    if not groups:
        raise UserError("this model has no weights to shuffle: give one that has learnt something")
    return groups


def _is_of(block: str, name: str) -> bool:
    return name.startswith(f"{block}.")


def rank_correlation(first: Maps, second: Maps) -> Float[Tensor, "B"]:
    """Spearman's, of two maps of each picture; a map that says nothing is like no other.

    >>> maps = torch.rand(2, 4, 4)
    >>> rank_correlation(maps, -maps.exp()).round(decimals=6).tolist()
    [-1.0, -1.0]
    """
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    assert first.shape == second.shape, f"maps of {first.shape} and {second.shape}"
    ranks = []
    for maps in (first, second):
        values = maps.detach().flatten(1).double().cpu().nan_to_num().numpy()
        each = torch.from_numpy(rankdata(values, axis=1))
        ranks.append(F.normalize(each - each.mean(dim=1, keepdim=True), dim=1))
    return (ranks[0] * ranks[1]).sum(dim=1)
