"""Order, augmentation and mixing as functions of their keys."""

import os
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.distributed_sampler import RepeatAugSampler

from tests.training.world import Stripes
from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import permutation, uniform, words
from vitrail.data.augment import NOTHING, Augmentation, Transform, mix
from vitrail.data.loader import Stream
from vitrail.data.sampler import Cut, cut_epoch, epoch_order, share_of
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


@pytest.mark.parametrize("world", [1, 2])
def test_repeated_images_meet_in_a_batch_as_in_timm(world: int) -> None:
    """How many copies of an image a batch of all processes has, the paper's point, and how many of
    them one process gets."""
    count, batch = 1536, 48
    order = epoch_order(count, seed=0, epoch=0, repeats=3)
    samplers = [
        RepeatAugSampler(range(count), num_replicas=world, rank=rank, num_repeats=3)
        for rank in range(world)
    ]
    shares = [list(sampler) for sampler in samplers]
    assert len(order) == sum(map(len, shares))
    mine = batch // world
    for number, cut in enumerate(cut_epoch(count, batch)):
        ours = order[cut.first : cut.last]
        theirs = [share[number * mine : (number + 1) * mine] for share in shares]
        together = [image for share in theirs for image in share]
        assert copies(ours[:, 0]) == copies(together)
        assert len(set(map(tuple, ours))) == len(ours)  # each under a view of its own
    assert len(set(order[:, 0])) == len(set(shares[0] + shares[-1]))


def copies(images: Iterable[int]) -> Counter[int]:
    """How many images there are of each number of copies."""
    return Counter(Counter(images).values())


def test_balance_draws_every_class_equally_often() -> None:
    classes = np.array([0] * 90 + [1] * 9 + [2])
    order = epoch_order(100, seed=0, epoch=0, balance=classes)
    drawn = np.bincount(classes[order[:, 0]])
    assert sorted(drawn) == [33, 33, 34]


def test_balance_draws_every_label_of_several_equally_often() -> None:
    targets = np.zeros((60, 4), dtype=np.int64)
    targets[:50, 0] = targets[45:58, 1] = targets[57, 2] = 1  # nothing has label 3, two have none
    order = epoch_order(60, seed=0, epoch=0, balance=targets)
    assert order[:, 0].max() < 58
    drawn = targets[order[:, 0]].sum(axis=0)
    assert drawn.min() == drawn[3] == 0
    assert (drawn[:3] >= 20).all()
    with pytest.raises(UserError, match=r"goal\.balance must be off"):
        epoch_order(60, seed=0, epoch=0, balance=np.zeros((60, 4)))


def test_a_transform_is_a_function_of_the_sample() -> None:
    transform = Transform(Augmentation(policy="trivialaugment", jitter=0.4), HOW)
    image = torch.randint(0, 256, (1, 8, 8), dtype=torch.uint8)
    before = torch.random.get_rng_state()
    one, again, *others = (
        transform(image, seed=seed, epoch=epoch, index=index, view=view)
        for seed, epoch, index, view in
        [(3, 0, 0, 0), (3, 0, 0, 0), (4, 0, 0, 0), (3, 1, 0, 0), (3, 0, 1, 0), (3, 0, 0, 1)]
    )  # fmt: skip
    assert torch.equal(one, again)
    assert not any(torch.equal(one, other) for other in others)
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


@pytest.mark.sampled(2)
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


def test_an_epoch_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every step: for a million images that took longer than reading some."""
    cuts = list[int]()

    def cut_and_note(*args: Any, **options: Any) -> list[Cut]:
        cuts.append(options["epoch"])
        return cut_epoch(*args, **options)

    monkeypatch.setattr("vitrail.data.loader.cut_epoch", cut_and_note)
    for sides in ((), (4, 8)):
        cuts.clear()
        asked = replace(NOTHING, sides=sides, flip=0.5)
        stream = Stream(source=Stripes(64), how=HOW, augmentation=asked, batch_size=8)
        steps = stream.steps
        assert sum(1 for _ in stream.batches(0, 2 * steps)) == 2 * steps
        assert len(cuts) <= 5
        assert set(cuts) == {0, 1}
    assert steps == len(cut_epoch(64, 8, sides=(4, 8), usual=8))


def test_a_batch_is_one_open_file_between_processes() -> None:
    """1,024 images of one tensor each were "too many open files"."""
    asked = Augmentation(jitter=0.1)  # which is done in workers
    stream = Stream(source=Stripes(512), how=HOW, augmentation=asked, batch_size=256, workers=1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = len(os.listdir("/proc/self/fd")) + 80
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, before[1]))
    try:
        assert [len(batch.images) for batch in stream.batches(0, 2)] == [256, 256]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_balanced_classes_and_repeats_together() -> None:
    targets = np.array([0] * 90 + [1] * 10)
    order = epoch_order(100, seed=0, epoch=0, repeats=4, balance=targets)
    images = order[:, 0].reshape(25, 4)
    assert (images == images[:, :1]).all()
    assert len(np.unique(order, axis=0)) == 100  # no view of an image twice
    assert abs(int((targets[order[:, 0]] == 1).sum()) - 50) <= 4
