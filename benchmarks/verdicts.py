"""How often the verdict on a map is wrong, on models and maps whose answer is known.

Models of `benchmarks.pointing`, images with planted evidence, and four kinds of maps:

- right: those of the method that `auto` chooses, of images that the model gets right and whose
  highest cell lies on the digit. They should track the model.
- random: smooth noise, new at every call. They should not.
- shuffled: those of the same method on the model with all weights shuffled. They should not.
- edges: how much each cell's pixels vary, whatever the model. They should not.

    python -m benchmarks.verdicts --runs DIRECTORY [--seed N] [--trials N] [--only FAMILY]
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.pointing import FAMILIES, Evidence, evidence_for, trained
from vitrail.explanation.auto_method import choose_method
from vitrail.explanation.blur import gaussian_blur
from vitrail.explanation.methods import METHODS, bind_method
from vitrail.explanation.pointing import pointing_game
from vitrail.explanation.propagation import sum_over_cells
from vitrail.explanation.readout import Relevance, finest_layout
from vitrail.explanation.shuffling import ExplainFunction, shuffled_copy
from vitrail.explanation.verdict import check_methods
from vitrail.models.model import Model

KINDS = ("right", "random", "shuffled", "edges")
FINDINGS = ("yes", "unclear", "no")
GROUPS = (1, 4)  # images that a verdict is on


def main() -> None:
    """Print a row for each kind of map and number of images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where models are kept and found")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--trials", type=int, default=40, help="verdicts for each model and kind")
    parser.add_argument("--only", choices=list(FAMILIES), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[int, str], Counter[str]] = {}
    for family in options.only or FAMILIES:
        model = trained(family, options.runs / family, options.seed)
        for group, kind, tracks in verdicts(model, options.trials):
            found.setdefault((group, kind), Counter())[tracks] += 1
        for (group, kind), counts in found.items():
            print(f"after {family}: {kind} on {group}: {dict(counts)}", flush=True)
    print("\n| maps | images | verdicts | track | cannot tell | do not track |")
    print("|---|---|---|---|---|---|")
    for (group, kind), counts in sorted(found.items()):
        total = counts.total()
        shares = " | ".join(f"{counts[each] / total:.1%}" for each in FINDINGS)
        print(f"| {kind} | {group} | {total} | {shares} |")


def verdicts(model: Model, trials: int) -> Iterator[tuple[int, str, str]]:
    """Number of images, kind of maps and verdict, trial by trial."""
    evidence = good_evidence(model, trials * max(GROUPS))
    for group in GROUPS:
        for trial in range(min(trials, len(evidence.images) // group)):
            part = slice(trial * group, (trial + 1) * group)
            images, target = evidence.images[part], evidence.targets[part]
            for kind in KINDS:
                method = maps_of(kind, model, target, trial)
                check = check_methods({kind: method}, model, images, target, seed=trial)[kind]
                yield group, kind, check.verdict.tracks


def good_evidence(model: Model, count: int) -> Evidence:
    """Images that the model gets right, and whose map is right too."""
    every = evidence_for(model, min(2 * count, 1000))
    method, good = METHODS[choose_method(model).method], []
    for first in range(0, len(every.images), 50):
        part = slice(first, first + 50)
        images, targets = every.images[part], every.targets[part]
        found = method(model, images, targets)
        size = (every.side, every.side)
        hits = pointing_game(found.map, every.boxes[part], size, layout=found.layout)
        with torch.no_grad():
            good.append(hits & (model(images).argmax(dim=1) == targets))
    chosen = torch.cat(good).nonzero()[:count, 0]
    return Evidence(every.images[chosen], every.targets[chosen], every.boxes[chosen], every.side)


def maps_of(kind: str, model: Model, target: Tensor, trial: int) -> ExplainFunction:
    method, layout = bind_method(choose_method(model).method, model, target), finest_layout(model)
    generator = torch.Generator().manual_seed(trial)
    other = shuffled_copy(model, seed=1000 + trial)

    def right(tested: nn.Module, images: Tensor) -> Relevance:
        return method(tested, images)

    def random(_: nn.Module, images: Tensor) -> Relevance:
        noise = torch.randn(images.shape, generator=generator)
        smooth = gaussian_blur(noise, 0.1, beyond="zeros")[:, 0]
        return Relevance(sum_over_cells(smooth, layout), layout, "random")

    def shuffled(tested: nn.Module, images: Tensor) -> Relevance:
        return method(other if tested is model else shuffled_copy(tested), images)

    def edges(_: nn.Module, images: Tensor) -> Relevance:
        rough = (images - gaussian_blur(images, 0.1)).square().sum(dim=1)
        return Relevance(sum_over_cells(rough, layout), layout, "edges")

    kinds: dict[str, Callable[[nn.Module, Tensor], Relevance]] = {
        "right": right, "random": random, "shuffled": shuffled, "edges": edges,
    }  # fmt: skip
    return kinds[kind]


if __name__ == "__main__":
    main()
