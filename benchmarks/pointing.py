"""The pointing game on planted evidence: every method on every family, beside pytorch-grad-cam and
Captum on the same models.

A small model of each family is trained on images of which it is known where the answer lies
(`vitrail.data.planted`), then each method says where the true class is seen. It hits if the centre
of its highest cell lies in the box around the digit. Maps of single pixels are summed over the
cells of the model's finest attention, all of them; pytorch-grad-cam gives maps as large as the
image, of which the highest pixel counts, and reads a layer that has a grid of 8x8 or 4x4 (ours
reads it too, in a row of its own). Times are milliseconds an image, in batches.

    python -m benchmarks.pointing [--images N] [--threads N] [--only FAMILY] [--seed N]
        [--runs DIRECTORY]
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from vitrail.core.layout import TokenLayout
from vitrail.core.torchvision import mend_torchvision
from vitrail.data.augment import Augmentation
from vitrail.data.planted import Planted
from vitrail.data.preprocess import prepare
from vitrail.data.sources import open_data
from vitrail.evaluation.classify import score
from vitrail.explanation.auto_method import choose_method
from vitrail.explanation.capture import find_attentions
from vitrail.explanation.integrated import IncompleteWarning
from vitrail.explanation.methods import AUTO, METHODS
from vitrail.explanation.pointing import pointing_game
from vitrail.models.model import Model
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.progress import Progress
from vitrail.training.recipe import Monitor, Optimiser, Recipe, Schedule

BATCH = 25  # images explained at once
Maps = Callable[[Tensor, Tensor], Tensor]  # images and classes -> (B, rows, columns)


@dataclass(frozen=True)
class Family:
    """A small model, how long it learns, and the layer that pytorch-grad-cam reads."""

    model: str
    fields: dict[str, Any]
    layer: str
    steps: int
    batch_size: int = 32
    lr: float = 3e-3


VIT = {"patch_size": 8, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 128}

SWIN = {
    "patch_size": 4,
    "dim": 24,
    "depths": (2, 2, 2),
    "heads": (2, 4, 8),
    "window_size": 4,
    "mlp_ratio": 2.0,
}

FAMILIES = {
    "vit": Family("vit_ti_16", VIT, layer="blocks.2.norm1", steps=2500),
    "hybrid": Family(  # as `vitrail train` makes it of small images
        "vit_ti_16",
        {
            "patch_size": 2,
            "stem": {"blocks": (), "width": 16, "groups": 8},
            "dim": 64,
            "depth": 4,
            "heads": 4,
            "mlp_dim": 128,
            "pool": "mean",
            "class_token": False,
        },
        layer="blocks.3.norm1",
        steps=1000,
    ),
    "beit": Family(  # with layer scale it learns next to nothing in so few steps
        "beit_b_16", {**VIT, "layer_scale": None}, layer="blocks.2.norm1", steps=2000
    ),
    "swin": Family("swin_t", SWIN, layer="stages.2.blocks.1.norm1", steps=1250),
    "swinv2": Family("swinv2_t", SWIN, layer="stages.2.blocks.1", steps=1800),
    "mobilevit": Family(
        "mobilevit_xxs",
        {
            "stem": 8,
            "widths": (8, 16, 24, 32, 48),
            "dims": (32, 48, 64),
            "depths": (2, 2, 1),
            "last": 128,
            "expand": 2.0,
        },
        layer="stages.2.1",  # its last map has four cells
        steps=800,
    ),
    "mobilevitv2": Family(
        "mobilevitv2_050",
        {"stem": 8, "widths": (8, 16, 24, 32, 48), "dims": (32, 48, 64), "depths": (2, 2, 1)},
        layer="stages.2.1",
        steps=2500,
    ),
    "coatnet": Family(
        "coatnet_0",
        {  # strides that leave its first attention a grid of 8x8
            "stem": (8, 8),
            "dims": (16, 24, 48, 64),
            "depths": (1, 1, 2, 1),
            "strides": (2, 1, 2, 2),
            "dim_head": 16,
        },
        layer="stages.2.1",
        steps=2500,
    ),
}


def main() -> None:
    """Train them, then print a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500, help="test images, of 1000")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--only", choices=list(FAMILIES))
    parser.add_argument("--runs", type=Path, help="where trained models are kept and found again")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen = [arguments.only] if arguments.only else list(FAMILIES)
    with TemporaryDirectory() as folder:
        root = arguments.runs or Path(folder)
        tables = {
            name: play(name, root / name, arguments.images, arguments.seed) for name in chosen
        }
    print(f"\n| method | {' | '.join(f'{name} | ms' for name in chosen)} |")
    print(f"|---|{'---|' * 2 * len(chosen)}")
    for method in next(iter(tables.values())):
        cells = (
            f"{tables[name][method][0]:.1%} | {tables[name][method][1]:.1f}" for name in chosen
        )
        print(f"| {method} | {' | '.join(cells)} |")
    for name in chosen:
        shares = {method: share for method, (share, _) in tables[name].items()}
        best = max(METHODS, key=lambda method: shares[method])
        captum = max((m for m in shares if m.startswith("Captum")), key=lambda m: shares[m])
        print(
            f"{name}: best of ours {best} {shares[best]:.1%}, auto {shares[AUTO]:.1%}, best of "
            f"Captum's {captum} {shares[captum]:.1%}"
        )


@dataclass(frozen=True)
class Evidence:
    """Test images as a model reads them, their classes, and the boxes around their digits."""

    images: Tensor
    targets: Tensor
    boxes: Tensor
    side: int


def evidence_for(model: Model, count: int) -> Evidence:
    source, how = Planted(count, "test", seed=1), model.passport.preprocessing
    images = torch.stack([prepare(source.read(index), how) for index in range(count)])
    targets, boxes = (torch.from_numpy(each) for each in (source.targets, source.boxes))
    return Evidence(images, targets, boxes, source.side)


def play(name: str, out: Path, count: int, seed: int) -> dict[str, tuple[float, float]]:
    """Share of hits and milliseconds of every method on one family."""
    model = trained(name, out, seed)
    evidence = evidence_for(model, count)
    with torch.inference_mode():
        predicted = torch.cat([model(part).argmax(dim=1) for part in evidence.images.split(100)])
    right = float((predicted == evidence.targets).float().mean())
    print(f"{name}: {right:.1%} of {count} test images right", flush=True)
    table = {}
    for method, maps_of in methods(model, name):
        table[method] = share, took = point(maps_of, evidence)
        print(f"  {method:32} {share:6.1%} {took:8.1f} ms", flush=True)
    return table


def point(maps_of: Maps, evidence: Evidence) -> tuple[float, float]:
    """Share of hits, and milliseconds an image."""
    count, size = len(evidence.images), (evidence.side, evidence.side)
    hits, began = [], time.perf_counter()
    for first in range(0, count, BATCH):
        part = slice(first, first + BATCH)
        maps = maps_of(evidence.images[part], evidence.targets[part])
        hits.append(pointing_game(maps, evidence.boxes[part], size))
    took = 1000 * (time.perf_counter() - began) / count
    return float(torch.cat(hits).float().mean()), took


def trained(name: str, out: Path, seed: int = 0, steps: int | None = None) -> Model:
    """The model of a run, or of one that was trained before; `steps` other than the family's."""
    if (out / "best").is_dir():
        return vitrail.load(out / "best").eval()
    family = FAMILIES[name]
    if steps is not None:
        family = replace(family, steps=steps)
    splits = open_data("planted")
    recipe = recipe_for(family, seed)

    def scorer(logits: Any, targets: Any) -> tuple[str, dict[str, float]]:
        found = score(logits, targets, multi_label=False)
        return found.key, found.values

    def show(now: Progress) -> None:
        if now.scores is not None:
            line = ", ".join(f"{name} {value:.3f}" for name, value in now.scores.items())
            print(f"  step {now.step} of {now.total}: loss {now.loss:.3f}, {line}", flush=True)

    began = time.process_time()
    Trainer(prepare_task(recipe, splits, scorer), out, show).run()
    print(f"{name}: {time.process_time() - began:.0f} s of one core to train", flush=True)
    return vitrail.load(out / "best").eval()


def recipe_for(family: Family, seed: int) -> Recipe:
    return Recipe(
        data="planted",
        model=family.model,
        fields={**family.fields, "channels": 1, "image_size": (64, 64)},
        optimiser=Optimiser(name="muon", lr=family.lr, weight_decay=0.05),
        schedule=Schedule(steps=family.steps, warmup=family.steps // 10),
        augmentation=Augmentation(crop=None, flip=0.0),
        monitor=Monitor(eval_every_epochs=0.25),
        batch_size=family.batch_size,
        ema_decay=0.99,
        seed=seed,
    )


def methods(model: Model, family: str) -> Iterator[tuple[str, Maps]]:
    """Ours, theirs, and chance."""
    for name in METHODS:
        yield name, ours(model, name)
    yield AUTO, ours(model, choose_method(model).method)
    layer = FAMILIES[family].layer
    yield "gradcam, the same layer as below", ours(model, "gradcam", layer=layer)
    yield from grad_cams(model, model.get_submodule(layer))
    yield from captums(model)
    generator = torch.Generator().manual_seed(0)
    yield "chance", lambda images, _: torch.rand(len(images), 8, 8, generator=generator)


def ours(model: Model, name: str, **options: Any) -> Maps:
    def maps_of(images: Tensor, targets: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IncompleteWarning)
            return METHODS[name](model, images, targets, **options).map

    return maps_of


def grad_cams(model: Model, layer: nn.Module) -> Iterator[tuple[str, Maps]]:
    """pytorch-grad-cam's."""
    mend_torchvision()  # which it imports
    from pytorch_grad_cam import EigenCAM, GradCAM, HiResCAM, LayerCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    def as_map(tokens: Tensor) -> Tensor:
        """Channels first, as convolutions have them."""
        if tokens.ndim == 3:
            side = math.isqrt(tokens.shape[1])
            return tokens[:, -side * side :].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        return tokens if tokens.shape[2] == tokens.shape[3] else tokens.permute(0, 3, 1, 2)

    def maps_by(kind: Any) -> Maps:
        def maps_of(images: Tensor, targets: Tensor) -> Tensor:
            with kind(model, [layer], reshape_transform=as_map) as cam:
                wanted = [ClassifierOutputTarget(target) for target in targets.tolist()]
                return torch.from_numpy(cam(input_tensor=images, targets=wanted))

        return maps_of

    for kind in (GradCAM, HiResCAM, LayerCAM, EigenCAM):
        yield f"grad-cam {kind.__name__}", maps_by(kind)


def captums(model: Model) -> Iterator[tuple[str, Maps]]:
    """Captum's, of pixels: summed over the cells of the finest attention."""
    from captum.attr import InputXGradient, IntegratedGradients, Occlusion, Saliency

    finest = min((one.layout for one in find_attentions(model).values()), key=lambda at: at.stride)
    step = max(finest.stride, 8)

    def maps_by(attribute: Callable[..., Tensor], **options: Any) -> Maps:
        def maps_of(images: Tensor, targets: Tensor) -> Tensor:
            image = images.clone().requires_grad_()  # or it warns that it does so
            found = attribute(image, target=targets, **options).detach()
            return in_cells(found.sum(dim=1), finest)

        return maps_of

    yield "Captum Saliency", maps_by(Saliency(model).attribute)
    yield "Captum InputXGradient", maps_by(InputXGradient(model).attribute)
    yield (
        "Captum IntegratedGradients",
        maps_by(IntegratedGradients(model).attribute, n_steps=32, internal_batch_size=200),
    )
    yield (
        "Captum Occlusion",
        maps_by(
            Occlusion(model).attribute,
            sliding_window_shapes=(1, 2 * step, 2 * step),
            strides=(1, step, step),
        ),
    )


def in_cells(pixels: Tensor, layout: TokenLayout) -> Tensor:
    rows, columns = layout.grid
    return F.adaptive_avg_pool2d(pixels[:, None], (rows, columns))[:, 0]


if __name__ == "__main__":
    main()
