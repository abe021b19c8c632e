"""3-Augment and AugMix: the operators of their peers, drawn by the sample alone."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from timm.data import auto_augment
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation, Transform, cpu_generator_at
from vitrail.data.sampler import side_at
from vitrail.data.three_augment import ThreeAugment

PHOTO = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)


def test_three_augment_is_one_of_the_peers_operators() -> None:
    image, seen = Image.fromarray(PHOTO), {"grey": 0, "solarized": 0, "blurred": 0}
    grey = np.asarray(ImageOps.grayscale(image).convert("RGB"))
    solarized = np.asarray(functional.solarize(image, 128))
    for seed in range(90):
        found = np.asarray(ThreeAugment()(image, seed))
        draw = np.random.default_rng(seed)
        _, strength = draw.integers(3), draw.random()
        blurred = np.asarray(auto_augment.gaussian_blur(image, 0.1 + 1.9 * strength))
        peers = {"grey": grey, "solarized": solarized, "blurred": blurred}
        (name,) = [name for name, peer in peers.items() if np.array_equal(found, peer)]
        seen[name] += 1
    assert min(seen.values()) >= 18  # each a third, give or take
    grey_image = Image.fromarray(PHOTO[..., 0])
    assert all(ThreeAugment()(grey_image, seed).mode == "L" for seed in range(6))


def test_augmix_is_torchvisions_with_the_samples_own_draws() -> None:
    how = Preprocessing(size=(24, 24))
    transform = Transform(Augmentation(crop=None, flip=0.0, policy="augmix"), how)
    image = torch.from_numpy(PHOTO).permute(2, 0, 1)
    keys: dict[str, Any] = {"seed": 3, "epoch": 1, "index": 5, "view": 0}
    found = transform(image, **keys)
    torch.manual_seed(99)  # what else draws has no say
    assert torch.equal(found, transform(image, **keys))
    assert not torch.equal(found, transform(image, **{**keys, "index": 6}))
    from vitrail.core.randomness import seed_of

    with cpu_generator_at(seed_of("augment", *keys.values())):
        assert torch.equal(found, v2.AugMix()(image))


def test_progressive_sides_share_the_run() -> None:
    assert [side_at(e, 3, (8, 12)) for e in range(3)] == [8, 12, None]
    assert [side_at(e, 0.5, (8,)) for e in range(1)] == [8]
    assert side_at(100, 3, (8, 12)) is None
    assert side_at(0, 3, ()) is None
    for wrong in ((12, 8), (8, 8), (0,)):
        with pytest.raises(UserError, match=r"augmentation\.progressive"):
            Augmentation(progressive=wrong)
    with pytest.raises(UserError, match="sides must be empty"):
        Augmentation(progressive=(8,), sides=(8,))
