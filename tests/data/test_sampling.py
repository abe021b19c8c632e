"""Order, augmentation and mixing as functions of their keys."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import permutation, uniform, words
from vitrail.data.augment import NOTHING, Augmentation, make_transform, mix
from vitrail.data.loader import Batch
from vitrail.data.sampler import cut_epoch, epoch_order, places_of, share_of
from vitrail.data.warp import warp

HOW = Preprocessing(size=(8, 8), mean=(0.5,), std=(0.5,))


def test_draws_are_uniform_and_independent() -> None:
    one = uniform("a", 0, 1, np.arange(100_000))
    assert abs(one.mean() - 0.5) < 0.004
    assert abs(one.std() - 12**-0.5) < 0.002
    counts, _ = np.histogram(one, bins=50, range=(0, 1))
    assert abs(counts - 2000).max() < 5 * 2000**0.5
    for other in (uniform("b", 0, 1, np.arange(100_000)), uniform("a", 1, 1, np.arange(100_000))):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.013
    assert len(np.unique(words("a", np.arange(100), np.arange(100)[:, None]))) == 10_000


@given(count=st.integers(1, 60), batch=st.integers(1, 20), world=st.integers(1, 5))
def test_every_image_once_an_epoch_whoever_reads(count: int, batch: int, world: int) -> None:
    order = epoch_order(count, seed=1, epoch=2)
    assert sorted(order[:, 0]) == list(range(count))
    cuts = cut_epoch(count, batch)
    assert len(cuts) == max(count // batch, 1)
    for cut in cuts:
        whole = order[cut.first : cut.last]
        assert len(whole) == min(batch, count)
        shares = [share_of(whole, rank=rank, world=world) for rank in range(world)]
        together = sorted(map(tuple, np.concatenate(shares)))
        assert together == sorted(map(tuple, whole))
        # what mixup pairs in the whole batch it pairs in a share
        pairs = {tuple(pair) for pair in zip(whole[:, 0], whole[::-1, 0], strict=True)}
        for share in shares:
            assert {tuple(pair) for pair in zip(share[:, 0], share[::-1, 0], strict=True)} <= pairs


@given(count=st.integers(1, 3000), batch=st.integers(1, 64), epoch=st.integers(0, 5))
def test_batches_of_several_sizes_cost_the_same(count: int, batch: int, epoch: int) -> None:
    sides = (160, 256, 320)
    cuts = cut_epoch(count, batch, sides=sides, usual=256, seed=3, epoch=epoch)
    assert len(cuts) == len(cut_epoch(count, batch, sides=sides, usual=256, seed=9, epoch=0))
    assert cuts[0].first == 0
    for one, after in pairwise(cuts):
        assert one.last == after.first
    assert cuts[-1].last <= count
    for cut in cuts:
        assert cut.side in sides
        if len(cuts) > 1:
            assert cut.last - cut.first == max(round(batch * 256**2 / cut.side**2), 1)
    if len(cuts) >= 6:
        assert {cut.side for cut in cuts} == set(sides)


def test_epochs_and_seeds_differ() -> None:
    orders = [epoch_order(50, seed=s, epoch=e)[:, 0].tolist() for s in (0, 1) for e in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert permutation("order", 50, 0, 0).tolist() == permutation("order", 50, 0, 0).tolist()


def test_repeated_images_come_under_different_views() -> None:
    order = epoch_order(90, seed=0, epoch=0, repeats=3)
    assert len(order) == 90
    assert len(set(map(tuple, order))) == 90
    assert np.bincount(order[:, 0], minlength=90).max() == 3
    assert len(set(order[:, 0])) == 30


def test_balance_draws_every_class_equally_often() -> None:
    classes = np.array([0] * 90 + [1] * 9 + [2])
    order = epoch_order(100, seed=0, epoch=0, balance=classes)
    drawn = np.bincount(classes[order[:, 0]])
    assert sorted(drawn) == [33, 33, 34]


def test_a_transform_is_a_function_of_the_samples_seed() -> None:
    transform = make_transform(Augmentation(policy="trivialaugment", erase=0.5), HOW)
    image = torch.randint(0, 256, (1, 8, 8), dtype=torch.uint8)
    before = torch.random.get_rng_state()
    one, again, other = transform(image, 3), transform(image, 3), transform(image, 4)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_without_augmentation_a_batch_is_only_normalised() -> None:
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    samples = np.stack([np.arange(5), np.zeros(5, dtype=int)], axis=1)
    out = warp(images, samples, NOTHING, HOW, seed=0, epoch=0)
    torch.testing.assert_close(out, images / 127.5 - 1)


def test_a_batch_is_warped_sample_by_sample() -> None:
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8)
    samples = np.stack([np.arange(6), np.arange(6) % 2], axis=1)
    asked = Augmentation(crop=(0.5, 1.0), rotate=20, shift=0.1, zoom=0.2, erase=0.5)
    whole = warp(images, samples, asked, HOW, seed=3, epoch=1)
    parts = [warp(images[[i]], samples[[i]], asked, HOW, seed=3, epoch=1) for i in range(6)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-4, atol=1e-4)


def test_flips_mirror_and_happen_as_often_as_asked() -> None:
    images = torch.randint(0, 256, (2000, 1, 4, 4), dtype=torch.uint8)
    samples = np.stack([np.arange(2000), np.zeros(2000, dtype=int)], axis=1)
    how = replace(HOW, size=(4, 4))
    out = warp(images, samples, replace(NOTHING, flip=0.3), how, seed=0, epoch=0)
    plain = images / 127.5 - 1
    mirrored = ((out - plain.flip(3)).abs().amax(dim=(1, 2, 3)) < 1e-5).sum().item()
    same = ((out - plain).abs().amax(dim=(1, 2, 3)) < 1e-5).sum().item()
    assert mirrored + same == 2000
    assert abs(mirrored - 600) < 4 * (2000 * 0.21) ** 0.5


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "both"])
def test_mixing_shares_pixels_and_targets_alike(kind: str) -> None:
    asked = Augmentation(mixup=0.8 * (kind != "cutmix"), cutmix=1.0 * (kind != "mixup"))
    images = torch.zeros(4, 3, 16, 16)
    images[2:] = 1.0
    targets = torch.eye(2).repeat_interleave(2, dim=0)
    shares = []
    for step in range(50):
        mixed, soft = mix(images, targets, asked, seed=0, step=step)
        torch.testing.assert_close(soft.sum(1), torch.ones(4))
        torch.testing.assert_close(mixed.mean(dim=(1, 2, 3)), soft[:, 1], rtol=0, atol=1e-5)
        again, _ = mix(images, targets, asked, seed=0, step=step)
        assert torch.equal(mixed, again)
        shares.append(soft[0, 0].item())
    assert min(shares) < 0.5 < max(shares)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"flip": 1.5}, "a probability is in"),
        ({"mixup": -1.0}, "must not be negative"),
        ({"crop": (0.0, 1.0)}, "two shares"),
        ({"repeats": 0}, "at least 1"),
    ],
)
def test_an_augmentation_that_cannot_be(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Augmentation(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_partners_and_parts_do_not_depend_on_processes_or_broken_images(world: int) -> None:
    """Who is mixed with whom, and which part of a step an image is in, is decided by places."""
    planned, broken = 11, {2, 7}
    partner, part = dict[int, int](), dict[int, int]()
    for rank in range(world):
        places = places_of(planned, rank=rank, world=world)
        places = places[~np.isin(places, list(broken))]
        batch = Batch(
            torch.zeros(len(places), 1, 1, 1),
            torch.zeros(len(places), 2),
            places,
            places=places,
            planned=planned,
        )
        partner |= dict(
            zip(places.tolist(), places[batch.partners().numpy()].tolist(), strict=True)
        )
        sizes = batch.parts(3)
        assert sum(sizes) == len(places)
        part |= dict(zip(places.tolist(), np.repeat(range(3), sizes).tolist(), strict=True))
    ends = {place: planned - 1 - place for place in range(planned) if place not in broken}
    assert partner == {p: p if q in broken else q for p, q in ends.items()}
    assert part == {place: place * 3 // planned for place in ends}
