"""The peer of our training benchmarks: a trainer made of timm's own parts.

Model, loader, augmentation, mixup, optimiser, schedule, clipping, loss and running mean are timm's;
the loop around them does with them what timm's train.py does, on a CPU.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from vitrail.core.torchvision import mend_torchvision
from vitrail.data.source import Source
from vitrail.models.vit import ViT, ViTConfig

POOLS = {"cls": "token", "mean": "avg"}
CPU = torch.device("cpu")

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What timm's train.py takes on its command line, as far as it matters here."""

    rate: float  # peak
    optimiser: str = "adamw"  # by the name that timm's factory knows
    batch_size: int = 64
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.05
    warmup: float = 0.1  # share of the run
    floor: float = 1e-5
    clip: float | None = None
    init: str = ""  # timm's own truncated normal; "jax" is the paper's
    drop_path: float = 0.1
    patch_drop: float = 0.0
    smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    switch: float = 0.5  # probability of cutmix where both are on
    crop: str = "rrc"  # "rkrr" moves and pads with reflections
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    policy: str | None = None  # of timm's AutoAugment family
    jitter: float | None = None
    erase: float = 0.0
    interpolation: str = "bicubic"
    average: float = 0.99
    average_warmup: bool = True
    prefetcher: bool = True
    workers: int = 0


# arXiv:2012.12877, table 9, as its repository and timm run it. Its repeated augmentation is left
# out: timm's loader has it for distributed runs alone. Five epochs of 300 warm up; for a run of a
# few epochs the share is what can be kept, and it is made longer since the run is so much shorter.
DEIT = Settings(
    rate=5e-4 * 64 / 512,
    mixup=0.8,
    cutmix=1.0,
    policy="rand-m9-mstd0.5-mmax9-inc1",
    erase=0.25,
    average=0.99996,
    average_warmup=False,
)
# What was quickest on small images in a few minutes, of the learning rates, optimisers, crops,
# initialisations and drop rates that docs/log.md names.
LIGHT = Settings(
    rate=2e-3,
    scale=(1.0, 1.0),
    ratio=(1.0, 1.0),
    flip=0.0,
    drop_path=0.0,
    init="jax",
    clip=1.0,
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a run came to: seconds of training, evaluations not counted, and its accuracies: of
    the live weights, of their running mean, or of both."""

    steps: int
    seconds: float
    accuracies: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return max(self.accuracies.values(), default=0.0)


class ImageList(Dataset[tuple[Any, int]]):
    """Arrays as the Pillow images that timm's transforms read; the loader sets `transform`."""

    transform: Callable[[Image.Image], Any] | None = None

    def __init__(self, source: Source) -> None:
        arrays = (np.asarray(source.read(i)) for i in range(len(source)))
        self.photos = [Image.fromarray(array.squeeze()) for array in arrays]
        self.targets = np.asarray(source.targets).tolist()

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        photo = self.photos[index]
        return self.transform(photo) if self.transform else photo, self.targets[index]


def make_model(
    config: ViTConfig, *, drop_path: float, patch_drop: float = 0.0, init: str = ""
) -> nn.Module:
    """timm's ViT of the shape of ours, with as many parameters."""
    mend_torchvision()
    import timm

    model = timm.create_model(
        "vit_tiny_r_s16_p8_224" if config.stem else "vit_base_patch16_224",
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.channels,
        num_classes=config.num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_dim / config.dim,
        class_token=config.class_token,
        global_pool=POOLS[config.pool],
        drop_path_rate=drop_path,
        patch_drop_rate=patch_drop,
        weight_init=init,
    )
    ours, theirs = (sum(p.numel() for p in m.parameters()) for m in (ViT(config), model))
    assert ours == theirs, f"ours has {ours:,} parameters, the peer {theirs:,}"
    return model


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """By timm's factory; AdamW is fused, which was the fastest of its three ways here."""
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(
        model,
        opt=settings.optimiser,
        lr=settings.rate,
        weight_decay=settings.weight_decay,
        betas=settings.betas,
        **({"fused": True} if settings.optimiser == "adamw" else {}),
    )


def make_loader(photos: ImageList, config: ViTConfig, settings: Settings) -> Any:
    """timm's training loader."""
    from timm.data import create_loader

    return create_loader(
        photos,
        input_size=(config.channels, *config.image_size),
        batch_size=settings.batch_size,
        is_training=True,
        train_crop_mode=settings.crop,
        scale=settings.scale,
        ratio=settings.ratio,
        hflip=settings.flip,
        auto_augment=settings.policy,
        color_jitter=settings.jitter,
        re_prob=settings.erase,
        re_mode="pixel",
        interpolation=settings.interpolation,
        mean=(0.5,) * config.channels,
        std=(0.5,) * config.channels,
        num_workers=settings.workers,
        use_multi_epochs_loader=settings.workers > 0,
        use_prefetcher=settings.prefetcher,
        device=CPU,
    )


def make_test(photos: ImageList, config: ViTConfig) -> Batches:
    """Every test image as it is, prepared once by timm's evaluation loader."""
    mend_torchvision()
    from timm.data import create_loader

    loader = create_loader(
        photos,
        input_size=(config.channels, *config.image_size),
        batch_size=250,
        crop_pct=1.0,
        interpolation="bicubic",
        mean=(0.5,) * config.channels,
        std=(0.5,) * config.channels,
        num_workers=0,
        use_prefetcher=False,
    )
    return list(loader)


class Peer:
    """timm's parts, put together for a run of so many steps."""

    def __init__(
        self, config: ViTConfig, photos: ImageList, settings: Settings, *, steps: int, seed: int
    ) -> None:
        mend_torchvision()
        from timm.data import Mixup
        from timm.loss import SoftTargetCrossEntropy
        from timm.scheduler import create_scheduler_v2
        from timm.utils import ModelEmaV3, random_seed

        random_seed(seed)
        self.settings, self.number = settings, 0
        self.model = make_model(
            config,
            drop_path=settings.drop_path,
            patch_drop=settings.patch_drop,
            init=settings.init,
        ).train()
        self.optimiser = make_optimiser(self.model, settings)
        self.scheduler, _ = create_scheduler_v2(
            self.optimiser,
            "cosine",
            num_epochs=steps,
            warmup_epochs=round(settings.warmup * steps),
            warmup_lr=1e-6,
            min_lr=settings.floor,
            step_on_epochs=False,
            updates_per_epoch=1,
        )
        self.average = ModelEmaV3(
            self.model, decay=settings.average, use_warmup=settings.average_warmup
        )
        self.mixup = Mixup(  # smooths the labels where it mixes nothing
            mixup_alpha=settings.mixup,
            cutmix_alpha=settings.cutmix,
            prob=1.0 if settings.mixup or settings.cutmix else 0.0,
            switch_prob=settings.switch,
            label_smoothing=settings.smoothing,
            num_classes=config.num_classes,
        )
        self.loss = SoftTargetCrossEntropy()
        loader = make_loader(photos, config, settings)
        self.batches: Iterator[tuple[Tensor, Tensor]] = chain.from_iterable(repeat(loader))

    def step(self) -> None:
        """One update, from the loader to the running mean."""
        from timm.utils import dispatch_clip_grad

        images, labels = next(self.batches)
        images, targets = self.mixup(images, labels)
        self.scheduler.step_update(self.number)
        self.optimiser.zero_grad()
        self.loss(self.model(images), targets).backward()
        if self.settings.clip is not None:
            dispatch_clip_grad(self.model.parameters(), self.settings.clip)
        self.optimiser.step()
        self.number += 1
        self.average.update(self.model, step=self.number)

    def evaluate(self, test: Batches) -> dict[str, float]:
        """Accuracy of the live weights and of their running mean."""
        result = {
            "live": accuracy(self.model, test),
            "average": accuracy(self.average.module, test),
        }
        self.model.train()
        return result


@torch.inference_mode()
def accuracy(model: nn.Module, test: Batches) -> float:
    """Share of test images whose largest logit is their label's."""
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in test)
    return right / sum(len(labels) for _, labels in test)


def train_peer(
    peer: Peer,
    test: Batches,
    *,
    steps: int,
    first: int = 0,
    every: int | None = None,
    target: float | None = None,
) -> Record:
    """Take the steps, or stop at the first evaluation that sees the target: they begin after the
    `first` steps, and come every so many."""
    seconds = 0.0
    every = every or steps
    while True:
        goal = min(max(peer.number + every, first), steps)
        began = time.perf_counter()
        while peer.number < goal:
            peer.step()
        seconds += time.perf_counter() - began
        record = Record(steps=peer.number, seconds=seconds, accuracies=peer.evaluate(test))
        if peer.number == steps or (target is not None and record.best >= target):
            return record


def time_step(step: Callable[[], Any], *, warm: int = 5, count: int = 20) -> float:
    """Mean seconds of a step, all that belongs to it counted."""
    for _ in range(warm):
        step()
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count
