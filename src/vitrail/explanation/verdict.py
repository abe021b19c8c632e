"""How far a map can be trusted: does it point at what decides the answer, and does it depend on
the model at all.

Two tests. (1) Without the most relevant cells of the image the score must fall by more than without
the least relevant ones, and by more than for random maps. The reverse of an order has the same
contrast with the other sign, so that every random order counts twice, and their mean is known to
be 0. (2) The map must change once all weights are shuffled.

The first is sequential: it stops as soon as random maps do as well as the map. That never makes
a bad map pass, because what stops early is turned down. The limits are choices; ERRORS were
counted on a model whose answer is known (benchmarks/verdicts.py).

Axes: B images · R random maps · S shares that are removed
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.core.randomness import seed_of
from vitrail.explanation.curves import (
    Curves,
    Images,
    Score,
    class_probability,
    compute_curves,
    random_order,
    relevance_order,
    scores_without,
)
from vitrail.explanation.readout import Relevance
from vitrail.explanation.shuffling import ExplainFunction, shuffle_check

Finding = Literal["yes", "no", "unclear"]

CLASSLESS = ("attention", "rollout")  # methods that ask about no class
MAX_P, CLEAR_P = 0.05, 0.2  # at most: better than chance; at least: no better
MIN_GAIN = 0.05  # of the score of the whole image
MAX_CORRELATION, CLEAR_CORRELATION = (
    0.5,
    0.7,
)  # mean absolute rank correlation with maps of shuffled models
CURVE_SHARES = (0, 1 / 16, 1 / 4, 1 / 2, 3 / 4, 15 / 16, 1)  # shares of a map's curves
# Shares that are taken away: few, because each costs two forward passes for every random order,
# and a small one too, or evidence in few cells would look like chance.
REMOVED_SHARES = (1 / 16, 1 / 4)
MIN_ORDERS, MAX_ORDERS = 9, 99
FIRST_ORDERS, HOPELESS_P = 4, 0.5  # where so few random maps show such a p, no more are drawn
# Of one method on one image: the least p that random maps can show is 1 in so many. That is below
# MAX_P, so that a map passes by more than the grain of the test, and takes 12 random maps.
RESOLUTION = 26
MAX_COMBINATIONS, SAMPLES = 200_000, 20_000

RULE = (
    "A map tracks the model if (1) blurring its most relevant cells, a sixteenth and a quarter of "
    f"the image, costs at least {MIN_GAIN:.0%} of the score more than blurring its least relevant "
    f"ones, with a p-value of at most {MAX_P:g} against random maps (a permutation test, by Holm's "
    "rule for several methods), and (2) the absolute rank correlation of the map with those of "
    f"models whose weights are all shuffled is at most {MAX_CORRELATION:g}. It does not if random "
    f"maps do as well (p at least {CLEAR_P:g}), if the cost is smaller, or if the correlation is "
    f"at least {CLEAR_CORRELATION:g}. Between these limits one cannot tell."
)
ERRORS = (
    "The test is strict. With one image it accepted 10 of 20 correct maps and 0 of 20 random ones, "
    "with four images 17 and 2; maps of shuffled models and of edges never passed. Explain several "
    "images together for a clearer answer."
)


@dataclass(frozen=True, repr=False)
class Verdict:
    """Whether the maps of a method track the model, and the numbers behind it: means over
    images."""

    images: int
    score: float  # score of the untouched images
    deletion: float  # area of the curve
    insertion: float
    contrast: float  # score without the least relevant cells, less that without the most relevant
    orders: int  # random maps of each image
    p_value: float  # how often random maps have as large a contrast
    adjusted_p_value: float  # the same for several methods, by Holm's rule
    head_correlation: float  # absolute rank correlation with the map once the head is shuffled
    correlation: float  # and once all weights are, the mean over several shuffles
    asks_about_class: bool = True  # as attention and rollout do not

    @property
    def beats_chance(self) -> Finding:
        if self.p_value >= CLEAR_P or self.contrast < MIN_GAIN * self.score:
            return "no"
        return "yes" if self.adjusted_p_value <= MAX_P else "unclear"

    @property
    def depends_on_weights(self) -> Finding:
        if self.correlation >= CLEAR_CORRELATION:
            return "no"
        return "yes" if self.correlation <= MAX_CORRELATION else "unclear"

    @property
    def tracks(self) -> Finding:
        both = (self.beats_chance, self.depends_on_weights)
        if "no" in both:
            return "no"
        return "unclear" if "unclear" in both else "yes"

    @property
    def sentence(self) -> str:
        """The finding, and which test decided it where the map did not pass both."""
        if self.tracks == "yes":
            return "this map does track the model"
        found = {"random maps": self.beats_chance, "shuffled weights": self.depends_on_weights}
        tests = " and ".join(name for name, one in found.items() if one == self.tracks)
        if self.tracks == "no":
            return f"this map does not track the model: it fails the test against {tests}"
        return f"cannot tell whether this map tracks the model: undecided against {tests}"

    def __repr__(self) -> str:
        return f"Verdict({self.sentence})"

    @property
    def reasons(self) -> tuple[str, ...]:
        """The numbers, in words."""
        images = "on 1 image" if self.images == 1 else f"on {self.images} images"
        holm = ""
        if self.adjusted_p_value != self.p_value:
            holm = f" ({self.adjusted_p_value:.3f} corrected for the number of methods)"
        found = [
            f"{contrast_text(self.contrast)} {images}, p = {self.p_value:.3f}"
            f"{holm} by {self.orders} random maps: {self.chance} (deletion area "
            f"{self.deletion:.3f}, insertion area {self.insertion:.3f})",
            f"absolute rank correlation with maps of shuffled models {self.correlation:.2f}: "
            f"{WEIGHTS[self.depends_on_weights]}",
        ]
        if self.head_correlation > 0.99:
            found.append(
                "shuffling the head alone leaves the map unchanged (absolute rank correlation "
                f"{self.head_correlation:.2f}): {CLASSES[self.asks_about_class]}"
            )
        return tuple(found)

    @property
    def chance(self) -> str:
        """The test against random maps in words: the p-value that counts is the corrected one."""
        shown = self.adjusted_p_value <= MAX_P
        small = f"less than {MIN_GAIN:.0%} of the score"
        if self.beats_chance == "yes":
            return "better than chance"
        if self.p_value >= CLEAR_P:
            return "no better than chance"
        if self.beats_chance == "unclear":
            return f"not shown to be better than chance, which takes a p of at most {MAX_P:g}"
        if shown:
            return f"better than chance, but the difference is too small, {small}"
        return f"not shown to be better than chance, and the difference is too small, {small}"


def contrast_text(contrast: float) -> str:
    """
    >>> contrast_text(0.25).partition(" lowers ")[2]
    'the score by 0.250 more than blurring the least relevant ones'
    >>> contrast_text(-0.0001).partition(" lowers ")[2]
    'the score no more than blurring the least relevant ones (difference 0.000)'
    """
    difference = round(contrast, 3) + 0.0  # never -0.0
    if difference > 0:
        by = f"by {difference:.3f} more than blurring the least relevant ones"
    else:
        by = f"no more than blurring the least relevant ones (difference {difference:.3f})"
    return f"blurring the most relevant cells lowers the score {by}"


WEIGHTS: dict[Finding, str] = {
    "yes": "it depends on the weights",
    "no": "it does not depend on the weights",
    "unclear": "it may or may not depend on the weights",
}
# What it means that the head has no say, by whether the method asks about a class.
CLASSES = {
    False: "the method asks about no class, and its map is the same for all",
    True: "the method asks about a class, but here its map hardly depends on which",
}


@dataclass(frozen=True)
class MethodCheck:
    """The verdict on a method, its curves, and scores without parts that random maps chose."""

    verdict: Verdict
    curves: Curves
    random: Float[Tensor, "R 2 S B"]


@dataclass
class RandomMaps:
    """Scores without the first and the last cells of random maps, as many as were wanted so far;
    methods with one layout share them."""

    score: Score
    images: Images
    layout: TokenLayout
    seed: int = 0
    scores: list[Float[Tensor, "2 S B"]] = field(default_factory=list)

    def first(self, count: int) -> Float[Tensor, "R 2 S B"]:
        for turn in range(len(self.scores), count):
            order = random_order(len(self.images), self.layout.grid, self.seed, turn)
            self.scores.append(
                scores_without(self.score, self.images, order, self.layout, REMOVED_SHARES)
            )
        return torch.stack(self.scores[:count])


def contrast(scores: Float[Tensor, "*R 2 S B"]) -> Float[Tensor, "*R B"]:
    """How much more the first cells of an order cost than the last ones, over all shares."""
    return (scores[..., 1, :, :] - scores[..., 0, :, :]).mean(dim=-2)


def own_contrast(curves: Curves) -> Float[Tensor, "B"]:
    """The contrast of the order that the curves follow: without its first cells is a point of the
    deletion curve, without its last ones a point of the insertion curve, as far from its end."""
    at = [CURVE_SHARES.index(share) for share in REMOVED_SHARES]
    first, last = curves.deletion[:, at], curves.insertion.flip(1)[:, at]
    return contrast(torch.stack([first, last]).mT)


def check_methods(
    methods: Mapping[str, ExplainFunction],
    model: nn.Module,
    images: Images,
    target: Int[Tensor, "B"],
    *,
    multi_label: bool = False,
    maps: Mapping[str, Relevance] | None = None,
    shuffles: int = 3,
    seed: int = 0,
) -> dict[str, MethodCheck]:
    """The verdict on the maps of each method, which gives those of these images for this target, of
    whatever model it is handed; `maps` has the maps of `model` itself where they exist already.

    >>> from vitrail.explanation.saliency import saliency
    >>> tiny = create("vit_ti_16", image_size=32, depth=1, num_classes=3).eval()
    >>> images, target = torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    >>> found = check_methods({"saliency": saliency}, tiny, images, target)
    >>> found["saliency"].verdict.images
    2
    """
    score = class_probability(model, target, multi_label=multi_label)
    shared: dict[tuple[tuple[int, int], tuple[int, int], bool], RandomMaps] = {}
    checks = {}
    for name, explain in methods.items():
        found = (maps or {}).get(name) or explain(model, images)
        at, order = found.layout, relevance_order(found, seed=seed)
        key = (at.grid, at.strides, at.fold is not None)
        random_maps = shared.setdefault(key, RandomMaps(score, images, at, seed))
        curves = compute_curves(score, images, order, at, CURVE_SHARES)
        own = own_contrast(curves)
        random, p = compare_with_random(own, random_maps, max_orders(len(images), len(methods)))
        head, correlations = shuffle_check(
            explain, model, images, found.map, times=shuffles, seed=seed
        )
        verdict = Verdict(
            images=len(images),
            score=float(curves.deletion[:, 0].mean()),
            deletion=float(curves.deletion_area.mean()),
            insertion=float(curves.insertion_area.mean()),
            contrast=float(own.mean()),
            orders=len(random),
            p_value=p,
            adjusted_p_value=p,
            head_correlation=head,
            correlation=sum(correlations) / len(correlations),
            asks_about_class=name not in CLASSLESS,
        )
        checks[name] = MethodCheck(verdict, curves, random)
    adjusted = holm([check.verdict.p_value for check in checks.values()])
    return {
        name: replace(check, verdict=replace(check.verdict, adjusted_p_value=p))
        for (name, check), p in zip(checks.items(), adjusted, strict=True)
    }


def compare_with_random(
    own: Float[Tensor, "B"], maps: RandomMaps, most: int
) -> tuple[Float[Tensor, "R 2 S B"], float]:
    """Random maps, and the p-value of a map among them: a few at a time, until they do as well as
    the map or are as many as there may be."""
    for count in sample_counts(most):
        random = maps.first(count)
        p = permutation_p_value(own, contrast(random))
        if p >= (CLEAR_P if count >= MIN_ORDERS else HOPELESS_P):
            break
    return random, p


def sample_counts(most: int) -> list[int]:
    """After how many random maps the p-value is looked at.

    >>> sample_counts(12), sample_counts(90)
    ([4, 9, 12], [4, 9, 18, 36, 72, 90])
    """
    counts = [FIRST_ORDERS, MIN_ORDERS]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    return counts


def max_orders(images: int, methods: int) -> int:
    """Random maps of each image so that the least p-value is small enough for so many methods.

    >>> [max_orders(images, 1) for images in (1, 2, 3, 100)], max_orders(1, 7)
    ([12, 9, 9, 9], 90)
    """
    pool = math.ceil((RESOLUTION * methods) ** (1 / images))
    return min(max(math.ceil(pool / 2) - 1, MIN_ORDERS), MAX_ORDERS)


def permutation_p_value(own: Float[Tensor, "B"], others: Float[Tensor, "R B"]) -> float:
    """A permutation test: of each image's contrasts, its own and those of random maps, each with
    either sign, because the reverse order has the other one, take any; how often is their sum as
    large as that of the own ones? All ways are tried, or many where they are too many.

    >>> permutation_p_value(torch.tensor([2.0]), torch.tensor([[0.0], [1.0], [3.0]]))
    0.25
    """
    values = torch.cat([own[None], others]).double().cpu()
    pools = torch.cat([values, -values]).numpy()
    total = float(own.double().sum()) - 1e-9
    if len(pools) ** pools.shape[1] <= MAX_COMBINATIONS:
        sums = np.zeros(1)
        for pool in pools.T:
            sums = np.add.outer(sums, pool).ravel()
        return float((sums >= total).mean())
    generator = np.random.default_rng(seed_of("luck"))
    chosen = generator.integers(len(pools), size=(SAMPLES, pools.shape[1]))
    sums = np.take_along_axis(pools, chosen, axis=0).sum(axis=1)
    return float((1 + (sums >= total).sum()) / (1 + SAMPLES))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down rule (1979): p-values of several tests, made so large that all of them
    together err as rarely as one.

    >>> holm([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.04]
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda each: p[each])):
        largest = max(largest, min((len(p) - rank) * p[place], 1.0))
        adjusted[place] = largest
    return adjusted
